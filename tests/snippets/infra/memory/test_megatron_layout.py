"""The process grid against torch's device mesh, and parameter shares against a sum over every rank."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.memory.megatron_layout import LLAMA3_8B, LLAMA3_70B, ORDER, Dense, coordinates, groups, per_rank, state_gb
from snippets.tools.presets import MODELS

SIZES = st.fixed_dictionaries({dim: st.integers(1, 3) for dim in ORDER.split("-")})


@settings(deadline=None, max_examples=60)
@given(SIZES)
def test_coordinates_are_the_indices_of_a_mesh(sizes):
    dims = ORDER.split("-")
    world = 1
    for size in sizes.values():
        world *= size
    mesh = torch.arange(world).reshape([sizes[dim] for dim in reversed(dims)])  # last axis fastest
    for rank in range(world):
        where = coordinates(rank, sizes)
        assert mesh[tuple(where[dim] for dim in reversed(dims))] == rank


@settings(deadline=None, max_examples=60)
@given(SIZES, st.lists(st.sampled_from(ORDER.split("-")), min_size=1, max_size=3, unique=True))
def test_groups_partition_the_world(sizes, along):
    found = groups("-".join(along), sizes)
    ranks = sorted(rank for group in found for rank in group)
    world, size = 1, 1
    for dim, value in sizes.items():
        world *= value
        size *= value if dim in along else 1
    assert ranks == list(range(world))
    assert {len(group) for group in found} == {size}
    for group in found:
        others = [{dim: v for dim, v in coordinates(rank, sizes).items() if dim not in along} for rank in group]
        assert all(other == others[0] for other in others)


def test_tensor_groups_are_consecutive_and_pipeline_groups_far_apart():
    sizes = {"tp": 8, "dp": 16, "pp": 8}
    assert groups("tp", sizes)[5] == list(range(40, 48))
    assert groups("pp", sizes)[0] == list(range(0, 1024, 128))


@pytest.mark.parametrize(("model", "name"), [(LLAMA3_8B, "Llama-3-8B"), (LLAMA3_70B, "Llama-3-70B")])
def test_whole_model_is_the_published_structure(model, name):
    preset = MODELS[name]
    assert sum(per_rank(model, 1, 1)[0].values()) == preset.parameters


@pytest.mark.parametrize(("t", "p"), [(1, 1), (2, 2), (8, 4), (4, 80)])
def test_every_parameter_is_somewhere(t, p):
    stages = per_rank(LLAMA3_70B, t, p)
    split = sum(stage["切开的"] for stage in stages) * t
    copied = sum(stage["复制的"] for stage in stages)
    assert split + copied == 70_553_706_496


def test_fewer_kv_heads_than_ranks_still_share_the_parameters():
    model = Dense(1, 64, 16, 2, 4, 64, 64)
    assert per_rank(model, 8, 1)[0]["切开的"] * 8 == per_rank(model, 1, 1)[0]["切开的"]


def test_states_shrink_with_d_down_to_weights_and_gradients():
    whole, many = state_gb(LLAMA3_8B, 1, 1, 1)[0], state_gb(LLAMA3_8B, 1, 1, 10**9)[0]
    assert whole == pytest.approx(18 * 8.030261248)
    assert many == pytest.approx(6 * 8.030261248)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coordinates(8, {"tp": 8}), "rank 在"),
        (lambda: coordinates(0, {"xp": 2}), "维须取自"),
        (lambda: coordinates(0, {"tp": 0}), "大小为正"),
        (lambda: groups("xp", {"tp": 2}), "不在"),
        (lambda: per_rank(LLAMA3_70B, 8, 3), "层数须被 p 整除"),
        (lambda: per_rank(LLAMA3_70B, 3, 1), "须被 t 整除"),
        (lambda: per_rank(Dense(1, 64, 16, 1, 3, 64, 64), 16, 1), "QKV 宽 54"),
        (lambda: state_gb(LLAMA3_8B, 1, 1, 0), "d 须为正"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
