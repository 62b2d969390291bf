"""Posteriors against direct multiplication and enumeration; calibration; tails against exact sums; base rates by counting."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.math.probability.bayes import (
    RULES,
    detector_precision,
    expected_calibration_error,
    posterior,
    predict_next,
    probability_better,
)

rates = st.floats(0.01, 0.99)


@given(rates, st.lists(st.tuples(rates, rates), max_size=6))
def test_posterior_is_the_normalized_product(p, pairs):
    post = posterior({"a": p, "b": 1 - p}, [{"a": x, "b": y} for x, y in pairs])
    a, b = p * math.prod(x for x, _ in pairs), (1 - p) * math.prod(y for _, y in pairs)
    assert post["a"] == pytest.approx(a / (a + b), rel=1e-9)
    assert math.fsum(post.values()) == pytest.approx(1)


def test_order_of_examples_does_not_matter_to_the_exact_posterior():
    """What real in-context learning violates: its answers depend on the order (the page says so)."""
    shown = [(1, 3), (2, 4), (5, 6)]
    assert predict_next(shown, 4)[1] == pytest.approx(predict_next(shown[::-1], 4)[1])


def test_thousands_of_examples_do_not_underflow():
    post = posterior({"a": 0.5, "b": 0.5}, [{"a": 1e-3, "b": 1e-4}] * 5_000)
    assert post == {"a": 1.0, "b": 0.0}


def test_predictive_probabilities_over_all_answers_sum_to_one():
    _, post = predict_next([(1, 3)], 5)
    total = math.fsum(p * (0.1 / 10 + 0.9 * (RULES[rule](5) == y)) for rule, p in post.items() for y in range(10))
    assert total == pytest.approx(1)


def test_posterior_concentrates_on_the_rule_that_made_the_data():
    rng = random.Random(0)
    hits = 0
    for _ in range(200):
        shown = [(x, RULES["x+2"](x) if rng.random() < 0.9 else rng.randrange(10)) for x in (rng.randrange(10) for _ in range(6))]
        hits += max(predict_next(shown, 5)[1].items(), key=lambda item: item[1])[0] == "x+2"
    assert hits / 200 > 0.95


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 1), (60, 40), (1, 30), (500, 480)])
def test_beta_tail_equals_the_binomial_sum(wins, losses):
    """P(θ > ½) for Beta(w+1, l+1) is P(Bin(w+l+1, ½) ≤ w)."""
    n = wins + losses + 1
    exact = sum(math.comb(n, i) for i in range(wins + 1)) / 2**n
    assert probability_better(wins, losses) == pytest.approx(exact, abs=1e-4)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=60))
def test_calibration_error_is_a_fraction(pairs):
    confidences, correct = zip(*pairs, strict=True)
    assert 0 <= expected_calibration_error(confidences, correct) <= 1


def test_a_calibrated_predictor_has_a_small_error():
    rng = random.Random(0)
    confidences = [rng.random() for _ in range(20_000)]
    correct = [int(rng.random() < c) for c in confidences]
    assert expected_calibration_error(confidences, correct) < 0.02


def test_precision_by_counting():
    rng = random.Random(0)
    flagged = true = 0
    for _ in range(200_000):
        positive = rng.random() < 0.05
        if rng.random() < (0.9 if positive else 0.1):
            flagged += 1
            true += positive
    assert true / flagged == pytest.approx(detector_precision(0.05, 0.9, 0.1), abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posterior({}, []), "prior"),
        (lambda: posterior({"a": 0.9}, []), "prior"),
        (lambda: predict_next([], 1, noise=2), "noise"),
        (lambda: expected_calibration_error([], []), "非空"),
        (lambda: expected_calibration_error([1.2], [1]), r"\[0, 1\]"),
        (lambda: probability_better(-1, 0), "wins"),
        (lambda: detector_precision(2, 0, 0), "比率"),
        (lambda: detector_precision(0.5, 0.0, 0.0), "没有定义"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
