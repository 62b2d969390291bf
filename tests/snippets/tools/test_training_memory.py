"""The ledger against the pages' own formulas (I1-2, Q033) and the papers' tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.deep_learning.training.zero import Inventory, state_bytes
from snippets.infra.memory import activation_memory as i12
from snippets.tools.presets import INVENTORIES, MODELS
from snippets.tools.training_memory import layer_bytes, training_memory

FIELDS = ("params_b", "expert_b", "layer", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "top_k", "vocab", "tied")


def of(name: str, **changes) -> dict:
    fields = MODELS[name].fields()
    return training_memory(**{key: fields[key] for key in FIELDS} | changes)


GPT3 = {"seq": 2048, "batch": 1, "micro": 64, "logits": "none"}


SIX = {
    (1, "off", "none"): 2.869,
    (8, "off", "none"): 0.579,
    (8, "on", "none"): 0.359,
    (8, "off", "selective"): 0.327,
    (8, "on", "selective"): 0.107,
    (1, "off", "full"): 0.050,
}


@pytest.mark.parametrize(("tp", "sp", "recompute"), SIX)
def test_six_lines_of_i12(tp, sp, recompute):
    result = of("GPT-3 175B", **GPT3, tp=tp, sp=sp, recompute=recompute)
    assert round(result["layer_gb"], 3) == SIX[tp, sp, recompute]
    assert result["layer_gb"] * 1e9 == pytest.approx(i12.layer_bytes(i12.GPT3, tp, sp == "on", recompute))


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize(
    ("mode", "theirs"), [(mode, mode.replace("swiglu_norm", "swiglu+norm")) for mode in ("none", "fused", "swiglu", "swiglu_norm", "full")]
)
@pytest.mark.parametrize(("name", "model"), [("Llama-3-8B", i12.LLAMA3_8B), ("Llama-3-70B", i12.LLAMA3_70B)])
def test_modern_layer_agrees_with_i12(name, model, mode, theirs, t):
    result = of(name, seq=8192, recompute=mode, tp=t, micro=1)
    assert result["act_gb"] * 1e9 == pytest.approx(i12.decoder_bytes(model, 8192, theirs, t=t))


def test_logits_agree_with_i12():
    assert of("Llama-3-8B")["logits_gb"] * 1e9 == pytest.approx(i12.logits_bytes(i12.LLAMA3_8B, 8192, "backward"))
    assert of("Llama-3-8B", logits="none")["logits_gb"] == 0


def test_zero_paper_figure_1():
    """7.5B on 64 devices: 120, 31.4, 16.6, 1.9 GB."""
    sizes = [training_memory(params_b=7.5, vocab=1, dp=64, zero=stage, logits="none")["states_gb"] for stage in range(4)]
    assert [round(size, 1) for size in sizes] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(
    ("params", "dp", "row"),
    [
        (7.5, 1, (120, 120, 120)),
        (7.5, 4, (52.5, 41.3, 30)),
        (7.5, 16, (35.6, 21.6, 7.5)),
        (7.5, 64, (31.4, 16.6, 1.88)),
        (7.5, 256, (30.4, 15.4, 0.47)),
        (7.5, 1024, (30.1, 15.1, 0.12)),
        (128, 64, (536, 284, 32)),
        (1000, 1024, (4011, 2013, 15.6)),
    ],
)
def test_zero_paper_table_1(params, dp, row):
    """Rajbhandari et al. 2020, table 1, to the digits printed there."""
    for stage, expected in zip((1, 2, 3), row, strict=True):
        result = training_memory(params_b=params, vocab=1, dp=dp, zero=stage, logits="none")["states_gb"]
        assert result == pytest.approx(expected, rel=0.005, abs=0.006)


@pytest.mark.parametrize("name", INVENTORIES)
@pytest.mark.parametrize("stage", range(4))
def test_states_agree_with_q033(name, stage):
    weights, gradients, optimizer = INVENTORIES[name]
    result = of("Llama-3-8B", dp=8, zero=stage, weights_bytes=weights, grads_bytes=gradients, optim_bytes=optimizer)
    inventory = Inventory(weights, gradients, optimizer)
    expected = [size / 1e9 for size in state_bytes(8_030_261_248, 8, stage, inventory)]
    assert [result["weights_gb"], result["grads_gb"], result["optim_gb"]] == pytest.approx(expected)


def test_first_stage_of_the_paper_run():
    """Korthikanti et al. 2022, 175B with t 8, p 8, 3 chunks: 44.5 GB without and 13.3 GB with selective recomputation."""
    for recompute, gb in (("none", 44.5), ("selective", 13.3)):
        result = of("GPT-3 175B", **GPT3, tp=8, pp=8, chunks=4, recompute=recompute, dp=1)
        expected = i12.pipeline_layers_in_flight(96, 8, 64, 4)
        assert result["in_flight"] == pytest.approx(expected)
        three = of("GPT-3 175B", **GPT3 | {"layers": 96}, tp=8, pp=8, chunks=3, recompute=recompute, dp=1)
        assert round(three["first_act_gb"], 1) == gb


@pytest.mark.parametrize(("p", "m", "v"), [(8, 64, 1), (8, 2, 1), (8, 8, 3), (4, 16, 2), (1, 4, 1)])
def test_layers_in_flight(p, m, v):
    result = of("GPT-3 175B", seq=2048, micro=m, pp=p, chunks=v, tp=8, recompute="full")
    assert result["in_flight"] == pytest.approx(i12.pipeline_layers_in_flight(96, p, m, v))


def test_pipelines_are_unbalanced():
    """The first stage holds p micro-batches, the last one and the logits; no split helps both."""
    result = of("Llama-3-70B", tp=8, pp=8, micro=64, recompute="full", dp=8, zero=1)
    assert result["first_act_gb"] == pytest.approx(8 * result["last_act_gb"])
    assert result["first_logits_gb"] == 0 < result["last_logits_gb"]
    assert result["worst_gb"] >= result["states_gb"]


def test_layers_that_do_not_divide_go_behind_the_first_stage():
    """126 layers on 16 stages: 7 on the first and last, 8 on the fourteen between."""
    result = of("Llama-3-405B", tp=8, pp=16, micro=16, dp=1, zero=0, recompute="full")
    embedding = 128_256 * 16384
    body = 405_853_388_800 - 2 * embedding
    assert result["first_weights_gb"] * 1e9 == pytest.approx((body * 7 / 126 + embedding) / 8 * 2)
    assert result["last_weights_gb"] * 1e9 == pytest.approx((body * 7 / 126 + embedding) / 8 * 2)
    assert result["in_flight"] == 7 * 16


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 32),
    dp=st.sampled_from([1, 2, 8]),
    cp=st.sampled_from([1, 2, 4]),
    zero=st.integers(0, 3),
)
def test_no_parameter_is_lost(tp, pp, dp, cp, zero):
    """Over all stages and ranks, states sum to bytes × parameters × copies."""
    result = of("Llama-3-8B", tp=tp, pp=pp, dp=dp, cp=cp, zero=zero, logits="none", recompute="full", micro=1, seq=4)
    copies = dp * cp
    sizes = {
        "weights": 2 * (1 if zero >= 3 else copies),
        "grads": 2 * (1 if zero >= 2 else copies),
        "optim": 12 * (1 if zero >= 1 else copies),
    }
    states = sum(sizes.values()) * 8_030_261_248 / 1e9
    activations = 2 * 4096 * 4 / 1e9 * 32 * dp  # every layer's input once, split by SP and CP
    assert result["total_gb"] == pytest.approx(states + activations)


def test_experts_are_split_by_expert_parallelism():
    whole, split = (of("Mixtral 8x7B", dp=8, ep=ep, zero=0) for ep in (1, 8))
    saved = MODELS["Mixtral 8x7B"].routed * 7 / 8
    assert (whole["weights_gb"] - split["weights_gb"]) * 1e9 == pytest.approx(2 * saved)
    sharded = [of("Mixtral 8x7B", dp=8, ep=ep, zero=3)["states_gb"] for ep in (1, 8)]
    assert sharded[0] == pytest.approx(sharded[1])


def test_key_value_heads_are_replicated_beyond_their_number():
    kept = [layer_bytes("modern", "none", 1, 1, 4096, 32, max(2, t), 128, 14336, 0, t, 1, True) for t in (2, 16)]
    assert kept[1] > kept[0] / 8
    of("Qwen3-235B-A22B", tp=16)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tp": 3}, "tp"),
        ({"tp": 64}, "tp"),
        ({"kv_heads": 64}, "kv_heads"),
        ({"kv_heads": 6, "tp": 8}, "tp"),
        ({"cp": 3}, "cp"),
        ({"ep": 2}, "ep"),
        ({"pp": 33}, "pp"),
        ({"pp": 8, "chunks": 3}, "chunks"),
        ({"pp": 8, "chunks": 2, "micro": 12}, "micro"),
        ({"recompute": "selective"}, "recompute"),
        ({"layer": "classic", "recompute": "swiglu"}, "recompute"),
        ({"params_b": 0.5}, "params_b"),
        ({"zero": 4}, "zero"),
        ({"layers": 0}, "layers"),
        ({"memory_gb": float("nan")}, "memory_gb"),
    ],
)
def test_bad_input_names_its_field(changes, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        training_memory(**changes)
