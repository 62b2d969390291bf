"""Parameter counts from the structures against the counts that the models' publishers state."""

import pytest

from snippets.deep_learning.training.zero import INVENTORIES as Q033
from snippets.infra.memory.activation_memory import LLAMA3_8B, LLAMA3_70B
from snippets.tools.presets import GPUS, INVENTORIES, MODELS, inventory_fields

TOTAL = {
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Llama-3-405B": 405_853_388_800,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Mixtral 8x7B": 46_702_792_704,
    "GPT-3 175B": 174_604_259_328,
}


@pytest.mark.parametrize("name", TOTAL)
def test_parameter_count(name):
    assert MODELS[name].parameters == TOTAL[name]


@pytest.mark.parametrize(
    ("name", "total", "active"), [("DeepSeek-V3", 671e9, 37e9), ("Qwen3-235B-A22B", 235e9, 22e9), ("PaLM 540B", 540.35e9, 540.35e9)]
)
def test_stated_sizes(name, total, active):
    assert MODELS[name].parameters == pytest.approx(total, rel=0.001)
    assert MODELS[name].active == pytest.approx(active, rel=0.02)


def test_deepseek_v3_without_the_router_bias():
    """The published checkpoint has 671,026,419,200 parameters without MTP; 58 × 256 of them are the routers' bias."""
    assert MODELS["DeepSeek-V3"].parameters + 58 * 256 == 671_026_419_200


def test_shapes_agree_with_the_activation_page():
    for ours, theirs in ((MODELS["Llama-3-8B"], LLAMA3_8B), (MODELS["Llama-3-70B"], LLAMA3_70B)):
        assert (ours.h, ours.a, ours.kv, ours.f, ours.layers, ours.vocabulary) == (
            theirs.h,
            theirs.a,
            theirs.kv,
            theirs.f,
            theirs.layers,
            theirs.vocabulary,
        )


def test_inventories_agree_with_q033():
    for name, inventory in Q033.items():
        assert INVENTORIES[name] == (inventory.weights, inventory.gradients, inventory.optimizer)
    assert all(sum(INVENTORIES[name]) == int(name.split(" B")[0]) for name in INVENTORIES)
    assert sum(inventory_fields(next(iter(INVENTORIES))).values()) == 16


def test_every_figure_names_its_source():
    assert all(entry.source for entry in (*MODELS.values(), *GPUS.values()))


def test_gpu_ratios():
    """fp8 is twice bf16 where there is fp8; NVLink is one direction (half of what data sheets print)."""
    for gpu in GPUS.values():
        assert gpu.fp8 is None or gpu.fp8 == pytest.approx(2 * gpu.bf16, rel=0.001)
    assert [GPUS[name].nvlink for name in ("A100 80GB SXM", "H100 80GB SXM", "H800 80GB SXM", "B200（HGX/DGX）")] == [300, 450, 200, 900]
