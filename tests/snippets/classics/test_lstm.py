"""The cell against torch.nn.LSTMCell, the count against torch.nn.LSTM, the gradient against autograd."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.classics.lstm import lstm_cell, parameters, remembered, state_numbers


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.sampled_from([0.1, 1.0, 50.0]), st.integers(0, 99))
def test_cell_is_torchs(b, n, d, scale, seed):
    torch.manual_seed(seed)
    cell = torch.nn.LSTMCell(n, d, dtype=torch.float64)
    x, h, c = (scale * torch.randn(b, size, dtype=torch.float64) for size in (n, d, d))
    expected = cell(x, (h, c))
    weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih + cell.bias_hh)
    got = lstm_cell(*(t.detach().numpy() for t in (x, h, c, *weights)))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n", "d"), [(3, 5), (16, 16)])
def test_count(n, d):
    assert parameters(n, d) == sum(p.numel() for p in torch.nn.LSTM(n, d).parameters())


@pytest.mark.parametrize("bias", [-2.0, 0.0, 3.0])
def test_gradient_through_the_cell_state_is_the_product_of_forget_gates(bias):
    """torch's own cell; with W_h = 0 the direct path is the only one, otherwise there are others."""
    torch.manual_seed(0)
    cell = torch.nn.LSTMCell(3, 1, dtype=torch.float64)
    with torch.no_grad():
        cell.weight_ih.zero_()
        cell.weight_hh.zero_()
        cell.bias_ih[1], cell.bias_hh[1] = bias, 0.0  # order i, f, g, o

    def gradient():
        c0 = torch.full((1, 1), 0.7, dtype=torch.float64, requires_grad=True)
        h, c = torch.zeros_like(c0), c0
        for _ in range(20):
            h, c = cell(torch.ones(1, 3, dtype=torch.float64), (h, c))
        c.backward()
        return c0.grad.item()

    assert remembered(20, bias) == pytest.approx(gradient(), rel=1e-9, abs=0)
    with torch.no_grad():
        cell.weight_hh.fill_(1.0)
    assert remembered(20, bias) != pytest.approx(gradient(), rel=1e-3, abs=0)


def test_a_gate_that_does_not_read_the_state_allows_a_parallel_scan():
    """Pairs (f, v) of c -> f·c + v compose associatively: doubling takes log2(T) rounds and equals the loop."""
    generator = np.random.default_rng(0)
    f, v = generator.uniform(0.5, 1, 64), generator.normal(size=64)
    c, loop = 0.0, []
    for gate, new in zip(f, v, strict=True):
        c = gate * c + new
        loop.append(c)
    for shift in (2**k for k in range(6)):
        v[shift:], f[shift:] = f[shift:] * v[:-shift] + v[shift:], f[shift:] * f[:-shift]
    np.testing.assert_allclose(v, loop, rtol=1e-12)


def test_defaults_of_torch_leave_the_forget_gate_at_one_half():
    cell = torch.nn.LSTMCell(8, 64)
    forget = (cell.bias_ih + cell.bias_hh)[64:128].sigmoid()
    assert 0.43 < forget.min() < forget.max() < 0.57


def test_state_is_constant_for_the_lstm_and_linear_for_the_cache():
    one, many = state_numbers(1), state_numbers(1000)
    assert one[0] == many[0]
    assert many[1] == 1000 * one[1]


def test_rejects():
    zeros = np.zeros
    for call in (
        lambda: lstm_cell(zeros((1, 2)), zeros((1, 3)), zeros((1, 3)), zeros((9, 2)), zeros((12, 3)), zeros(12)),
        lambda: lstm_cell(zeros((2, 2)), zeros((1, 3)), zeros((1, 3)), zeros((12, 2)), zeros((12, 3)), zeros(12)),
        lambda: lstm_cell(zeros(2), zeros((1, 3)), zeros((1, 3)), zeros((12, 2)), zeros((12, 3)), zeros(12)),
        lambda: lstm_cell(zeros((1, 2)), zeros((1, 3)), zeros((1, 3)), zeros((12, 2)), zeros((12, 3)), zeros(12) + np.nan),
        lambda: remembered(5, float("nan")),
        lambda: state_numbers(5, d=-1),
        lambda: parameters(0, 1),
        lambda: remembered(-1, 0.0),
        lambda: state_numbers(0),
    ):
        with pytest.raises(ValueError, match=r"形状|须|不能|必须|NaN"):
            call()
