"""Tiled attention against torch's SDPA over random shapes, masks, GQA ratios, tile sizes and precisions; backward against autograd."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.math.algorithms.tiled_attention import cpu_milliseconds, naive_attention, tiled_attention, tiled_backward


def tensors(seed, b, n_kv, group, s, t, d, d_v=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = (b, n_kv * group, s, d), (b, n_kv, t, d), (b, n_kv, t, d_v or d)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def random_mask(kind, seed, b, a, s, t):
    """Masks of every shape that broadcasts to (b, a, s, t); about a third of the rows of the boolean one may be empty."""
    generator = torch.Generator().manual_seed(seed)
    if kind is None:
        return None
    if kind == "padding":  # (b, 1, 1, t): trailing keys are padding; a whole sequence may be
        return (torch.arange(t) < torch.randint(0, t + 1, (b, 1), generator=generator))[:, None, None, :]
    visible = torch.rand(b, 1, s, t, generator=generator) < 0.4
    if kind == "bool":
        return visible
    bias = torch.randn(1, a, s, t, generator=generator, dtype=torch.float64)
    return bias.masked_fill(~visible, -math.inf) if kind == "bias with -inf" else bias


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-10)


shapes = st.tuples(*(st.integers(1, high) for high in (2, 3, 4, 17, 23, 9, 9)))
tiles = st.integers(1, 20)
seeds = st.integers(0, 10**6)
masks = st.sampled_from([None, "padding", "bool", "bias", "bias with -inf"])


@settings(deadline=None, max_examples=150)
@given(shapes, tiles, tiles, seeds, masks)
def test_equals_sdpa(shape, tile_q, tile_k, seed, kind):
    """Double precision, so that agreement to 1e-10 leaves no room for a dropped or doubled key."""
    q, k, v = tensors(seed, *shape)
    mask = random_mask(kind, seed, *q.shape[:3], k.size(2))
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    close(naive_attention(q, k, v, mask), expected)
    close(tiled_attention(q, k, v, mask, tile_q=tile_q, tile_k=tile_k)[0], expected)


@settings(deadline=None, max_examples=100)
@given(shapes, tiles, tiles, seeds, masks)
def test_causal_is_aligned_bottom_right(shape, tile_q, tile_k, seed, kind):
    q, k, v = tensors(seed, *shape)
    s, t = q.size(2), k.size(2)
    mask, visible = random_mask(kind, seed, *q.shape[:3], t), torch.ones(s, t, dtype=torch.bool).tril(t - s)
    both = visible if mask is None else mask & visible if mask.dtype == torch.bool else mask.masked_fill(~visible, -math.inf)
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=both, enable_gqa=True)
    close(naive_attention(q, k, v, mask, causal=True), expected)
    close(tiled_attention(q, k, v, mask, causal=True, tile_q=tile_q, tile_k=tile_k)[0], expected)


@pytest.mark.parametrize(("s", "t"), [(1, 9), (4, 9), (9, 9)])
def test_torchs_own_lower_right_bias(s, t):
    q, k, v = tensors(0, 2, 3, 1, s, t, 8)
    close(tiled_attention(q, k, v, causal=True)[0], F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(s, t)))


@settings(deadline=None, max_examples=60)
@given(shapes, tiles, seeds, masks)
def test_logsumexp(shape, tile_k, seed, kind):
    q, k, v = tensors(seed, *shape)
    mask = random_mask(kind, seed, *q.shape[:3], k.size(2))
    scores = q @ k.repeat_interleave(shape[2], dim=1).mT / math.sqrt(q.size(3))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    out, lse = tiled_attention(q, k, v, mask, tile_q=5, tile_k=tile_k)
    close(lse, scores.logsumexp(-1))
    assert (out[lse == -math.inf] == 0).all()


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("additive", [False, True])
def test_what_torch_does_with_a_fully_masked_row(backend, dtype, additive):
    """The page says: both CPU backends give output 0 and gradient 0, as here."""
    q, k, v = (x.requires_grad_() for x in tensors(0, 1, 2, 1, 4, 4, 16, dtype=dtype))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    if additive:
        mask = torch.zeros(4, 4, dtype=dtype).masked_fill(~mask, -math.inf)
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    ours, _ = tiled_attention(q.detach(), k.detach(), v.detach(), mask)
    assert (out[:, :, 1] == 0).all()
    assert (ours[:, :, 1] == 0).all()
    assert (gradients[0][:, :, 1] == 0).all()
    assert all(x.isfinite().all() for x in gradients)


def test_more_queries_than_keys_leaves_the_first_rows_empty():
    q, k, v = tensors(0, 1, 1, 1, 5, 3, 4)
    out, lse = tiled_attention(q, k, v, causal=True)
    assert (out[:, :, :2] == 0).all()
    assert (lse[:, :, :2] == -math.inf).all()
    assert lse[:, :, 2:].isfinite().all()


def test_no_keys_at_all():
    q, k, v = tensors(0, 1, 2, 1, 3, 1, 4)
    out, lse = tiled_attention(q, k[:, :, :0], v[:, :, :0])
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    assert (naive_attention(q, k[:, :, :0], v[:, :, :0]) == 0).all()
    assert (F.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0]) == 0).all()


def test_no_queries_and_one_token():
    q, k, v = tensors(0, 1, 2, 2, 1, 1, 4)
    close(tiled_attention(q, k, v, causal=True)[0], v.repeat_interleave(2, dim=1))
    assert tiled_attention(q[:, :, :0], k, v)[0].shape == (1, 4, 0, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("magnitude", [60.0, 1e4])
def test_half_precision_with_scores_beyond_the_fp16_range(dtype, magnitude):
    """q·k reaches 10⁵ to 10⁹ before scaling; fp32 scores stay finite and the weights become one-hot."""
    q, k, v = tensors(5, 1, 2, 2, 16, 16, 64, dtype=dtype)
    q, k = magnitude * q, magnitude * k
    out, lse = tiled_attention(q, k, v, tile_q=7, tile_k=5)
    assert (q @ k.repeat_interleave(2, dim=1).mT).abs().max() > 65504
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    assert out.isfinite().all()
    assert lse.isfinite().all()
    reference = naive_attention(q.double(), k.double(), v.double()).to(dtype)
    torch.testing.assert_close(out, reference, atol=2e-2, rtol=2e-2)


def test_values_at_the_top_of_the_half_range():
    q, k, v = tensors(6, 1, 1, 1, 4, 9, 8, dtype=torch.float16)
    v = torch.full_like(v, torch.finfo(torch.float16).max)
    assert (tiled_attention(q, k, v, tile_k=2)[0] == v[:, :, :4]).all(), "a sum of nine maxima must not overflow on the way"


def test_nan_behind_the_mask_spreads_as_in_torch_but_not_from_skipped_tiles():
    """0 · NaN is NaN: uninitialised padding has to be zeroed. A causal tile to the right is never read at all."""
    q, k, v = tensors(0, 1, 1, 1, 8, 8, 4)
    v[:, :, 4:] = math.nan
    mask = (torch.arange(8) < 4).expand(8, 8)
    assert F.scaled_dot_product_attention(q, k, v, attn_mask=mask).isnan().all()
    assert tiled_attention(q, k, v, mask)[0].isnan().all()
    assert tiled_attention(q, k, v, causal=True, tile_q=4, tile_k=4)[0][:, :, :4].isfinite().all()
    assert naive_attention(q, k, v, causal=True)[:, :, :4].isnan().all()


class Largest(TorchDispatchMode):
    """Remembers the element count of the largest tensor whose storage an operator newly allocated."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in given:
            self.numel = max(self.numel, result.numel())
        return result


