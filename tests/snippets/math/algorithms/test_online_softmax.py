"""The online state against the direct softmax: any split, any order, extreme and masked scores."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.algorithms.online_softmax import Partial, absorb, attention_bytes, attention_flops, empty, hbm_accesses, merge

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
        assert p.output[0] == pytest.approx(q.output[0], rel=1e-9, abs=1e-12)

    same(merge(merge(x, y), z), merge(x, merge(y, z)))
    same(merge(x, y), merge(y, x))


def test_logsumexp_does_not_overflow():
    state = absorb(empty(1), [1e308, 1e308], [[1.0], [3.0]])
    assert state.output == (2.0,)
    assert state.logsumexp == 1e308
    assert empty(3).logsumexp == -math.inf


def test_tiled_memory_is_linear_in_length():
    assert attention_bytes(2048, 8, 64)[1] == 2 * attention_bytes(1024, 8, 64)[1]
    assert attention_bytes(2048, 8, 64)[0] == 4 * attention_bytes(1024, 8, 64)[0]


def test_causal_flops_tend_to_half():
    assert attention_flops(10**6, 1, 64, causal=True) / attention_flops(10**6, 1, 64) == pytest.approx(0.5, rel=1e-5)
    assert attention_flops(1, 1, 64, causal=True) == attention_flops(1, 1, 64)


def test_larger_sram_means_fewer_accesses():
    assert hbm_accesses(4096, 64, 200_000)[1] == hbm_accesses(4096, 64, 100_000)[1] / 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: empty(0), "d 必须"),
        (lambda: absorb(empty(1), [1.0], []), "个数不同"),
        (lambda: absorb(empty(1), [math.inf], [[1.0]]), "NaN 或"),
        (lambda: merge(empty(1), empty(2)), "维数不同"),
        (lambda: attention_bytes(0, 1, 1), "≥ 1"),
        (lambda: attention_flops(1, 0, 1), "≥ 1"),
        (lambda: hbm_accesses(1, 1, 0), "≥ 1"),
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
