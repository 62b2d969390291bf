"""Rates, weights and samplers against closed forms and brute force."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.probability.monte_carlo import (
    effective_samples,
    estimate,
    majority_correct,
    pass_at_k,
    sequence_weights,
    speculative_step,
    tail_probability,
    truncated_weights,
    variance_ratios,
)


def test_error_falls_as_one_over_root_n():
    errors = [estimate(lambda u: u * u, n, random.Random(0))[1] for n in (1_000, 100_000)]
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)


def test_the_standard_error_covers():
    inside = sum(abs(mean - 1 / 3) < 2 * error for mean, error in (estimate(lambda u: u * u, 500, random.Random(s)) for s in range(400)))
    assert 0.92 < inside / 400 < 0.98


def test_variance_ratios_equal_the_closed_forms():
    var = (math.e**2 - 1) / 2 - (math.e - 1) ** 2
    anti = (var + math.e - (math.e - 1) ** 2) / var  # (Var + Cov(e^U, e^(1−U))) / Var, two calls a pair counted
    control = 1 - 12 * (1 - (math.e - 1) / 2) ** 2 / var
    ratios = variance_ratios(200_000)
    assert ratios["对偶变量"] == pytest.approx(anti, rel=0.05)
    assert ratios["控制变量"] == pytest.approx(control, rel=0.05)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50).filter(lambda w: max(w) > 0))
def test_effective_samples_lie_between_one_and_n(weights):
    assert 1 - 1e-9 <= effective_samples(weights) <= len(weights) + 1e-6


def test_effective_samples_of_huge_weights_do_not_overflow():
    assert effective_samples([1e300, 1e300]) == 2


@pytest.mark.parametrize("length", [10, 100, 400])
def test_product_weights_follow_the_log_normal_law(length):
    """For log-normal weights E[w]²/E[w²] = exp(−length·σ²)."""
    product, geometric = sequence_weights(length, 0.05, 50_000)
    assert product == pytest.approx(math.exp(-length * 0.0025), rel=0.1)
    assert geometric > 0.99


def test_a_shifted_proposal_finds_the_rare_event_and_the_plain_one_does_not_notice():
    true, mean, relative = tail_probability(4.0, 4.0)
    assert true == pytest.approx(3.1671e-5, rel=1e-4)
    assert mean == pytest.approx(true, rel=4 * relative)
    assert relative < 0.03
    assert tail_probability(4.0, 0.0)[1:] == (0.0, 0.0)  # no hit: an estimate of 0 with a standard error of 0
    assert tail_probability(1.0, 0.0, 50_000)[1] == pytest.approx(0.15866, rel=0.05)


def test_truncated_weights_follow_the_closed_form():
    phi = lambda x: math.erfc(-x / math.sqrt(2)) / 2  # noqa: E731
    var, caps = 1000 * 0.05**2, [20.0, 10.0, 2.0, 1.0]
    std = math.sqrt(var)
    rows = truncated_weights(caps, n=100_000)
    for cap, bias, _ in rows:
        exact = phi((math.log(cap) - var / 2) / std) + cap * phi(-(math.log(cap) + var / 2) / std) - 1
        assert bias == pytest.approx(exact, abs=0.03)
    assert [row[2] for row in rows] == sorted((row[2] for row in rows), reverse=True)
    assert [abs(row[1]) for row in rows] == sorted(abs(row[1]) for row in rows)


def test_many_votes_do_not_overflow():
    assert majority_correct(0.52, 10_001) == pytest.approx(0.99997, abs=1e-4)
    assert (majority_correct(0.0, 5), majority_correct(1.0, 5)) == (0.0, 1.0)


def test_distributions_that_differ_by_rounding():
    class Always(random.Random):
        def random(self):
            return 1 - 2**-53

    p, q = [0.5 - 1e-10, 0.5], [0.5, 0.5]
    assert speculative_step(p, q, Always())[1]


@pytest.mark.parametrize(("n", "c", "k"), [(6, 2, 3), (5, 0, 2), (5, 5, 2), (7, 3, 7), (4, 1, 1)])
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n, c, k):
    outcomes = [1] * c + [0] * (n - c)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_pass_at_k_is_unbiased_and_the_plug_in_is_low():
    n, k, p = 20, 5, 0.1
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    unbiased = math.fsum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
    plug_in = math.fsum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights))
    assert unbiased == pytest.approx(1 - (1 - p) ** k)
    assert plug_in < unbiased


@given(st.floats(0, 1))
def test_majority_is_symmetric_and_one_vote_is_no_vote(p):
    assert majority_correct(p, 1) == pytest.approx(p)
    assert majority_correct(p, 11) + majority_correct(1 - p, 11) == pytest.approx(1)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.lists(st.floats(0.01, 1), min_size=3, max_size=3))
def test_speculative_output_follows_the_target(a, b):
    """Exact: the probability of each output by summing over drafts and acceptance."""
    p, q = ([x / math.fsum(w) for x in w] for w in (a, b))
    accept = [min(x, y) for x, y in zip(p, q, strict=True)]
    rest = [max(0.0, x - y) for x, y in zip(p, q, strict=True)]
    total = math.fsum(rest)
    for i in range(3):
        exact = accept[i] + ((1 - math.fsum(accept)) * rest[i] / total if total else 0.0)
        assert exact == pytest.approx(p[i])
    rng = random.Random(0)
    draws = [speculative_step(p, q, rng)[0] for _ in range(4_000)]
    for i in range(3):
        assert draws.count(i) / 4_000 == pytest.approx(p[i], abs=5 * math.sqrt(p[i] / 4_000) + 1e-3)


def test_identical_draft_is_always_accepted():
    rng = random.Random(0)
    assert all(speculative_step([0.5, 0.5], [0.5, 0.5], rng)[1] for _ in range(500))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: estimate(math.exp, 1, random.Random(0)), "n 必须"),
        (lambda: variance_ratios(3), "n 必须"),
        (lambda: effective_samples([0.0]), "weights"),
        (lambda: effective_samples([-1.0, 2.0]), "weights"),
        (lambda: effective_samples([math.nan, 1.0]), "weights"),
        (lambda: effective_samples([math.inf, 1.0]), "weights"),
        (lambda: tail_probability(math.nan, 0.0), "有限"),
        (lambda: truncated_weights([]), "caps"),
        (lambda: truncated_weights([math.nan]), "caps"),
        (lambda: speculative_step([math.nan, 1.0], [0.5, 0.5], random.Random(0)), "分布"),
        (lambda: sequence_weights(0), "length"),
        (lambda: pass_at_k(5, 6, 1), "correct"),
        (lambda: pass_at_k(5, 1, 6), "k ≤ n"),
        (lambda: majority_correct(0.5, 2), "奇数"),
        (lambda: speculative_step([0.5, 0.5], [1.0], random.Random(0)), "分布"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
