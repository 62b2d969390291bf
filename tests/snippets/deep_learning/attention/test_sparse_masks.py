"""Masks against direct definitions, content blocks against brute force, and sparse equals dense where it must."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.deep_learning.attention.self_attention import attention, causal_mask
from snippets.deep_learning.attention.sparse_masks import (
    bank_mask,
    blocks_by_score,
    density,
    dilated,
    global_and_random,
    keys_read,
    reachable_layers,
    sink_and_window,
    strided,
    tokens_by_score,
    window,
)

sizes = st.integers(1, 24)


@given(sizes, st.integers(1, 30))
def test_every_row_sees_itself_and_no_future(s, n):
    for mask in (window(s, n), dilated(s, n, 2), sink_and_window(s, n, 2), strided(s, n)):
        for i, row in enumerate(mask):
            assert row[i]
            assert not any(row[i + 1 :])


@given(sizes, st.integers(1, 30))
def test_window_counts(s, w):
    assert [sum(row) for row in window(s, w)] == [min(i + 1, w) for i in range(s)]
    assert sink_and_window(s, w, 0) == window(s, w)
    assert dilated(s, w, 1) == window(s, w)


def test_a_wide_window_is_full_attention():
    s, d = 12, 4
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((s, d)) for _ in range(3))
    np.testing.assert_allclose(attention(q, k, v, np.array(window(s, s))), attention(q, k, v, causal_mask(s)))
    assert density(window(s, s)) == 1


@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 3), st.integers(0, 99))
def test_blocks_are_the_best_past_ones(s, block, top, seed):
    generator = random.Random(seed)
    scores = [[generator.uniform(-1, 1) for _ in range(s)] for _ in range(s)]
    mask = blocks_by_score(scores, block, top)
    for i in range(s):
        own = i // block
        means = sorted((-sum(scores[i][b * block : (b + 1) * block]) / block, b) for b in range(own))
        expected = {b for _, b in means[:top]} | {own}
        assert {j // block for j in range(s) if mask[i][j]} == expected


def test_selecting_every_block_is_full_attention():
    s = 10
    scores = [[0.0] * s for _ in range(s)]
    assert np.array_equal(np.array(blocks_by_score(scores, 2, 99)), causal_mask(s))


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_random_blocks_only_add_to_window_and_globals(s, w, block, globals_, picks):
    mask = global_and_random(s, w, block, globals_, picks)
    base = sink_and_window(s, w, globals_)
    assert global_and_random(s, w, block, globals_, 0) == base
    assert global_and_random(s, w, block, globals_, s) == window(s, s)
    for i in range(s):
        extra = {j // block for j in range(s) if mask[i][j] and not base[i][j]}
        assert all(mask[i][j] for j in range(s) if base[i][j])
        assert len(extra) <= picks
        assert not any(mask[i][i + 1 :])


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 99))
def test_tokens_are_the_best_past_ones(s, top, seed):
    generator = random.Random(seed)
    scores = [[generator.uniform(-1, 1) for _ in range(s)] for _ in range(s)]
    for i, row in enumerate(tokens_by_score(scores, top)):
        seen = [j for j in range(s) if row[j]]
        assert len(seen) == min(top, i + 1)
        assert not any(row[i + 1 :])
        left_out = [scores[i][j] for j in range(i + 1) if j not in seen]
        assert not left_out or min(scores[i][j] for j in seen) >= max(left_out)


@pytest.mark.parametrize(("w", "s"), [(2, 5), (3, 9), (4, 20), (5, 5)])
def test_layers_needed_by_propagation(w, s):
    seen, layers = {s - 1}, 0
    mask = window(s, w)
    while 0 not in seen:
        seen |= {j for i in seen for j in range(s) if mask[i][j]}
        layers += 1
    assert layers == reachable_layers(w, s)


def test_the_banks_mask_sees_only_the_far_future():
    mask = bank_mask(64, 16)
    assert all(j - i >= 8 for i in range(64) for j in range(64) if mask[i][j])
    empty = [i for i, row in enumerate(mask) if not any(row)]
    assert empty == list(range(56, 64))


def test_published_figures_and_rejects():
    assert keys_read(1)["NSA"] == 1
    assert keys_read(65_536)["全注意力"] / keys_read(65_536)["NSA"] == pytest.approx(11.6, abs=0.1)  # Yuan 2025, table 4
    assert math.isclose(keys_read(8192)["全注意力"] / keys_read(8192)["NSA"], 4, rel_tol=1e-3)
    for call in (
        lambda: window(0, 1),
        lambda: window(4, 0),
        lambda: dilated(4, 1, 0),
        lambda: sink_and_window(4, 1, -1),
        lambda: strided(4, 0),
        lambda: blocks_by_score([[0.0, 1.0]], 1, 1),
        lambda: global_and_random(4, 1, 0, 1, 1),
        lambda: tokens_by_score([[0.0]], 0),
        lambda: reachable_layers(1, 5),
        lambda: keys_read(0),
    ):
        with pytest.raises(ValueError, match=r"为正|大于|方阵"):
            call()
