"""Tiled forward and backward against torch, for ragged blocks, causal, s < t and large scores; traffic counted exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.attention.flash_attention import (
    Traffic,
    backward,
    flash_traffic,
    forward,
    softmax_per_block,
    standard_traffic,
    traffic_table,
)


def reference(q, k, v, grad, causal):
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    s, t = len(q), len(k)
    scores = tensors[0] @ tensors[1].T / q.shape[1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(s, t, dtype=torch.bool).triu(1 + t - s), -torch.inf)
    out = scores.softmax(-1) @ tensors[2]
    return out.detach().numpy(), scores.logsumexp(-1).detach().numpy(), torch.autograd.grad(out, tensors, torch.tensor(grad))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 13),
    st.integers(0, 6),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from([1.0, 30.0]),
    st.integers(0, 99),
)
def test_forward_and_backward_are_torchs(s, extra, d, rows, cols, causal, scale, seed):
    rng = np.random.default_rng(seed)
    q, grad = scale * rng.standard_normal((s, d)), rng.standard_normal((s, d))
    k, v = rng.standard_normal((2, s + extra, d))
    out, lse = forward(q, k, v, rows, cols, causal=causal, hbm=Traffic())
    expected, expected_lse, grads = reference(q, k, v, grad, causal)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-8, atol=1e-10)
    got = backward(q, k, v, out, lse, grad, rows, cols, causal=causal, hbm=Traffic())
    for ours, theirs in zip(got, grads, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("s", "d", "rows"), [(64, 8, 16), (64, 8, 64), (60, 4, 16)])
def test_traffic_is_the_formula(s, d, rows):
    q = np.ones((s, d))
    hbm = Traffic()
    forward(q, q, q, rows, 8, causal=False, hbm=hbm)
    assert hbm.total == flash_traffic(s, d, rows)


def test_traffic_does_not_depend_on_the_key_block_and_causal_halves_it():
    q = np.ones((128, 4))
    totals = set()
    for cols in (4, 16, 32):
        hbm = Traffic()
        forward(q, q, q, 16, cols, causal=False, hbm=hbm)
        totals.add(hbm.total)
    assert len(totals) == 1
    causal = Traffic()
    forward(q, q, q, 16, 16, causal=True, hbm=causal)
    assert causal.read == pytest.approx((128 * 4) + (totals.pop() - 2 * 128 * 4 - 128) * (8 + 1) / (2 * 8))


def test_more_rows_less_traffic():
    values = [flash_traffic(8192, 128, rows) for rows in (64, 128, 256, 512)]
    assert values == sorted(values, reverse=True)
    assert values[0] / values[1] == pytest.approx(2, rel=0.05)
    assert standard_traffic(8192, 128) > values[0]
    assert len(traffic_table()) == 5


def test_blockwise_softmax_without_rescaling_is_wrong():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 8, 4))
    right, _ = forward(q, k, v, 8, 2, causal=False, hbm=Traffic())
    assert not np.allclose(softmax_per_block(q, k, v, 2), right)
    np.testing.assert_allclose(softmax_per_block(q, k, v, 8), right)


def test_rejects():
    x = np.ones((4, 2))
    for call in (
        lambda: forward(x, x, np.ones((3, 2)), 2, 2, causal=False, hbm=Traffic()),
        lambda: forward(x, x, x, 0, 2, causal=False, hbm=Traffic()),
        lambda: forward(np.ones((5, 2)), x, x, 2, 2, causal=True, hbm=Traffic()),
        lambda: standard_traffic(0, 1),
        lambda: flash_traffic(1, 1, 0),
    ):
        with pytest.raises(ValueError, match=r"须|要求"):
            call()
