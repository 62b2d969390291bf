"""Results in the order of the ranks, errors of any rank, bad counts."""

import pytest
import torch
import torch.distributed as dist

from snippets.common.processes import launch


def _sum_of_ranks(rank, offset):
    total = torch.tensor([float(rank + offset)])
    dist.all_reduce(total)
    return {"rank": rank, "total": total}


def _fail_on_the_last(rank):
    if rank == dist.get_world_size() - 1:
        raise ValueError("the last rank fails")


def test_results_come_in_the_order_of_the_ranks():
    results = launch(3, _sum_of_ranks, 10)
    assert [r["rank"] for r in results] == [0, 1, 2]
    assert all(r["total"].item() == 33 for r in results)


def test_a_failing_rank_fails_the_launch():
    with pytest.raises(RuntimeError, match="the last rank fails"):
        launch(2, _fail_on_the_last)
    with pytest.raises(ValueError, match="进程数"):
        launch(0, print)