def test_no_quadratic_tensor_is_ever_allocated():
    q, k, v = tensors(0, 1, 1, 2, 256, 256, 4)
    padding = (torch.arange(256) < 200)[None, None, None, :]
    with Largest() as naive:
        naive_attention(q, k, v, padding, causal=True)
    with Largest() as tiled:
        out, lse = tiled_attention(q, k, v, padding, causal=True, tile_q=16, tile_k=16)
    with Largest() as backward:
        tiled_backward(q, k, v, out, lse, out, padding, causal=True, tile_k=16)
    assert naive.numel == 2 * 256 * 256
    assert tiled.numel == out.numel() == 2 * 256 * 4
    assert backward.numel == 2 * 256 * 16, "linear in s: all rows times one tile of keys"


def test_grouped_heads_do_not_copy_keys():
    q, k, v = tensors(0, 1, 1, 8, 1, 512, 16)
    with Largest() as tiled:
        tiled_attention(q, k, v, tile_k=64)
    assert tiled.numel <= 8 * 64, "one token: the largest thing is a tile of scores"


@settings(deadline=None, max_examples=100)
@given(shapes, tiles, st.booleans(), seeds, masks)
def test_backward_equals_autograd(shape, tile_k, causal, seed, kind):
    q, k, v = (x.requires_grad_() for x in tensors(seed, *shape))
    mask = random_mask(kind, seed, *q.shape[:3], k.size(2))
    reference = naive_attention(q, k, v, mask, causal)
    grad = torch.randn(reference.shape, generator=torch.Generator().manual_seed(seed + 2), dtype=torch.float64)
    expected = torch.autograd.grad(reference, (q, k, v), grad)
    assert all(x.isfinite().all() for x in expected), "the whiteboard version has finite gradients even on empty rows"
    q, k, v = (x.detach() for x in (q, k, v))
    out, lse = tiled_attention(q, k, v, mask, causal)
    for ours, theirs in zip(tiled_backward(q, k, v, out, lse, grad, mask, causal, tile_k), expected, strict=True):
        close(ours, theirs)


