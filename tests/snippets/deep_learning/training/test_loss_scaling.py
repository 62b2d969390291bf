"""The loss scaler against torch.amp.GradScaler."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.training.loss_scaling import LossScaler, representable


@settings(deadline=None, max_examples=30)
@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_scaler_is_torchs(overflows, interval):
    ours = LossScaler(interval=interval)
    theirs = torch.amp.GradScaler("cpu", growth_interval=interval)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for overflow in overflows:
        theirs.scale(weight.sum()).backward()
        weight.grad = torch.full((1,), torch.inf if overflow else 1.0)
        before = weight.item()
        theirs.step(optimizer)
        theirs.update()
        assert ours.update(overflow) == (weight.item() != before)
        assert ours.scale == theirs.get_scale()
    restored = LossScaler(interval=interval)
    restored.load_state_dict(ours.state_dict())
    assert vars(restored) == vars(ours)


def test_scale_stays_in_fp32_at_both_ends():
    ours = LossScaler(scale=2.0**126, interval=1)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for _ in range(3):
        theirs.scale(0 * weight.sum()).backward()
        theirs.step(optimizer)
        theirs.update()
        ours.update(False)
        assert ours.scale == theirs.get_scale()
    assert ours.scale == 2.0**127
    sinking = LossScaler(scale=2.0**-125)
    assert not sinking.update(True)
    with pytest.raises(ValueError, match="规格化"):  # torch goes on to 0 and divides by it
        sinking.update(True)
    for scale in (0.0, float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="scale"):
            sinking.load_state_dict({"scale": scale, "good_steps": 0})
    assert sinking.scale == 2.0**-126


@pytest.mark.parametrize("bad", [{"scale": 0}, {"growth": 1}, {"backoff": 1}, {"interval": 0}])
def test_scaler_rejects(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        LossScaler(**bad)


def test_scaling_saves_underflow_until_it_overflows():
    lost = [representable(2.0**k, size=4000) for k in range(0, 40, 4)]
    under, over = [row["下溢"] for row in lost], [row["上溢"] for row in lost]
    assert under == sorted(under, reverse=True)
    assert over == sorted(over)
    assert over[-1] > 15
    with pytest.raises(ValueError, match="scale"):
        representable(0.0)
