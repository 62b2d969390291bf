"""The bound and its gap on a model whose evidence is known, and the diffusion bound against sampled chains."""

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from snippets.derivations.probability.elbo import (
    best_q,
    diffusion_bound,
    elbo,
    gaussian_kl,
    gradient_samples,
    importance_bound,
    log_evidence,
    noise_weight,
    posterior,
)

reals, positives = st.floats(-5, 5), st.floats(0.1, 4)


@given(reals, positives, reals, positives)
def test_bound_plus_gap_is_the_log_evidence(x, noise, m, s):
    gap = gaussian_kl(m, s, *posterior(x, noise))
    assert gap >= 0
    assert elbo(x, noise, m, s) + gap == pytest.approx(log_evidence(x, noise), rel=1e-9, abs=1e-9)


@given(reals, positives, reals, positives)
def test_kl_is_torchs(m1, s1, m2, s2):
    expected = kl_divergence(Normal(torch.tensor(m1, dtype=torch.float64), s1), Normal(torch.tensor(m2, dtype=torch.float64), s2))
    assert gaussian_kl(m1, s1, m2, s2) == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)


def test_closed_form_by_integration():
    """E_q[ln p(x, z) − ln q(z)] on a fine grid, without the algebra of the closed form."""
    x, noise, m, s = 1.3, 0.7, -0.4, 0.6
    z = np.linspace(-12, 12, 400_001)
    log_q = -0.5 * ((z - m) / s) ** 2 - math.log(s) - 0.5 * math.log(2 * math.pi)
    log_joint = -0.5 * ((x - z) / noise) ** 2 - math.log(noise) - 0.5 * z**2 - math.log(2 * math.pi)
    assert np.trapezoid(np.exp(log_q) * (log_joint - log_q), z) == pytest.approx(elbo(x, noise, m, s), abs=1e-9)
    assert math.log(np.trapezoid(np.exp(log_joint), z)) == pytest.approx(log_evidence(x, noise), abs=1e-9)


def test_more_samples_tighten_the_bound():
    x, noise, m, s = 2.0, 0.5, 0.5, 0.8
    bounds = [importance_bound(x, noise, m, s, k, 3000, Random(1)) for k in (1, 4, 16, 64)]
    assert bounds == sorted(bounds)
    assert bounds[0] == pytest.approx(elbo(x, noise, m, s), abs=0.3)
    assert bounds[-1] == pytest.approx(log_evidence(x, noise), abs=0.05)


def test_any_k_is_exact_when_q_is_the_posterior():
    x, noise = 1.0, 0.5
    assert importance_bound(x, noise, *posterior(x, noise), 3, 2, Random(0)) == pytest.approx(log_evidence(x, noise), abs=1e-9)


def test_both_gradients_estimate_the_derivative():
    x, noise, m, s, n = 1.0, 0.8, 0.3, 0.7, 40_000
    step = 1e-5
    exact = (elbo(x, noise, m + step, s) - elbo(x, noise, m - step, s)) / (2 * step)
    path, score = map(np.array, gradient_samples(x, noise, m, s, n, Random(0)))
    assert path.mean() == pytest.approx(exact, abs=5 * path.std() / math.sqrt(n))
    assert score.mean() == pytest.approx(exact, abs=5 * score.std() / math.sqrt(n))
    assert score.var() > 1.5 * path.var()


@given(reals, positives, st.floats(0.05, 20), st.floats(-0.3, 0.3), st.floats(0.8, 1.25))
def test_best_q_is_the_maximum(x, noise, beta, shift, stretch):
    m, s = best_q(x, noise, beta)
    assert elbo(x, noise, m + shift, s * stretch, beta) <= elbo(x, noise, m, s, beta) + 1e-9
    assert best_q(x, noise, 1.0) == pytest.approx(posterior(x, noise))


