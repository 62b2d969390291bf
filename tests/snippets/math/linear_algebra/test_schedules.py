"""Schedules against torch.optim.lr_scheduler and the published recipes; the exact recursion against sampled SGD."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.math.linear_algebra.schedules import (
    CURVATURES,
    bert,
    comparison,
    cosine,
    deepseek_v3,
    exponential,
    final_loss,
    gpt3_175b,
    inverse_sqrt,
    inverse_time,
    linear,
    llama3_405b,
    partial_sums,
    published,
    robbins_monro,
    step_decay,
    sweep_cost,
    wsd,
)
from snippets.math.optimization.warmup import transformer_lr

SHAPES = [step_decay, exponential, cosine, linear, wsd, inverse_time]


def torch_schedule(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    values = []
    for _ in range(steps + 1):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


@pytest.mark.parametrize(
    ("ours", "make"),
    [
        (lambda t: cosine(t, 40, 0.1), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=40, eta_min=0.1)),
        (lambda t: linear(t, 40, 0.2), lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=40)),
        (lambda t: exponential(t, 40, 0.01), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.01 ** (1 / 40))),
        (lambda t: step_decay(t, 40), lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [20, 30], gamma=0.1)),
        (lambda t: linear(t, 40), lambda o: torch.optim.lr_scheduler.PolynomialLR(o, total_iters=40, power=1.0)),
    ],
)
def test_against_torch(ours, make):
    assert [ours(t) for t in range(41)] == pytest.approx(torch_schedule(make, 40), abs=1e-9)


def test_torch_cosine_rises_again_after_t_max_and_ours_stays():
    """A common surprise when a run is extended past T_max."""
    values = torch_schedule(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10, eta_min=0.1), 20)
    assert values[20] == pytest.approx(1.0)
    assert cosine(20, 10) == pytest.approx(0.1)


@pytest.mark.parametrize("shape", SHAPES)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e7))
def test_decays_start_at_the_peak_and_never_rise(shape, a, b, total):
    early, late = sorted((a, b))
    assert shape(0, total) == pytest.approx(1.0)
    assert 0 <= shape(late * total, total) <= shape(early * total, total) + 1e-12 <= 1 + 2e-12


@given(st.floats(1, 1e6))
def test_inverse_sqrt_is_the_transformer_schedule(step):
    assert inverse_sqrt(step, 40_000) * transformer_lr(4000) == pytest.approx(transformer_lr(step))


def test_wsd_with_all_decay_is_linear():
    for t in range(0, 101, 5):
        assert wsd(t, 100, decay=1.0) == pytest.approx(linear(t, 100))


def test_published_schedules_are_continuous_but_for_the_announced_jumps():
    for schedule, points in ((gpt3_175b, (0.375, 260)), (llama3_405b, (8000, 1_200_000)), (deepseek_v3, (0.0252, 10, 14.3))):
        for point in points:
            assert schedule(point * (1 - 1e-9)) == pytest.approx(schedule(point * (1 + 1e-9)), rel=1e-2)
    assert deepseek_v3(14.633 - 1e-9) / deepseek_v3(14.633 + 1e-9) == pytest.approx(2.2e-5 / 7.3e-6)
    assert bert(9_999.999) / bert(10_000) == pytest.approx(1 / 0.99)
    assert bert(0) == gpt3_175b(0) == llama3_405b(0) == deepseek_v3(0) == 0


def test_published_means_against_closed_forms():
    means = {name: mean for name, _, _, mean in published()}
    gpt3 = (0.375 / 2 + (260 - 0.375) * 0.55 + 40 * 0.1) / 300
    v3 = (0.0252 / 2 + (10 - 0.0252) + 4.3 * 0.55 + 0.333 * 0.1 + 0.167 * 7.3 / 220) / 14.8
    assert means["GPT-3 175B"] == pytest.approx(gpt3, abs=1e-4)
    assert means["DeepSeek-V3"] == pytest.approx(v3, abs=1e-3)
    assert means["BERT"] == pytest.approx(0.005 + 0.99 * 0.99 / 2, abs=1e-4)


@pytest.mark.parametrize("power", [0.0, 0.3, 0.5, 0.6, 0.9, 1.0, 1.3])
def test_robbins_monro_against_the_integral_test(power):
    """∫ t^(−p) converges exactly for p > 1; growth from 10⁴ to 10⁶ terms tells the cases apart."""
    diverges, squares_converge = robbins_monro(power)

    def grows(p):
        small, large = (1 + math.fsum(t**-p for t in range(2, n)) for n in (10**3, 10**5))
        return large - small > 1.5 * 1000 ** (1 - p) * 0.9 if p < 1 else (large - small > 4 if p == 1 else False)

    assert diverges == grows(power)
    assert squares_converge == (2 * power > 1)


def test_partial_sums_of_the_harmonic_series():
    first, second = partial_sums(lambda t: 1 / t, 10_000)
    assert first == pytest.approx(math.log(10_000) + 0.5772156649, abs=1e-4)
    assert second == pytest.approx(math.pi**2 / 6, abs=1.1e-4)


def test_recursion_against_sampled_sgd():
    rng, steps, runs, peak = random.Random(0), 60, 1000, 0.5
    total = 0.0
    for _ in range(runs):
        x = [10.0] * len(CURVATURES)
        for t in range(steps):
            eta = peak * linear(t, steps)
            x = [v - eta * (h * v + rng.gauss(0, 1)) for h, v in zip(CURVATURES, x, strict=True)]
        total += sum(h * v * v for h, v in zip(CURVATURES, x, strict=True)) / 2
    assert total / runs == pytest.approx(final_loss(linear, peak, steps), rel=0.05)


def test_a_summable_schedule_never_forgets_its_start():
    """Σ η finite: the flattest direction keeps e^(−2hΣη) of its start, however long the run."""
    peak, gamma = 0.1, 0.99
    loss = final_loss(lambda t, total: gamma**t, peak, steps=5_000)
    left = math.exp(-2 * CURVATURES[-1] * peak / (1 - gamma)) * 100 * CURVATURES[-1] / 2
    assert loss > 0.95 * left
    assert loss > 4 * final_loss(inverse_time, 1.9, steps=5_000)


def test_any_finite_schedule_has_a_robbins_monro_continuation():
    """Why the conditions say nothing about a finite run: the first T steps are free."""

    def extended(t):
        return linear(t, 1000) if t < 1000 else 1 / t

    first, second = partial_sums(extended, 200_000)
    head, head_squares = partial_sums(lambda t: linear(t, 1000), 1000)
    assert first - head == pytest.approx(math.log(200), rel=1e-2)
    assert second - head_squares < 1.1e-3


def test_comparison_supports_what_the_page_says():
    loss = {name: value for name, value, _ in comparison()}
    assert min(loss, key=loss.get) == "指数到 1%"
    assert max(loss.values()) / loss["线性到 0"] > 13
    assert loss["余弦到 0，以为有 2000 步"] / loss["余弦到 0"] > 1.4


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True))
def test_sweep_cost_against_counting_tokens(budgets):
    cosine_cost, wsd_cost = sweep_cost([b * 10 for b in budgets], decay=0.1)
    trunk = set(range(9 * max(budgets)))  # tokens of the constant phase
    assert wsd_cost == pytest.approx(len(trunk) + sum(budgets))
    assert cosine_cost == 10 * sum(budgets)
    assert wsd_cost <= cosine_cost + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cosine(-1, 10), "t ≥ 0"),
        (lambda: linear(1, 0), "total"),
        (lambda: exponential(1, 10, 0.0), "end"),
        (lambda: wsd(1, 10, 0.0), "decay"),
        (lambda: inverse_time(1, 10, 0.0), "offset"),
        (lambda: gpt3_175b(-1), "t ≥ 0"),
        (lambda: bert(math.nan), "t ≥ 0"),
        (lambda: robbins_monro(-1), "power"),
        (lambda: partial_sums(lambda t: 1.0, 0), "terms"),
        (lambda: final_loss(linear, 0.0), "peak"),
        (lambda: sweep_cost([]), "budgets"),
        (lambda: robbins_monro(math.nan), "power"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
