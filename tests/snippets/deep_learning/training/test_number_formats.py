"""Formats against torch's dtypes bit for bit, and block scaling against its definition."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from snippets.deep_learning.training.number_formats import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    FP16,
    FP32,
    TF32,
    block_errors,
    block_table,
    fp4_steps,
    quantize,
    relative_rms,
    round_to,
    train_weight,
)

DTYPES = {torch.float32: FP32, torch.bfloat16: BF16, torch.float16: FP16, torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}
E2M1_VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
fp32_numbers = st.floats(width=32, allow_nan=False)


@pytest.mark.parametrize(("dtype", "fmt"), DTYPES.items(), ids=str)
def test_ranges_are_those_of_torch(dtype, fmt):
    info = torch.finfo(dtype)
    assert (fmt.max, fmt.eps, fmt.min_normal) == (info.max, info.eps, info.tiny)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_every_code_is_a_fixed_point(dtype):
    bits = torch.finfo(dtype).bits
    codes = torch.arange(2**bits).to(torch.uint8 if bits == 8 else torch.uint16).view(dtype).double().tolist()
    finite = [v for v in codes if math.isfinite(v)]
    assert [round_to(v, DTYPES[dtype]) for v in finite] == finite
    assert max(finite) == DTYPES[dtype].max
    assert min(v for v in finite if v > 0) == DTYPES[dtype].min_subnormal


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@given(x=fp32_numbers)
@example(x=65519.996)
@example(x=65520.0)  # the midpoint between the largest fp16 and the next power
@example(x=464.0)  # the midpoint after the largest e4m3
@example(x=2.0**-25)
@example(x=-0.0)
@example(x=math.inf)
def test_rounding_is_torchs(dtype, x):
    expected = torch.tensor(x, dtype=torch.float32).to(dtype).double().item()
    saturate = dtype == torch.float8_e4m3fn  # torch 2.13 on CPU saturates; OCP allows this and NaN
    got = round_to(x, DTYPES[dtype], saturate=saturate)
    assert got == expected or (math.isnan(got) and math.isnan(expected))
    assert math.copysign(1, got) == math.copysign(1, expected) or math.isnan(expected)


def test_overflow_without_saturation():
    assert round_to(464.0, E4M3) == 448  # the midpoint goes to the even code
    assert math.isnan(round_to(464.1, E4M3))
    assert math.isnan(round_to(-math.inf, E4M3))
    assert round_to(-1e9, E5M2) == -math.inf


def test_the_largest_doubles_do_not_crash():
    assert round_to(1.797e308, BF16) == math.inf
    assert round_to(-1.797e308, E2M1) == -6
    assert round_to(2.0**128 * (1 - 2.0**-9), BF16) == math.inf  # the midpoint above the largest bf16
    with pytest.raises(ValueError, match="NaN"):
        round_to(math.nan, E2M1)


def test_nan_stays_nan_and_tf32_keeps_ten_bits():
    assert math.isnan(round_to(math.nan, BF16))
    assert round_to(1 + 2.0**-10, TF32) == 1 + 2.0**-10
    assert round_to(1 + 2.0**-11, TF32) == 1


@given(st.floats(-20, 20))
def test_e2m1_is_the_nearest_of_its_sixteen_codes(x):
    got = round_to(x, E2M1)
    assert abs(got) in E2M1_VALUES
    assert abs(abs(got) - abs(x)) == min(abs(v - abs(x)) for v in E2M1_VALUES)


def test_absorption():
    assert round_to(256 + 1.0, BF16) == 256
    assert round_to(258 + 1.0, BF16) == 260  # ties go to the even mantissa
    assert round_to(2048 + 1.0, FP16) == 2048


@given(st.lists(st.floats(-1e6, 1e6), max_size=70), st.sampled_from(["fp32", "e8m0", "e4m3"]), st.sampled_from([E4M3, E2M1]))
def test_block_error_is_bounded_by_the_block_maximum(values, scale, fmt):
    got = quantize(values, fmt, block=16, scale=scale)
    assert len(got) == len(values)
    for start in range(0, len(values), 16):
        chunk = values[start : start + 16]
        amax = max(map(abs, chunk))
        if amax < 1e-30 or (scale == "e4m3" and amax < max(map(abs, values)) * 2.0**-9):
            continue  # flushed to zero; or the block's own factor is subnormal in e4m3
        # half a step at the top of the format, plus what saturation (e8m0) or the rounded factor (e4m3) adds
        slack = {"fp32": 0, "e8m0": 0.25, "e4m3": 1 / 16}[scale]
        assert all(abs(a - v) <= amax * (fmt.eps / 2 + slack) * (1 + 1e-9) for v, a in zip(chunk, got[start:], strict=False))


def test_quantize_rejects_bad_input():
    for values, block, scale in (
        ([1.0], 0, "fp32"),
        ([1.0], 4, "int8"),
        ([math.inf], 4, "fp32"),
        ([math.nan], 4, "fp32"),
        ([1e39], 4, "e8m0"),
    ):
        with pytest.raises(ValueError, match=r"block|scale|有限数"):
            quantize(values, E4M3, block=block, scale=scale)


def test_powers_of_two_survive_every_scheme():
    values = [2.0**k for k in range(-2, 2)] * 8
    for scale in ("fp32", "e8m0"):
        assert quantize(values, E4M3, block=32, scale=scale) == pytest.approx(values, rel=1 / 8)
    assert quantize(values, E4M3, block=32, scale="e8m0") == values  # a power-of-two factor is exact


def test_fine_blocks_contain_the_outlier():
    errors = block_errors(outlier=1e5, size=1024)
    assert errors["mxfp8"] < errors["e4m3 整个张量"] / 3
    assert errors["nvfp4"] < errors["mxfp4"] < errors["e2m1 整个张量"]


def test_smaller_blocks_alone_do_not_explain_nvfp4():
    calm, wild = fp4_steps(), fp4_steps(100)
    assert list(calm.values()) == [11.2, 11.6, 10.27, 9.74]
    assert calm["块 16，2 的幂"] > calm["块 32，2 的幂"]  # without outliers a smaller block with a power-of-two factor is worse
    assert wild["块 16，2 的幂"] < wild["块 32，E4M3"] < wild["块 32，2 的幂"]
    for errors, outlier in ((calm, 0), (wild, 100)):
        both = block_errors(outlier)
        assert (errors["块 32，2 的幂"], errors["块 16，E4M3"]) == (both["mxfp4"], both["nvfp4"])


def test_block_table_counts_the_factor():
    rows = [line.split() for line in block_table()]
    assert [row[2] for row in rows] == ["8.25", "4.25", "4.50"]
    assert float(rows[0][5]) == pytest.approx(448 * 2**9, rel=0.05)
    assert float(rows[1][5]) == float(rows[2][5]) == 12


@pytest.mark.parametrize("update", [1e-6, 3e-5, 6e-5])
def test_bf16_weights_alone_do_not_move(update):
    start = round_to(0.02, BF16)
    assert train_weight(start, update, 50, BF16) == start
    moved = torch.tensor(start, dtype=torch.bfloat16)
    for _ in range(50):
        moved -= update
    assert moved.item() == start  # torch says the same
    assert train_weight(start, update, 50, FP32) == pytest.approx(start - 50 * update, abs=1e-7)


def test_relative_rms_rejects():
    with pytest.raises(ValueError, match="等长"):
        relative_rms([1.0], [])
    with pytest.raises(ValueError, match="零"):
        relative_rms([0.0], [1.0])
