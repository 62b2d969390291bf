"""Bloom filter: no false negatives, measured against predicted error, exact occupancy, union, bad input."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.algorithms.bloom_filter import (
    BloomFilter,
    false_positive_rate,
    lsh_candidate_probability,
    optimal_bits,
    optimal_hashes,
    wrongly_dropped,
)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.binary(max_size=20), max_size=200), st.floats(1e-6, 0.5))
def test_no_false_negatives_for_any_bytes(items, p):
    bloom = BloomFilter(max(1, len(items)), p)
    for item in items:
        bloom.add(item)
    assert all(item in bloom for item in items)


@pytest.mark.parametrize(("n", "p"), [(1_000, 0.1), (5_000, 0.01), (20_000, 0.001)])
def test_measured_rate_is_within_five_standard_errors(n, p):
    bloom = BloomFilter(n, p)
    for i in range(n):
        bloom.add(b"in-%d" % i)
    trials = 50_000
    wrong = sum(b"out-%d" % i in bloom for i in range(trials))
    predicted = false_positive_rate(bloom.m, n, bloom.k)
    # The filter's own fill varies too; 5 % of the prediction covers it at these sizes.
    assert abs(wrong / trials - predicted) < 5 * math.sqrt(predicted / trials) + 0.05 * predicted


@pytest.mark.parametrize("ratio", [2, 5, 9.585, 14.4, 30])
def test_optimal_hashes_beats_every_other_count(ratio):
    n = 1_000
    m = round(ratio * n)
    best = min(range(1, 60), key=lambda k: false_positive_rate(m, n, k))
    assert optimal_hashes(m, n) == best


@pytest.mark.parametrize("p", [0.5, 0.01, 1e-4, 1e-9])
def test_sizing_reaches_the_target(p):
    n = 10**6
    m = optimal_bits(n, p)
    k = optimal_hashes(m, n)
    assert false_positive_rate(m, n, k) <= p * 1.1  # a whole number of hashes costs a little
    assert false_positive_rate(round(m * 0.9), n, k) > p


def exact_rate(m: int, n: int, k: int) -> float:
    """E[(X/m)^k] with X the number of distinct bits hit by kn independent uniform draws."""
    occupied = [1.0] + [0.0] * m
    for _ in range(k * n):
        occupied = [occupied[0] * 0] + [occupied[x] * x / m + occupied[x - 1] * (m - x + 1) / m for x in range(1, m + 1)]
    return math.fsum(probability * (x / m) ** k for x, probability in enumerate(occupied))


def test_classic_formula_is_low_for_small_filters_and_right_for_large_ones():
    """Bose et al. 2008 and Christensen et al. 2010: the true rate lies above the classic formula, and the gap closes as m grows."""
    gaps = [exact_rate(m, m // 8, 6) / false_positive_rate(m, m // 8, 6) - 1 for m in (32, 128, 512)]
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[0] > 0.2
    assert gaps[2] < 0.05


def test_two_hashes_cost_accuracy_only_in_small_filters():
    """Double hashing keeps the asymptotic rate; ten elements are far from the asymptote."""

    def measured(n: int, filters: int, queries: int) -> float:
        wrong = 0
        for f in range(filters):
            bloom = BloomFilter(n, 0.01)
            for i in range(n):
                bloom.add(b"in-%d-%d" % (f, i))
            wrong += sum(b"out-%d-%d" % (f, i) in bloom for i in range(queries))
        return wrong / (filters * queries)

    assert measured(10, 400, 500) == pytest.approx(0.020, abs=0.002)
    assert measured(1_000, 20, 5_000) == pytest.approx(0.010, abs=0.001)


def test_tiny_rates_do_not_cancel_to_zero():
    assert false_positive_rate(10**18, 1, 1) == pytest.approx(1e-18)
    assert wrongly_dropped(1e-17, 1) == pytest.approx(5e-18)


def test_union_equals_inserting_everything():
    left, right, both = (BloomFilter(1_000, 0.01) for _ in range(3))
    for i in range(500):
        left.add(b"a%d" % i)
        right.add(b"b%d" % i)
        both.add(b"a%d" % i)
        both.add(b"b%d" % i)
    left.union(right)
    assert left._bits == both._bits
    with pytest.raises(ValueError, match="不同"):
        left.union(BloomFilter(2_000, 0.01))


def test_add_reports_what_was_seen():
    bloom = BloomFilter(100, 1e-9)
    assert [bloom.add(b""), bloom.add(b""), bloom.add(b"x")] == [False, True, False]


def test_full_filter_says_yes_to_everything():
    bloom = BloomFilter(1, 0.5)
    for i in range(1_000):
        bloom.add(b"%d" % i)
    assert b"never" in bloom
    assert bloom.estimated_count() == math.inf


def test_count_estimate():
    bloom = BloomFilter(10_000, 0.001)
    for i in range(10_000):
        bloom.add(b"%d" % (i % 4_000))
    assert bloom.estimated_count() == pytest.approx(4_000, rel=0.02)


def test_average_error_while_deduplicating_matches_a_run():
    n, p = 20_000, 0.05
    bloom = BloomFilter(n, p)
    dropped = sum(bloom.add(b"unique-%d" % i) for i in range(n))
    assert dropped / n == pytest.approx(wrongly_dropped(p, bloom.k), rel=0.25)


@pytest.mark.parametrize(("bands", "rows"), [(1, 1), (14, 8), (20, 5)])
def test_lsh_curve_is_monotonic_from_zero_to_one(bands, rows):
    curve = [lsh_candidate_probability(s / 20, bands, rows) for s in range(21)]
    assert curve == sorted(curve)
    assert (curve[0], curve[-1]) == (0, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BloomFilter(0, 0.01), "n 必须为正"),
        (lambda: BloomFilter(10, 0), "p 必须在"),
        (lambda: BloomFilter(10, float("nan")), "p 必须在"),
        (lambda: false_positive_rate(0, 1, 1), "m 必须为正"),
        (lambda: false_positive_rate(8, -1, 1), "n 不能为负"),
        (lambda: false_positive_rate(8, math.nan, 1), "n 不能为负"),
        (lambda: optimal_hashes(8, 0), "n 必须为正"),
        (lambda: wrongly_dropped(1.5, 3), "p 必须在"),
        (lambda: lsh_candidate_probability(1.1, 1, 1), "similarity"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
