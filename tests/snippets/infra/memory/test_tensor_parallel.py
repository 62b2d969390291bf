"""Megatron's cut, with and without sequence parallelism, alone and times data parallelism, equals one process."""

from functools import cache

import pytest
import torch
import torch.distributed as dist

from snippets.common.processes import launch
from snippets.infra.memory.equivalence import against_single
from snippets.infra.memory.tensor_parallel import parallel_cross_entropy, parallel_embedding, shard_dim, slice_parameter, train
from snippets.infra.memory.tiny_llama import IGNORE, Size, build, distance

WIDE = Size(kv=4)
CASES = {  # world: (t, size)
    2: [(2, Size())],
    4: [(2, Size()), (4, WIDE)],
}


def _runs(rank):
    results = {}
    for t, size in CASES[dist.get_world_size()]:
        for sequence in (False, True):
            for dtype in (torch.float32, torch.float64):
                results[t, sequence, dtype] = train(rank, t, sequence, True, size, dtype, dtype == torch.float64)
    results["unsynchronized"] = train(rank, 2, True, False, Size(), torch.float64)
    return results


@cache
def runs(world):
    return launch(world, _runs)


@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sp"])
@pytest.mark.parametrize(("world", "t"), [(2, 2), (4, 2), (4, 4)])
def test_equal_to_one_process(world, t, sequence):
    size = dict(CASES[world])[t]
    # float32: a tenth of one AdamW step (lr 3e-3), for its rounding depends on the processor; float64 is what proves equality.
    for dtype, limits in ((torch.float32, (3e-6, 3e-4)), (torch.float64, (1e-13, 1e-12))):
        losses, weights, _ = runs(world)[0][t, sequence, dtype]
        gaps = against_single(losses, weights, size, dtype, uneven=dtype == torch.float64)
        assert all(gap <= limit for gap, limit in zip(gaps, limits, strict=True))


@pytest.mark.parametrize("world", [2, 4])
def test_replicas_stay_exactly_equal(world):
    first, *others = runs(world)
    for key in first:
        if key != "unsynchronized":
            assert all(distance(first[key][1], other[key][1]) == 0 for other in others)


def test_bytes_moved_in_one_step():
    layers, elements, tokens = 4, 8 * 16 * 32, 8 * 16
    activation = elements * 4  # bytes of (b, s, h) in float32; the ring factor 2(t − 1)/t is 1 for t = 2
    calls = 4 * layers + 2  # two forward and two backward per layer, the embedding forward, the head backward
    scalars = 3 * tokens * 4 + 4  # maximum, sum and target logit per token, and the squared norm
    plain, sequence = (runs(2)[0][2, mode, torch.float32][2] for mode in (False, True))
    assert plain == {"all_reduce": calls * activation + scalars}
    norms = (2 * layers + 1) * 32 * 4
    assert sequence == {
        "all_gather": calls * activation // 2,
        "reduce_scatter": calls * activation // 2,
        "all_reduce": scalars + norms,
    }


@pytest.mark.parametrize("world", [2, 4])
def test_norms_left_unsynchronized_hide_in_the_loss(world):
    """Under sequence parallelism each rank saw s/t positions; the loss barely tells, the weights do."""
    losses, weights, _ = runs(world)[0]["unsynchronized"]
    loss_gap, weight_gap = against_single(losses, weights, Size(), torch.float64, uneven=False)
    assert 1e-4 < loss_gap < 1e-2
    assert weight_gap > 1e-2


def _operators(rank):
    group = dist.group.WORLD
    torch.manual_seed(0)
    weight = torch.randn(12, 5, dtype=torch.float64)
    tokens = torch.tensor([[0, 3, 11], [5, 6, 7]])
    looked_up = parallel_embedding(tokens, weight.chunk(2)[rank], group)
    dist.all_reduce(looked_up)
    logits = torch.randn(2, 3, 12, dtype=torch.float64) * 50
    targets = torch.tensor([[0, IGNORE, 11], [5, 6, IGNORE]])
    mine = logits.chunk(2, dim=-1)[rank].clone().requires_grad_()
    loss = parallel_cross_entropy(mine, targets, group)
    loss.backward()
    nothing = parallel_cross_entropy(mine.detach(), torch.full((2, 3), IGNORE), group)
    return looked_up, loss.detach(), mine.grad, nothing


def test_vocabulary_parallel_operators():
    results = launch(2, _operators)
    torch.manual_seed(0)
    weight = torch.randn(12, 5, dtype=torch.float64)
    tokens = torch.tensor([[0, 3, 11], [5, 6, 7]])
    logits = (torch.randn(2, 3, 12, dtype=torch.float64) * 50).requires_grad_()
    targets = torch.tensor([[0, IGNORE, 11], [5, 6, IGNORE]])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    loss.backward()
    for looked_up, part, _, nothing in results:
        assert torch.equal(looked_up, weight[tokens])
        assert torch.allclose(part, loss.detach())
        assert nothing == 0
    assert torch.allclose(torch.cat([grad for _, _, grad, _ in results], dim=-1), logits.grad, atol=1e-12)


def test_slices_reassemble_and_refuse_uneven_cuts():
    for name, p in build().named_parameters():
        pieces = [slice_parameter(name, p.detach(), index, 2) for index in range(2)]
        dim = shard_dim(name)
        assert torch.equal(pieces[0] if dim is None else torch.cat(pieces, dim=dim), p)
    with pytest.raises(ValueError, match="不能被 5 整除"):
        slice_parameter("head.weight", build().head.weight, 0, 5)


def _too_many(rank):
    try:
        train(rank, 2, size=Size(kv=1))
    except ValueError as error:
        return str(error)


def test_fewer_kv_heads_than_ranks_are_refused():
    assert "1 个 KV 头" in launch(2, _too_many)[0]
