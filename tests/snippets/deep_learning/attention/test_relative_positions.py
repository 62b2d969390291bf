"""The relative property, norms, buckets and slopes against independent definitions; the stretched frequencies at their ends."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.deep_learning.attention.relative_positions import (
    alibi_slopes,
    frequencies,
    rope_score,
    rotate,
    shaw_index,
    stretched,
    t5_bucket,
    yarn_temperature,
)

vectors = st.lists(st.floats(-3, 3), min_size=8, max_size=8)


@given(vectors, vectors, st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_score_depends_on_the_difference_only(q, k, m, n, shift):
    theta = frequencies(8)
    assert rope_score(q, k, m, n, theta) == pytest.approx(rope_score(q, k, m + shift, n + shift, theta), abs=1e-7)


@given(vectors, st.integers(0, 10**6))
def test_rotation_keeps_the_norm_and_composes(x, m):
    theta = frequencies(8)
    assert math.hypot(*rotate(x, m, theta)) == pytest.approx(math.hypot(*x))
    assert rotate(rotate(x, m, theta), -m, theta) == pytest.approx(x, abs=1e-9)


def test_both_pairings_are_one_rotation_up_to_a_permutation():
    """Adjacent pairs here, front and back halves in blocks.rotate: permuting the coordinates turns one into the other."""
    from snippets.deep_learning.neural_networks.blocks import rotate as halves

    d, s = 8, 5
    x = torch.randn(1, 1, s, d)
    interleaved = torch.arange(d).view(2, d // 2).T.reshape(-1)  # 0, 4, 1, 5, …
    expected = halves(x, 1e4)[0, 0][:, interleaved]
    for m in range(s):
        got = rotate(x[0, 0, m, interleaved].tolist(), m, frequencies(d))
        assert got == pytest.approx(expected[m].tolist(), abs=1e-5)


def reference_bucket(relative, buckets, far, bidirectional):
    """Straight from the description: exact distances first, then logarithmic ranges, one last bucket."""
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(0, -relative)
    exact = buckets // 2
    if distance < exact:
        return offset + distance
    edges = [exact * (far / exact) ** (i / (buckets - exact)) for i in range(buckets - exact)]
    return offset + exact - 1 + sum(distance >= edge - 1e-9 for edge in edges)


@given(st.integers(-2000, 2000), st.booleans())
def test_t5_buckets(relative, bidirectional):
    got = t5_bucket(relative, bidirectional=bidirectional)
    assert got == reference_bucket(relative, 32, 128, bidirectional)
    assert 0 <= got < 32


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 64])
def test_slopes_are_a_geometric_sequence_ending_at_two_to_minus_eight(heads):
    slopes = alibi_slopes(heads)
    assert len(slopes) == heads
    assert slopes[-1] == 2**-8
    assert all(b / a == pytest.approx(slopes[0]) for a, b in pairwise(slopes))


@given(st.integers(-100, 100), st.integers(-100, 100), st.integers(0, 20))
def test_shaw_index_is_in_the_table_and_clips(i, j, clip):
    index = shaw_index(i, j, clip)
    assert 0 <= index <= 2 * clip
    if abs(j - i) <= clip:
        assert index - clip == j - i


@pytest.mark.parametrize("method", ["interpolate", "ntk", "yarn"])
@given(factor=st.floats(1, 64))
def test_stretching_slows_the_slowest_by_the_factor_and_never_speeds_up(method, factor):
    new, old = stretched(64, factor, 4096, method), frequencies(64)
    assert all(n <= o * (1 + 1e-12) for n, o in zip(new, old, strict=True))
    assert old[-1] / new[-1] == pytest.approx(factor)
    if method != "interpolate":
        assert new[0] == pytest.approx(old[0])


def test_interpolation_brings_positions_back_into_the_trained_range():
    theta, new = frequencies(8), stretched(8, 4, 4096, "interpolate")
    x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert rotate(x, 16_000, new) == pytest.approx(rotate(x, 4000, theta))


def test_rejects():
    assert yarn_temperature(1) == 1
    for call in (
        lambda: frequencies(5),
        lambda: rotate([1.0], 1, frequencies(4)),
        lambda: alibi_slopes(6),
        lambda: t5_bucket(1, buckets=3),
        lambda: shaw_index(0, 0, -1),
        lambda: stretched(8, 0.5, 10, "ntk"),
        lambda: stretched(8, 2, 10, "dynamic"),
        lambda: yarn_temperature(0.5),
    ):
        with pytest.raises(ValueError, match=r"须|维|处理|不能|≥"):
            call()
