"""The loss scaler against torch.amp.GradScaler, and a mixed step against the fp32 one."""

import copy

import pytest
import torch
from torch import nn

from snippets.deep_learning.training.loss_scaling import LossScaler
from snippets.deep_learning.training.mixed_precision import distinct_positions, mixed_step


def problem(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    inputs = torch.randn(256, 16)
    return model, inputs, (inputs[:, :4] + 0.1 * torch.randn(256, 4)).argmax(1)


def run(dtype, scaler=None, shrink=1.0, steps=60):
    model, inputs, targets = problem()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for p in model.parameters():
        p.register_hook(lambda g: g * shrink)
    results = [mixed_step(model, optimizer, inputs, targets, dtype=dtype, scaler=scaler) for _ in range(steps)]
    return [loss for loss, _ in results], [moved for _, moved in results]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_follows_fp32(dtype):
    reference, _ = run(torch.float32)
    losses, moved = run(dtype, LossScaler() if dtype == torch.float16 else None)
    assert reference[-1] < 0.3 * reference[0]
    assert losses[-1] == pytest.approx(reference[-1], rel=0.1)
    assert moved.count(False) <= 4  # the first scale may overflow a few times


def test_fp16_without_scaling_loses_small_gradients():
    model, inputs, targets = problem()
    grads = {}
    for scale in (1.0, 2.0**14):
        net = copy.deepcopy(model)
        with torch.no_grad():
            net[2].weight.mul_(1e-6)  # a tiny last layer: the gradient of the first one is about 1e-8
        scaler = LossScaler(scale=scale)
        mixed_step(net, torch.optim.SGD(net.parameters(), 0.0), inputs, targets, dtype=torch.float16, scaler=scaler, max_norm=1e9)
        grads[scale] = net[0].weight.grad
    assert (grads[1.0] == 0).float().mean() > 0.5
    assert (grads[2.0**14] == 0).float().mean() < 0.05


def test_overflow_skips_the_step_and_halves_the_scale():
    model, inputs, targets = problem()
    before = copy.deepcopy(model.state_dict())
    scaler = LossScaler(scale=2.0**40)
    _, moved = mixed_step(model, torch.optim.AdamW(model.parameters()), inputs, targets, dtype=torch.float16, scaler=scaler)
    assert not moved
    assert scaler.scale == 2.0**39
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_bad_gradients_without_a_scaler_do_not_reach_the_weights():
    model, inputs, targets = problem()
    before = copy.deepcopy(model.state_dict())
    inputs[0, 0] = torch.nan
    for dtype in (torch.bfloat16, torch.float32):
        with pytest.raises(ValueError, match="NaN"):
            mixed_step(model, torch.optim.AdamW(model.parameters()), inputs, targets, dtype=dtype)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_parameters_outside_the_graph_are_skipped():
    model = nn.Linear(4, 3)
    model.unused = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, moved = mixed_step(model, optimizer, torch.randn(6, 4), torch.arange(6) % 3, dtype=torch.bfloat16)
    assert moved
    assert model.unused.grad is None
    for inputs, dtype in ((torch.zeros(0, 4), torch.bfloat16), (torch.zeros(6, 4), torch.int32)):
        with pytest.raises(ValueError, match="浮点"):
            mixed_step(model, optimizer, inputs, torch.arange(len(inputs)) % 3, dtype=dtype)


def test_master_weights_must_be_fp32():
    model = nn.Linear(2, 2).bfloat16()
    with pytest.raises(ValueError, match="float32"):
        mixed_step(model, torch.optim.SGD(model.parameters(), 1.0), torch.ones(1, 2), torch.zeros(1).long(), dtype=torch.bfloat16)


def test_positions_collide_in_bf16():
    assert torch.tensor(257).to(torch.bfloat16) == 256
    assert distinct_positions(256, torch.bfloat16) == 256
    assert distinct_positions(2048, torch.float16) == 2048
    assert distinct_positions(131072, torch.bfloat16) < 131072 / 50
