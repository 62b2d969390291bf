"""Gaussian KL against torch.distributions, Monte Carlo, numerical integration and random search over approximations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, kl_divergence

from snippets.derivations.probability.elbo import gaussian_kl
from snippets.derivations.probability.kl_gaussian import diagonal_to_standard, gaussian_kl_full, mean_field, rescaled

SEEDS = st.integers(0, 10_000)


def gaussian(rng, d):
    a = rng.standard_normal((d, d))
    return rng.standard_normal(d), a @ a.T + 0.3 * np.eye(d)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 6))
def test_closed_form_is_torch(seed, d):
    rng = np.random.default_rng(seed)
    (m1, s1), (m2, s2) = gaussian(rng, d), gaussian(rng, d)
    first, second = (MultivariateNormal(torch.tensor(m), torch.tensor(s)) for m, s in ((m1, s1), (m2, s2)))
    assert gaussian_kl_full(m1, s1, m2, s2) == pytest.approx(kl_divergence(first, second).item(), rel=1e-8)
    assert gaussian_kl_full(m1, s1, m2, s2) >= 0
    assert gaussian_kl_full(m1, s1, m1, s1) == pytest.approx(0, abs=1e-9)
    assert gaussian_kl_full(m1, s1, m1, s1) >= 0
    tiny = gaussian_kl_full(m1, 1e-12 * s1, m2, 1e-12 * s2)  # a small scale is not singular
    assert tiny == pytest.approx(gaussian_kl_full(1e6 * m1, s1, 1e6 * m2, s2), rel=1e-8)


def test_closed_form_by_monte_carlo():
    rng = np.random.default_rng(0)
    (m1, s1), (m2, s2) = gaussian(rng, 3), gaussian(rng, 3)
    x = rng.multivariate_normal(m1, s1, 200_000)

    def log_density(m, s):
        z = x - m
        return -0.5 * (np.einsum("nd,de,ne->n", z, np.linalg.inv(s), z) + np.linalg.slogdet(s)[1])

    ratio = log_density(m1, s1) - log_density(m2, s2)
    assert abs(ratio.mean() - gaussian_kl_full(m1, s1, m2, s2)) < 4 * ratio.std() / math.sqrt(len(x))


@pytest.mark.parametrize(("m1", "s1", "m2", "s2"), [(0.0, 1.0, 1.0, 2.0), (3.0, 0.5, -1.0, 1.5), (0.0, 2.0, 0.0, 1.0)])
def test_one_dimension_by_integration(m1, s1, m2, s2):
    x = np.linspace(-30, 30, 600_001)
    log_p, log_q = (-0.5 * ((x - m) / s) ** 2 - math.log(s * math.sqrt(2 * math.pi)) for m, s in ((m1, s1), (m2, s2)))
    integral = np.trapezoid(np.exp(log_p) * (log_p - log_q), x)
    assert gaussian_kl_full([m1], [[s1**2]], [m2], [[s2**2]]) == pytest.approx(integral, abs=1e-8)
    assert gaussian_kl(m1, s1, m2, s2) == pytest.approx(integral, abs=1e-8)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 6))
def test_diagonal_case(seed, d):
    mean, log_variance = np.random.default_rng(seed).standard_normal((2, d))
    full = gaussian_kl_full(mean, np.diag(np.exp(log_variance)), np.zeros(d), np.eye(d))
    assert diagonal_to_standard(mean, log_variance) == pytest.approx(full)
    assert diagonal_to_standard(mean, log_variance) == pytest.approx(
        sum(gaussian_kl(m, math.exp(v / 2), 0, 1) for m, v in zip(mean, log_variance, strict=True))
    )


def test_gradients_of_the_vae_term():
    """∂/∂μ = μ and ∂/∂ln σ² = (σ² − 1)/2: central differences."""
    mean, log_variance, step = np.array([0.7, -1.2]), np.array([0.3, -0.8]), 1e-5
    for j in range(2):
        e = step * np.eye(2)[j]
        by_mean = (diagonal_to_standard(mean + e, log_variance) - diagonal_to_standard(mean - e, log_variance)) / (2 * step)
        by_variance = (diagonal_to_standard(mean, log_variance + e) - diagonal_to_standard(mean, log_variance - e)) / (2 * step)
        assert by_mean == pytest.approx(mean[j], abs=1e-8)
        assert by_variance == pytest.approx((math.exp(log_variance[j]) - 1) / 2, abs=1e-8)


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_invariance_under_affine_maps(seed):
    rng = np.random.default_rng(seed)
    (m1, s1), (m2, s2), (shift, a) = gaussian(rng, 3), gaussian(rng, 3), gaussian(rng, 3)
    moved = gaussian_kl_full(a @ m1 + shift, a @ s1 @ a.T, a @ m2 + shift, a @ s2 @ a.T)
    assert moved == pytest.approx(gaussian_kl_full(m1, s1, m2, s2), rel=1e-6)
    one, thousand = rescaled(1.0), rescaled(1000.0)
    assert one[0] == pytest.approx(thousand[0])
    assert thousand[1] - one[1] == pytest.approx(math.log(1000))


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.floats(-0.95, 0.95))
def test_no_independent_gaussian_beats_the_mean_field(seed, rho):
    target, zero = np.array([[1, rho], [rho, 1]]), np.zeros(2)
    best = mean_field(rho)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        mean, variance = 0.3 * rng.standard_normal(2), np.diag(np.exp(rng.standard_normal(2)))
        assert gaussian_kl_full(zero, target, mean, variance) >= best["前向"][1] - 1e-12
        assert gaussian_kl_full(mean, variance, zero, target) >= best["反向"][1] - 1e-12
    assert best["前向"][1] == pytest.approx(-0.5 * math.log(1 - rho**2), abs=1e-12)
    assert best["反向"] == pytest.approx((1 - rho**2, best["前向"][1]), abs=1e-12)


def test_fisher_of_a_gaussian_mean():
    """KL between N(θ, σ²) and N(θ + δ, σ²) is exactly ½δ²/σ²: Fisher information 1/σ²."""
    assert gaussian_kl_full([1.0], [[4.0]], [1.3], [[4.0]]) == pytest.approx(0.5 * 0.09 / 4)


def test_rejects():
    good, identity = np.zeros(2), np.eye(2)
    calls = [
        lambda: gaussian_kl_full([], np.zeros((0, 0)), [], np.zeros((0, 0))),
        lambda: gaussian_kl_full(good, identity, np.zeros(3), np.eye(3)),
        lambda: gaussian_kl_full(good, np.array([[1.0, 2.0], [2.0, 1.0]]), good, identity),
        lambda: gaussian_kl_full(good, np.array([[1.0, 0.5], [0.0, 1.0]]), good, identity),
        lambda: gaussian_kl_full(good, np.zeros((2, 2)), good, identity),
        lambda: gaussian_kl_full(good, 1e-9 * np.array([[1.0, 0.5], [0.0, 1.0]]), good, identity),
        lambda: gaussian_kl_full([1e200, 0.0], identity, good, identity),
        lambda: diagonal_to_standard([0.0], [1000.0]),
        lambda: rescaled(1e200),
        lambda: gaussian_kl_full([math.nan, 0.0], identity, good, identity),
        lambda: gaussian_kl_full(good, np.ones(2), good, identity),
        lambda: diagonal_to_standard(good, np.zeros(3)),
        lambda: diagonal_to_standard(good, [math.inf, 0.0]),
        lambda: diagonal_to_standard(np.zeros((1, 2)), np.zeros((1, 2))),
        lambda: mean_field(1.0),
        lambda: mean_field(math.nan),
        lambda: rescaled(0.0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="须"):
            call()