def _sampled_bound(steps, data_std, variance, n=200_000):
    """E ln q(x_1..T | x_0) − ln p(x_0..T) over forward chains; p as in the snippet, written out again from the joint Gaussian."""
    rng = np.random.default_rng(0)
    betas = (1e-4 + (0.02 - 1e-4) * np.arange(steps) / (steps - 1)) * 1000 / steps
    x = [data_std * rng.standard_normal(n)]
    total = np.zeros(n)

    def log_n(value, mean, var):
        return -0.5 * ((value - mean) ** 2 / var + math.log(2 * math.pi * var))

    variances, kept = [data_std**2], [1.0]
    for beta in betas:
        x.append(math.sqrt(1 - beta) * x[-1] + math.sqrt(beta) * rng.standard_normal(n))
        total += log_n(x[-1], math.sqrt(1 - beta) * x[-2], beta)
        variances.append((1 - beta) * variances[-1] + beta)
        kept.append(kept[-1] * (1 - beta))
    for t, beta in enumerate(betas):
        joint = math.sqrt(1 - beta) * variances[t]
        true = variances[t] - joint**2 / variances[t + 1]
        tilde = (1 - kept[t]) / (1 - kept[t + 1]) * beta
        sigma2 = {"beta": beta, "optimal": true, "posterior": tilde if t else true}[variance]
        total -= log_n(x[t], joint / variances[t + 1] * x[t + 1], sigma2)
    total -= log_n(x[-1], 0, variances[-1] if variance == "optimal" else 1.0)
    return total.mean(), total.std() / math.sqrt(n)


@pytest.mark.parametrize("variance", ["posterior", "beta", "optimal"])
@pytest.mark.parametrize("data_std", [0.3, 1.0])
def test_diffusion_bound_is_what_sampled_chains_give(variance, data_std):
    parts = diffusion_bound(20, data_std, variance)
    mean, error = _sampled_bound(20, data_std, variance)
    assert parts["L_T"] + parts["中间"] + parts["L_0"] == pytest.approx(mean, abs=5 * error + 1e-6)
    assert parts["多出"] >= 0
    assert all(parts[name] >= 0 for name in ("L_T", "中间"))


def test_noise_weight_is_the_mean_difference_in_terms_of_the_noise():
    """‖μ̃ − μ_θ‖²/(2σ²) with both means written from the noise: the weight times (ε − ε_θ)²."""
    alpha, before, sigma2, x_t, eps, eps_theta = 0.97, 0.6, 0.02, 0.8, 0.5, -0.3
    kept = alpha * before

    def mean(e):
        return (x_t - (1 - alpha) / math.sqrt(1 - kept) * e) / math.sqrt(alpha)

    x_0 = (x_t - math.sqrt(1 - kept) * eps) / math.sqrt(kept)
    posterior_mean = math.sqrt(before) * (1 - alpha) / (1 - kept) * x_0 + math.sqrt(alpha) * (1 - before) / (1 - kept) * x_t
    assert mean(eps) == pytest.approx(posterior_mean)
    assert (mean(eps) - mean(eps_theta)) ** 2 / (2 * sigma2) == pytest.approx(noise_weight(alpha, before, sigma2) * (eps - eps_theta) ** 2)


def test_full_covariance_gap_is_not_zero_for_a_factorized_q():
    """Mean field against a correlated posterior (ρ = 0.9): the best factorized q keeps a gap of −½ ln(1 − ρ²)."""
    rho = 0.9
    p = MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, rho], [rho, 1.0]]))
    q = MultivariateNormal(torch.zeros(2), (1 - rho**2) * torch.eye(2))
    assert kl_divergence(q, p).item() == pytest.approx(-0.5 * math.log(1 - rho**2), rel=1e-5)


def test_rejects():
    calls = [
        lambda: gaussian_kl(0, 0, 0, 1),
        lambda: gaussian_kl(math.nan, 1, 0, 1),
        lambda: elbo(0, -1, 0, 1),
        lambda: elbo(math.inf, 1, 0, 1),
        lambda: importance_bound(0, 1, 0, 1, 0, 1, Random(0)),
        lambda: gradient_samples(0, 1, 0, 1, 0, Random(0)),
        lambda: best_q(0, 1, 0),
        lambda: diffusion_bound(10),
        lambda: diffusion_bound(20, variance="learned"),
        lambda: noise_weight(1.0, 0.5, 1.0),
        lambda: log_evidence(0, math.inf),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|至少"):
            call()
