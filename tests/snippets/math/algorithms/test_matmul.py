"""Cache counts against closed forms, roofline limits, Strassen against the definition, error growth measured."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.algorithms.matmul import (
    blocked_accesses,
    cache_misses,
    gemm_intensity,
    multiply,
    naive_accesses,
    roofline_seconds,
    strassen,
    strassen_one_level,
    wave_efficiency,
)


@pytest.mark.parametrize(("n", "block"), [(8, 3), (12, 4), (7, 10), (1, 1)])
def test_blocking_visits_the_same_products(n, block):
    def products(accesses):
        accesses = list(accesses)
        return sorted(zip(accesses[::2], accesses[1::2], strict=True))

    assert products(naive_accesses(n)) == products(blocked_accesses(n, block))


@pytest.mark.parametrize(("n", "block"), [(32, 8), (48, 12), (64, 16)])
def test_blocked_misses_are_two_n_cubed_over_block(n, block):
    """While two blocks and the row in flight fit, every block pair is fetched once."""
    assert cache_misses(blocked_accesses(n, block), 3 * block * block) == 2 * n**3 // block


def test_everything_fits_then_each_element_is_fetched_once():
    assert cache_misses(naive_accesses(16), 10_000) == 2 * 16 * 16


def test_larger_blocks_than_the_cache_holds_lose_the_benefit():
    n, capacity = 48, 300
    assert cache_misses(blocked_accesses(n, 10), capacity) < cache_misses(blocked_accesses(n, 24), capacity) / 2


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 10_000))
def test_intensity_is_symmetric_and_below_twice_the_smallest_dimension_over_two_bytes(m, n, k):
    intensity = gemm_intensity(m, n, k)
    assert intensity == pytest.approx(gemm_intensity(k, m, n))
    assert 0 < intensity < min(m, n, k)


def test_roofline_switches_at_the_ridge():
    peak, bandwidth = 100e12, 1e12
    for tokens in (1, 50, 99, 150, 10_000):
        seconds, bound = roofline_seconds(tokens, 8192, 8192, peak, bandwidth)
        assert (bound == "算力") == (gemm_intensity(tokens, 8192, 8192) >= peak / bandwidth)
        assert seconds >= 2 * tokens * 8192 * 8192 / peak


def test_wave_efficiency_is_one_for_a_perfect_fit_and_never_above():
    assert wave_efficiency(128 * 12, 256 * 11) == (1, 1.0)
    assert all(0 < wave_efficiency(m, n)[1] <= 1 for m in range(1, 5000, 613) for n in range(1, 5000, 487))
    assert wave_efficiency(1, 1)[1] == pytest.approx(1 / (132 * 128 * 256))


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 10**6))
def test_strassen_equals_the_definition_on_integers(n, seed):
    rng = random.Random(seed)
    a, b = ([[rng.randint(-50, 50) for _ in range(n)] for _ in range(n)] for _ in range(2))
    product, multiplications = strassen(a, b)
    assert product == multiply(a, b)
    assert multiplications == 7 ** (n.bit_length() - 1)


def test_strassen_loses_digits_in_fp32():
    """The common wrong claim 'faster for free': the error of Strassen is a multiple of that of the ordinary product."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    rows = [[[np.float32(x) for x in row] for row in matrix] for matrix in (a, b)]
    fast = np.array(strassen(*rows)[0], dtype=np.float64)
    ordinary = np.einsum("ik,kj->ij", a, b).astype(np.float64)
    assert np.abs(fast - exact).max() > 5 * np.abs(ordinary - exact).max()


def test_one_level_of_strassen_tends_to_seven_eighths():
    assert strassen_one_level(10**6)[0] == pytest.approx(7 / 8, abs=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gemm_intensity(0, 1, 1), "m 必须为正"),
        (lambda: roofline_seconds(1, 1, 1, 0, 1), "peak 必须为正"),
        (lambda: roofline_seconds(0, 1, 1, 1, 1), "m 必须为正"),
        (lambda: cache_misses([], 0), "capacity"),
        (lambda: wave_efficiency(1, 1, sms=0), "sms"),
        (lambda: strassen([[1.0] * 3] * 3, [[1.0] * 3] * 3), "2 的幂"),
        (lambda: strassen([], []), "2 的幂"),
        (lambda: multiply([[1.0, 2.0]], [[1.0]]), "形状不合"),
        (lambda: multiply([], []), "形状不合"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
