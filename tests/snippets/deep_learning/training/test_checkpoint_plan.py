"""The plan against a counted simulation and against real autograd."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.deep_learning.training.checkpoint_plan import (
    best_segment,
    layer_bytes,
    llama_peaks,
    offload_milliseconds,
    peak,
    reversible_layers,
    selective_peaks,
    step_cost,
)


def counted_peak(n: int, k: int, interior: int, boundary: int) -> int:
    """Walk the backward pass segment by segment and add up what is alive."""
    starts = list(range(0, n, k))
    alive = {start: boundary for start in starts}
    most = 0
    for start in reversed(starts):
        layers = min(k, n - start)
        inside = layers * interior - boundary  # the segment's own input is the checkpoint
        most = max(most, sum(alive.values()) + inside)
        del alive[start]
    return most


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 30), st.integers(0, 30))
def test_peak_is_what_a_walk_counts_when_segments_are_equal(segments, k, interior, boundary):
    boundary = min(boundary, interior)
    assert peak(segments * k, k, interior, boundary) == counted_peak(segments * k, k, interior, boundary)


@given(st.integers(1, 200), st.integers(1, 200))
def test_ragged_last_segment_never_needs_more(n, k):
    k = min(n, k)
    assert counted_peak(n, k, 2, 1) <= peak(n, k, 2, 1)


@given(st.integers(1, 400), st.floats(1, 50))
def test_best_segment_is_near_the_square_root(n, ratio):
    k = best_segment(n, ratio, 1)
    assert peak(n, k, ratio, 1) <= 2 * math.sqrt(n * ratio) + ratio + 1
    assert k <= math.ceil(math.sqrt(n / ratio)) + 1


def test_selective_peaks_of_llama():
    interior, boundary = layer_bytes()
    recomputed = 2 * 2 * 4096 + 2 * 2 * 14336 + 8  # two norm outputs, silu and product, two 1/RMS
    kept = interior - recomputed
    gb = 8192 / 1e9
    assert selective_peaks() == {
        "前向结束": pytest.approx(32 * kept * gb, abs=0.05),
        "峰值": pytest.approx((32 * kept + recomputed) * gb, abs=0.05),
        "按算子缓存的峰值": pytest.approx((32 * (kept + boundary) + recomputed) * gb, abs=0.05),
    }
    for call in (selective_peaks, llama_peaks):
        with pytest.raises(ValueError, match="tokens"):
            call(0)


def test_llama_numbers_follow_from_the_layer():
    interior, boundary = layer_bytes()
    peaks = llama_peaks()
    assert peaks["不重算"] == pytest.approx(32 * interior * 8192 / 1e9, abs=0.05)
    assert peaks["每段 1 层"] == pytest.approx((31 * boundary + interior) * 8192 / 1e9, abs=0.05)
    assert list(peaks.values()) == sorted(peaks.values(), reverse=True)


def brute_force_reversible(slots: int, repeats: int) -> int:
    """The recursion behind the binomial: place a checkpoint, reverse the right part, then the left."""
    if slots == 0 or repeats == 0:
        return 1
    return brute_force_reversible(slots, repeats - 1) + brute_force_reversible(slots - 1, repeats)


@pytest.mark.parametrize(("slots", "repeats"), [(0, 5), (5, 0), (1, 1), (3, 2), (4, 4), (6, 3)])
def test_binomial(slots, repeats):
    assert reversible_layers(slots, repeats) == brute_force_reversible(slots, repeats)


def test_cost_and_bad_input():
    assert step_cost() == pytest.approx(4 / 3)
    assert step_cost(recomputed=0) == 1
    for call in (
        lambda: peak(0, 1),
        lambda: peak(4, 5),
        lambda: peak(4, 1, 1, 2),
        lambda: step_cost(2),
        lambda: offload_milliseconds(mfu=0),
        lambda: reversible_layers(-1, 1),
    ):
        with pytest.raises(ValueError, match=r"须|不能"):
            call()


def test_layer_parameters_are_those_of_llama():
    """218,112,000 per layer, 32 layers, embedding, head and the final norm make the published total."""
    layer = 4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    assert 32 * layer + 2 * 128_256 * 4096 + 4096 == 8_030_261_248
    assert offload_milliseconds(1, peak_flops=2 * layer, mfu=1)["算前向"] == 1000
