"""Interval arithmetic against brute force on a grid of ticks; the budget, the gaps and the table on random traces."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.mfu.trace_analysis import (
    Event,
    async_times,
    blame,
    budget,
    busy_by_lane,
    gaps,
    kernel_sum_is_not_exposed,
    kernel_table,
    length,
    load,
    self_times,
    subtract,
    synthetic_trace,
    transfer_and_wait,
    union,
    utilization_is_not_mfu,
)

TICKS = 24
SPANS = st.lists(st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)).map(lambda pair: tuple(sorted(pair))), max_size=8)
KINDS = st.sampled_from([("kernel", "gemm"), ("kernel", "ncclDevKernel"), ("gpu_memcpy", "Memcpy"), ("gpu_user_annotation", "nccl:all")])
quick = settings(deadline=None, max_examples=40)


def cells(intervals):
    return {tick for start, end in intervals for tick in range(start, end)}


@quick
@given(SPANS, SPANS)
def test_interval_arithmetic_is_set_arithmetic(a, b):
    merged = union(a)
    assert cells(merged) == cells(a)
    assert all(first[1] < second[0] for first, second in pairwise(merged))
    assert cells(subtract(a, b)) == cells(a) - cells(b)
    assert length(a) == len(cells(a))


@quick
@given(st.lists(st.tuples(KINDS, st.integers(0, TICKS), st.integers(0, TICKS), st.integers(0, 2)), max_size=12), st.integers(1, TICKS))
def test_budget_is_a_partition_of_the_window(rows, high):
    low = high // 3
    events = [Event(name, category, (0, lane), min(s, e), max(s, e)) for (category, name), s, e, lane in rows]
    spans = {kind: cells([event.span for event in events if event.kind == kind]) for kind in ("compute", "copy", "comm")}
    window = set(range(low, high))
    parts = budget(events, (low, high))
    assert parts == {
        "计算": len(window & spans["compute"]),
        "露出的拷贝": len(window & spans["copy"] - spans["compute"]),
        "露出的通信": len(window & spans["comm"] - spans["compute"] - spans["copy"]),
        "空闲": len(window - spans["compute"] - spans["copy"] - spans["comm"]),
    }
    assert math.fsum(parts.values()) == high - low
    assert math.fsum(gap.end - gap.start for gap in gaps(events, (low, high))) == parts["空闲"]
    assert all(gap.host + gap.queued == gap.end - gap.start for gap in gaps(events, (low, high)))


def test_every_number_of_the_synthetic_step_follows_from_its_construction():
    events, window = load(synthetic_trace()), (0, 98_000)
    assert max(event.end for event in events) == 98_000
    assert budget(events, window) == {
        "计算": 4 * 6_000 + 4 * 12_000 + 40 * 20,
        "露出的拷贝": 0,
        "露出的通信": 3_000 + 5_000,
        "空闲": 12_000 + 40 * 130,
    }
    assert blame(events, window) == {"data": (1, 12_000, 0), "optimizer": (40, 40 * 130, 0)}
    assert busy_by_lane(events) == {(0, 20): 4 * 3_000 + 4 * 5_000, (0, 7): 72_800}
    assert sum(time for _, _, time in kernel_table(events)) == 32_000 + 72_800


@pytest.mark.parametrize(("call", "api"), [("cudaLaunchKernel", "cuda_runtime"), ("cuLaunchKernelEx", "cuda_driver")])
def test_a_gap_is_split_at_the_launch(call, api):
    def trace(launch):
        first = Event("gemm", "kernel", (0, 7), 0, 10, 1)
        return [first, Event(call, api, (1, 1), launch, launch + 1, 2), Event("gemm", "kernel", (0, 7), 30, 40, 2)]

    assert [(gap.host, gap.queued) for gap in gaps(trace(25), (0, 40))] == [(15, 5)]  # the CPU was late
    assert [(gap.host, gap.queued) for gap in gaps(trace(4), (0, 40))] == [(0, 20)]  # queued early: a dependency
    assert [(gap.start, gap.end, gap.host) for gap in gaps(trace(4), (0, 50))][1] == (40, 50, 10)  # nothing follows


def test_two_kernels_that_end_a_gap_count_from_the_earlier_launch():
    events = [
        Event("launch", "cuda_runtime", (1, 1), 3, 4, 1),
        Event("launch", "cuda_runtime", (1, 1), 8, 9, 2),
        Event("gemm", "kernel", (0, 7), 10, 12, 1),
        Event("gemm", "kernel", (0, 8), 10, 11, 2),
    ]
    assert [(gap.host, gap.queued) for gap in gaps(events, (0, 12))] == [(3, 7)]


def test_annotations_are_not_kernels():
    trace = synthetic_trace()
    without = {"traceEvents": [raw for raw in trace["traceEvents"] if raw["cat"] != "gpu_user_annotation"]}
    assert len(without["traceEvents"]) == len(trace["traceEvents"]) - 4
    assert kernel_table(load(trace)) == kernel_table(load(without))


@st.composite
def nested(draw):
    """Random trees of events on one lane, with their exclusive times counted tick by tick."""
    events, owner = [], {}

    def grow(start, end, depth):
        name = f"e{len(events)}"
        events.append(Event(name, "cpu_op", (1, 1), start, end))
        owner.update({tick: name for tick in range(start, end)})
        if depth and end - start > 1:
            cut = draw(st.integers(start, end - 1))
            stop = draw(st.integers(cut + 1, end))
            grow(cut, stop, depth - 1)
            if stop < end and draw(st.booleans()):
                grow(stop, end, depth - 1)

    grow(0, draw(st.integers(1, 20)), 4)
    return events, owner


@quick
@given(nested(), st.randoms())
def test_self_time_of_nested_events(tree, random):
    events, owner = tree
    shuffled = events[:]
    random.shuffle(shuffled)
    distinct = [event for event in shuffled if sum(other.span == event.span for other in events) == 1]
    if len(distinct) < len(events):  # equal spans: which is the child depends on the order, so keep the recorded one
        shuffled = events
    expected = {event.name: list(owner.values()).count(event.name) for event in events}
    assert self_times(shuffled) == expected


def test_the_last_rank_waits_least():
    late = [0.0, 1.0, 7.0, 2.0]  # arrival of each rank; the transfer takes 5
    durations = [[max(late) + 5 - at] * 3 for at in late]
    transfer, waits = transfer_and_wait(durations)
    assert transfer == 15
    assert waits == [3 * (7 - at) for at in late]
    longest = max(range(4), key=lambda rank: sum(durations[rank]))
    assert longest == late.index(min(late)), "the rank with the longest nccl kernels is the earliest, not the slow one"


@quick
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 10), st.integers(0, 12))
def test_asynchronous_execution(durations, launch, sync_at):
    kernels = [(f"k{i}", time) for i, time in enumerate(durations)]
    rows, total, busy = async_times(kernels, launch)
    arrival, free = 0, 0
    for time in durations:  # one queue, one server
        arrival += launch
        free = max(arrival, free) + time
    assert total == free
    assert [measured for _, measured, _ in rows] == [launch] * len(rows)
    blocked = async_times(kernels, launch, blocking=True)[1]
    assert blocked == len(rows) * launch + sum(durations) >= total
    assert busy == (sum(durations) / total if total else 0)
    synced = async_times(kernels, launch, sync=[f"k{sync_at}"])[1]
    assert total <= synced <= blocked


def test_counterexamples():
    share, exposed = kernel_sum_is_not_exposed()
    assert share == pytest.approx(32 / 98)
    assert exposed == pytest.approx(8 / 98)
    smi, compute = utilization_is_not_mfu()
    assert smi == pytest.approx(80.8 / 98)
    assert compute == pytest.approx(72.8 / 98)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: union([(2, 1)]), "区间"),
        (lambda: union([(0, math.nan)]), "区间"),
        (lambda: length([(0, math.inf)]), "区间"),
        (lambda: load({}), "traceEvents"),
        (lambda: load({"traceEvents": [{"ph": "X", "name": "a", "ts": 0, "dur": -1}]}), "dur"),
        (lambda: load({"traceEvents": [{"ph": "X", "name": "a", "ts": math.nan}]}), "ts"),
        (lambda: budget([], (3, 3)), "窗口"),
        (lambda: budget([], (0, math.inf)), "窗口"),
        (lambda: self_times([Event("a", "cpu_op", (1, 1), 0, 5), Event("b", "cpu_op", (1, 1), 3, 8)]), "交叉"),
        (lambda: transfer_and_wait([]), "同样多"),
        (lambda: transfer_and_wait([[1.0], [1.0, 2.0]]), "同样多"),
        (lambda: transfer_and_wait([[math.nan]]), "有限"),
        (lambda: async_times([], 1), "至少"),
        (lambda: async_times([("a", 1)], -1), "非负"),
        (lambda: async_times([("a", math.nan)], 1), "非负"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
