"""Targets come from the input alone; the contrastive loss against torch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.classics.self_supervised import alignment_only, info_nce, masked_token, next_token

words = st.lists(st.sampled_from("abcdef"), max_size=10)


@given(words)
def test_next_token_rebuilds_the_text(tokens):
    pairs = next_token(tokens)
    assert len(pairs) == max(0, len(tokens) - 1)
    assert all([*prefix, label] == tokens[: len(prefix) + 1] for prefix, label in pairs)


@given(words, st.data())
def test_masking_is_reversible(tokens, data):
    at = data.draw(st.sets(st.integers(0, max(0, len(tokens) - 1)))) if tokens else set()
    masked, labels = masked_token(tokens, sorted(at))
    assert [labels.get(i, t) for i, t in enumerate(masked)] == tokens


@given(st.integers(1, 6), st.floats(0.05, 5), st.integers(0, 99))
def test_info_nce_is_cross_entropy_on_the_diagonal(n, temperature, seed):
    similarity = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(similarity / temperature, torch.arange(n))
    assert info_nce(similarity.tolist(), temperature) == pytest.approx(expected.item())


def test_bound_is_at_most_log_n():
    for n in (2, 16, 256):
        assert math.log(n) - info_nce([[float(i == j) for j in range(n)] for i in range(n)]) <= math.log(n)


def test_collapse():
    start, end = alignment_only(steps=50)
    assert end < start / 10


def test_rejects():
    for call in (lambda: info_nce([]), lambda: info_nce([[1.0, 2.0]]), lambda: info_nce([[1.0]], 0), lambda: masked_token(["a"], [1])):
        with pytest.raises(ValueError, match=r"方阵|温度|位置"):
            call()
