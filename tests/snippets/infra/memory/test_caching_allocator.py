"""The toy caching allocator: rounding rules, invariants under random traffic, fragmentation."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.memory import caching_allocator as ca
from snippets.infra.memory.caching_allocator import HOLE, MIB, Allocator, OutOfMemory, block_size, segment_size

HEADER = Path(torch.__file__).parent / "include/c10/core/AllocatorConfig.h"


@pytest.mark.skipif(not HEADER.exists(), reason="torch was installed without headers")
def test_constants_match_the_installed_header():
    text = HEADER.read_text()
    value = lambda name: int(re.search(rf"{name}(?: = |{{)(\d+)", text).group(1))  # noqa: E731
    assert value("kMinBlockSize") == ca.MIN_BLOCK
    assert value("kSmallSize") == ca.SMALL
    assert value("kSmallBuffer") == ca.SMALL_BUFFER
    assert value("kMinLargeAlloc") == ca.MIN_LARGE
    assert value("kRoundLarge") == ca.ROUND_LARGE
    assert value("large_segment_size_") == ca.LARGE_BUFFER


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 200 * MIB))
def test_rounding(size):
    block, segment = block_size(size), segment_size(size)
    assert size <= block < size + 512
    assert block % 512 == 0
    assert segment >= block
    assert segment % (2 * MIB) == 0
    if block > 10 * MIB:
        assert segment - block < 2 * MIB


@settings(deadline=None, max_examples=40)
@given(
    st.booleans(),
    st.lists(st.one_of(st.integers(1, 64 * MIB), st.integers(1, 2 * MIB), st.integers(-20, -1)), max_size=40),
)
def test_books_balance(expandable, events):
    device = Allocator(400 * MIB, expandable)
    live: dict[str, int] = {}
    for i, event in enumerate(events):
        if event > 0:
            try:
                device.malloc(f"t{i}", event)
                live[f"t{i}"] = event
            except OutOfMemory:
                pass
        elif live:
            name = sorted(live)[event % len(live)]
            device.free(name)
            del live[name]
        held = {name: size for segment in device.segments for size, name in segment.blocks if name not in (None, HOLE)}
        assert held.keys() == live.keys()
        for name, size in live.items():
            rest = held[name] - block_size(size)
            small = block_size(size) <= MIB
            assert 0 <= rest <= (511 if small or expandable else MIB)
        assert device.allocated == sum(held.values()) <= device.reserved <= device.capacity
        for segment in device.segments:
            names = [name for _, name in segment.blocks]
            assert all(size > 0 for size, _ in segment.blocks)
            assert not any(a is None and b is None for a, b in itertools.pairwise(names))
    for name in live:
        device.free(name)
    device.empty_cache()
    assert device.allocated == device.reserved == 0


def test_small_requests_share_a_two_mib_segment():
    device = Allocator(100 * MIB)
    for i in range(4096):
        device.malloc(str(i), 4)
    assert device.allocated == device.reserved == 2 * MIB
    device.malloc("one more", 4)
    assert device.reserved == 4 * MIB


@pytest.mark.parametrize(("size", "segment"), [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 1, 12)])
def test_segment_boundaries(size, segment):
    assert segment_size(size) == segment * MIB


@pytest.mark.parametrize(("rest", "expandable", "charged"), [(MIB, False, 12), (MIB + 512, False, 11), (MIB, True, 11)])
def test_a_large_block_is_split_only_above_one_mib(rest, expandable, charged):
    device = Allocator(100 * MIB, expandable)
    device.malloc("big", 12 * MIB if rest == MIB else 12 * MIB + 512)
    device.malloc("guard", 40 * MIB)  # keeps an expandable tail away from the hole
    device.free("big")
    device.malloc("tenant", 11 * MIB)
    assert device.allocated - 40 * MIB == charged * MIB


def test_freeing_keeps_the_reservation():
    device = Allocator(100 * MIB)
    device.malloc("a", 50 * MIB)
    device.free("a")
    assert (device.allocated, device.reserved) == (0, 50 * MIB)
    device.empty_cache()
    assert device.reserved == 0


def test_one_live_byte_pins_a_split_segment():
    device = Allocator(100 * MIB)
    device.malloc("big", 80 * MIB)
    device.free("big")
    device.malloc("tenant", 2 * MIB)
    device.empty_cache()
    assert device.reserved == 80 * MIB


def test_free_memory_in_total_is_not_enough():
    """Counter-example: "reserved minus allocated is available to the next tensor"."""
    assert ca.fragmented(False).startswith("OOM")
    assert ca.fragmented(True).startswith("成功")
    assert ca.growing_sequences(False)[1] == 100 + 120 + 140 + 160 + 180 + 200


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, float("nan")])
def test_rejects(bad):
    with pytest.raises(ValueError, match=r"须|没有|已在用"):
        block_size(bad)
    with pytest.raises(ValueError, match=r"须|没有|已在用"):
        Allocator(bad)
    device = Allocator(10 * MIB)
    device.malloc("a", 4)
    with pytest.raises(ValueError, match=r"须|没有|已在用"):
        device.malloc("a", 4)
    with pytest.raises(ValueError, match=r"须|没有|已在用"):
        device.free("b")
