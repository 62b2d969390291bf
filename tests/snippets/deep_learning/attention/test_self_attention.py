"""Against scaled_dot_product_attention and MultiheadAttention: masks, padding, fully masked rows, extremes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.attention.self_attention import (
    attention,
    causal_mask,
    cost,
    multi_head,
    padding_mask,
    score_statistics,
    softmax,
    softmax_gradient_size,
)

sdpa = torch.nn.functional.scaled_dot_product_attention


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_is_torchs(b, s, extra, d, causal, seed):
    rng = np.random.default_rng(seed)
    t = s + extra
    q, k, v = rng.standard_normal((b, s, d)), rng.standard_normal((b, t, d)), rng.standard_normal((b, t, d + 1))
    mask = causal_mask(s, t) if causal else None
    expected = sdpa(*map(torch.tensor, (q, k, v)), attn_mask=None if mask is None else torch.tensor(mask))
    np.testing.assert_allclose(attention(q, k, v, mask), expected, rtol=1e-9, atol=1e-12)


def test_fully_masked_rows_give_zero_and_huge_scores_do_not_overflow():
    q = k = np.full((2, 3), 1e160)
    v = np.array([[1.0], [3.0]])
    with np.errstate(over="ignore"):
        scores = q @ k.T
    assert np.isinf(scores).all()  # what a naive exponent would see
    fine = attention(np.full((2, 3), 300.0), np.full((2, 3), 300.0), v)
    np.testing.assert_allclose(fine, 2.0)
    none = attention(np.ones((2, 3)), np.ones((2, 3)), v, np.zeros((2, 2), bool))
    assert none.tolist() == [[0.0], [0.0]]


def test_padding_does_not_change_the_valid_part():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 1, 5, 4)) for _ in range(3))
    got = attention(q, k, v, padding_mask([3, 5], 5))
    np.testing.assert_allclose(got[0, 0, :3], attention(q[0, 0, :3], k[0, 0, :3], v[0, 0, :3]))
    poisoned = v.copy()
    poisoned[0, :, 3:] = 1e6
    np.testing.assert_allclose(attention(q, k, poisoned, padding_mask([3, 5], 5)), got)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_multi_head_is_torchs(heads):
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, heads, bias=False, batch_first=True, dtype=torch.float64)
    w_q, w_k, w_v = (w.detach().numpy().T for w in theirs.in_proj_weight.chunk(3))
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    blocked = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=blocked)[0].detach()
    got = multi_head(x.numpy(), w_q, w_k, w_v, theirs.out_proj.weight.detach().numpy().T, heads, causal_mask(6))
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_wrong_reshape_mixes_positions_without_an_error():
    """(b, s, h) viewed as (b, a, s, d) has the right shape and the wrong content."""
    x = np.arange(2 * 3 * 4).reshape(1, 6, 4)
    right = x.reshape(1, 6, 2, 2).swapaxes(1, 2)
    wrong = x.reshape(1, 2, 6, 2)
    assert right.shape == wrong.shape
    assert not np.array_equal(right, wrong)


def test_minus_1e_minus_9_is_no_mask():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4, 4))
    mask = causal_mask(4)
    assert softmax(np.where(mask, scores, scores - 1e-9))[0, 1] > 0.01
    assert softmax(np.where(mask, scores, -np.inf))[0, 1] == 0


@pytest.mark.parametrize("d", [16, 256])
def test_variance_of_the_scores(d):
    assert score_statistics(d, scaled=False)[0] == pytest.approx(math.sqrt(d), rel=0.02)
    assert score_statistics(d, scaled=True)[0] == pytest.approx(1, rel=0.02)


def test_jacobian_by_differences():
    scores, step = np.array([0.3, -1.0, 2.0]), 1e-6
    numeric = np.stack([(softmax(scores + step * e) - softmax(scores - step * e)) / (2 * step) for e in np.eye(3)])
    assert softmax_gradient_size(scores) == pytest.approx(np.abs(numeric).max(), rel=1e-6)


def test_cost_and_rejects():
    assert cost(2, 64, 32, 4)["投影"] == 2 * cost(1, 64, 32, 4)["投影"]
    for call in (
        lambda: attention(np.ones((2, 3)), np.ones((2, 4)), np.ones((2, 1))),
        lambda: attention(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 1)), np.ones((2, 2))),
        lambda: multi_head(np.ones((1, 2, 6)), *[np.eye(6)] * 4, heads=4),
        lambda: causal_mask(4, 3),
        lambda: padding_mask([4], 3),
        lambda: cost(0, 1, 1, 1),
    ):
        with pytest.raises(ValueError, match=r"不合|布尔|整除|须"):
            call()
