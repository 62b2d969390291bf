"""ZeRO by lists against the unsharded run, and hand-written ZeRO-1/2/3 on real gloo processes against DDP."""

import math
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.training.zero import (
    INVENTORIES,
    all_gather,
    communication_gb,
    compare_stages,
    reduce_scatter,
    reduction,
    state_bytes,
    tokens_to_hide_stage3,
    train,
)
from snippets.math.algorithms.parameter_sync import Network

integers = st.integers(-100, 100).map(float)


@given(st.floats(1, 1e12), st.integers(1, 4096))
def test_memory_is_monotonic_in_stage_and_ranks(psi, n):
    totals = [sum(state_bytes(psi, n, stage)) for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert totals[3] == pytest.approx(16 * psi / n)
    assert sum(state_bytes(psi, 2 * n, 1)) <= totals[1]


@pytest.mark.parametrize("inventory", INVENTORIES.values(), ids=INVENTORIES)
def test_limits_of_the_reductions(inventory):
    huge = 10**12
    assert reduction(huge, 1, inventory) == pytest.approx(inventory.total / (inventory.weights + inventory.gradients), rel=1e-6)
    assert reduction(huge, 2, inventory) == pytest.approx(inventory.total / inventory.weights, rel=1e-6)
    assert reduction(64, 3, inventory) == pytest.approx(64)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_reduce_scatter_and_all_gather(data):
    n, length = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 20))
    vectors = [data.draw(st.lists(integers, min_size=length, max_size=length)) for _ in range(n)]
    net = Network(n)
    shards = reduce_scatter(vectors, net)
    total = [math.fsum(column) for column in zip(*vectors, strict=True)]
    assert [value for shard in shards for value in shard] == total
    assert all_gather(shards, net) == [total] * n


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_volumes_and_exact_equality(n):
    rows = compare_stages(n, length=64 * n, steps=2)
    assert [sent for _, sent, _ in rows] == pytest.approx([2 * (n - 1) / n] * 3 + [3 * (n - 1) / n])
    assert all(equal for _, _, equal in rows)


def test_all_ranks_hold_the_same_parameters():
    full, _ = train([[[0.5, -1.0, 2.0], [0.25, 1.0, -2.0]]], [1.0, 2.0, 3.0], 3)
    assert full[0] == full[1]


def test_communication_agrees_with_the_simulation():
    for stage in range(4):
        _, net = train([[[1.0] * 800 for _ in range(8)]], [0.0] * 800, stage)
        assert net.sent[0] * 2 / 1e9 == pytest.approx(communication_gb(800, 8, stage))


def test_faster_links_need_fewer_tokens():
    assert tokens_to_hide_stage3(64, 100e9, 989e12) == pytest.approx(tokens_to_hide_stage3(64, 50e9, 989e12) / 2)
    assert tokens_to_hide_stage3(1, 50e9, 989e12) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: state_bytes(0, 1, 1),
        lambda: state_bytes(math.nan, 1, 1),
        lambda: state_bytes(1, 0, 1),
        lambda: state_bytes(1, 1, 5),
        lambda: train([], [1.0], 0),
        lambda: train([[[1.0, 2.0]]], [1.0], 0),
        lambda: train([[[1.0]]], [1.0], 9),
        lambda: communication_gb(1, 1, 7),
        lambda: tokens_to_hide_stage3(1, 0, 1),
    ],
)
def test_bad_input(call):
    with pytest.raises(ValueError, match=r"须|必须|不合法"):
        call()


# --- real processes -------------------------------------------------------------------------------------------------

WORLD, HIDDEN, STEPS = 3, 16, 4
STAGES = (0, 1, 3)  # stages 1 and 2 differ only in how long a gradient is kept


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(HIDDEN, 32), torch.nn.GELU(), torch.nn.Linear(32, HIDDEN)).double()


def _batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(8, HIDDEN, generator=torch.Generator().manual_seed(100 * step + rank), dtype=torch.float64)


def _flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _load(model, flat) -> None:
    offset = 0
    for parameter in model.parameters():
        parameter.data = flat[offset : offset + parameter.numel()].view_as(parameter).clone()
        offset += parameter.numel()


def _gather(shard: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(shard) for _ in range(WORLD)]
    dist.all_gather(parts, shard)
    return torch.cat(parts)


def _train_stage(rank: int, stage: int) -> list[float]:
    model = _model()
    size = sum(parameter.numel() for parameter in model.parameters())
    padded = -(-size // WORLD) * WORLD
    flat = torch.nn.functional.pad(_flat(parameter.data for parameter in model.parameters()), (0, padded - size))
    shard = torch.nn.Parameter(flat if stage == 0 else flat.chunk(WORLD)[rank].clone())
    optimizer = torch.optim.AdamW([shard], lr=1e-2, weight_decay=0.1)
    for step in range(STEPS):
        if stage == 3:
            _load(model, _gather(shard.data))
        model.zero_grad()
        x = _batch(step, rank)
        (model(x) - x.square()).square().mean().backward()
        gradient = torch.nn.functional.pad(_flat(parameter.grad for parameter in model.parameters()), (0, padded - size)) / WORLD
        if stage == 0:
            dist.all_reduce(gradient)
            shard.grad = gradient
        else:
            shard.grad = torch.empty_like(shard.data)
            dist.reduce_scatter(shard.grad, list(gradient.chunk(WORLD)))
        optimizer.step()
        if stage == 0:
            _load(model, shard.data)
        elif stage < 3:
            _load(model, _gather(shard.data))
    if stage == 3:
        _load(model, _gather(shard.data))
    return _flat(parameter.data for parameter in model.parameters()).tolist()


def _run(rank: int, port: int, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    for stage in STAGES:
        results[stage, rank] = _train_stage(rank, stage)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_run, args=(port, results), nprocs=WORLD)
        return dict(results)


def _single_process() -> list[float]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = torch.cat([_batch(step, rank) for rank in range(WORLD)])
        (model(x) - x.square()).square().mean().backward()
        optimizer.step()
    return _flat(parameter.data for parameter in model.parameters()).tolist()


@pytest.mark.parametrize("stage", STAGES)
def test_real_processes_agree_with_one_process(trained, stage):
    """fp64, so the only difference is the order of addition."""
    expected = _single_process()
    for rank in range(WORLD):
        assert trained[stage, rank] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_all_ranks_agree_bit_for_bit(trained):
    for stage in STAGES:
        assert all(trained[stage, rank] == trained[stage, 0] for rank in range(WORLD))
