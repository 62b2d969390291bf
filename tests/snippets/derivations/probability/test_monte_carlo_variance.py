"""Every variance formula against simulation or enumeration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.derivations.probability.monte_carlo_variance import (
    accuracy_difference_error,
    control_variate,
    gaussian_weight_moment,
    group_gradient,
    mean_variance,
    samples_needed,
    score_gradient_moments,
    self_normalized_bias,
)


@pytest.mark.parametrize("rho", [0.0, 0.8, -0.5])
def test_variance_of_the_mean_by_simulation(rho):
    rng = np.random.default_rng(0)
    runs, n = 20_000, 40
    x = np.empty((runs, n))
    x[:, 0] = rng.standard_normal(runs)
    for t in range(1, n):
        x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho**2) * rng.standard_normal(runs)
    measured = x.mean(axis=1).var()
    assert measured == pytest.approx(mean_variance(1.0, n, rho), rel=5 * math.sqrt(2 / runs))


def test_variance_of_the_mean_from_the_whole_covariance():
    n, rho, sigma2 = 7, 0.6, 2.0
    covariance = sigma2 * rho ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    assert mean_variance(sigma2, n, rho) == pytest.approx(covariance.sum() / n**2)
    assert mean_variance(1.0, 100_000, 0.9) * 100_000 == pytest.approx(1.9 / 0.1, rel=1e-3)


def test_dividing_by_n_minus_one_is_unbiased():
    """All samples of size 3 from four values with replacement: the mean of s² is σ² for n − 1, ⅔ of it for n."""
    values = [0.0, 1.0, 5.0, 7.0]
    sigma2 = np.var(values)
    samples = list(itertools.product(values, repeat=3))
    assert np.mean([np.var(s, ddof=1) for s in samples]) == pytest.approx(sigma2)
    assert np.mean([np.var(s) for s in samples]) == pytest.approx(sigma2 * 2 / 3)


def test_intervals_cover():
    """2401 questions at accuracy ½: the interval of ± 0.02 holds the truth in about 95 % of 20 000 exams."""
    n = samples_needed(0.5, 0.02)
    scores = np.random.default_rng(0).binomial(n, 0.5, 20_000) / n
    assert np.mean(np.abs(scores - 0.5) <= 0.02) == pytest.approx(0.95, abs=0.01)
    assert samples_needed(0.0, 0.1) == 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(-0.95, 0.95))
def test_control_variate_is_the_best_coefficient(seed, rho):
    rng = np.random.default_rng(seed)
    g = rng.standard_normal(500)
    f = rho * g + math.sqrt(1 - rho**2) * rng.standard_normal(500)
    c, ratio = control_variate(list(f), list(g))
    remaining = np.var(f - c * g)
    assert remaining == pytest.approx(ratio * np.var(f))
    assert all(np.var(f - other * g) >= remaining - 1e-12 for other in (c - 0.1, c + 0.1, 0.0))
    assert 0 <= ratio <= 1


@pytest.mark.parametrize("std", [3.0, 1.5, 1.0, 0.9])
def test_weight_moment_by_integration(std):
    x = np.linspace(-60, 60, 2_000_001)
    log_p, log_q = -0.5 * x**2, -0.5 * (x / std) ** 2 - math.log(std)
    moment = np.trapezoid(np.exp(2 * log_p - log_q), x) / math.sqrt(2 * math.pi)
    assert moment == pytest.approx(gaussian_weight_moment(std), rel=1e-6)


def test_infinite_variance_does_not_show_in_the_sample():
    """Proposal of std 0.6: the true variance is infinite, yet most samples of 1000 look well behaved — and miss the tail."""
    rng = np.random.default_rng(0)
    assert gaussian_weight_moment(0.6) == math.inf
    x = 0.6 * rng.standard_normal((200, 1000))
    w = 0.6 * np.exp(-0.5 * x**2 + 0.5 * (x / 0.6) ** 2)
    second_moments = (w * x**2).mean(axis=1)  # estimates E x² = 1
    assert np.median(second_moments) < 0.97
    assert np.median(w.std(axis=1)) < 1.5
    assert w.std(axis=1).max() > 5 * np.median(w.std(axis=1))


def test_self_normalized_bias_vanishes_like_one_over_n_and_plain_weights_have_none():
    p, q, f = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5], [1.0, 2.0, 6.0]
    w = np.divide(p, q)
    mean = np.dot(p, f)
    assert np.dot(q, w * f) == pytest.approx(mean)  # unbiased for any n
    first_order = -np.dot(q, w**2 * (np.array(f) - mean))
    assert 120 * self_normalized_bias(p, q, f, 120) == pytest.approx(first_order, rel=0.05)
    assert self_normalized_bias(p, q, f, 1) == pytest.approx(np.dot(q, f) - mean)  # one sample: the weight cancels
    assert self_normalized_bias(p, p, f, 5) == pytest.approx(0, abs=1e-12)


@given(st.floats(0.05, 0.95), st.floats(-5, 5), st.floats(-5, 5), st.floats(-10, 10))
def test_a_baseline_changes_the_variance_alone(p, win, loss, baseline):
    plain, _ = score_gradient_moments(p, (win, loss), 0.0)
    mean, variance = score_gradient_moments(p, (win, loss), baseline)
    assert mean == pytest.approx(plain, abs=1e-9)
    assert plain == pytest.approx(p * (1 - p) * (win - loss), abs=1e-9)  # derivative of E r by θ
    best = (1 - p) * win + p * loss
    assert score_gradient_moments(p, (win, loss), best)[1] == pytest.approx(0, abs=1e-9)
    assert variance >= -1e-9


@given(st.floats(0.05, 0.95), st.integers(2, 12))
def test_a_baseline_with_oneself_shrinks_the_gradient(p, group):
    shrunk, with_self = group_gradient(p, group, False)
    whole, without = group_gradient(p, group, True)
    assert shrunk == pytest.approx(1 - 1 / group)
    assert whole == pytest.approx(1)
    assert without == pytest.approx(with_self / (1 - 1 / group) ** 2)  # the same estimator up to the factor


@given(st.floats(0.5, 0.95), st.floats(-0.05, 0.05), st.floats(0, 1), st.integers(1, 10_000))
def test_paired_error(a, shift, mix, n):
    b = a + shift if a + shift <= 1 else a
    low, high = abs(a - b), min(a + b, 2 - a - b)
    disagree = low + mix * (high - low)
    unpaired, paired = accuracy_difference_error(a, b, disagree, n)
    only_a = (disagree + a - b) / 2  # a right and b wrong
    exact = only_a * (1 - (a - b)) ** 2 + (disagree - only_a) * (-1 - (a - b)) ** 2 + (1 - disagree) * (a - b) ** 2
    assert paired == pytest.approx(math.sqrt(max(exact, 0) / n), abs=1e-7)
    independent = a * (1 - b) + b * (1 - a)
    if disagree < independent - 1e-9:
        assert paired < unpaired


def test_rejects():
    calls = [
        lambda: mean_variance(-1, 5),
        lambda: mean_variance(1, 0),
        lambda: mean_variance(1, 5, 1.0),
        lambda: samples_needed(0.5, 0),
        lambda: control_variate([1.0], [1.0]),
        lambda: control_variate([1.0, 1.0], [1.0, 2.0]),
        lambda: control_variate([1.0, math.nan], [1.0, 2.0]),
        lambda: gaussian_weight_moment(0),
        lambda: self_normalized_bias([1.0], [1.0], [1.0], 0),
        lambda: self_normalized_bias([1.0, 0.0], [1.0, 0.0], [1.0, 1.0], 1),
        lambda: self_normalized_bias([1.0, 0.0], [0.5, 0.5], [1.0, 1.0], 1),
        lambda: score_gradient_moments(0.0, (1.0, 0.0), 0.0),
        lambda: group_gradient(0.5, 1, True),
        lambda: accuracy_difference_error(0.8, 0.8, 0.9, 10),
        lambda: accuracy_difference_error(1.2, 0.8, 0.4, 10),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|没有定义"):
            call()
