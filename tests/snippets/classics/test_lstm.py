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
    c0 = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    c = c0
    for _ in range(20):
        c = torch.sigmoid(torch.tensor(bias, dtype=torch.float64)) * c + 0.1  # i ⊙ g does not depend on c here
    c.backward()
    assert remembered(20, bias) == pytest.approx(c0.grad.item(), rel=1e-9)


def test_state_is_constant_for_the_lstm_and_linear_for_the_cache():
    one, many = state_numbers(1), state_numbers(1000)
    assert one[0] == many[0]
    assert many[1] == 1000 * one[1]


def test_rejects():
    zeros = np.zeros
    for call in (
        lambda: lstm_cell(zeros((1, 2)), zeros((1, 3)), zeros((1, 3)), zeros((9, 2)), zeros((12, 3)), zeros(12)),
        lambda: parameters(0, 1),
        lambda: remembered(-1, 0.0),
        lambda: state_numbers(0),
    ):
        with pytest.raises(ValueError, match=r"形状|须|不能|必须"):
            call()
