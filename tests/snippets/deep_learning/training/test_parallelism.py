"""Three cuts of one MLP on real gloo processes against one process."""

import pytest
import torch

from snippets.common.processes import launch
from snippets.deep_learning.training.parallelism import data_parallel, pipeline_parallel, single_process, tensor_parallel


def problem():
    torch.manual_seed(0)
    w1, w2 = torch.randn(12, 6, dtype=torch.float64), torch.randn(6, 12, dtype=torch.float64)
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
    return w1, w2, x, y


def _all_cuts(rank, w1, w2, x, y):
    """One launch for every cut: starting processes costs more than the runs."""
    results = {"data": data_parallel(rank, w1, w2, x, y), "tensor": tensor_parallel(rank, w1, w2, x, y)}
    for m in (1, 4):
        results[f"pipeline {m}"] = pipeline_parallel(rank, w1, w2, x, y, m)
    count = 3 if rank == 0 else 5
    ragged = single_process(w1, w2, *(part[:3] if rank == 0 else part[3:] for part in (x, y)))
    weighted = [g * count / 8 for g in ragged]
    for g in ragged + weighted:
        torch.distributed.all_reduce(g)
    results["ragged mean of means"] = [g / 2 for g in ragged]
    results["ragged weighted"] = weighted
    errors = []
    for call in (
        lambda: data_parallel(rank, w1, w2, x[:7], y[:7]),
        lambda: tensor_parallel(rank, w1[:11], w2[:, :11], x, y),
        lambda: pipeline_parallel(rank, w1, w2, x, y, 3),
        lambda: pipeline_parallel(rank, w1, w2, x, y, 0),
        lambda: data_parallel(rank, w1, w2, x[:0], y[:0]),
    ):
        try:
            call()
        except ValueError as error:
            errors.append(str(error))
    return results | {"errors": errors}


@pytest.fixture(scope="module")
def runs():
    return launch(2, _all_cuts, *problem())


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_data_parallel_is_the_full_batch(runs):
    expected = single_process(*problem())
    for run in runs:
        for actual, g in zip(run["data"], expected, strict=True):
            close(actual, g)


def test_tensor_parallel_shards_are_slices_of_the_full_gradient(runs):
    w1, w2, x, y = problem()
    g1, g2 = single_process(w1, w2, x, y)
    x = x.requires_grad_()
    gx = torch.autograd.grad(((x @ w1.T).relu() @ w2.T - y).square().mean(), x)[0]
    for rank, run in enumerate(runs):
        close(run["tensor"][0], g1.chunk(2)[rank])
        close(run["tensor"][1], g2.chunk(2, dim=1)[rank])
        close(run["tensor"][2], gx)  # needs f's all-reduce in the backward pass


@pytest.mark.parametrize("m", [1, 4])
def test_pipeline_is_the_full_batch_for_any_number_of_microbatches(runs, m):
    for run, g in zip(runs, single_process(*problem()), strict=True):
        close(run[f"pipeline {m}"], g)


def test_unequal_shards_break_the_mean(runs):
    expected = single_process(*problem())[0]
    assert not torch.allclose(runs[0]["ragged mean of means"][0], expected, rtol=1e-3)
    for actual, g in zip(runs[0]["ragged weighted"], single_process(*problem()), strict=True):
        close(actual, g)


def test_bad_splits_are_rejected(runs):
    assert [len(run["errors"]) for run in runs] == [5, 5]
