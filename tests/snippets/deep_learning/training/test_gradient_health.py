"""Each planted fault gets its own diagnosis, the healthy ones none; statistics against direct computation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from snippets.deep_learning.training.gradient_health import (
    STACKS,
    Layer,
    adam_first_step,
    attention_health,
    check,
    clipping_keeps_ratios,
    diagnose,
    probe,
    product,
)

EXPECTED = {
    "sigmoid": ["消失"],
    "relu，初始化小一半": ["消失"],
    "relu，He 初始化": [],
    "relu，初始化大一倍": ["爆炸"],
    "relu，偏置 −10": ["消失", "死层"],
    "pre-norm 残差": [],
}


def test_every_stack_is_expected():
    assert STACKS.keys() == EXPECTED.keys()


@pytest.mark.parametrize(("name", "found"), EXPECTED.items())
def test_diagnosis(name, found):
    assert check(name, depth=20, h=64, b=128)[1] == found


def test_probe_is_what_autograd_says_and_leaves_no_hook():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])
    x = torch.randn(7, 5)
    stats = probe(layers, lambda: layers[2](layers[1](layers[0](x)).relu()).square().sum())
    a = layers[0](x)
    b = layers[1](a)
    c = layers[2](b.relu())
    grads = torch.autograd.grad(c.square().sum(), [a, b, c])
    for layer, out, grad in zip(stats, (a, b, c), grads, strict=True):
        assert layer.grad_norm == pytest.approx(grad.norm().item(), rel=1e-5)
        assert layer.rms == pytest.approx(out.square().mean().sqrt().item(), rel=1e-5)
    assert not any(layer._forward_hooks for layer in layers)


def test_probe_removes_hooks_after_an_error():
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError):
        probe([layer], lambda: layer(torch.zeros(1, 3)).sum())
    assert not layer._forward_hooks


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_overflow_comes_first(bad):
    assert diagnose([Layer(1, 0, bad), Layer(1, 0, 1)]) == ["溢出"]
    assert diagnose([Layer(bad, 0, 1), Layer(1, 0, 1)]) == ["溢出"]
    with pytest.raises(ValueError, match="没有"):
        diagnose([])


def test_detached_layers_are_not_called_overflow():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])
    x = torch.randn(7, 5)
    stats = probe(layers, lambda: layers[2](layers[1](layers[0](x)).detach()).sum())
    assert diagnose(stats) == ["断开"]

    def frozen_first():
        with torch.no_grad():
            out = layers[0](x)
        return layers[2](layers[1](out)).sum()

    assert diagnose(probe(layers, frozen_first)) == ["断开"]


def test_all_zero_gradients_are_not_called_healthy():
    layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])
    x = torch.randn(7, 5)
    assert diagnose(probe(layers, lambda: 0 * layers[2](layers[1](layers[0](x))).sum())) == ["全零"]


def test_half_precision_outputs_are_measured_not_overflowed():
    scale = nn.Identity()
    x = torch.full((4, 8), 1000.0, dtype=torch.float16, requires_grad=True)
    (stats,) = probe([scale], lambda: (scale(x) * 2).float().sum() * 100)
    assert stats.rms == 1000
    assert stats.grad_norm == pytest.approx(200 * math.sqrt(32))
    q = torch.full((2, 64), 100.0, dtype=torch.float16)
    assert attention_health(q, q)[0] == pytest.approx(64 * 1e4 / 8)


def test_probe_needs_tensor_outputs():
    with pytest.raises(ValueError, match="张量"):
        probe([lstm := nn.LSTM(2, 2)], lambda: lstm(torch.zeros(1, 2))[0].sum())


@given(st.floats(0, 3), st.integers(0, 60))
def test_product_is_a_chain(gain, layers):
    chain = 1.0
    for _ in range(layers):
        chain *= gain
    assert product(gain, layers) == pytest.approx(chain, rel=1e-9)


@settings(deadline=None)
@given(st.floats(1e-14, 1e3))
def test_adam_first_step_is_torchs(g):
    p = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    p.grad = torch.tensor([g], dtype=torch.float64)
    torch.optim.Adam([p], lr=1.0).step()
    assert adam_first_step(g) == pytest.approx(-p.item(), rel=1e-6)


def test_attention_health_limits():
    q = torch.zeros(4, 8)
    assert attention_health(q, torch.randn(9, 8)) == (0, pytest.approx(1))
    one_hot = 1e4 * torch.eye(8)
    assert attention_health(one_hot, one_hot)[1] == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="d 相等"):
        attention_health(torch.zeros(2, 3), torch.zeros(2, 4))


def test_clipping_does_not_help_the_first_layer():
    before, after = clipping_keeps_ratios()  # raises when nothing was clipped
    assert before < 1e-12
    assert after == pytest.approx(before, rel=1e-6)


def test_rejects():
    for call in (
        lambda: product(-1, 2),
        lambda: product(1, -2),
        lambda: adam_first_step(1, 0),
        lambda: check("tanh"),
        lambda: check("sigmoid", depth=0),
        lambda: diagnose([Layer(1, 0, 1)], ratio=1),
        lambda: clipping_keeps_ratios(1e3),
        lambda: attention_health(torch.zeros(2, 3), torch.zeros(1, 3)),
        lambda: attention_health(torch.zeros(0, 3), torch.zeros(4, 3)),
    ):
        with pytest.raises(ValueError, match=r"不能|必须|须|不大于|没有裁剪"):
            call()
    assert product(1e10, 60) == math.inf
