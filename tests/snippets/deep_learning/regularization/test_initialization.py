"""Formulas against torch.nn.init, propagation against its expectation, the width check against torch's Adam."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from snippets.deep_learning.regularization.initialization import (
    adam_step_change,
    kaiming_std,
    plain_rms,
    residual_rms,
    xavier_std,
)


@pytest.mark.parametrize(("fan_in", "fan_out"), [(500, 2000), (64, 64), (1, 3)])
def test_formulas_are_torchs(fan_in, fan_out):
    weight = torch.empty(fan_out, fan_in, dtype=torch.float64)
    torch.manual_seed(0)
    expected = torch.randn_like(weight)
    torch.manual_seed(0)
    nn.init.xavier_normal_(weight)
    torch.testing.assert_close(weight, expected * xavier_std(fan_in, fan_out))
    torch.manual_seed(0)
    nn.init.kaiming_normal_(weight)
    torch.testing.assert_close(weight, expected * kaiming_std(fan_in))


def test_the_banks_xavier_is_off_by_a_thousand():
    assert math.sqrt(1 / 500 + 2000) == pytest.approx(44.7, abs=0.05)
    assert math.sqrt(1 / 500 + 2000) / xavier_std(500, 2000) > 1000


def test_bias_false_does_not_zero_the_weight():
    assert nn.Linear(4, 4, bias=False).weight.abs().min() > 0


@pytest.mark.parametrize("gain", [1.0, math.sqrt(2), 2.0])
def test_mean_square_follows_half_gain_squared(gain):
    """Mean over seeds of the log, against the log of the expectation; the fluctuation at h = 256 is below 1."""
    depth = 10
    logs = [2 * math.log(plain_rms(gain, depth, 512, seed=seed)) for seed in range(8)]
    assert np.mean(logs) == pytest.approx(depth * math.log(gain**2 / 2), abs=0.3)


@pytest.mark.parametrize("blocks", [8, 32, 128])
def test_residual_stream_grows_with_the_square_root(blocks):
    assert residual_rms(blocks, scaled=False) == pytest.approx(math.sqrt(1 + blocks), rel=0.06)
    assert residual_rms(blocks, scaled=True) == pytest.approx(math.sqrt(2), rel=0.06)


def test_standard_change_grows_with_width_and_mup_does_not():
    def mean(width: int, mup: bool) -> float:
        return np.mean([adam_step_change(width, mup=mup, seed=seed) for seed in range(12)])

    assert mean(512, False) / mean(128, False) > 3
    assert mean(512, True) / mean(128, True) == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("mup", [False, True])
def test_hand_written_step_is_torchs_adam(mup):
    width, steps, lr = 32, 3, 0.01
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.standard_normal((32, 16)))
    y = x[:, :1].sign()
    shapes, stds = [(16, width), (width, width), (width, 1)], [0.25, width**-0.5, 1 / width if mup else width**-0.5]
    weights = [torch.tensor(rng.standard_normal(shape) * std, requires_grad=True) for shape, std in zip(shapes, stds, strict=True)]
    rates = [lr, lr * 64 / width, lr * 64 / width] if mup else [lr] * 3
    optimizer = torch.optim.Adam([{"params": [w], "lr": rate} for w, rate in zip(weights, rates, strict=True)], eps=1e-12)

    def forward():
        return (x @ weights[0]).tanh().matmul(weights[1]).tanh() @ weights[2]

    start = forward().detach()
    for _ in range(steps):
        optimizer.zero_grad()
        (forward() - y).square().mean().backward()
        optimizer.step()
    expected = (forward().detach() - start).square().mean().sqrt().item()
    assert adam_step_change(width, mup=mup, steps=steps, lr=lr) == pytest.approx(expected, rel=1e-6)


def test_bad_input():
    for call in (
        lambda: xavier_std(0, 3),
        lambda: kaiming_std(-1),
        lambda: plain_rms(0),
        lambda: plain_rms(math.inf),
        lambda: plain_rms(1.0, depth=1.5),
        lambda: adam_step_change(64, mup=True, lr=math.inf),
        lambda: residual_rms(0, scaled=True),
        lambda: adam_step_change(0, mup=True),
    ):
        with pytest.raises(ValueError, match="必须为"):
            call()
