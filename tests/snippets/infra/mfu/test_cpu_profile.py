"""A real trace: our reading of it against the profiler's own, and the fixes against what they claim to remove."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from snippets.infra.mfu import cpu_profile
from snippets.infra.mfu.cpu_profile import (
    PHASES,
    Config,
    count_operators,
    hot_operators,
    loop_attention,
    read,
    record,
    table_misses_the_stall,
    trainer,
)
from snippets.infra.mfu.trace_analysis import load, self_times


@pytest.fixture(scope="module")
def recorded():
    return record(Config(stall_ms=5), active=2)


def test_self_times_are_the_profilers(recorded):
    trace, prof = recorded
    ours = self_times(event for event in load(trace) if event.category == "cpu_op")
    theirs = {row.key: row.self_cpu_time_total for row in prof.key_averages()}
    names = [name for name in ours if name.startswith("aten::") and theirs[name] > 500]  # those inside nothing unrecorded
    assert len(names) >= 5
    for name in names:
        assert ours[name] == pytest.approx(theirs[name], rel=0.02)


def test_hot_operators_are_sorted_and_counted(recorded):
    trace, prof = recorded
    rows = hot_operators(trace, 8)
    assert [ms for _, _, ms in rows] == sorted((ms for _, _, ms in rows), reverse=True)
    calls = {row.key: row.count for row in prof.key_averages()}
    counts = {name: count for name, count, _ in rows}
    for name in ("aten::bmm", "aten::mm"):  # the table folds some operators into their same-named only child, not these
        assert counts[name] == calls[name]


def test_phases_cover_the_step(recorded):
    trace, _ = recorded
    steps = [event for event in load(trace) if event.name.startswith("ProfilerStep")]
    assert len(steps) == 2, "wait 1, warm up 1, record 2"
    phases = read(trace)
    assert list(phases) == list(PHASES)
    wall = sum(event.end - event.start for event in steps) / 1e3
    assert sum(phase.ms for phase in phases.values()) * 2 <= wall * 1.001
    assert phases["data"].ms >= 5


def test_each_fix_removes_its_own_hot_spot():
    base, sdpa, fused = (count_operators(config) for config in (Config(), Config(loop=False), Config(loop=False, fused=True)))
    assert base["optimizer"] == sdpa["optimizer"] > 50 * fused["optimizer"]
    assert base["forward"] > 10 * sdpa["forward"] == 10 * fused["forward"]
    rows = Config().s * Config().layers
    assert (base["forward"] - sdpa["forward"]) / rows == pytest.approx(8, abs=1), "eight operators a row"


def test_loop_attention_is_attention():
    q, k, v = torch.randn(3, 2, 3, 9, 4, dtype=torch.float64)
    torch.testing.assert_close(loop_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_the_fixes_do_not_change_the_training():
    losses = []
    for config in (Config(stall_ms=0), Config(stall_ms=0, loop=False), Config(stall_ms=0, loop=False, fused=True)):
        train = trainer(config)
        losses.append([next(train) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] == pytest.approx(losses[2], rel=1e-4)
    assert losses[0][0] != losses[0][2]


def test_the_operators_miss_the_stall():
    assert table_misses_the_stall() == (True, "data")


def test_without_annotations_the_stall_belongs_to_the_whole_step(monkeypatch):
    monkeypatch.setattr(cpu_profile, "record_function", lambda name: nullcontext())
    assert table_misses_the_stall() == (True, "ProfilerStep*")


def test_bad_input():
    with pytest.raises(ValueError, match="1 步"):
        record(Config(), active=0)
    with pytest.raises(ValueError, match="缺少阶段"):
        read({"traceEvents": []})