def test_whiteboard_gradients_equal_finite_differences():
    inputs = [x.requires_grad_() for x in tensors(0, 1, 1, 2, 4, 3, 2)]
    assert torch.autograd.gradcheck(lambda q, k, v: naive_attention(q, k, v, causal=True), inputs)


def test_backward_of_half_precision_keeps_the_dtypes():
    q, k, v = tensors(1, 1, 2, 2, 6, 9, 8, dtype=torch.bfloat16)
    out, lse = tiled_attention(q, k, v)
    exact = tiled_backward(q.double(), k.double(), v.double(), *tiled_attention(q.double(), k.double(), v.double()), out.double())
    for ours, theirs in zip(tiled_backward(q, k, v, out, lse, out), exact, strict=True):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), theirs, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((1, 4, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8), "整数倍"),
        ((1, 4, 2, 8), (1, 0, 2, 8), (1, 0, 2, 8), "整数倍"),
        ((1, 4, 2, 8), (2, 4, 2, 8), (2, 4, 2, 8), "batch"),
        ((1, 4, 2, 8), (1, 4, 2, 16), (1, 4, 2, 16), "head_dim"),
        ((1, 4, 2, 0), (1, 4, 2, 0), (1, 4, 2, 0), "head_dim"),
        ((4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8), "须为 q"),
        ((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 3, 8), "须为 q"),
    ],
)
def test_bad_shapes(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        tiled_attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def test_bad_tiles():
    x = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match="块大小"):
        tiled_attention(x, x, x, tile_q=0)
    with pytest.raises(ValueError, match="块大小"):
        tiled_backward(x, x, x, x, torch.zeros(1, 1, 1), x, tile_k=0)


def test_timing_restores_the_thread_count():
    before = torch.get_num_threads()
    assert all(ms > 0 for ms in cpu_milliseconds(16, tiles=(8,)).values())
    assert torch.get_num_threads() == before
