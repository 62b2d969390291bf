"""Clipping against torch, over real processes for shards, and the order of operations with a real GradScaler-style scale."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.optimization.gradient_clipping import (
    clip_before_unscale,
    clip_by_global_norm,
    clip_by_value,
    clip_each_micro_batch,
    global_norm,
    sharded_norm,
    steps_after_a_spike,
)

gradients = st.lists(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=6), min_size=1, max_size=4)


def torch_clip(grads, max_norm):
    parameters = []
    for grad in grads:
        parameter = torch.zeros(len(grad), dtype=torch.float64, requires_grad=True)
        parameter.grad = torch.tensor(grad, dtype=torch.float64)
        parameters.append(parameter)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()
    return [parameter.grad.tolist() for parameter in parameters], norm


@settings(deadline=None)
@given(gradients, st.floats(1e-3, 1e3))
def test_equals_torch(grads, max_norm):
    ours, norm = clip_by_global_norm(grads, max_norm)
    reference, reference_norm = torch_clip(grads, max_norm)
    assert norm == pytest.approx(reference_norm, rel=1e-12, abs=1e-150)
    for a, b in zip(ours, reference, strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(gradients)
def test_direction_is_kept_and_the_norm_bounded(grads):
    clipped, norm = clip_by_global_norm(grads, 1.0)
    assert global_norm(clipped) <= 1.0 + 1e-9
    if norm <= 1.0 - 1e-5:
        assert clipped == [list(grad) for grad in grads]
    flat, new = ([g for grad in gs for g in grad] for gs in (grads, clipped))
    assert math.fsum(a * b for a, b in zip(flat, new, strict=True)) == pytest.approx(norm * global_norm(clipped), rel=1e-9, abs=1e-12)


def test_clipping_by_value_turns_the_direction():
    (clipped,) = clip_by_value([[3.0, 0.1]], 1.0)
    assert clipped[0] / clipped[1] != pytest.approx(30)


def test_infinite_norm_would_poison_the_parameters_in_torch():
    """What our error prevents: coefficient 0 times inf is NaN, and torch does it silently unless asked."""
    clipped, norm = torch_clip([[math.inf, 1.0]], 1.0)
    assert math.isinf(norm)
    assert math.isnan(clipped[0][0])
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.tensor([math.nan])
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


def test_fp16_norm_overflows_where_fp32_does_not():
    grad = torch.full((100,), 1e4, dtype=torch.float16)
    assert torch.linalg.vector_norm(grad).isinf()
    assert torch.linalg.vector_norm(grad, dtype=torch.float32).item() == pytest.approx(1e5)


def _rank(rank: int, world: int, port: int, results) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    full = torch.arange(1.0, 13.0)
    shard = full.chunk(world)[rank]
    squares = shard.square().sum()
    dist.all_reduce(squares)
    results[rank] = squares.sqrt().item()
    dist.destroy_process_group()


def test_shards_on_real_processes_give_the_norm_of_the_whole(unused_port):
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_rank, args=(2, unused_port, results), nprocs=2)
        expected = torch.arange(1.0, 13.0).norm().item()
        assert [results[0], results[1]] == pytest.approx([expected, expected])
    assert sharded_norm([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]) == pytest.approx(expected)


@given(st.floats(0, 1), st.sampled_from([1.0, 2.0**10, 2.0**16]))
def test_unscaling_first_leaves_small_gradients_alone(norm, scale):
    right, wrong = clip_before_unscale(norm, scale)
    assert right == norm
    assert wrong <= right


def test_micro_batch_clipping_is_harmless_only_when_nothing_is_clipped():
    assert clip_each_micro_batch([0.5, -0.25]) == (0.125, 0.125)
    right, wrong = clip_each_micro_batch([-8.0, 1.0, 1.0, 1.0, 1.0])
    assert right < 0 < wrong


def test_a_short_memory_recovers_sooner_after_a_spike():
    long, short = steps_after_a_spike(1000.0, None, 0.999), steps_after_a_spike(1000.0, None, 0.95)
    assert long[-1] < 0.1
    assert short[-1] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clip_by_global_norm([[1.0]], 0.0), "max_norm"),
        (lambda: clip_by_global_norm([[math.nan]], 1.0), "nan"),
        (lambda: clip_by_value([[1.0]], 0.0), "limit"),
        (lambda: clip_by_value([[math.nan]], 1.0), "NaN"),
        (lambda: clip_each_micro_batch([math.nan]), "有限"),
        (lambda: clip_before_unscale(math.nan, 1.0), "norm ≥ 0"),
        (lambda: clip_before_unscale(-1.0, 1.0), "norm"),
        (lambda: clip_each_micro_batch([]), "micro-batch"),
        (lambda: steps_after_a_spike(0.0, 1.0), "spike"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_sharded_norm_does_not_overflow():
    assert sharded_norm([[1e200], [1e200]]) == pytest.approx(math.sqrt(2) * 1e200)
