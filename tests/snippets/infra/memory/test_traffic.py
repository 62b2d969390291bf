"""The instrument counts every collective, whoever issues it, and refuses what it does not know."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

from snippets.common.processes import launch
from snippets.infra.memory.traffic import Call, Traffic


def _calls(rank):
    n = dist.get_world_size()
    x, shard = torch.ones(6 * n), torch.ones(6)
    with Traffic() as traffic:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.all_gather([torch.empty(6) for _ in range(n)], shard)
        dist.all_gather_single(torch.empty(6 * n), shard)
        dist.reduce_scatter_single(torch.empty(6), x)
        dist.all_to_all_single(torch.empty(6 * n), x)
        if rank == 0:
            dist.send(shard, dst=1)
        elif rank == 1:
            dist.recv(shard, src=0)
        dist.barrier()
    unknown = ""
    try:
        with Traffic():
            dist.reduce(x, dst=0)
    except ValueError as error:
        unknown = str(error)
    dist.barrier()
    mesh = DeviceMesh("cpu", list(range(n)))
    tensor = distribute_tensor(torch.arange(4.0 * n), mesh, [Shard(0)])
    with Traffic() as functional:
        full, total = tensor.full_tensor(), tensor.sum().full_tensor()
    return (
        [(c.kind, c.size, c.ranks) for c in traffic.calls],
        traffic.sent(),
        unknown,
        [(c.kind, c.size) for c in functional.calls],
        full,
        total,
    )


@pytest.fixture(scope="module")
def calls():
    return launch(2, _calls)


def test_kind_size_and_group_of_every_call(calls):
    full = 48  # 12 floats
    for rank, (seen, _, _, _, _, _) in enumerate(calls):
        point = ("send" if rank == 0 else "recv", 24, 2)
        expected = ["all_reduce", "all_reduce", "all_gather", "all_gather", "reduce_scatter", "all_to_all"]
        assert seen == [(kind, full, 2) for kind in expected] + [point]


def test_bytes_sent_follow_the_ring(calls):
    assert calls[0][1] == {"all_reduce": 96, "all_gather": 48, "reduce_scatter": 24, "all_to_all": 24, "send": 24}
    assert calls[1][1] == {"all_reduce": 96, "all_gather": 48, "reduce_scatter": 24, "all_to_all": 24}


def test_unknown_collectives_are_refused_not_dropped(calls):
    assert "reduce_" in calls[0][2]


def test_functional_collectives_of_dtensor_are_counted(calls):
    for _, _, _, functional, full, total in calls:
        assert functional == [("all_gather", 32), ("all_reduce", 4)]
        assert full.tolist() == list(range(8))
        assert total == 28


@pytest.mark.parametrize("n", [2, 3, 8, 512])
def test_reduce_scatter_and_all_gather_add_up_to_all_reduce(n):
    parts = [Call(kind, 1000, n).sent for kind in ("reduce_scatter", "all_gather")]
    assert sum(parts) == pytest.approx(Call("all_reduce", 1000, n).sent)
