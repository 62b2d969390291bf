"""Both layouts against torch: chunk for dim 0, flatten-and-chunk for the flat parameter, and FSDP2 itself."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from snippets.common.processes import launch
from snippets.infra.memory.fsdp_layout import dim0_rows, flat_layout, fsdp_bytes, gathered_order, llama_layer, padding_waste

SHAPES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=100)
@given(SHAPES, st.integers(1, 9))
def test_flat_layout_is_flatten_concatenate_pad_chunk(shapes, n):
    total = sum(map(math.prod, shapes.values()))
    flat = torch.cat([torch.arange(total), torch.full((-total % n,), -1)])
    offsets, start = {}, 0
    for name, shape in shapes.items():
        offsets[name] = start
        start += math.prod(shape)
    for rank, held in enumerate(flat_layout(shapes, n)):
        mine = flat.chunk(n)[rank] if len(flat) // n else flat[:0]
        covered = [i for name, (low, high) in held.items() for i in range(offsets[name] + low, offsets[name] + high)]
        assert covered == [i for i in mine.tolist() if i >= 0]


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 60), st.integers(1, 12))
def test_dim0_rows_is_torch_chunk(rows, n):
    chunks = [len(chunk) for chunk in torch.arange(rows).chunk(n)]
    assert dim0_rows(rows, n) == chunks + [0] * (n - len(chunks))


@settings(deadline=None, max_examples=60)
@given(SHAPES, st.integers(1, 9))
def test_waste_is_the_padding(shapes, n):
    flat, dim0 = padding_waste(shapes, n)
    total = sum(map(math.prod, shapes.values()))
    assert flat * total == pytest.approx(-total % n)
    padded = sum(n * max(dim0_rows(shape[0], n)) * math.prod(shape[1:]) for shape in shapes.values())
    assert dim0 * total == pytest.approx(padded - total)
    assert 0 <= flat <= (n - 1) / total + 1e-12
    assert dim0 >= 0


def _fsdp2(rank):
    layer = nn.Linear(3, 10)
    fully_shard(layer, mesh=init_device_mesh("cpu", (4,)))
    return {name: p.to_local().shape[0] for name, p in layer.named_parameters()}


def test_fsdp2_really_cuts_rows_like_that():
    held = launch(4, _fsdp2)
    assert [rank["weight"] for rank in held] == [rank["bias"] for rank in held] == dim0_rows(10, 4)


def test_the_gathered_buffer_is_rank_major():
    order = gathered_order(llama_layer(64, 2, 8, 128), 4)
    assert [name for rank, name in order if rank == 0] == list(llama_layer(64, 2, 8, 128))
    places = [i for i, (_, name) in enumerate(order) if name == "wk"]
    assert len(places) == 4
    assert min(b - a for a, b in itertools.pairwise(places)) > 1


def test_peak_with_one_unit_is_the_whole_model():
    one = fsdp_bytes(1000, 1000, 10, alive=1, buffers=1)
    assert one == {"分片": 1.6e-6, "聚齐的参数": 2e-6, "在途的梯度": 2e-6}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flat_layout({}, 2), "至少要有一个参数"),
        (lambda: flat_layout({"w": ()}, 2), "至少一维"),
        (lambda: padding_waste({"w": (0, 3)}, 2), "各维为正"),
        (lambda: flat_layout({"w": (3,)}, 0), "rank 数须为正"),
        (lambda: dim0_rows(0, 2), "行数与 rank 数"),
        (lambda: fsdp_bytes(10, 20, 2), "unit ≤ psi"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
