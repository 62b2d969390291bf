"""1F1B over real processes equals one process; tied embeddings need one more all-reduce."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.common.processes import launch
from snippets.infra.memory.equivalence import against_single
from snippets.infra.memory.pipeline_1f1b import Stage, order_1f1b, train
from snippets.infra.memory.tiny_llama import Size, build, distance

TIED = Size(tied=True)


def _runs(rank):
    return {
        ("plain", 8): train(rank, 8, True, Size(), torch.float32),
        ("plain", 4): train(rank, 4, True, Size(), torch.float64, True),
        ("plain", 1): train(rank, 1, True, Size(), torch.float64),
        "tied": train(rank, 4, True, TIED, torch.float64, True),
        "unsynchronized": train(rank, 4, False, TIED, torch.float64, True),
    }


@cache
def runs(world):
    return launch(world, _runs)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_equal_to_one_process(world):
    results = runs(world)[0]
    for key, size, dtype, uneven, limits in (
        (("plain", 8), Size(), torch.float32, False, (3e-6, 3e-4)),
        (("plain", 4), Size(), torch.float64, True, (1e-13, 1e-12)),
        (("plain", 1), Size(), torch.float64, False, (1e-13, 1e-12)),
        ("tied", TIED, torch.float64, True, (1e-13, 1e-12)),
    ):
        losses, weights, *_ = results[key]
        weights = {name: w for name, w in weights.items() if not (size.tied and name == "head.weight")}
        assert all(gap <= limit for gap, limit in zip(against_single(losses, weights, size, dtype, uneven), limits, strict=True))


@pytest.mark.parametrize("world", [2, 4])
def test_tied_copies_stay_equal_only_when_synchronized(world):
    copies = lambda weights: (weights["embed.weight"] - weights["head.weight"]).abs().max().item()  # noqa: E731
    assert copies(runs(world)[0]["tied"][1]) == 0
    assert copies(runs(world)[0]["unsynchronized"][1]) > 1e-2


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_and_micro_batches_in_flight(world):
    m, activation = 8, 8 * 16 * 32 * 4  # all micro-batches together, float32
    scalar = 2 * (world - 1) * 4 // world
    for rank, result in enumerate(runs(world)):
        _, _, sent, peak = result["plain", m]
        neighbours = (rank > 0) + (rank < world - 1)
        assert sent == {"send": neighbours * activation, "all_reduce": scalar}
        assert peak == min(world - rank, m)
        assert result["plain", 1][3] == 1
    tied, plain = runs(world)[0]["tied"][2], runs(world)[0]["plain", 4][2]
    assert tied["all_reduce"] - plain["all_reduce"] == 64 * 32 * 8  # the embedding, two ranks, float64


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 20))
def test_the_order_runs_every_micro_batch_once_and_bounds_what_is_alive(stages, m):
    for stage in range(stages):
        order = order_1f1b(stage, stages, m)
        assert sorted(order) == sorted([("F", i) for i in range(m)] + [("B", i) for i in range(m)])
        alive = peak = 0
        for kind, i in order:
            alive += 1 if kind == "F" else -1
            peak = max(peak, alive)
            assert kind == "F" or order.index(("F", i)) < order.index(("B", i))
        assert peak == min(stages - stage, m)


def test_rejects():
    for stage, stages, m in ((2, 2, 1), (-1, 2, 1), (0, 2, 0)):
        with pytest.raises(ValueError, match="段号"):
            order_1f1b(stage, stages, m)
    with pytest.raises(ValueError, match="4 层不能平分给 3 段"):
        Stage(build(), 0, 3)


def test_one_stage_holds_one_shared_weight():
    weights = runs(1)[0]["tied"][1]
    assert "head.weight" not in weights
    assert distance(weights, weights) == 0
