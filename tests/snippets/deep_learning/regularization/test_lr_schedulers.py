"""The stateless scheduler against torch's stateful ones, and the traps measured on torch itself."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from snippets.deep_learning.regularization.lr_schedulers import (
    Scheduler,
    extended_midway,
    progress_by_tokens,
    scaled_lr,
    stepped_per_micro_batch,
)
from snippets.math.linear_algebra.schedules import cosine, linear, wsd

SHAPES = {"cosine": lambda t, n: cosine(t, n, end=0.1), "linear": linear, "wsd": wsd}


def optimizer(lr=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates(scheduler, opt, steps):
    seen = []
    for _ in range(steps):
        seen.append(opt.param_groups[0]["lr"])
        opt.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
    return seen


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@given(warmup=st.integers(0, 20), rest=st.integers(1, 200))
def test_stays_between_zero_and_the_peak_and_reaches_it(shape, warmup, rest):
    s = Scheduler(3e-4, warmup, warmup + rest, shape)
    values = [s(step) for step in range(warmup + rest + 5)]
    assert max(values) == pytest.approx(3e-4)
    assert min(values) >= 0
    assert values[warmup] == pytest.approx(3e-4)
    assert values[0] > 0


def test_is_torchs_sequential_of_linear_and_cosine():
    warmup, total = 10, 100
    s = Scheduler(0.5, warmup, total, lambda t, n: cosine(t, n, end=0.1))
    opt = optimizer(0.5)
    theirs = SequentialLR(
        opt,
        [LinearLR(opt, 1 / warmup, 1.0, warmup - 1), CosineAnnealingLR(opt, total - warmup, eta_min=0.05)],
        [warmup],
    )
    assert rates(theirs, opt, total) == pytest.approx([s(step) for step in range(total)], rel=1e-9)


def test_resume_needs_only_the_step():
    s = Scheduler(1.0, 5, 50, linear)
    whole = [s(step) for step in range(50)]
    opt = optimizer()
    theirs = LambdaLR(opt, s)
    rates(theirs, opt, 20)
    state = theirs.state_dict()
    fresh = optimizer()
    resumed = LambdaLR(fresh, s)
    assert fresh.param_groups[0]["lr"] == s(0)  # without the state: back at the warm-up
    resumed.load_state_dict(state)
    fresh.param_groups[0]["lr"] = state["_last_lr"][0]
    assert rates(resumed, fresh, 30) == pytest.approx(whole[20:])


def test_micro_batch_stepping_on_torch():
    total, accumulation = 80, 8
    opt = optimizer()
    theirs = CosineAnnealingLR(opt, total)
    per_update = rates(theirs, opt, total)[::accumulation]
    done = stepped_per_micro_batch(total, accumulation)
    assert done == total // accumulation
    assert per_update[done - 1] < 0.05
    opt = optimizer()
    beyond = rates(CosineAnnealingLR(opt, total), opt, 2 * total + 1)[::accumulation]
    assert beyond[done] == pytest.approx(0, abs=1e-12)
    assert beyond[2 * done] == pytest.approx(1)  # past T_max it rises again


@given(st.integers(1, 60), st.integers(1, 8))
def test_micro_batch_stepping_ends_early_by_the_accumulation(updates, accumulation):
    assert stepped_per_micro_batch(updates * accumulation, accumulation) == updates


def test_extending_the_horizon_jumps_up():
    before, after = extended_midway()
    assert after > 6 * before


def test_tokens_and_steps_agree_only_without_a_ramp():
    flat = progress_by_tokens(((5, 10), (5, 10)), 100)
    assert all(by_step == by_token for _, by_step, by_token in flat)
    ramped = progress_by_tokens(((5, 10), (5, 30)), 200)
    assert ramped[0][1:] == (0.5, 0.25)


@given(st.floats(1e-6, 1), st.floats(1, 1e7), st.floats(1, 1e7))
def test_scaling_there_and_back(lr, a, b):
    for rule in ("linear", "sqrt"):
        assert scaled_lr(scaled_lr(lr, a, b, rule), b, a, rule) == pytest.approx(lr)
    assert scaled_lr(lr, 1, 4, "sqrt") == pytest.approx(2 * lr)


def test_bad_input():
    for call in (
        lambda: Scheduler(0.0, 1, 10, linear),
        lambda: Scheduler(math.nan, 1, 10, linear),
        lambda: Scheduler(1.0, 10, 10, linear),
        lambda: Scheduler(1.0, 1, 10, linear)(-1),
        lambda: stepped_per_micro_batch(0),
        lambda: progress_by_tokens(((0, 1),), 5),
        lambda: progress_by_tokens((), 5),
        lambda: progress_by_tokens(((5, 10),), 5),
        lambda: Scheduler(math.inf, 1, 10, linear),
        lambda: scaled_lr(math.inf, 1, 1, "sqrt"),
        lambda: scaled_lr(1, 1, 1, "cubic"),
        lambda: scaled_lr(1, 0, 1, "sqrt"),
    ):
        with pytest.raises(ValueError, match=r"须|不能|超过"):
            call()
