"""Schedules, the early-step simulation against the Adam of this project, RAdam's factor against torch."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.math.optimization.adam import Adam
from snippets.math.optimization.warmup import linear_warmup, mean_update, radam_factor, transformer_lr, worst_excursion


@given(st.integers(1, 50_000), st.integers(1, 20_000))
def test_the_transformer_schedule_peaks_at_its_warmup(step, warmup):
    assert transformer_lr(step, warmup=warmup) <= transformer_lr(warmup, warmup=warmup) * (1 + 1e-12)
    assert transformer_lr(warmup, warmup=warmup) == pytest.approx(512**-0.5 * warmup**-0.5)


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_linear_warmup_never_exceeds_its_peak_and_reaches_it(step, warmup):
    assert 0 < linear_warmup(step, 1.0, warmup) <= 1.0
    assert linear_warmup(max(1, warmup), 1.0, warmup) == 1.0


def test_first_adam_step_is_one_learning_rate_whatever_the_gradient():
    rng = random.Random(0)
    for _ in range(100):
        g = rng.gauss(0, 1) * 10 ** rng.randint(-3, 5)
        assert abs(Adam(lr=1.0, eps=1e-300).step([0.0], [g])[0]) == pytest.approx(1.0)


def test_simulated_steps_agree_with_the_adam_of_this_project():
    rng, totals = random.Random(5), [0.0] * 20
    for _ in range(3_000):
        adam, x = Adam(lr=1.0), [0.0]
        for t in range(20):
            new = adam.step(x, [rng.gauss(0, 1)])
            totals[t] += abs(new[0] - x[0]) / 3_000
            x = new
    assert [totals[0], totals[1], totals[4], totals[19]] == pytest.approx(mean_update((1, 2, 5, 20)), abs=0.02)


def test_stationary_update_size():
    (late,) = mean_update((300,), runs=3_000)
    assert late == pytest.approx(math.sqrt(0.1 / 1.9 * 2 / math.pi), rel=0.08)


@pytest.mark.parametrize("beta2", [0.9, 0.95, 0.999])
def test_radam_factor_against_torch(beta2):
    """One parameter with constant gradient 1: torch's step is lr·r_t·m̂/√v̂ = lr·r_t once r_t exists (torch waits until ρ > 5)."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.RAdam([x], lr=1.0, betas=(0.9, beta2), eps=1e-300)
    rho_inf = 2 / (1 - beta2) - 1
    checked = 0
    for t in range(1, 200):
        before = x.item()
        x.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
        if rho_inf - 2 * t * beta2**t / (1 - beta2**t) > 5:
            assert before - x.item() == pytest.approx(radam_factor(t, beta2), rel=1e-9)
            checked += 1
    assert checked > 150


def test_radam_factor_rises_to_one():
    factors = [radam_factor(t) for t in range(5, 20_000, 50)]
    assert factors == sorted(factors)
    assert factors[-1] == pytest.approx(1.0, abs=1e-3)


def test_longer_warmup_never_makes_the_excursion_worse():
    excursions = [worst_excursion(0.5, warmup) for warmup in (0, 25, 50, 100, 200, 400)]
    assert excursions == sorted(excursions, reverse=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: transformer_lr(0), "step"),
        (lambda: linear_warmup(1, 0.0, 1), "peak"),
        (lambda: linear_warmup(1, 1.0, -1), "warmup"),
        (lambda: mean_update(()), "steps"),
        (lambda: mean_update((1,), beta2=1.0), "beta2"),
        (lambda: radam_factor(0), "step"),
        (lambda: radam_factor(1, 0.5), "beta2"),
        (lambda: worst_excursion(-1, 0), "peak"),
        (lambda: worst_excursion(math.nan, 0), "peak"),
        (lambda: linear_warmup(1, math.nan, 2), "peak"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
