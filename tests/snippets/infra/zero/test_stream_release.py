"""Which policies are safe, which hold memory, and that only record_stream depends on how far the CPU runs ahead."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.zero.stream_release import peaks_over_runs, simulate

TIMES = st.floats(0.5, 20)
LAYERS = st.integers(1, 40)


@settings(deadline=None, max_examples=150)
@given(LAYERS, TIMES, TIMES, st.floats(0.01, 20), st.floats(0, 0.9), st.integers(0, 100))
def test_safe_policies_never_overwrite_what_is_read(layers, gather, compute, launch, jitter, seed):
    for policy in ("record_stream", "limiter", "fsdp2"):
        result = simulate(policy, layers, gather, compute, launch, jitter=jitter, seed=seed)
        assert result.races == 0
        assert 1 <= result.peak <= layers


@settings(deadline=None, max_examples=150)
@given(LAYERS, TIMES, TIMES, st.floats(0.01, 20), st.floats(0, 0.9), st.integers(0, 100))
def test_two_blocks_are_enough_for_the_limiter_and_fsdp2(layers, gather, compute, launch, jitter, seed):
    for policy in ("limiter", "fsdp2"):
        assert simulate(policy, layers, gather, compute, launch, jitter=jitter, seed=seed).peak <= 2
    assert simulate("fsdp2", layers, gather, compute, launch, jitter=jitter, seed=seed).cpu_wait == 0


@settings(deadline=None, max_examples=100)
@given(LAYERS, TIMES, TIMES, st.floats(0.01, 20))
def test_no_policy_beats_the_work(layers, gather, compute, launch):
    for policy in ("record_stream", "limiter", "fsdp2"):
        total = simulate(policy, layers, gather, compute, launch).total
        assert total >= max(layers * compute + gather, layers * gather + compute) - 1e-9
    unlimited, limited = (simulate(policy, layers, gather, compute, launch).total for policy in ("record_stream", "limiter"))
    assert limited >= unlimited - 1e-9  # waiting never helps


def test_reusing_at_once_is_a_race_whenever_the_cpu_is_ahead():
    assert simulate("unsafe", 10, 4, 10, 0.1).races == 9
    assert simulate("unsafe", 10, 4, 10, 20).races == 0  # a slow CPU hides the bug


def test_the_peak_of_record_stream_grows_with_the_lead_of_the_cpu():
    peaks = [simulate("record_stream", 32, 4, 10, launch).peak for launch in (20, 5, 2, 0.5, 0.01)]
    assert peaks == sorted(peaks)
    assert peaks[0] <= 2
    assert peaks[-1] == 32


def test_only_record_stream_varies_from_run_to_run():
    low, high = peaks_over_runs("record_stream")
    assert low < high
    for policy in ("limiter", "fsdp2"):
        low, high = peaks_over_runs(policy)
        assert low == high == 2


def test_a_slow_launch_makes_the_limiter_pay():
    """When launching a layer takes nearly as long as computing it, the lead that the limiter takes away is missed."""
    free, limited = (simulate(policy, 32, 6, 10, 4.5) for policy in ("record_stream", "limiter"))
    assert limited.total >= free.total
    assert limited.cpu_wait > 0 == free.cpu_wait


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lru", 1, 1, 1, 1), "policy 须是"),
        (("fsdp2", 0, 1, 1, 1), "须为正"),
        (("fsdp2", 1, 0, 1, 1), "须为正"),
        (("fsdp2", 1, 1, 1, 0), "须为正"),
    ],
)
def test_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(*arguments)
    with pytest.raises(ValueError, match="jitter"):
        simulate("fsdp2", 1, 1, 1, 1, jitter=1)
