"""The ledger against the calculator, the ZeRO inventories and hand-written sums."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.training.zero import Inventory
from snippets.infra.memory import memory_ledger as ml
from snippets.tools.presets import INVENTORIES, MODELS
from snippets.tools.training_memory import training_memory


def preset(name, **options):
    fields = MODELS[name].fields()
    keys = ("params_b", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    return training_memory(**{key: fields[key] for key in keys}, **options)


def test_inventories_agree_with_the_presets():
    ours = {(i.weights, i.gradients, i.optimizer) for i in ml.INVENTORIES.values()}
    assert set(INVENTORIES.values()) <= ours


def test_split_matters_not_only_the_sum():
    """Counter-example: "16 bytes is 16 bytes" - at ZeRO-1 the two 16-byte inventories differ."""
    from snippets.deep_learning.training.zero import state_bytes

    mixed, full = (sum(state_bytes(8.03e9, 8, 1, Inventory(*i))) / 1e9 for i in ((2, 2, 12), (4, 4, 8)))
    assert mixed == pytest.approx(8.03 * (4 + 1.5))
    assert full == pytest.approx(8.03 * (8 + 1))


@pytest.mark.parametrize(("recompute", "mode"), [("none", "none"), ("swiglu+norm", "swiglu_norm")])
def test_fsdp_ledger_matches_the_calculator(recompute, mode):
    ledger = ml.fsdp_ledger("Llama-3-8B", 8, recompute)
    tool = preset("Llama-3-8B", dp=8, zero=3, recompute=mode)
    assert ledger["状态分片"] == pytest.approx(tool["states_gb"])
    assert ledger["激活"] == pytest.approx(tool["act_gb"], rel=1e-6)
    assert ledger["logits"] == pytest.approx(tool["logits_gb"])


@pytest.mark.parametrize("grads", [2, 4])
def test_tensor_parallel_ledger_matches_the_calculator(grads):
    ledger = ml.tensor_parallel_ledger(Inventory(2, grads, 12))
    tool = preset("Llama-3-70B", dp=8, tp=8, zero=1, grads_bytes=grads, recompute="swiglu_norm")
    assert sum(ledger.values()) == pytest.approx(tool["worst_gb"], rel=1e-3)


def test_gradient_precision_decides_whether_70b_fits():
    totals = [sum(ml.tensor_parallel_ledger(Inventory(2, grads, 12)).values()) for grads in (4, 2)]
    assert totals[0] > 80 > totals[1]


def test_deepseek_by_hand():
    model = MODELS["DeepSeek-V3"]
    dense, expert = (model.parameters - model.routed) / 16, model.routed / 16 / 64
    ledger = ml.deepseek_v3_ledger(1)
    assert ledger["权重"] == pytest.approx(2 * (dense + expert) / 1e9)
    assert ledger["梯度"] == pytest.approx(4 * (dense + expert) / 1e9)
    assert ledger["优化器"] == pytest.approx(8 * (dense / 128 + expert / 2) / 1e9)
    assert ml.deepseek_v3_ledger(2)["优化器"] == ledger["优化器"]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), st.integers(0, 6))
def test_deepseek_all_gpus_hold_every_optimizer_byte_once(i, j):
    """Summed over the cluster, ZeRO-1 keeps exactly one copy of the optimizer states, whatever the layout."""
    pp, ep = 2**i, 2 ** min(j, 11 - i)
    total = ml.deepseek_v3_ledger(1, pp, ep)["优化器"] * 2048
    assert total == pytest.approx(8 * MODELS["DeepSeek-V3"].parameters / 1e9)


def test_uniform_division_is_wrong_for_experts():
    """Counter-example: "ZeRO-1 over 128 ranks divides all optimizer states by 128"."""
    model = MODELS["DeepSeek-V3"]
    naive = 8 * ((model.parameters - model.routed) / 16 + model.routed / 16 / 64) / 128 / 1e9
    assert ml.deepseek_v3_ledger(1)["优化器"] > 20 * naive


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["none", "fused", "swiglu", "swiglu+norm", "full"]), st.booleans(), st.booleans(), st.integers(1, 64))
def test_timeline(recompute, fused, foreach, n):
    rows = dict(ml.step_timeline(recompute, fused, foreach, n))
    shard = MODELS["Llama-3-8B"].parameters / n / 1e9
    assert rows["步首"] == pytest.approx(12 * shard)
    assert rows["优化器"] == pytest.approx((20 if foreach else 16) * shard)
    assert rows["步首"] < rows["前向末"] <= rows["损失前向"] < rows["损失反向"]
    assert (rows["损失前向"] == rows["前向末"]) == fused


def test_the_peak_moves():
    peak = lambda *args: max(ml.step_timeline(*args), key=lambda row: row[1])[0]  # noqa: E731
    assert peak("none", False) == peak("full", False) == "损失反向"
    assert peak("full", True) == "反向末"
    assert peak("full", True, True, 1) == "优化器"


def test_units():
    assert ml.UNIT == {"Llama-3-8B": 218_112_000, "Llama-3-70B": 855_654_400}
    for name, unit in ml.UNIT.items():
        model = MODELS[name]
        assert unit * model.layers + model.embeddings + model.h == model.parameters


def test_nccl():
    one = ml.nccl_buffer_bytes(1)
    assert one == 4 * 2**20 + 512 * 2**10 + 4_915_200  # Simple, LL, LL128
    assert ml.nccl_buffer_bytes(16, 3) == 48 * one
    assert one - ml.nccl_buffer_bytes(1, simple=2**20) == 3 * 2**20


def test_seven_b():
    wrong, optimizer, total = ml.seven_b_is_not_54_gb()
    assert wrong < optimizer < total == 2 * wrong


@pytest.mark.parametrize(
    "call",
    [
        lambda: ml.inventory_gb(float("nan")),
        lambda: ml.inventory_gb(0),
        lambda: ml.lora_gb(1e9, 2e9),
        lambda: ml.lora_gb(1e9, 0),
        lambda: ml.nccl_buffer_bytes(65),
        lambda: ml.nccl_buffer_bytes(True),
        lambda: ml.fsdp_ledger("GPT-2", 8),
        lambda: ml.fsdp_ledger("Llama-3-8B", 8, logits="x"),
        lambda: ml.deepseek_v3_ledger(gpus=100),
        lambda: ml.step_timeline(n=0),
    ],
)
def test_rejects(call):
    with pytest.raises(ValueError, match=r"须|没有|已在用"):
        call()


def test_figure():
    assert ml.figure_step_timeline().startswith("<svg")
