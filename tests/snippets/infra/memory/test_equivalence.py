"""Each popular way of breaking the equality breaks it, by how much, and the cure restores it."""

from functools import cache

import pytest
import torch

from snippets.common.processes import launch
from snippets.infra.memory.equivalence import (
    NAIVE,
    accumulate,
    accumulation_traffic,
    against_single,
    effect_of_gradient_scale,
    mask,
    reduction_order,
    tensor_parallel_dropout,
    train_naive,
)
from snippets.infra.memory.tiny_llama import Size, build, distance

PSI = sum(p.numel() for p in build().parameters())
DROPOUT = {"megatron": ("rank", "same"), "one seed": ("same", "same"), "all seeds": ("rank", "rank"), "slices": ("slice", "same")}


def _everything(rank):
    naive = {(kind, uneven): train_naive(rank, kind, torch.float64, uneven) for kind in NAIVE for uneven in (False, True)}
    traffic = {no_sync: accumulation_traffic(rank, 4, no_sync) for no_sync in (False, True)}
    dropout = {name: tensor_parallel_dropout(rank, *policies) for name, policies in DROPOUT.items()}
    return naive, traffic, dropout


@cache
def everything():
    return launch(2, _everything)


def gaps(kind, uneven):
    losses, weights, _ = everything()[0][0][kind, uneven]
    return against_single(losses, weights, Size(), torch.float64, uneven)


def test_mean_of_means_is_right_only_for_equal_lengths():
    loss_gap, weight_gap = gaps("均值的均值", False)
    assert loss_gap < 1e-13
    assert weight_gap < 1e-12
    assert min(gaps("均值的均值", True)) > 1e-2


def test_clipping_by_the_local_norm_is_wrong_and_the_loss_barely_shows_it():
    for uneven in (False, True):
        loss_gap, weight_gap = gaps("各裁各的", uneven)
        assert 1e-5 < loss_gap < 1e-3
        assert weight_gap > 1e-4


def test_every_rank_agrees_although_all_are_wrong():
    """Replicas that agree prove nothing: mean of means is the same mistake on every rank."""
    for key in everything()[0][0]:
        assert distance(everything()[0][0][key][1], everything()[1][0][key][1]) == 0


def test_no_sync_sends_once_and_gives_the_same_gradient():
    for _, traffic, _ in everything():
        (every, gap_every), (once, gap_once) = traffic[False], traffic[True]
        assert every == 4 * once == 4 * PSI * 8  # float64, ring factor 1 for two ranks
        assert max(gap_every, gap_once) < 1e-14


def test_dropout_seeds():
    for spread, gap, alike in (result[2]["slices"] for result in everything()):
        assert spread == 0
        assert gap < 1e-12
        assert 0.3 < alike < 0.7
    for spread, gap, alike in (result[2]["megatron"] for result in everything()):
        assert spread == 0
        assert gap > 1
        assert 0.3 < alike < 0.7
    for _, _, alike in (result[2]["one seed"] for result in everything()):
        assert alike == 1  # different heads drop the same places
    assert everything()[0][2]["all seeds"][0] > 1  # replicas of the residual stream part ways


@pytest.mark.parametrize("factor", [2, 8, 64])
def test_adam_and_clipping_hide_a_sum_in_place_of_a_mean(factor):
    for optimizer in ("adamw", "sgd"):
        assert effect_of_gradient_scale(factor, optimizer) < 1e-6
    off = 1e9
    hidden, shown = (effect_of_gradient_scale(factor, optimizer, off) for optimizer in ("adamw", "sgd"))
    assert hidden < 5e-3
    assert shown > 1e-2
    assert shown > 5 * hidden


@pytest.mark.parametrize("m", [2, 4, 8])
def test_accumulation_needs_the_global_count(m):
    assert accumulate(m, weighted=True) < 1e-14
    assert accumulate(m, weighted=False) > 0.1


@pytest.mark.parametrize("n", [2, 4, 16])
def test_the_order_of_a_sum_is_worth_a_few_roundings(n):
    single, double = reduction_order(n)
    assert single <= 2 * (n - 1) * 2**-24
    assert double <= 2 * (n - 1) * 2**-53
    assert (single > 0) == (n > 2)  # two terms commute exactly


def test_mask_is_inverted_dropout():
    drawn = mask((1000, 100), 0, p=0.25)
    assert drawn.unique().tolist() == pytest.approx([0, 4 / 3])
    assert drawn.mean().item() == pytest.approx(1, abs=0.01)
