"""The budget against the calculators, Amdahl against a simulation of steps, the slowest of n against sampling."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.mfu.step_budget import (
    amdahl,
    bubble_check,
    budget,
    ceilings,
    expected_max,
    explained_mfu,
    jitter_slowdown,
    llama3_405b,
    loss_per_interruption,
    overlapped,
    saved_gpu_hours,
    slow_card,
    slow_kernel_is_not_the_headroom,
)
from snippets.tools.communication import communication
from snippets.tools.mfu import mfu

quick = settings(deadline=None, max_examples=40)


@pytest.mark.parametrize("gpus", [8192, 16384])
def test_flops_are_the_mfu_calculators(gpus):
    run = llama3_405b(gpus)
    seconds = run.flops / (run.tflops * 1e12)
    got = mfu(**{k: v for k, v in run.model.fields().items() if k in ("active_b", "layers", "heads", "head_dim")}, seq=8192,
              tokens_per_s=run.tokens / seconds, gpus=gpus)  # fmt: skip
    assert got["achieved"] == pytest.approx(run.tflops)
    assert got["mfu"] == pytest.approx(100 * run.tflops / 989)


@pytest.mark.parametrize("gpus", [8192, 16384])
def test_the_parts_sum_to_the_measured_step(gpus):
    run = llama3_405b(gpus)
    parts = budget(run)
    assert math.fsum(parts.values()) == pytest.approx(run.flops / (run.tflops * 1e12))
    assert all(time > 0 for time in parts.values())


def test_communication_is_the_calculators():
    run = llama3_405b(16384)
    fields = {k: v for k, v in run.model.fields().items() if k in ("params_b", "active_b", "layers", "hidden", "kv_width")}
    fields["layers"] = 128  # the calculator wants p to divide L; scale back below
    got = communication(**fields, dp=run.dp, tp=8, pp=16, micro=16, grads_bytes=4, efficiency=80)
    parts = budget(run)
    assert parts["露出的 TP 通信"] == pytest.approx(got["tp_ms"] / 1e3 * 126 / 128)
    none = budget(run, tp_exposed=0)
    assert none["露出的 TP 通信"] == 0
    base = none["峰值下的计算"] + none["矩阵乘达不到峰值"] + none["逐元素算子"]
    assert none["气泡"] == pytest.approx(base * 15 / (8 * 16))
    shard = run.model.parameters / 128 * 127 / 128
    assert none["露出的 DP 通信"] == pytest.approx(6 * shard / 40e9 / 8)


@pytest.mark.parametrize(("gpus", "micro"), [(8192, 32), (16384, 16)])
def test_pointwise_is_bytes_over_bandwidth(gpus, micro):
    s, h, f, t, q, k = 8192, 16384, 53248, 8, 128 * 128, 8 * 128
    forward = s / t * (h * (2 + 3 + 2 + 3) + 2 * (q + k) + 3 * f)  # two norms, two residuals, RoPE, SwiGLU, elements
    backward = s / t * (h * (3 + 3 + 3 + 3) + 2 * (q + k) + 5 * f)
    expected = 126 / 16 * micro * 2 * (forward + backward) / 3350e9
    assert budget(llama3_405b(gpus))["逐元素算子"] == pytest.approx(expected)


def test_explained_mfu_ignores_only_the_remainder():
    parts = {"峰值下的计算": 2.0, "气泡": 1.0, "露出的 TP 通信": 1.0, "还没解释的": 6.0}
    assert explained_mfu(parts) == 0.5


def test_perfect_hardware_leaves_no_gemm_loss():
    parts = budget(llama3_405b(16384), gemm=1.0)
    assert parts["矩阵乘达不到峰值"] == 0
    worse = budget(llama3_405b(16384), gemm=0.5)
    assert worse["矩阵乘达不到峰值"] == pytest.approx(worse["峰值下的计算"])


def test_the_published_drop_lies_between_four_and_eight_chunks():
    assert bubble_check(8)[0] < bubble_check(8)[1] < bubble_check(4)[0]


@quick
@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.floats(1, 50), st.integers(0, 5))
def test_amdahl_is_the_ratio_of_two_steps(parts, factor, which):
    which %= len(parts)
    before = sum(parts)
    after = before - parts[which] + parts[which] / factor
    assert amdahl(parts[which] / before, factor) == pytest.approx(before / after)
    assert amdahl(parts[which] / before, factor) <= amdahl(parts[which] / before) * (1 + 1e-12)


def test_ceilings_are_sorted_and_skip_a_negative_remainder():
    rows = ceilings({"a": 3.0, "b": 1.0, "c": 2.0, "over": -1.0})
    assert [name for name, _ in rows] == ["a", "c", "b"]
    assert rows[0][1] == pytest.approx(5 / 2)


@quick
@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 10), st.floats(1, 10))
def test_overlap_hides_part_of_the_gain(compute, comm, serial, factor):
    before, after = overlapped(compute, comm, serial), overlapped(compute / factor, comm, serial)
    assert after <= before
    assert before - after <= compute - compute / factor + 1e-9
    if comm >= compute:
        assert after == before, "communication already sets the pace"


@pytest.mark.parametrize("n", [1, 2, 8, 100])
def test_expected_max_against_sampling(n):
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((20_000, n)).max(axis=1)
    assert expected_max(n) == pytest.approx(samples.mean(), abs=5 * samples.std() / math.sqrt(len(samples)) + 1e-3)


def test_expected_max_of_two_is_exact_and_grows():
    assert expected_max(2) == pytest.approx(1 / math.sqrt(math.pi), abs=2e-3)
    values = [expected_max(n) for n in (1, 2, 8, 64, 1024, 16384)]
    assert values == sorted(values)
    assert values[-1] < math.sqrt(2 * math.log(16384))


@pytest.mark.parametrize("syncs", [1, 4])
def test_jitter_against_a_simulation_of_steps(syncs):
    rng, n, cv = np.random.default_rng(1), 32, 0.02
    segments = 1 + cv * rng.standard_normal((4000, n, syncs))
    slowdown = segments.sum(axis=2).max(axis=1).mean() / syncs - 1
    assert jitter_slowdown(n, cv, syncs) == pytest.approx(slowdown, rel=0.03)


def test_slow_card_against_a_simulation():
    rng = np.random.default_rng(2)
    slow = (rng.random((20_000, 64)) < 0.01).any(axis=1).mean()
    assert slow_card(64, 0.01, 0.2) == pytest.approx(0.2 * slow, rel=0.05)


def test_interruptions_and_savings():
    hours, minutes = loss_per_interruption(54, 466, 0.90)
    assert hours * 466 == pytest.approx(54 * 24)
    assert minutes * 466 / 60 == pytest.approx(54 * 24 * 0.10)
    assert saved_gpu_hours(0.5, 8, 2) == 8 * 24


def test_counterexample():
    used, most = slow_kernel_is_not_the_headroom()
    assert used < 0.01
    assert most < 1.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: llama3_405b(4096), "表 4"),
        (lambda: llama3_405b(8192, v=0), "v 须"),
        (lambda: llama3_405b(8192, v=True), "v 须"),
        (lambda: replace(llama3_405b(8192), m=-1), "m 须"),
        (lambda: replace(llama3_405b(8192), tflops=1979.0), "峰值"),
        (lambda: replace(llama3_405b(8192), network=math.nan), "network"),
        (lambda: explained_mfu({"峰值下的计算": math.nan}), "explained"),
        (lambda: budget(llama3_405b(8192), gemm=1.2), "不超过 1"),
        (lambda: budget(llama3_405b(8192), gemm=math.nan), "gemm"),
        (lambda: budget(llama3_405b(8192), link=0), "link"),
        (lambda: budget(replace(llama3_405b(8192), t=3)), "整除"),
        (lambda: amdahl(1.0), "share"),
        (lambda: amdahl(math.nan), "share"),
        (lambda: amdahl(0.5, 0), "factor"),
        (lambda: ceilings({}), "不为空"),
        (lambda: ceilings({"a": math.nan}), "有限"),
        (lambda: explained_mfu({}), "峰值"),
        (lambda: overlapped(-1, 0), "非负"),
        (lambda: expected_max(0), "正整数"),
        (lambda: expected_max(True), "正整数"),
        (lambda: jitter_slowdown(8, math.nan), "cv"),
        (lambda: jitter_slowdown(8, 0.1, 0), "syncs"),
        (lambda: slow_card(8, 1.5, 0.1), "fraction"),
        (lambda: slow_card(0, 0.5, 0.1), "正整数"),
        (lambda: loss_per_interruption(54, 466, 0), "effective"),
        (lambda: loss_per_interruption(math.inf, 466, 0.9), "days"),
        (lambda: saved_gpu_hours(1.0, 8, 1), "gain"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
