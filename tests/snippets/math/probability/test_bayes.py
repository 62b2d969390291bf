"""Posteriors against direct multiplication; the exact in-context learner and its checks; calibration; tails against numeric integration."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.probability.bayes import (
    CONCEPTS,
    UNIFORM,
    bayesian_checks,
    beta_tail,
    calibration_table,
    credible_interval,
    detector_precision,
    evaluate,
    expected_calibration_error,
    fit_temperature,
    learning_curve,
    learning_curves,
    log_odds,
    noisy_channel,
    posterior,
    predict_next,
    probability_better,
    questions,
    repetition_is_not_evidence,
    rlhf_optimum,
)

rates = st.floats(0.01, 0.99)
digits = st.integers(0, 9)


@given(rates, st.lists(st.tuples(rates, rates), max_size=6))
def test_posterior_is_the_normalized_product(p, pairs):
    post = posterior({"a": p, "b": 1 - p}, [{"a": x, "b": y} for x, y in pairs])
    a, b = p * math.prod(x for x, _ in pairs), (1 - p) * math.prod(y for _, y in pairs)
    assert post["a"] == pytest.approx(a / (a + b), rel=1e-9)
    assert math.fsum(post.values()) == pytest.approx(1)


def test_thousands_of_observations_do_not_underflow():
    post = posterior({"a": 0.5, "b": 0.5}, [{"a": 1e-3, "b": 1e-4}] * 5_000)
    assert post == {"a": 1.0, "b": 0.0}


def test_a_concept_without_prior_never_comes_back():
    assert posterior({"a": 1.0, "b": 0.0}, [{"a": 1e-9, "b": 1.0}] * 100)["b"] == 0.0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(digits, digits), max_size=5), digits)
def test_predictions_are_distributions_and_do_not_depend_on_order(shown, query):
    p = predict_next(shown, query)
    assert math.fsum(p) == pytest.approx(1)
    assert min(p) >= 0.01 - 1e-12  # the noise floor
    assert predict_next(shown[::-1], query) == pytest.approx(p)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(digits, digits), max_size=3), digits, digits)
def test_exact_prediction_is_a_martingale(shown, x, query):
    now, weights = predict_next(shown, query), predict_next(shown, x)
    mixed = [math.fsum(w * predict_next([*shown, (x, y)], query)[k] for y, w in enumerate(weights)) for k in range(10)]
    assert mixed == pytest.approx(now)


def test_a_recency_weighted_learner_violates_both_checks():
    exact = bayesian_checks(1.0)
    assert max(exact) < 1e-12
    mild, strong = bayesian_checks(0.8), bayesian_checks(0.5)
    assert min(*mild, *strong) > 0.05
    assert strong[0] > mild[0]


def test_concepts_are_a_hundred_different_rules():
    assert len(CONCEPTS) == 100 == len({tuple(f) for f in CONCEPTS.values()})


def test_the_recursive_curve_is_the_average_of_predict_next():
    """The same random draws, through predict_next."""
    truth, totals = CONCEPTS["3x+2"], [0.0] * 9
    for seed in range(400):
        rng = random.Random(seed)
        query, shown = rng.randrange(10), []
        for n in range(9):
            if n in (0, 2, 8):
                totals[n] += predict_next(shown, query)[truth[query]] / 400
            x = rng.randrange(10)
            shown.append((x, rng.randrange(10) if rng.random() < 0.1 else truth[x]))
    curve = learning_curve(truth, UNIFORM)
    for n in (0, 2, 8):
        assert curve[n][0] == pytest.approx(totals[n], abs=1e-9)


def test_what_the_page_says_about_the_curves():
    curves = {name: [right for right, _ in curve] for name, curve in learning_curves().items()}
    first = {name: next((n for n, p in enumerate(curve) if p > 0.5), None) for name, curve in curves.items()}
    assert first == {"先验均匀": 2, "先验百万分之一": 6, "不在族里": None, "标签随机": None}
    assert learning_curves()["标签随机"][-1][1] > 5 * curves["标签随机"][-1]  # confident and wrong


def test_noisy_channel_weighs_both_sides():
    assert noisy_channel({"a": 0.5, "b": 0.5}, {"a": 0.2, "b": 0.6})[0] == ("b", pytest.approx(0.75))
    assert noisy_channel({"a": 0.9, "b": 0.1}, {"a": 0.2, "b": 0.6})[0][0] == "a"


def numeric_tail(a, b, x, steps=20_000):
    width = (1 - x) / steps
    log_norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    points = (x + (i + 0.5) * width for i in range(steps))
    return width * math.fsum(math.exp(log_norm + (a - 1) * math.log(t) + (b - 1) * math.log1p(-t)) for t in points)


@pytest.mark.parametrize(("a", "b", "x"), [(1, 1, 0.3), (4, 2, 0.5), (61, 41, 0.5), (2, 31, 0.1), (501, 481, 0.5)])
def test_beta_tail_by_integration(a, b, x):
    assert beta_tail(a, b, x) == pytest.approx(numeric_tail(a, b, x), abs=1e-6)


@given(st.integers(0, 300), st.integers(0, 300))
def test_better_is_symmetric(wins, losses):
    assert probability_better(wins, losses) + probability_better(losses, wins) == pytest.approx(1)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 60), st.integers(0, 60))
def test_interval_holds_its_mass(wins, losses):
    low, high = credible_interval(wins, losses)
    assert 0 <= low < high <= 1
    assert beta_tail(wins + 1, losses + 1, low) - beta_tail(wins + 1, losses + 1, high) == pytest.approx(0.95, abs=1e-6)


def test_ends_of_the_tail():
    assert (beta_tail(3, 2, 0.0), beta_tail(3, 2, 1.0)) == (1.0, 0.0)
    assert probability_better(20_000, 0) == pytest.approx(1)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=60))
def test_calibration_error_is_a_fraction_and_ignores_order(pairs):
    confidences, correct = zip(*pairs, strict=True)
    value = expected_calibration_error(confidences, correct)
    assert 0 <= value <= 1
    assert expected_calibration_error(confidences[::-1], correct[::-1]) == pytest.approx(value)


def test_temperature_undoes_the_scale_and_keeps_the_answers():
    data = questions(4000, 3.0, seed=5)
    temperature = fit_temperature(data)
    assert temperature == pytest.approx(3.0, rel=0.1)
    assert evaluate(data, temperature)[0] == evaluate(data)[0]
    assert evaluate(data, temperature)[2] < evaluate(data)[2]


def test_small_samples_inflate_the_calibration_error():
    rows = {row[0]: row for row in calibration_table()}
    assert rows["校准，但只测 200 题"][2] > 3 * rows["校准"][2]
    assert rows["永远选 A、说 1/4"][2] < rows["校准"][2] + 0.005


def test_precision_by_counting():
    rng = random.Random(0)
    flagged = true = 0
    for _ in range(200_000):
        positive = rng.random() < 0.05
        if rng.random() < (0.9 if positive else 0.1):
            flagged += 1
            true += positive
    assert true / flagged == pytest.approx(detector_precision(0.05, 0.9, 0.1), abs=0.01)


def test_naive_bayes_is_the_posterior_of_the_multinomials():
    good, bad = {"a": 3, "b": 1}, {"a": 1, "b": 5}
    p, q = {"a": 4 / 6, "b": 2 / 6}, {"a": 2 / 8, "b": 6 / 8}  # add-one smoothing
    words = ["a", "b", "a", "unseen"]
    post = posterior({"good": 0.5, "bad": 0.5}, [{"good": p[w], "bad": q[w]} for w in words[:3]])
    assert log_odds(words, good, bad) == pytest.approx(math.log(post["good"] / post["bad"]))


def test_repetition_is_counted_as_evidence():
    values = [p for _, p in repetition_is_not_evidence()]
    assert values == sorted(values)
    assert values[-1] > 0.99


@given(st.lists(rates, min_size=3, max_size=3), st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.floats(0.2, 3), st.integers(0, 99))
def test_no_policy_beats_the_tilted_reference(weights, rewards, beta, seed):
    reference = [w / math.fsum(weights) for w in weights]

    def objective(pi):
        gain = math.fsum(p * r for p, r in zip(pi, rewards, strict=True))
        return gain - beta * math.fsum(p * math.log(p / q) for p, q in zip(pi, reference, strict=True) if p > 0)

    best = objective(rlhf_optimum(reference, rewards, beta))
    rng = random.Random(seed)
    for _ in range(20):
        other = [rng.random() + 1e-9 for _ in range(3)]
        assert objective([x / math.fsum(other) for x in other]) <= best + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posterior({}, []), "prior"),
        (lambda: posterior({"a": 0.9}, []), "prior"),
        (lambda: posterior({"a": math.nan}, []), "prior"),
        (lambda: posterior({"a": 0.5, "b": 0.5}, [{"a": -0.1, "b": 0.2}]), "似然"),
        (lambda: posterior({"a": 0.5, "b": 0.5}, [{"a": math.nan, "b": 0.2}]), "似然"),
        (lambda: predict_next([(-1, 3)], 1), "0–9"),
        (lambda: predict_next([(1, 10)], 1), "0–9"),
        (lambda: expected_calibration_error([0.5], [2]), "0 或 1"),
        (lambda: evaluate([]), "不能为空"),
        (lambda: evaluate(questions(1, 1.0, 0), 0.0), "temperature"),
        (lambda: rlhf_optimum([1.0], [math.nan], 1.0), "rewards"),
        (lambda: rlhf_optimum([0.5, 0.5], [0.0, math.inf], 1.0), "rewards"),
        (lambda: predict_next([], 1, noise=2), "noise"),
        (lambda: predict_next([], 1, noise=0), "noise"),
        (lambda: predict_next([], 10), "query"),
        (lambda: predict_next([], 1, decay=0), "decay"),
        (lambda: expected_calibration_error([], []), "非空"),
        (lambda: expected_calibration_error([1.2], [1]), r"\[0, 1\]"),
        (lambda: expected_calibration_error([math.nan], [1]), r"\[0, 1\]"),
        (lambda: beta_tail(0, 1, 0.5), "正整数"),
        (lambda: probability_better(-1, 0), "wins"),
        (lambda: credible_interval(1, 1, 1.0), "level"),
        (lambda: detector_precision(2, 0, 0), "比率"),
        (lambda: detector_precision(0.5, 0.0, 0.0), "没有定义"),
        (lambda: log_odds(["a"], {}, {}), "词频"),
        (lambda: rlhf_optimum([1.0], [0.0], 0.0), "beta"),
        (lambda: rlhf_optimum([1.0], [0.0, 1.0], 1.0), "等长"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
