"""Intensities against counted FLOPs and bytes, crossings against a scan, and the experiments that tell the bounds apart."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.mfu.bound import (
    GPUS,
    adamw_step,
    attention_decode,
    attention_prefill,
    elementwise,
    fused_intensity,
    mla_decode,
    ridge,
    seconds,
    sensitivity,
    tokens_to_cross,
)
from snippets.infra.mfu.layer_roofline import layer_ops
from snippets.math.algorithms.matmul import gemm_intensity
from snippets.tools.presets import MODELS

H100 = GPUS["H100 80GB SXM"]


@pytest.mark.parametrize("name", GPUS)
def test_at_the_ridge_both_times_are_equal(name):
    gpu = GPUS[name]
    size = 1e9
    assert size * ridge(gpu) / (gpu.bf16 * 1e12) == pytest.approx(size / (gpu.hbm * 1e9))


def test_missing_precision_is_refused():
    with pytest.raises(ValueError, match="没有 fp8"):
        ridge(GPUS["A100 80GB SXM"], "fp8")


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 16), st.sampled_from([1, 2, 4]))
def test_prefill_attention_against_a_loop(s, d, groups):
    flops = sum(4 * d for query in range(s) for key in range(query + 1)) * groups  # groups heads, one KV head
    size = 2 * (2 * groups * s * d + 2 * s * d)
    assert attention_prefill(s, d, groups) == pytest.approx(flops / size)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 512))
def test_decode_attention_does_not_depend_on_length_or_head_dim(groups, d, s):
    flops, size = 4 * groups * d * s, 2 * 2 * d * s
    assert attention_decode(groups) == pytest.approx(flops / size)
    assert mla_decode(groups, d, 0) == pytest.approx(2 * groups)  # without RoPE part: K and V are one array


def test_decode_attention_agrees_with_the_layer_ledger():
    ops = {op.name: op for op in layer_ops(MODELS["Llama-3-8B"], 64, 8192, decode=True)}
    assert ops["注意力"].intensity == pytest.approx(attention_decode(4), rel=1e-3)


@settings(deadline=None, max_examples=60)
@given(st.integers(256, 8192), st.integers(256, 8192), st.sampled_from(list(GPUS)))
def test_crossing_is_where_the_intensity_meets_the_ridge(n, k, name):
    gpu = GPUS[name]
    m = tokens_to_cross(n, k, gpu)
    if math.isinf(m):
        assert gemm_intensity(10**9, n, k) <= ridge(gpu)
    else:
        assert 2 * m * n * k / (2 * (m * k + k * n + m * n)) == pytest.approx(ridge(gpu))
        assert gemm_intensity(math.ceil(m) + 1, n, k) > ridge(gpu) > gemm_intensity(max(1, math.floor(m) - 1), n, k)


def test_popular_claims_are_wrong():
    assert ridge(GPUS["H20 96GB"]) < ridge(GPUS["A100 80GB SXM"])  # "newer cards are always more memory-bound"
    assert mla_decode(128) > 200 > 100 * attention_decode(1)  # "decode attention is always memory-bound by a wide margin"
    assert mla_decode(128) > ridge(GPUS["H200 141GB SXM"])
    assert tokens_to_cross(14336, 4096, H100, 1, 1, "fp8") == pytest.approx(tokens_to_cross(14336, 4096, H100), rel=1e-3)
    assert adamw_step() < 1
    assert elementwise(1, 1, 4) == 1


@settings(deadline=None, max_examples=60)
@given(st.floats(1e6, 1e15), st.floats(1e3, 1e12), st.floats(0, 1e-3))
def test_experiments_tell_the_three_bounds_apart(flops, size, overhead):
    result = sensitivity(flops, size, H100, overhead)
    compute, memory = flops / 989e12, size / 3350e9
    assert result["空核"] == pytest.approx(overhead / (max(compute, memory) + overhead))
    if memory > compute / 0.8:
        assert result["降频 20%"] == pytest.approx(1)
    if compute > memory:
        assert result["降频 20%"] == pytest.approx(1 + 0.25 * compute / (compute + overhead))
    assert 0.5 - 1e-9 <= result["token 减半"] <= 1


def test_fusion_keeps_the_flops_and_drops_the_round_trips():
    apart, together = fused_intensity([(1, 4, 2)] * 5)
    assert apart == pytest.approx(5 / 30)
    assert together == pytest.approx(5 / 6)
    assert fused_intensity([(3, 2, 2)]) == (0.75, 0.75)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tokens_to_cross(0, 1, H100), "须为正"),
        (lambda: tokens_to_cross(1, 1, H100, weight=0), "须为正"),
        (lambda: seconds(-1, 1, H100), "须非负"),
        (lambda: seconds(1, 1, H100, clock=0), "clock"),
        (lambda: fused_intensity([]), "至少一个"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
