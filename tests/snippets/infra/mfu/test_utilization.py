"""FLOPs against a counted model, published utilizations within the rounding of their inputs, and the identities between conventions."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from snippets.infra.memory.tiny_llama import Size, build, make_batch
from snippets.infra.mfu.utilization import (
    MODELS,
    RUNS,
    attention_flops,
    conventions,
    deepseek_v3,
    flops_per_token,
    matmul_parameters,
    megatron_iteration,
    utilization,
)
from snippets.tools.mfu import mfu
from snippets.tools.presets import Model

TINY = Size()
TINY_MODEL = Model(
    "tiny", TINY.layers, TINY.h, TINY.a, TINY.kv, TINY.h // TINY.a, TINY.f, TINY.vocabulary, "", norms=2 * TINY.h, outside=TINY.h
)


def test_flops_are_those_that_torch_counts():
    """A real forward and backward: repeated KV heads do not lower the attention FLOPs, the embedding costs nothing."""
    model = build()
    x, _ = make_batch(0)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    tokens = x.numel()
    # the explicit attention computes the whole square; the first layer still needs the gradient of its input
    assert counter.get_total_flops() == tokens * flops_per_token(TINY_MODEL, 16, causal=False)


def test_parameters_that_multiply():
    model = build()
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    assert matmul_parameters(TINY_MODEL) == matrices
    tied = dataclasses.replace(TINY_MODEL, tied=True)
    assert matmul_parameters(tied) == matrices  # the shared matrix multiplies once, in the output layer


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 512), st.integers(1, 128), st.integers(1, 8192), st.integers(1, 32), st.integers(1, 300_000))
def test_megatron_formula_is_six_n_plus_attention(b, layers, s, heads, vocabulary):
    h = 64 * heads
    n = 12 * layers * h**2 + vocabulary * h
    by_hand = b * s * (6 * n + 12 * layers * h * s)
    assert megatron_iteration(b, layers, s, h, vocabulary) == pytest.approx(by_hand, rel=1e-12)
    extra = megatron_iteration(b, layers, s, h, vocabulary, selective=True) - megatron_iteration(b, layers, s, h, vocabulary)
    assert extra == pytest.approx(12 * b * layers * s**2 * h, rel=1e-6)


@pytest.mark.parametrize(("run", "published"), list(zip(RUNS, [(41.5, 43.7), (51.4, 52.8), (56.0, 57.0), (56.3, 57.0)], strict=True)))
def test_published_table_within_the_rounding_of_the_seconds(run, published):
    ends = [utilization(dataclasses.replace(run, seconds=run.seconds + shift)) for shift in (0.005, -0.005)]
    for value, low, high in zip(published, *ends, strict=True):
        assert low - 0.05 <= value <= high + 0.05


def test_palm_and_the_calculator_agree():
    palm = MODELS["PaLM 540B"]
    rate = 238_300 / 6144
    used = rate * flops_per_token(palm, 2048, causal=False) / 275e12
    assert 100 * used == pytest.approx(46.2, abs=0.1)
    report = mfu(
        active_b=matmul_parameters(palm) / 1e9,
        layers=118,
        heads=48,
        seq=2048,
        head_dim=256,
        tokens_per_s=238300,
        gpus=6144,
        peak_tflops=275,
        causal="full",
    )
    assert report["mfu"] == pytest.approx(100 * used)


def test_llama_405b_published_tflops_and_percent_fit_the_dense_peak():
    for tflops, percent in ((430, 43), (400, 41), (380, 38)):
        assert 100 * (tflops - 5) / 989 - 0.5 <= percent <= 100 * (tflops + 5) / 989 + 0.5
        assert abs(100 * tflops / 1979 - percent) > 15  # not the sparse peak


def test_deepseek_account_against_six_n():
    report = deepseek_v3()
    assert report["MFU（6 × 37B）"] < report["MFU（因果）"] < report["MFU（不减半）"]
    assert report["token/s/卡"] * 2048 * 86400 == pytest.approx(273.1e9, rel=1e-3)
    assert deepseek_v3(hours_per_trillion=360e3)["MFU（因果）"] == pytest.approx(report["MFU（因果）"] / 2)


def test_grouping_heads_saves_no_attention_flops():
    grouped = MODELS["Llama-3-8B"]
    assert attention_flops(grouped, 8192) == attention_flops(dataclasses.replace(grouped, kv=grouped.a), 8192)
    assert matmul_parameters(grouped) < matmul_parameters(dataclasses.replace(grouped, kv=grouped.a))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 200_000))
def test_causal_is_half_in_the_limit_and_whole_for_one_token(s):
    model = MODELS["Llama-3-8B"]
    ratio = attention_flops(model, s) / attention_flops(model, s, causal=False)
    assert ratio == pytest.approx((s + 1) / (2 * s))


def test_conventions_are_ordered():
    report = list(conventions(MODELS["Llama-3-8B"], 8192, 8 * 7200, 8).values())
    causal, full, six, six_total, sparse, hfu = report
    assert sparse < six < six_total < causal < full
    assert hfu == causal


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_flops(MODELS["Llama-3-8B"], 0), "s 须是正整数"),
        (lambda: attention_flops(MODELS["Llama-3-8B"], True), "s 须是正整数"),
        (lambda: megatron_iteration(0, 1, 1, 1, 1), "须为正"),
        (lambda: deepseek_v3(0), "须为正"),
        (lambda: conventions(MODELS["Llama-3-8B"], 8192, 1e9, 8), "请核对"),
        (lambda: conventions(MODELS["Llama-3-8B"], 8192, 0, 8), "须为正"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
