"""Scores against torch, weights as a distribution, masks and extremes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.classics.attention import additive_scores, attend, dot_scores, soft_lookup, softmax

finite = st.floats(-100, 100)


@given(st.lists(finite, min_size=1, max_size=8))
def test_softmax_is_torchs(scores):
    assert softmax(scores) == pytest.approx(torch.tensor(scores, dtype=torch.float64).softmax(0).tolist())


def test_mask_ties_and_extremes():
    assert softmax([0.0, -math.inf, 0.0]) == [0.5, 0.0, 0.5]
    assert softmax([1e308, 1e308]) == [0.5, 0.5]
    assert softmax([5.0]) == [1.0]
    for bad in ([], [-math.inf], [math.inf, 0.0], [math.nan], [0.0, math.nan], [-math.inf, math.nan]):
        with pytest.raises(ValueError, match="屏蔽"):
            softmax(bad)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_scaled_dot_product_is_torchs(d, n, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(rows, d, generator=generator, dtype=torch.float64) for rows in (1, n, n))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)[0]
    got = attend(dot_scores(q[0].tolist(), k.tolist()), v.tolist())
    assert got == pytest.approx(expected.tolist())


def test_additive_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(3, generator=generator), torch.randn(5, 4, generator=generator)
    w_q, w_k, v = torch.randn(6, 3, generator=generator), torch.randn(6, 4, generator=generator), torch.randn(6, generator=generator)
    expected = (w_q @ q + k @ w_k.T).tanh() @ v
    got = additive_scores(q.tolist(), k.tolist(), w_q.tolist(), w_k.tolist(), v.tolist())
    assert got == pytest.approx(expected.tolist(), rel=1e-5)


def test_sharper_is_closer_to_a_dictionary():
    looked_up = [soft_lookup(s)[0] for s in (0, 2, 8, 100)]
    assert looked_up == sorted(looked_up, reverse=True)
    assert looked_up[-1] == pytest.approx(10)


def test_permuting_the_pairs_changes_nothing():
    """Attention is a set operation: without positions the order of the keys is invisible."""
    keys, values = [[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]], [[1.0], [2.0], [3.0]]
    query = [0.3, 0.7]
    forward = attend(dot_scores(query, keys), values)
    assert attend(dot_scores(query, keys[::-1]), values[::-1]) == pytest.approx(forward)


def test_rejects():
    with pytest.raises(ValueError, match="维数"):
        dot_scores([1.0], [[1.0, 2.0]])
    for query, keys in (([], [[]]), ([1.0], [[math.nan]]), ([math.inf], [[1.0]])):
        with pytest.raises(ValueError, match="维数"):
            dot_scores(query, keys)
    with pytest.raises(ValueError, match="个"):
        attend([0.0], [[1.0], [2.0]])
    for values in ([[1.0], [2.0, 3.0]], [[1.0, 2.0], [3.0]], [[], []], [[math.nan], [1.0]], [[1.0], [math.inf]]):
        with pytest.raises(ValueError, match="值 须"):
            attend([0.0, -math.inf], values)  # weight 0 would still turn an infinity into NaN
    good = {"query": [1.0], "keys": [[1.0, 0.0]], "w_q": [[1.0]], "w_k": [[1.0, 0.5]], "v": [2.0]}
    for name, bad in (("query", [1.0, 2.0]), ("keys", [[1.0]]), ("w_q", [[1.0]] * 2), ("w_k", []), ("v", []), ("v", [math.nan])):
        with pytest.raises(ValueError, match=r"维数|行数"):
            additive_scores(**{**good, name: bad})
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="sharpness"):
            soft_lookup(bad)
