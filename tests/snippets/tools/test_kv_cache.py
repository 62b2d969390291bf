import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.tools.kv_cache import kv_cache
from snippets.tools.presets import MODELS


def of(name: str, **changes) -> dict:
    fields = MODELS[name].fields()
    names = ("attention", "layers", "heads", "kv_heads", "head_dim", "latent", "params_b")
    return kv_cache(**{key: fields[key] for key in names} | changes)


@pytest.mark.parametrize(
    ("name", "size"), [("Llama-3-8B", 131_072), ("DeepSeek-V3", 70_272), ("Llama-3-405B", 516_096), ("GPT-3 175B", 4_718_592)]
)
def test_bytes_per_token(name, size):
    assert of(name)["token_bytes"] == size


def test_qwen25_72b_as_published():
    assert kv_cache(layers=80, heads=64, kv_heads=8)["token_bytes"] == 327_680


def test_using_all_heads_overstates_fourfold():
    assert kv_cache(kv_heads=32)["token_bytes"] == 4 * kv_cache(kv_heads=8)["token_bytes"]
    assert kv_cache(kv_heads=8)["of_mha"] == 25


def test_precision_scales_everything():
    assert kv_cache(dtype="fp8")["total_gb"] * 2 == kv_cache(dtype="bf16")["total_gb"]
    assert kv_cache(dtype="int4")["token_bytes"] == 32_768


@given(st.integers(1, 64), st.integers(100, 100_000), st.sampled_from([1, 2, 4, 8]), st.floats(20, 200))
def test_the_largest_batch_fits_and_one_more_does_not(kv_heads, seq, tp, memory):
    result = kv_cache(heads=64, kv_heads=kv_heads, seq=seq, tp=tp, memory_gb=memory)

    def used(batch):
        return kv_cache(heads=64, kv_heads=kv_heads, seq=seq, tp=tp, memory_gb=memory, batch=batch)["device_gb"]

    room, batch = result["room_gb"], result["max_batch"]
    if batch:
        assert used(batch) <= room * (1 + 1e-12)
    assert used(batch + 1) > room * (1 - 1e-12)


def test_weights_that_do_not_fit_leave_no_room():
    result = of("Llama-3-405B", memory_gb=80)
    assert (result["room_gb"], result["max_batch"], result["max_seq"]) == (0, 0, 0)


def test_tensor_parallelism_replicates_what_cannot_be_split():
    assert kv_cache(tp=8)["device_gb"] * 8 == kv_cache(tp=1)["device_gb"]
    assert kv_cache(tp=16)["device_gb"] == kv_cache(tp=8)["device_gb"]
    assert of("DeepSeek-V3", tp=8)["device_gb"] == of("DeepSeek-V3", tp=1)["device_gb"]


def test_bad_input_names_its_field():
    with pytest.raises(ValueError, match=r"^kv_heads: 不能多于头数"):
        kv_cache(heads=8, kv_heads=16)
    with pytest.raises(ValueError, match=r"^dtype: "):
        kv_cache(dtype="fp7")
