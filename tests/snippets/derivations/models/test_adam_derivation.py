"""The closed forms behind Adam against torch.optim, plain recursions, Monte Carlo and random search."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.derivations.models.adam_derivation import (
    adam_from_sums,
    after_rescaling_loss,
    corrected_mean,
    decay_fixed_point,
    effective_samples,
    ema_weights,
    equilibrium_scale,
    expected_first_step,
    mean_lag,
    snr_step,
    step_supremum,
    worst_gradients,
)

BETAS = st.floats(0.01, 0.999)
GRADS = st.lists(st.floats(-1e3, 1e3).filter(lambda g: abs(g) > 1e-6), min_size=1, max_size=60)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95), (0.0, 0.5), (0.95, 0.95)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_sums_equal_torch(betas, weight_decay):
    rng = np.random.default_rng(0)
    grads = rng.standard_normal((80, 3)) * 10.0 ** rng.integers(-4, 3, (80, 3))
    start = rng.standard_normal(3)
    reference = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([reference], lr=1e-2, betas=betas, eps=1e-8, weight_decay=weight_decay)
    for g in grads:
        reference.grad = torch.tensor(g)
        optimizer.step()
    ours = adam_from_sums(start.tolist(), grads.tolist(), 1e-2, betas, 1e-8, weight_decay)
    assert np.abs(np.array(ours) - reference.detach().numpy()).max() < 1e-12


@settings(deadline=None, max_examples=40)
@given(GRADS, BETAS)
def test_weights_are_the_recursion(grads, beta):
    m = 0.0
    for g in grads:
        m = beta * m + (1 - beta) * g
    t = len(grads)
    weights = ema_weights(beta, t)
    scale = max(map(abs, grads))
    assert np.dot(weights, grads) == pytest.approx(m, abs=1e-9 * scale)
    assert math.fsum(weights) == pytest.approx(1 - beta**t)
    assert corrected_mean(grads, beta) == pytest.approx(m / (1 - beta**t), abs=1e-9 * scale)
    assert min(grads) - 1e-9 * scale <= corrected_mean(grads, beta) <= max(grads) + 1e-9 * scale


@settings(deadline=None, max_examples=40)
@given(BETAS, st.integers(1, 300), st.floats(-5, 5), st.floats(-1, 1))
def test_a_drifting_mean_is_seen_lag_steps_late(beta, t, start, drift):
    values = [start + drift * i for i in range(1, t + 1)]
    assert corrected_mean(values, beta) == pytest.approx(values[-1] - drift * mean_lag(beta, t), abs=1e-7)


@pytest.mark.parametrize("gap", [0.9, 1e-3, 1e-5, 1e-9, 1e-15])
@pytest.mark.parametrize("t", [1, 2, 3, 50, 200])
def test_the_lag_does_not_cancel_near_one(gap, t):
    weights = np.array([(1 - gap) ** j for j in range(t)])
    assert mean_lag(1 - gap, t) == pytest.approx(weights @ np.arange(t) / weights.sum(), rel=1e-7, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(BETAS, st.integers(1, 300))
def test_effective_samples_is_one_over_the_squared_weights(beta, t):
    weights = np.array(ema_weights(beta, t))
    weights /= weights.sum()
    assert effective_samples(beta, t) == pytest.approx(1 / (weights**2).sum(), rel=1e-6)
    assert 1 - 1e-9 <= effective_samples(beta, t) <= t * (1 + 1e-9)


def test_variance_and_expectation_by_monte_carlo():
    """Gradients N(2, 3²), β = 0.9, t = 15: v̂ has the mean E g² = 13, m̂ the variance 9/n_eff; uncorrected v is low by 1 − βᵗ."""
    rng, beta, t, runs = np.random.default_rng(0), 0.9, 15, 200_000
    g = rng.normal(2, 3, (runs, t))
    weights = np.array(ema_weights(beta, t))
    v = g**2 @ weights
    standard_error = v.std() / math.sqrt(runs)
    assert abs(v.mean() - 13 * (1 - beta**t)) < 4 * standard_error
    assert abs(v.mean() - 13) > 20 * standard_error
    m_hat = g @ (weights / weights.sum())
    assert m_hat.var() == pytest.approx(9 / effective_samples(beta, t), rel=5 * math.sqrt(2 / runs))


@settings(deadline=None, max_examples=40)
@given(GRADS, BETAS, BETAS)
def test_no_sequence_beats_the_supremum_and_one_reaches_it(grads, beta1, beta2):
    def ratio(sequence):
        return abs(corrected_mean(sequence, beta1)) / math.sqrt(corrected_mean([g * g for g in sequence], beta2))

    limit = step_supremum(beta1, beta2, len(grads))
    assert ratio(grads) <= limit * (1 + 1e-7)
    worst = worst_gradients(beta1, beta2, min(len(grads), 20))
    if all(1e-100 < g < 1e100 for g in worst):
        assert ratio(worst) == pytest.approx(step_supremum(beta1, beta2, len(worst)), rel=1e-6)


def test_the_single_spike_of_the_paper_is_not_the_supremum():
    """§2.1 gives 3.162 lr for one gradient after zeros; the worst sequence takes 7.270 lr."""
    spike = [1e-30] * 20_000 + [1.0]
    moved = corrected_mean(spike, 0.9) / math.sqrt(corrected_mean([g * g for g in spike], 0.999))
    assert moved == pytest.approx(3.162, abs=1e-3)
    assert step_supremum(0.9, 0.999, 20_001) == pytest.approx(7.270, abs=1e-3)
    assert step_supremum(0.99, 0.9, 10**6) == math.inf  # β₁² > β₂: nothing bounds the step
    assert step_supremum(0.5, 0.0, 2) == math.inf
    assert step_supremum(0.5, 0.0, 1) == 1.0
    assert step_supremum(0.99, 5e-324, 3) == math.inf
    assert step_supremum(0.9, 0.95, 10**6) == pytest.approx(1.165, abs=1e-3)  # where the paper's other bound is 1


@settings(deadline=None, max_examples=40)
@given(GRADS, BETAS)
def test_equal_betas_are_a_signal_to_noise_ratio(grads, beta):
    if abs(corrected_mean(grads, beta)) < 1e-3:
        return
    step, formula = snr_step(grads, beta)
    assert step == pytest.approx(formula, rel=1e-6)
    assert abs(step) <= 1 + 1e-12
    assert step_supremum(beta, beta, len(grads)) == pytest.approx(1)


def test_the_first_step_counts_signs_only():
    """Corrected moments are unbiased, their ratio is not: 20 % of +10, 80 % of −1."""
    rng = np.random.default_rng(0)
    g = np.where(rng.random(100_000) < 0.2, 10.0, -1.0)
    first, limit = expected_first_step(0.2, 10.0, 1.0)
    assert np.sign(g).mean() == pytest.approx(first, abs=0.01)
    assert g.mean() / math.sqrt((g**2).mean()) == pytest.approx(limit, abs=0.01)
    assert first < 0 < limit


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_scale_invariance_holds_without_epsilon_and_not_with_l2(weight_decay):
    def run(scale, **options):
        return after_rescaling_loss(scale, weight_decay=weight_decay, **options)

    assert run(1e-7, eps=1e-300) == pytest.approx(run(1.0, eps=1e-300), abs=1e-12)
    assert run(1e-7, eps=1e-15) == pytest.approx(run(1.0, eps=1e-8), abs=1e-12)  # ε carries the unit of the gradient
    assert abs(run(1e-9, eps=1e-8) - run(1.0, eps=1e-8)) > 0.05
    if weight_decay:
        assert abs(run(1e-3, eps=1e-300, decoupled=False) - run(1.0, eps=1e-300, decoupled=False)) > 0.05


@pytest.mark.parametrize("gradient", [-2.0, 0.1, 3.0])
def test_fixed_points_of_both_decays(gradient):
    assert decay_fixed_point(gradient, 0.5, True) == pytest.approx(-math.copysign(2, gradient), abs=1e-6)
    assert decay_fixed_point(gradient, 0.5, False) == pytest.approx(-gradient / 0.5, abs=0.1)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_weights_under_noise_settle_at_the_equilibrium(beta1):
    """2000 parameters under white-noise gradients, torch's AdamW: the root mean square after 4 time constants."""
    lr, weight_decay, steps = 0.02, 0.2, 1000  # time constant of θ²: 1/(2·lr·λ) = 125 steps
    theta = torch.zeros(2000, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([theta], lr=lr, betas=(beta1, 0.999), weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        theta.grad = torch.randn(2000, generator=generator, dtype=torch.float64)
        optimizer.step()
    assert theta.detach().square().mean().sqrt().item() == pytest.approx(equilibrium_scale(lr, weight_decay), rel=0.08)


def test_rejects():
    calls = [
        lambda: ema_weights(1.0, 3),
        lambda: ema_weights(math.nan, 3),
        lambda: ema_weights(True, 3),
        lambda: ema_weights(0.9, 0),
        lambda: ema_weights(0.9, 2.0),
        lambda: corrected_mean([], 0.9),
        lambda: corrected_mean([1.0, math.inf], 0.9),
        lambda: adam_from_sums([1.0], [[1.0, 2.0]]),
        lambda: adam_from_sums([], []),
        lambda: adam_from_sums([1.0], [[math.nan]]),
        lambda: adam_from_sums([1.0], [[1.0]], lr=math.nan),
        lambda: adam_from_sums([1.0], [[1.0]], eps=-1.0),
        lambda: adam_from_sums([1.0], [[1.0]], weight_decay=math.inf),
        lambda: adam_from_sums([1.0], [[1e-200]], eps=0.0),
        lambda: mean_lag(-0.1, 3),
        lambda: effective_samples(0.9, True),
        lambda: step_supremum(0.9, 1.0, 3),
        lambda: worst_gradients(0.0, 0.5, 3),
        lambda: worst_gradients(0.99, 0.01, 2000),
        lambda: snr_step([0.0, 0.0], 0.5),
        lambda: snr_step([1e-200], 0.5),
        lambda: expected_first_step(0.0, 1.0, 1.0),
        lambda: after_rescaling_loss(0.0, eps=1e-8),
        lambda: after_rescaling_loss(1e300, eps=1e-8),
        lambda: after_rescaling_loss(1e-200, eps=1e-300),
        lambda: after_rescaling_loss(1.0, eps=math.inf),
        lambda: decay_fixed_point(1.0, 0.0, True),
        lambda: decay_fixed_point(math.nan, 0.1, True),
        lambda: decay_fixed_point(1e200, 0.1, True),
        lambda: decay_fixed_point(1.0, 1e6, True),
        lambda: decay_fixed_point(1.0, 0.1, True, lr=math.inf),
        lambda: equilibrium_scale(0.1, 0.0),
        lambda: equilibrium_scale(math.inf, 0.1),
        lambda: equilibrium_scale(10.0, 10.0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|没有定义"):
            call()
