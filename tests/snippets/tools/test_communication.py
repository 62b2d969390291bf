import pytest

from snippets.deep_learning.training.parallel_volume import LLAMA3_8B, LLAMA3_70B, sent_per_step
from snippets.deep_learning.training.zero import communication_gb
from snippets.tools.communication import communication
from snippets.tools.presets import MODELS


def of(name: str, **changes) -> dict:
    fields = MODELS[name].fields()
    names = ("params_b", "active_b", "expert_b", "layers", "hidden", "kv_width", "top_k", "moe_layers")
    return communication(**{key: fields[key] for key in names} | changes)


@pytest.mark.parametrize("micro", [1, 8])
@pytest.mark.parametrize(("stage", "key"), list(enumerate(["ddp", "zero1", "zero2", "zero3"])))
def test_zero_agrees_with_q033(stage, key, micro):
    result = of("Llama-3-8B", dp=64, tp=1, micro=micro)
    assert result[f"{key}_gb"] == pytest.approx(communication_gb(8_030_261_248, 64, stage, micro_batches=micro))


@pytest.mark.parametrize(("name", "model"), [("Llama-3-8B", LLAMA3_8B), ("Llama-3-70B", LLAMA3_70B)])
def test_agrees_with_q032(name, model):
    expected = sent_per_step(model, 8, tokens=8192)
    alone = {"dp": 1, "tp": 1, "pp": 1, "micro": 1, "seq": 8192}
    assert of(name, **alone | {"dp": 8})["ddp_gb"] == pytest.approx(expected["DP"])
    assert of(name, **alone | {"dp": 8})["zero3_gb"] == pytest.approx(expected["ZeRO-3"])
    assert of(name, **alone | {"tp": 8})["tp_gb"] == pytest.approx(expected["TP"])
    assert of(name, **alone | {"pp": 8})["pp_gb"] == pytest.approx(expected["PP"])


def test_megatron_tp_volume():
    """Narayanan et al. 2021, section 3.2: 8bsh(t−1)/t elements per layer and micro-batch."""
    result = communication(layers=1, hidden=1024, seq=512, batch=2, micro=1, tp=4, dp=1)
    assert result["tp_gb"] * 1e9 == pytest.approx(8 * 2 * 512 * 1024 * 3 / 4 * 2)
    assert result["sp_gb"] == pytest.approx(result["tp_gb"] * 10 / 8)


def test_alone_nothing_is_sent():
    result = communication(dp=1, tp=1, cp=1, ep=1, pp=1)
    assert all(result[key] == 0 for key in result if key.endswith(("_gb", "_ms", "_ratio")) and key != "compute_ms")


def test_time_is_volume_over_one_way_bandwidth():
    result = communication(dp=64, tp=8, efficiency=50, nvlink_gbps=450, network_gbps=50)
    assert result["ddp_ms"] == pytest.approx(result["ddp_gb"] / 25 * 1000)
    assert result["tp_ms"] == pytest.approx(result["tp_gb"] / 225 * 1000)
    assert communication(group="nvlink", dp=8, tp=1)["ddp_ms"] < communication(group="network", dp=8, tp=1)["ddp_ms"]


def test_the_ratio_is_against_computing():
    """Q033: at 40 % of 989 TFLOP/s and 450 GB/s, about 770 tokens a micro-batch hide ZeRO-3 within one machine."""
    result = communication(dp=8, tp=1, micro=1, seq=769, group="nvlink")
    assert result["zero3_ratio"] == pytest.approx(100, abs=0.1)


def test_experts_are_reduced_over_fewer_ranks():
    spread = of("DeepSeek-V3", dp=128, ep=64, pp=16, tp=1)
    dense = MODELS["DeepSeek-V3"].parameters - MODELS["DeepSeek-V3"].routed
    expected = 2 * 2 * (dense / 16 * 127 / 128 + MODELS["DeepSeek-V3"].routed / 16 / 64 * 1 / 2) / 1e9
    assert spread["ddp_gb"] == pytest.approx(expected)
    assert spread["ep_gb"] > 0


def test_all_to_all_volume():
    """Each token is sent to k experts and back, forwards and backwards; (e−1)/e of it leaves the device."""
    result = communication(expert_b=4, top_k=2, moe_layers=1, layers=1, hidden=64, seq=128, micro=1, dp=4, ep=4, tp=1, dispatch_bytes=1)
    assert result["ep_gb"] * 1e9 == pytest.approx(2 * (1 + 2) * 128 * 2 * 64 * 3 / 4)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ep": 3}, "ep"),
        ({"ep": 2}, "ep"),
        ({"pp": 64}, "pp"),
        ({"active_b": 9}, "active_b"),
        ({"moe_layers": 33}, "moe_layers"),
        ({"network_gbps": 0}, "network_gbps"),
        ({"group": "wifi"}, "group"),
    ],
)
def test_bad_input_names_its_field(changes, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        communication(**changes)
