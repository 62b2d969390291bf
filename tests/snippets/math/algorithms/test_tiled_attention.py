"""Tiled attention against torch's SDPA over random shapes, masks, GQA ratios, tile sizes and precisions; backward against autograd."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.bias import causal_lower_right

from snippets.math.algorithms.tiled_attention import naive_attention, tiled_attention, tiled_backward


def tensors(seed, b, n_kv, group, s, t, d, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(b, n_kv * group, s, d, generator=generator).to(dtype)
    k, v = (torch.randn(b, n_kv, t, d, generator=generator).to(dtype) for _ in range(2))
    return q, k, v


shapes = st.tuples(*(st.integers(1, high) for high in (2, 3, 4, 17, 23, 9)))


@settings(deadline=None, max_examples=60)
@given(shapes, st.integers(1, 20), st.integers(1, 20), st.integers(0, 10**6))
def test_equals_sdpa(shape, tile_q, tile_k, seed):
    q, k, v = tensors(seed, *shape)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    out, _ = tiled_attention(q, k, v, tile_q=tile_q, tile_k=tile_k)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(naive_attention(q, k, v), expected, atol=2e-5, rtol=1e-4)


@settings(deadline=None, max_examples=60)
@given(shapes, st.integers(1, 20), st.integers(1, 20), st.integers(0, 10**6))
def test_causal_is_aligned_bottom_right(shape, tile_q, tile_k, seed):
    b, n_kv, group, s, extra, d = shape
    q, k, v = tensors(seed, b, n_kv, group, s, s + extra, d)
    k_all, v_all = (x.repeat_interleave(group, dim=1) for x in (k, v))
    expected = F.scaled_dot_product_attention(q, k_all, v_all, attn_mask=causal_lower_right(s, s + extra))
    out, _ = tiled_attention(q, k, v, causal=True, tile_q=tile_q, tile_k=tile_k)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-4)


@settings(deadline=None, max_examples=40)
@given(shapes, st.integers(0, 10**6), st.booleans())
def test_boolean_masks_and_fully_masked_rows(shape, seed, causal):
    q, k, v = tensors(seed, *shape)
    generator = torch.Generator().manual_seed(seed + 1)
    mask = torch.rand(q.size(0), 1, q.size(2), k.size(2), generator=generator) < 0.5
    out, lse = tiled_attention(q, k, v, mask=mask, causal=causal, tile_q=5, tile_k=3)
    torch.testing.assert_close(out, naive_attention(q, k, v, mask=mask, causal=causal), atol=2e-5, rtol=1e-4)
    assert out.isfinite().all()
    hidden = lse == -math.inf
    assert (out[hidden] == 0).all()


def test_more_queries_than_keys_leaves_the_first_rows_empty():
    q, k, v = tensors(0, 1, 1, 1, 5, 3, 4)
    out, lse = tiled_attention(q, k, v, causal=True)
    assert (out[:, :, :2] == 0).all()
    assert (lse[:, :, :2] == -math.inf).all()
    assert lse[:, :, 2:].isfinite().all()


def test_no_keys_at_all():
    out, lse = tiled_attention(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4), torch.randn(1, 2, 0, 4))
    assert (out == 0).all()
    assert (lse == -math.inf).all()


def test_logsumexp():
    q, k, v = tensors(3, 2, 2, 2, 11, 13, 8)
    scores = q @ k.repeat_interleave(2, dim=1).transpose(-2, -1) / math.sqrt(8)
    torch.testing.assert_close(tiled_attention(q, k, v, tile_k=4)[1], scores.logsumexp(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_scores_beyond_the_fp16_range(dtype):
    """q·k reaches 10⁵ before scaling; accumulation in fp32 keeps it finite and one-hot."""
    q, k, v = tensors(5, 1, 2, 2, 16, 16, 64, dtype)
    q, k = 60 * q, 60 * k
    out, lse = tiled_attention(q, k, v, tile_q=7, tile_k=5)
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert lse.isfinite().all()
    reference = naive_attention(q.double(), k.double(), v.double()).to(dtype)
    torch.testing.assert_close(out, reference, atol=2e-2, rtol=2e-2)


@settings(deadline=None, max_examples=40)
@given(shapes, st.integers(1, 9), st.booleans(), st.integers(0, 10**6))
def test_backward_equals_autograd(shape, tile_k, causal, seed):
    q, k, v = (x.requires_grad_() for x in tensors(seed, *shape))
    out, lse = tiled_attention(q.detach(), k.detach(), v.detach(), causal=causal)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed + 2))
    expected = torch.autograd.grad(naive_attention(q, k, v, causal=causal), (q, k, v), grad)
    if any(x.isnan().any() for x in expected):  # autograd through a fully masked softmax row is NaN: ours is 0
        return
    actual = tiled_backward(q.detach(), k.detach(), v.detach(), out, lse, grad, causal, tile_k)
    for ours, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, reference, atol=5e-5, rtol=1e-3)


def test_backward_of_fully_masked_rows_is_zero_not_nan():
    q, k, v = tensors(0, 1, 1, 1, 5, 3, 4)
    out, lse = tiled_attention(q, k, v, causal=True)
    dq, dk, dv = tiled_backward(q, k, v, out, lse, torch.ones_like(out), causal=True)
    assert (dq[:, :, :2] == 0).all()
    assert dk.isfinite().all()
    assert dv.isfinite().all()


@pytest.mark.parametrize(
    ("q", "k", "mask", "message"),
    [
        ((1, 4, 2, 8), (1, 3, 2, 8), None, "整数倍"),
        ((1, 4, 2, 8), (2, 4, 2, 8), None, "batch"),
        ((1, 4, 2, 8), (1, 4, 2, 16), None, "head_dim"),
        ((4, 2, 8), (1, 4, 2, 8), None, "须为 q"),
        ((1, 4, 2, 8), (1, 4, 2, 8), torch.zeros(2, 2), "bool"),
    ],
)
def test_bad_input(q, k, mask, message):
    with pytest.raises(ValueError, match=message):
        tiled_attention(torch.zeros(q), torch.zeros(k), torch.zeros(k), mask=mask)


def test_bad_tiles():
    with pytest.raises(ValueError, match="块大小"):
        tiled_attention(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), tile_q=0)
