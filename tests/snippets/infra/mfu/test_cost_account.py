"""The account against the calculator, the published totals, and the identities that the page argues with."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.mfu.cost_account import (
    DEEPSEEK_V3,
    budget_point,
    decompose,
    gpu_hours,
    one_point,
    published_cost,
    rate_multiple,
    sparsity_multiple,
)
from snippets.infra.mfu.utilization import MODELS, deepseek_v3, flops_per_token
from snippets.tools.training_cost import training_cost


def test_hours_agree_with_the_calculator():
    report = training_cost(active_b=405, tokens_t=15.6, known="mfu", mfu=40, gpus=16384, peak_tflops=989, uptime=90, price=2)
    assert gpu_hours(6 * 405e9 * 15.6e12, 0.40, goodput=0.90) == pytest.approx(report["gpu_hours"])


def test_published_parts_add_up():
    assert sum(DEEPSEEK_V3.values()) == 2_788_000
    assert published_cost()["合计"] == pytest.approx(5.576)
    assert DEEPSEEK_V3["预训练"] / 14.8 == pytest.approx(180e3, rel=1e-3)


def test_mfu_from_the_pretraining_hours():
    used = flops_per_token(MODELS["DeepSeek-V3"], 4096) * 14.8e12 / (DEEPSEEK_V3["预训练"] * 3600 * 989e12)
    assert 100 * used == pytest.approx(deepseek_v3()["MFU（因果）"], rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.floats(1e20, 1e28), st.floats(0.02, 0.9), st.floats(0.1, 50))
def test_a_point_is_the_derivative_and_shrinks_with_mfu(flops, mfu, price):
    hours, dollars = one_point(flops, mfu, price)
    total = gpu_hours(flops, mfu)
    assert hours * 1e4 == pytest.approx(total / (100 * mfu + 1))
    assert dollars * 1e6 == pytest.approx(hours * 1e4 * price)
    assert budget_point(total * price, mfu) == pytest.approx(dollars * 1e6)
    assert budget_point(1, mfu) > budget_point(1, mfu + 0.05)


def test_the_gap_to_llama_is_flops_per_token_not_utilization():
    parts = decompose()
    assert parts["卡时"] == pytest.approx(parts["每 token FLOPs"] * parts["token 数"] * parts["每卡有效 FLOP/s 的倒数"])
    assert parts["每 token FLOPs"] > 9 > 1.2 > parts["每卡有效 FLOP/s 的倒数"]


def test_sparsity_outweighs_any_utilization():
    assert sparsity_multiple() > 15
    assert 1 / rate_multiple(0.39, 1.0) < 3  # even a perfect machine gains less


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpu_hours(0, 0.4), "须为正"),
        (lambda: gpu_hours(1, 40), "goodput 在"),
        (lambda: one_point(1e24, 0), "goodput 在"),
        (lambda: budget_point(1e9, 0.995), "预算须为正"),
        (lambda: published_cost(0), "租金"),
        (lambda: rate_multiple(0.4, 0), "MFU 在"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
