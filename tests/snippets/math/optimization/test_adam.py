"""Adam and AdamW against torch.optim over many steps; bias correction, step bounds, scale invariance, counter-examples."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.optimization.adam import (
    Adam,
    decay_of_two_parameters,
    diverges_on_a_convex_problem,
    epsilon_outside_or_hat,
    first_step_without_correction,
    optimizer_bytes,
    second_moment,
    step_bound,
    step_size_after_losing_t,
)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95), (0.0, 0.5), (0.95, 0.0)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_torch_over_many_steps(decoupled, betas, weight_decay):
    rng = random.Random(0)
    params = [rng.gauss(0, 1) for _ in range(7)]
    reference = torch.tensor(params, dtype=torch.float64, requires_grad=True)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    torch_optimizer = kind([reference], lr=1e-2, betas=betas, eps=1e-8, weight_decay=weight_decay)
    ours = Adam(1e-2, *betas, 1e-8, weight_decay, decoupled)
    for _ in range(300):
        grads = [rng.gauss(0, 10 ** rng.randint(-6, 3)) for _ in params]
        params = ours.step(params, grads)
        reference.grad = torch.tensor(grads, dtype=torch.float64)
        torch_optimizer.step()
    torch.testing.assert_close(torch.tensor(params, dtype=torch.float64), reference.detach(), rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_step_size_bound(grads):
    """|Δ| ≤ lr · max(1, (1−β1)/√(1−β2)) up to bias correction (Kingma & Ba 2014, §2.1): here 3.17 lr covers all steps."""
    adam, x = Adam(lr=1.0), [0.0]
    for g in grads:
        new = adam.step(x, [g])
        assert abs(new[0] - x[0]) <= 3.2 + 1e-9
        x = new


def test_sparse_gradient_reaches_the_bound():
    adam, x = Adam(lr=1.0), [0.0]
    for _ in range(20_000):
        x = adam.step(x, [0.0])
    moved = abs(adam.step(x, [1.0])[0] - x[0])
    assert moved == pytest.approx(0.1 / math.sqrt(0.001), rel=1e-3)


@given(st.floats(1e-3, 1e3))
def test_scale_invariance(scale):
    rng = random.Random(1)
    grads = [rng.gauss(0, 1) for _ in range(50)]
    ends = []
    for factor in (1.0, scale):
        adam, x = Adam(eps=1e-300), [0.0]
        for g in grads:
            x = adam.step(x, [factor * g])
        ends.append(x[0])
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


@given(st.lists(st.just(2.0), min_size=1, max_size=200), st.floats(0, 0.9999))
def test_bias_correction_is_exact_for_constant_gradients(grads, beta2):
    assert all(v_hat == pytest.approx(4.0) for _, v_hat in second_moment(grads, beta2))


def test_epsilon_hat_converges_to_the_same_for_large_gradients():
    assert epsilon_outside_or_hat(1e3)[0] == pytest.approx(epsilon_outside_or_hat(1e3)[1], rel=1e-9)
    plain, hat = epsilon_outside_or_hat(1e-9)
    assert plain / hat > 20


def test_first_step_without_correction_matches_a_run():
    uncorrected = 0.1 / math.sqrt(0.001)
    assert first_step_without_correction() == pytest.approx(uncorrected)


@pytest.mark.parametrize("c", [3.0, 4.0, 10.0])
def test_reddi_problem_ends_at_the_worst_point(c):
    assert diverges_on_a_convex_problem(c=c) == pytest.approx(1.0, abs=0.02)


def test_l2_is_not_decay_but_equal_for_equal_gradient_scales():
    decoupled, l2 = decay_of_two_parameters(True), decay_of_two_parameters(False)
    assert decoupled[0] == pytest.approx(decoupled[1], rel=1e-6)
    assert l2[1] > 0.99 > l2[0]


def test_state_bytes_of_torch_agree():
    weight = torch.zeros(1000, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones(1000)
    optimizer.step()
    state = optimizer.state[weight]
    assert sum(state[name].numel() * state[name].element_size() for name in ("exp_avg", "exp_avg_sq")) / 1000 == optimizer_bytes(1e9)[0][1]


@pytest.mark.parametrize("beta2", [0.999, 0.95])
def test_growing_gradients_reach_the_supremum_and_nothing_passes_it(beta2):
    """Gradients that grow by β₂/β₁ per step attain the Cauchy–Schwarz bound; the single spike stays below."""
    adam, x = Adam(lr=1.0, beta2=beta2, eps=1e-300), [0.0]
    adam.step(x, [0.0])
    adam.steps = 10**6  # bias corrections are 1
    for t in range(400):
        new = adam.step(x, [(beta2 / 0.9) ** t * 1e-15])
        moved, x = abs(new[0] - x[0]), [0.0]
    spike, supremum = step_bound(0.9, beta2)
    assert moved == pytest.approx(supremum, rel=1e-3)
    assert moved <= supremum * (1 + 1e-9)
    assert spike < supremum


@pytest.mark.parametrize("beta2", [0.999, 0.95])
def test_losing_the_step_count_is_what_a_resumed_run_shows(beta2):
    """Constant gradient: the intact run moves exactly lr; the resumed one has m and v but counts from 1."""
    adam, x = Adam(lr=1.0, beta2=beta2), [0.0]
    for _ in range(20_000):
        x = adam.step(x, [1.0])
    adam.steps = 0
    state = adam.m, adam.v
    for t in (1, 2, 3, 10):
        while adam.steps < t:
            if adam.steps == 0:  # the first step would reset m and v: that is not what a checkpoint does
                adam.steps = 1
                new = [x[0] - math.sqrt(1 - beta2) / 0.1]
                adam.m, adam.v = state
            else:
                new = adam.step(x, [1.0])
            moved, x = x[0] - new[0], new
        assert moved == pytest.approx(step_size_after_losing_t(t, beta2=beta2), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step_size_after_losing_t(0), "t ≥ 1"),
        (lambda: step_bound(0.99, 0.9), "beta1² < beta2"),
        (lambda: Adam(lr=0), "须有 lr"),
        (lambda: Adam(beta2=1.0), "须有 lr"),
        (lambda: Adam().step([1.0], [math.inf]), "NaN 或 inf"),
        (lambda: Adam().step([1.0], [1.0, 2.0]), "长度不同"),
        (lambda: second_moment([1.0], 1.0), "beta2"),
        (lambda: first_step_without_correction(1.0), "beta1"),
        (lambda: epsilon_outside_or_hat(0.0), "g 必须"),
        (lambda: decay_of_two_parameters(True, 0), "steps"),
        (lambda: diverges_on_a_convex_problem(c=2.0), "c > 2"),
        (lambda: optimizer_bytes(-1), "psi"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
