"""Six ways of data parallelism train the same model to the same weights as one process, and move the bytes that the formula says."""

from functools import cache

import pytest
import torch
import torch.distributed as dist

from snippets.common.processes import launch
from snippets.infra.memory.equivalence import against_single
from snippets.infra.memory.sharded_training import ENGINES, FlatUnit, Zero2, Zero3, train_all, units_of
from snippets.infra.memory.tiny_llama import Size, build, count_tokens, distance, make_batch

PSI = sum(p.numel() for p in build().parameters())
UNITS = [sum(p.numel() for p in unit.parameters()) for unit in units_of(build())]
KINDS = tuple(ENGINES)
# Loss, weights after five AdamW steps. float32: a tenth of one step (lr 3e-3), for its rounding depends on the processor;
# float64 is what proves equality.
TOLERANCE = {torch.float32: (3e-6, 3e-4), torch.float64: (1e-13, 1e-12)}


def _two_precisions(rank):
    return {dtype: train_all(rank, KINDS, Size(), getattr(torch, dtype), dtype == "float64") for dtype in ("float32", "float64")}


@cache
def runs(world):
    return launch(world, _two_precisions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_equal_to_one_process(world, dtype, kind):
    """float64 runs have samples of unequal length; three ranks get unequal shares and padded shards."""
    losses, weights, _ = runs(world)[0][str(dtype)[6:]][kind]
    gaps = against_single(losses, weights, Size(), dtype, uneven=dtype == torch.float64)
    assert all(gap <= limit for gap, limit in zip(gaps, TOLERANCE[dtype], strict=True))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_ranks_hold_exactly_the_same_weights(world):
    for dtype in ("float32", "float64"):
        first, *others = (result[dtype] for result in runs(world))
        for kind in KINDS:
            assert all(distance(first[kind][1], other[kind][1]) == 0 for other in others)


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_moved_in_one_step(world):
    sent = {kind: result[2] for kind, result in runs(world)[0]["float32"].items()}
    once = PSI * 4 * (world - 1) // world
    scalar = 2 * (world - 1) * 4 // world  # the squared norm
    assert sent["DDP（手写）"] == sent["DDP（框架）"] == {"all_reduce": 2 * once}
    assert sent["ZeRO-1"] == sent["ZeRO-2"] == {"reduce_scatter": once, "all_gather": once, "all_reduce": scalar}
    share = lambda numel: numel * 4 * (world - 1) // world  # noqa: E731
    embedding, last = UNITS[0], UNITS[-1]  # backward of a lookup needs no weights: the embedding is gathered once
    assert sent["ZeRO-3"] == {"all_gather": 2 * once - share(embedding), "reduce_scatter": once, "all_reduce": scalar}
    root = embedding + last  # FSDP2 does not reshard the root after forward
    assert sent["FSDP2（框架）"] == {"all_gather": 2 * once - share(root), "reduce_scatter": once, "all_reduce": scalar}


def _peaks(rank):
    x, y = make_batch(0)
    n = dist.get_world_size()
    two, three = Zero2(build()), Zero3(build())
    for engine in (two, three):
        engine.backward(x.chunk(n)[rank], y.chunk(n)[rank], count_tokens(y))
    resident = sum(p.untyped_storage().nbytes() for p in three.model.parameters())
    tied = ""
    try:
        Zero3(build(Size(tied=True)))
    except ValueError as error:
        tied = str(error)
    unit = FlatUnit(build().norm)
    return two.peak, three.most_alive, resident, tied, (unit.numel, len(unit.flat), len(unit.shard))


def test_what_is_alive_at_once():
    for peak, gathered, resident, tied, sizes in launch(3, _peaks):
        assert peak == max(UNITS)  # ZeRO-2: full gradients of one unit, never of the model
        assert gathered == 1  # ZeRO-3: backward holds the weights of one unit
        assert resident == 4 * len(list(build().parameters()))  # placeholders: one element each
        assert "同一个 unit" in tied
        assert sizes == (32, 33, 11)  # padded to a multiple of three


def test_units_cover_the_model_once():
    assert sum(UNITS) == PSI
    assert len(UNITS) == 6
