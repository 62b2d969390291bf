"""The recorder sees compute and communication in the order in which they happen."""

import itertools
from functools import cache

import pytest

from snippets.common.processes import launch
from snippets.infra.memory.gradient_volume import sent
from snippets.infra.memory.tiny_llama import build
from snippets.infra.memory.what_moves import COMPUTE, Event, blocks, merged, record_step, totals

MODEL = build()
MATMUL = sum(p.numel() for p in MODEL.parameters() if p.dim() == 2) - MODEL.embed.weight.numel()
SCHEMES = ("DDP（手写）", "DDP（框架）", "ZeRO-2", "ZeRO-3", "FSDP2（框架）", "TP", "TP + SP")


@cache
def recorded():
    ranks = launch(2, record_step, SCHEMES)
    return [{scheme: [Event(*event) for event in events] for scheme, events in rank.items()} for rank in ranks]


def kinds(scheme, phase):
    return [event.kind for event in merged(recorded()[0][scheme]) if event.phase == phase]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_computes_the_same_and_twice_as_much_backwards(scheme):
    tokens = 4 * 16 if "TP" not in scheme else 8 * 16
    share = 1 if "TP" not in scheme else 2
    for rank in recorded():
        assert totals(rank[scheme], "前向")[COMPUTE] == 2 * MATMUL * tokens // share
        assert totals(rank[scheme], "反向")[COMPUTE] == 4 * MATMUL * tokens // share


def test_where_each_scheme_communicates():
    assert kinds("DDP（手写）", "反向") == [COMPUTE]
    assert kinds("DDP（框架）", "反向")[-1] == "all_reduce"  # one bucket holds the whole little model
    assert set(kinds("ZeRO-2", "反向")) == {COMPUTE, "reduce_scatter"}
    assert kinds("ZeRO-2", "更新") == ["all_reduce", "all_gather"]
    assert kinds("ZeRO-3", "前向") == ["all_gather", COMPUTE] * 5
    assert kinds("ZeRO-3", "更新") == kinds("FSDP2（框架）", "更新") == ["all_reduce"]
    assert "all_gather" not in kinds("TP", "反向")
    assert set(kinds("TP + SP", "反向")) == {COMPUTE, "reduce_scatter", "all_gather"}


def test_fsdp2_gathers_one_layer_ahead_in_backward():
    """Two gathers precede the compute of the last layer's backward: its own and the prefetched one."""
    gathers, first_layer = 0, 2 * 2 * 2 * 7680 * 64
    done = 0
    for event in (event for event in recorded()[0]["FSDP2（框架）"] if event.phase == "反向"):
        gathers += event.kind == "all_gather"
        done += event.amount * (event.kind == COMPUTE)
        if done > 2 * 2 * 2048 * 64 and event.kind == COMPUTE:  # past the output layer
            break
    assert gathers == 2
    assert done < first_layer


def test_bytes_are_those_of_the_formula():
    psi = sum(p.numel() for p in MODEL.parameters())
    moved = totals(recorded()[0]["ZeRO-2"])
    assert moved["reduce_scatter"] + moved["all_gather"] == round(sent("ZeRO-2", psi, 2, gradient=4, parameter=4) * 1e9)


def test_blocks_follow_one_another():
    line = blocks(recorded()[0]["ZeRO-3"], 1e9, 1e8)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(line))
    assert {kind for _, _, kind in line} == {"前向", "反向", "all_gather", "reduce_scatter", "all_reduce"}
    with pytest.raises(ValueError, match="须为正"):
        blocks([Event("计算", 1, "前向")], 0, 1)
