"""Selection against sorting, filters against brute force, samplers against exact distributions."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.algorithms.top_k_sampling import (
    gumbel_top_k,
    min_p_filter,
    softmax,
    top_k_filter,
    top_k_heap,
    top_k_quickselect,
    top_p_filter,
)

logits_lists = st.lists(st.floats(-50, 50) | st.just(-math.inf), min_size=1, max_size=40).filter(lambda v: max(v) > -math.inf)


@settings(deadline=None)
@given(logits_lists, st.data())
def test_selection_equals_sorting_with_ties_and_infinities(values, data):
    k = data.draw(st.integers(1, len(values)))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert top_k_heap(values, k)[0] == expected
    chosen = top_k_quickselect(values, k, random.Random(0))
    assert len(set(chosen)) == k
    assert sorted(values[i] for i in chosen) == sorted(values[i] for i in expected)


@settings(deadline=None)
@given(logits_lists, st.floats(0.01, 1))
def test_top_p_is_the_smallest_set_that_reaches_p(values, p):
    probs = softmax(values)
    kept = [i for i, x in enumerate(top_p_filter(probs, p)) if x > 0]
    total = math.fsum(probs[i] for i in kept)
    assert total >= p - 1e-12
    if len(kept) > 1:
        assert total - min(probs[i] for i in kept) < p + 1e-12, "dropping the least likely one falls below p"


@settings(deadline=None)
@given(logits_lists, st.integers(1, 50), st.floats(0.01, 1), st.floats(0, 1))
def test_filters_yield_distributions_that_keep_proportions(values, k, p, min_p):
    probs = softmax(values)
    for filtered in (top_k_filter(probs, k), top_p_filter(probs, p), min_p_filter(probs, min_p)):
        assert math.fsum(filtered) == pytest.approx(1)
        kept = [i for i, x in enumerate(filtered) if x > 0]
        assert probs.index(max(probs)) in kept
        for i, j in itertools.pairwise(kept):
            assert filtered[i] * probs[j] == pytest.approx(filtered[j] * probs[i], abs=1e-12)


def test_gumbel_top_k_is_sampling_without_replacement():
    """Ordered pairs against the exact probabilities p_i · p_j / (1 − p_i), by a chi-squared statistic."""
    weights = [0.5, 0.3, 0.15, 0.05]
    logits = [math.log(w) for w in weights]
    rng, n = random.Random(1), 40_000
    counts = dict.fromkeys(itertools.permutations(range(4), 2), 0)
    for _ in range(n):
        counts[tuple(gumbel_top_k(logits, 2, rng))] += 1
    chi2 = 0.0
    for (i, j), count in counts.items():
        expected = n * weights[i] * weights[j] / (1 - weights[i])
        chi2 += (count - expected) ** 2 / expected
    assert chi2 < 31.3  # 99.9 % quantile with 11 degrees of freedom


def test_gumbel_never_picks_impossible_tokens():
    rng = random.Random(0)
    assert all(set(gumbel_top_k([0.0, -math.inf, 1.0], 2, rng)) == {0, 2} for _ in range(200))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_k_heap([1.0], 2), "k 必须在"),
        (lambda: top_k_heap([1.0, math.nan], 1), "NaN"),
        (lambda: top_k_heap([-math.inf], 1), "没有可采样"),
        (lambda: top_k_heap([], 1), "没有可采样"),
        (lambda: softmax([math.inf]), "NaN 或"),
        (lambda: softmax([1.0], -1.0), "temperature"),
        (lambda: top_k_filter([1.0], 0), "k 必须"),
        (lambda: top_p_filter([1.0], 0.0), "p 必须"),
        (lambda: min_p_filter([1.0], 1.5), "min_p"),
        (lambda: gumbel_top_k([0.0, -math.inf], 2, random.Random(0)), "k 必须在"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
