"""The chunked loss against F.cross_entropy: loss and both gradients, any chunk size, padding, bf16; the peak it is there for."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.probability.chunked_cross_entropy import chunked_linear_cross_entropy, peak_gigabytes
from snippets.math.probability.cross_entropy import logits_gigabytes


def inputs(n, h, v, seed, ignored=0.0, scale=1.0, dtype=torch.float64):
    torch.manual_seed(seed)
    x, w = ((scale * torch.randn(size, h)).to(dtype).requires_grad_() for size in (n, v))
    labels = torch.randint(v, (n,))
    labels[torch.rand(n) < ignored] = -100
    labels[0] = v - 1  # at least one that counts
    return x, w, labels


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 17), st.integers(1, 5), st.integers(1, 11), st.integers(1, 20), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 999))
def test_equals_torch(n, h, v, chunk, ignored, seed):
    x, w, labels = inputs(n, h, v, seed, ignored)
    loss = chunked_linear_cross_entropy(x, w, labels, chunk)
    reference = F.cross_entropy(x @ w.T, labels)
    torch.testing.assert_close(loss.double(), reference, rtol=1e-5, atol=1e-5)  # the logits are taken to fp32
    for a, b in zip(torch.autograd.grad(loss, (x, w)), torch.autograd.grad(reference, (x, w)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_upstream_gradient_is_passed_on():
    x, w, labels = inputs(6, 3, 5, 0)
    scaled = torch.autograd.grad(3 * chunked_linear_cross_entropy(x, w, labels, 2), x)[0]
    torch.testing.assert_close(scaled, 3 * torch.autograd.grad(chunked_linear_cross_entropy(x, w, labels, 2), x)[0])


def test_huge_logits_do_not_overflow():
    x, w, labels = inputs(6, 3, 5, 1, scale=100.0)
    assert (x @ w.T).abs().max() > 1e4
    loss = chunked_linear_cross_entropy(x, w, labels, 4)
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, (x, w)))


def test_bfloat16_keeps_dtypes_and_stays_close():
    x, w, labels = inputs(64, 32, 100, 2, 0.3, dtype=torch.bfloat16)
    loss = chunked_linear_cross_entropy(x, w, labels, 16)
    reference = F.cross_entropy((x @ w.T).float(), labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, reference, rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.autograd.grad(loss, (x, w)), torch.autograd.grad(reference, (x, w)), strict=True):
        assert a.dtype == torch.bfloat16
        assert (a - b).norm() <= 0.01 * b.norm()


def test_ignored_rows_get_no_gradient():
    x, w, labels = inputs(8, 3, 5, 3)
    labels[2:5] = -100
    grad = torch.autograd.grad(chunked_linear_cross_entropy(x, w, labels, 3), x)[0]
    assert grad[2:5].abs().max() == 0
    assert grad[:2].abs().min() > 0


@pytest.mark.parametrize("ignore_index", [255, 0, -1])
def test_any_ignore_index(ignore_index):
    x, w, labels = inputs(8, 3, 5, 5)
    labels[2:5] = ignore_index
    loss = chunked_linear_cross_entropy(x, w, labels, 3, ignore_index)
    torch.testing.assert_close(loss.double(), F.cross_entropy(x @ w.T, labels, ignore_index=ignore_index), rtol=1e-5, atol=1e-5)


def test_peak_without_chunks_is_the_formula_and_chunks_cut_it():
    """12 bytes per logit once the vocabulary dwarfs h; in chunks the floor is the gradient of W (fp32 sum, one bf16 product)."""
    plain = peak_gigabytes(8192, 4096, 128_256)
    assert plain == pytest.approx(logits_gigabytes(8192, 128_256), rel=1e-3)
    floor = 128_256 * 4096 * (4 + 2) / 1e9
    assert floor < peak_gigabytes(8192, 4096, 128_256, 256) < floor + 0.3
    assert peak_gigabytes(8192, 4096, 128_256, 256) < plain / 3.5


def test_torch_mean_over_nothing_is_nan_and_ours_is_an_error():
    x, w, _ = inputs(3, 2, 4, 4)
    nothing = torch.full((3,), -100)
    assert F.cross_entropy(x @ w.T, nothing).isnan()
    with pytest.raises(ValueError, match="没有有效 token"):
        chunked_linear_cross_entropy(x, w, nothing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3)}, "须有 x"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, "须有 x"),
        ({"chunk": 0}, "chunk"),
        ({"labels": torch.tensor([0, 5])}, "标签须在"),
        ({"labels": torch.tensor([0, -1])}, "标签须在"),
    ],
)
def test_bad_input(change, message):
    call = {"x": torch.zeros(2, 4), "w": torch.zeros(5, 4), "labels": torch.zeros(2, dtype=torch.long), "chunk": 1} | change
    with pytest.raises(ValueError, match=message):
        chunked_linear_cross_entropy(**call)


@pytest.mark.parametrize("sizes", [(0, 1, 1, None), (1, 1, 1, 0)])
def test_bad_sizes(sizes):
    with pytest.raises(ValueError, match="≥ 1"):
        peak_gigabytes(*sizes)
