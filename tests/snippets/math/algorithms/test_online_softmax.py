"""The online state against the direct softmax: any split, any order, extreme and masked scores."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.algorithms.online_softmax import (
    Partial,
    absorb,
    attention_flops,
    attention_memory,
    causal_tiles,
    empty,
    forward_floor,
    merge,
)

scores_lists = st.lists(st.floats(-700, 700) | st.just(-math.inf), max_size=30)


def direct(scores, values):
    if not any(score > -math.inf for score in scores):
        return 0.0
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)


@settings(deadline=None)
@given(scores_lists, st.randoms(use_true_random=False))
def test_any_partition_in_any_order_gives_the_softmax(scores, rng):
    values = [rng.uniform(-5, 5) for _ in scores]
    pairs = list(zip(scores, values, strict=True))
    rng.shuffle(pairs)
    state = empty(1)
    while pairs:
        size = rng.randint(1, len(pairs))
        block, pairs = pairs[:size], pairs[size:]
        state = absorb(state, [score for score, _ in block], [[value] for _, value in block])
    assert state.output[0] == pytest.approx(direct(scores, values), rel=1e-9, abs=1e-9)


@given(scores_lists, scores_lists, scores_lists)
def test_merge_is_associative_and_commutative(a, b, c):
    x, y, z = (absorb(empty(1), part, [[float(i)] for i in range(len(part))]) for part in (a, b, c))

    def same(p: Partial, q: Partial) -> None:
        assert p.m == q.m
        assert p.logsumexp == pytest.approx(q.logsumexp, rel=1e-12, abs=1e-12)
        assert p.output[0] == pytest.approx(q.output[0], rel=1e-9, abs=1e-12)

    same(merge(merge(x, y), z), merge(x, merge(y, z)))
    same(merge(x, y), merge(y, x))
    assert merge(empty(1), x) == merge(x, empty(1)) == x


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=30))
def test_the_state_is_the_unscaled_sum_in_disguise(scores):
    """e^m · (l, acc) is (Σ e^s, Σ e^s v): merging is addition, hence associative."""
    state = absorb(empty(1), scores, [[float(i)] for i in range(len(scores))])
    assert state.logsumexp == pytest.approx(math.log(math.fsum(map(math.exp, scores))), abs=1e-12)
    assert math.exp(state.m) * state.l == pytest.approx(math.fsum(map(math.exp, scores)))
    assert math.exp(state.m) * state.acc[0] == pytest.approx(math.fsum(i * math.exp(x) for i, x in enumerate(scores)))


def test_values_behind_the_mask_are_not_read():
    assert absorb(empty(1), [0.0, -math.inf], [[3.0], [math.nan]]).output == (3.0,)


def test_logsumexp_does_not_overflow():
    state = absorb(empty(1), [1e308, 1e308], [[1.0], [3.0]])
    assert state.output == (2.0,)
    assert state.logsumexp == 1e308
    assert empty(3).logsumexp == -math.inf


sizes = st.integers(1, 12)


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), sizes, sizes)
def test_tiles_equal_the_dense_mask(s, t, tile_q, tile_k):
    visible = [[j <= i + t - s for j in range(t)] for i in range(s)]
    for r, row in enumerate(causal_tiles(s, t, tile_q, tile_k)):
        for c, kind in enumerate(row):
            part = [x for line in visible[r * tile_q : (r + 1) * tile_q] for x in line[c * tile_k : (c + 1) * tile_k]]
            assert kind == ("full" if all(part) else "edge" if any(part) else "skip")


def test_tiled_memory_is_linear_in_length():
    assert attention_memory(2048, 8, 64)[1] == 2 * attention_memory(1024, 8, 64)[1]
    assert attention_memory(2048, 8, 64)[0] == 4 * attention_memory(1024, 8, 64)[0]


def test_causal_flops_tend_to_half():
    assert attention_flops(10**6, 1, 64, causal=True) / attention_flops(10**6, 1, 64) == pytest.approx(0.5, rel=1e-5)
    assert attention_flops(1, 1, 64, causal=True) == attention_flops(1, 1, 64)


def test_only_the_explicit_traffic_is_quadratic_when_keys_are_read_once():
    (_, explicit, *_), _, (_, tiled, *_) = forward_floor(8192, 32, 8, 128, 989e12, 3.35e12)
    (_, explicit2, *_), _, (_, tiled2, *_) = forward_floor(16384, 32, 8, 128, 989e12, 3.35e12)
    assert tiled2 == pytest.approx(2 * tiled)
    assert explicit2 - tiled2 == pytest.approx(4 * (explicit - tiled), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: empty(0), "d 必须"),
        (lambda: absorb(empty(2), [1.0], [[1.0]]), "2 维"),
        (lambda: absorb(empty(1), [math.nan], [[1.0]]), "NaN 或"),
        (lambda: causal_tiles(1, 1, 0, 1), "tile_q"),
        (lambda: absorb(empty(1), [1.0], []), "个数不同"),
        (lambda: absorb(empty(1), [math.inf], [[1.0]]), "NaN 或"),
        (lambda: merge(empty(1), empty(2)), "维数不同"),
        (lambda: attention_memory(0, 1, 1), "s 必须"),
        (lambda: attention_flops(1, 0, 1), "heads 必须"),
        (lambda: forward_floor(1, 1, 1, 1, 0, 1), "peak 必须"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_many_tiny_blocks_stay_accurate():
    rng = random.Random(0)
    scores = [rng.gauss(0, 20) for _ in range(5_000)]
    state = empty(1)
    for i, score in enumerate(scores):
        state = absorb(state, [score], [[float(i)]])
    assert state.output[0] == pytest.approx(direct(scores, range(5_000)), rel=1e-9)
