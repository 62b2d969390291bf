"""Adam is elementwise, so any cut gives the same bits; the global norm and matrix optimizers are not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.memory.sharded_adam import (
    adamw,
    factored_second_moment,
    global_norm,
    is_local,
    layerwise_scale,
    orthogonalized,
    reshard,
    sent_per_rank,
    sharded_equals_whole,
    stalled_fraction,
)


def test_adamw_is_torch_adamw():
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(50, dtype=torch.float64))
    optimizer = torch.optim.AdamW([p], lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    w, m, v = p.detach().clone(), torch.zeros(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    for step in range(1, 20):
        p.grad = torch.randn(50, dtype=torch.float64) * 10.0 ** (step % 7 - 3)
        w, m, v = adamw(w, p.grad, m, v, step)
        optimizer.step()
        assert torch.allclose(w, p.detach(), rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 99), unique=True, max_size=8), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_any_cut_gives_the_same_bits(cuts, dtype):
    assert sharded_equals_whole(100, sorted(cuts), dtype=dtype)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 40))
def test_global_norm_is_the_norm_of_the_whole(n, numel):
    torch.manual_seed(numel)
    whole, norms = torch.randn(numel, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    shards = torch.cat([whole, whole.new_zeros(-numel % n)]).chunk(n)  # padding adds zeros to the sum
    assert global_norm(shards, [norms]) == pytest.approx(torch.cat([whole, norms]).norm().item(), rel=1e-12)


def test_counting_a_replicated_parameter_on_every_rank_is_wrong():
    norms = torch.tensor([3.0])
    assert global_norm([norms, norms]) == pytest.approx(3 * math.sqrt(2)) != global_norm([], [norms])


def test_rules_that_need_the_whole_tensor():
    torch.manual_seed(0)
    g = torch.randn(12, 8, dtype=torch.float64)
    assert is_local(torch.tanh, g, 4)
    assert is_local(factored_second_moment, g, 1)
    for rule in (factored_second_moment, orthogonalized, lambda u: layerwise_scale(u + 1, u)):
        assert not is_local(rule, g, 4)
    square = g * g
    rank_one = factored_second_moment(g)
    assert torch.allclose(rank_one.sum(0), square.sum(0))
    assert torch.allclose(rank_one.sum(1), square.sum(1))
    direction = orthogonalized(g)
    assert torch.allclose(direction.T @ direction, torch.eye(8, dtype=torch.float64), atol=1e-12)


def test_small_updates_vanish_in_bf16():
    one = torch.ones(4, dtype=torch.bfloat16)
    assert stalled_fraction(one, 2**-9) == 1  # half the spacing below 1 is 2⁻⁹: the tie goes to even
    assert stalled_fraction(one, 2**-8) == 0


def test_volume_is_that_of_an_all_reduce():
    parts = sent_per_rank(1000, 8, gradient=2, parameter=2)
    assert sum(parts.values()) * 1e9 == pytest.approx(2 * 2 * 1000 * 7 / 8)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 7))
def test_resharding_keeps_every_number(numel, old, new):
    values = torch.arange(1, numel + 1.0)
    shards = torch.cat([values, values.new_zeros(-numel % old)]).chunk(old)
    moved = reshard(shards, numel, new)
    assert len(moved) == new
    assert len({len(shard) for shard in moved}) == 1
    assert torch.equal(torch.cat(moved)[:numel], values)
    assert not torch.cat(moved)[numel:].any()
    back = reshard(moved, numel, old)
    assert all(torch.equal(a, b) for a, b in zip(back, shards, strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sharded_equals_whole(10, [5, 5]), "严格递增"),
        (lambda: sharded_equals_whole(10, [10]), "严格递增"),
        (lambda: adamw(*[torch.zeros(2)] * 3, torch.zeros(3), 1), "形状须相同"),
        (lambda: adamw(*[torch.zeros(2)] * 4, 0), "step 从 1 起"),
        (lambda: global_norm([torch.tensor([math.inf])]), "一起跳过"),
        (lambda: global_norm([torch.tensor([math.nan])]), "一起跳过"),
        (lambda: is_local(torch.sign, torch.zeros(3), 1), "g 须是矩阵"),
        (lambda: stalled_fraction(torch.ones(2), 0.1), "须是 bf16"),
        (lambda: sent_per_rank(0, 2), "须为正"),
        (lambda: reshard([torch.zeros(2)], 3, 1), "numel"),
        (lambda: reshard([torch.zeros(2)], 2, 0), "n 须为正"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
