"""Bytes per step against real runs, overlap against a brute-force clock, and what accumulation keeps."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.common.processes import launch
from snippets.infra.memory.gradient_volume import SCHEMES, exposed, fsdp2_accumulation, sent
from snippets.infra.memory.sharded_training import ENGINES, train_all
from snippets.infra.memory.tiny_llama import build

MODEL = build()
PSI = sum(p.numel() for p in MODEL.parameters())
ROOT = PSI - sum(p.numel() for p in MODEL.blocks.parameters())


def _everything(rank):
    return train_all(rank, tuple(ENGINES)), {keep: fsdp2_accumulation(rank, 4, keep) for keep in (False, True)}


@cache
def everything():
    return launch(2, _everything)


def volume(scheme, m=1, accumulate=True):
    return round(sent(scheme, PSI, 2, m, accumulate=accumulate, gradient=4, parameter=4) * 1e9)


def test_one_step_against_real_runs():
    runs, _ = everything()[0]
    total = lambda kind: sum(runs[kind][2].values())  # noqa: E731
    scalar = 4  # the squared norm
    assert total("DDP（手写）") == total("DDP（框架）") == volume("DDP")
    assert total("ZeRO-1") == total("ZeRO-2") == volume("ZeRO-1") + scalar == volume("ZeRO-2") + scalar
    embedding = MODEL.embed.weight.numel() * 2  # float32, ring factor 1/2: not needed by its own backward
    assert total("ZeRO-3") == volume("ZeRO-3") + scalar - embedding
    assert total("FSDP2（框架）") == volume("ZeRO-3") + scalar - ROOT * 2


@pytest.mark.parametrize("keep", [False, True])
def test_fsdp2_accumulation_against_the_formula(keep):
    for _, runs in everything():
        moved, whole = runs[keep]
        assert moved["reduce_scatter"] + moved["all_gather"] == volume("ZeRO-3", 4, keep) - 4 * ROOT * 2
        assert whole == (PSI if keep else 0)  # the price: one full set of gradients on every rank


@pytest.mark.parametrize("n", [2, 8, 512])
def test_sharding_below_stage_three_costs_no_extra_bytes(n):
    assert sent("ZeRO-1", 1e9, n) == sent("ZeRO-2", 1e9, n) == pytest.approx(sent("DDP", 1e9, n))
    assert sent("ZeRO-3", 1e9, n) == pytest.approx(1.5 * sent("DDP", 1e9, n))
    assert all(sent(scheme, 1e9, 1) == 0 for scheme in SCHEMES)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 2)), min_size=1, max_size=8), st.floats(0, 0.1))
def test_exposed_time_against_a_clock(buckets, latency):
    ready = sorted(at for at, _ in buckets)
    sizes = [size for _, size in buckets]
    starts, free = [], 0.0
    for at, size in zip(ready, sizes, strict=True):
        starts.append(max(free, at))
        free = starts[-1] + latency + size
    gap = exposed(ready, sizes, 1.0, 1.0, latency)
    assert gap == pytest.approx(max(0.0, free - 1.0))
    total = sum(sizes) + latency * len(sizes)
    last = sizes[-1] + latency
    assert max(0.0, total - 1.0, ready[-1] + last - 1.0) <= gap + 1e-12 <= total + 1e-9


def test_smaller_buckets_hide_more_until_latency_wins():
    grid = [0.1 * (i + 1) for i in range(10)]
    gaps = {per: exposed(grid[per - 1 :: per], [per * 0.05] * (10 // per), 1.0, 1.0) for per in (1, 2, 5, 10)}
    assert gaps[1] < gaps[2] < gaps[5] < gaps[10]
    slow = {per: exposed(grid[per - 1 :: per], [per * 0.05] * (10 // per), 1.0, 1.0, latency=0.2) for per in (1, 5)}
    assert slow[5] < slow[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sent("FSDP", 1, 2), "scheme 须是"),
        (lambda: sent("DDP", 0, 2), "须为正"),
        (lambda: exposed([], [], 1, 1), "非空"),
        (lambda: exposed([2, 1], [1, 1], 3, 1), "不减"),
        (lambda: exposed([2], [1], 1, 1), "ready ≤ backward"),
        (lambda: exposed([1], [1], 1, 0), "bandwidth"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
