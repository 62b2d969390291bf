"""训练时间与费用：6ND 除以真正用上的算力（只用标准库）。

>>> cost = training_cost(active_b=37, tokens_t=14.8, gpus=2048, peak_tflops=989, known="hours", hours_k=2788, price=2)
>>> cost["gpu_hours"], cost["cost"]                        # DeepSeek-V3 报告，表 1：2.788M H800 卡时、5.576M 美元
(2788000.0, 5576000.0)
>>> gpt3 = training_cost(active_b=174.604259328, tokens_t=0.3)
>>> f'{gpt3["flops"]:.3e}'                                 # Brown et al. 2020，表 D.1：3.14e23
'3.143e+23'
"""

from typing import Literal

from snippets.tools.checks import choice, number, whole


def training_cost(
    active_b: float = 8.030261248,
    tokens_t: float = 15,
    known: Literal["mfu", "hours"] = "mfu",
    mfu: float = 40,
    hours_k: float = 1300,
    gpus: int = 1024,
    peak_tflops: float = 989,
    uptime: float = 95,
    price: float = 2,
) -> dict[str, float]:
    """训练时间与费用。

    Args:
        [模型与数据]
        active_b: 参数量（MoE 填激活的）N〔十亿〕
        tokens_t: 训练 token 数 D〔万亿〕
        [效率]
        known: 已知什么 {mfu=MFU，求卡时; hours=卡时，反推 MFU}
        mfu: MFU（已知 MFU 时用）〔%〕
        hours_k: 总卡时（已知卡时时用）〔千卡时〕
        uptime: 有效训练时间占比（故障、重启、评测之外）〔%〕
        [硬件]
        gpus: 卡数
        peak_tflops: 每卡稠密峰值〔TFLOP/s〕
        price: 每卡时租价〔美元〕

    Returns:
        *gpu_hours: 总卡时
        *cost: 租金〔美元〕
        days: 日历时间〔天〕
        flops: 6ND〔FLOP〕
        mfu_used: MFU〔%〕
        tokens_per_s: 训练时的吞吐，全部卡〔token/s〕
        hours_per_trillion: 每万亿 token〔卡时〕
        tokens_per_param: D / N（Chinchilla 约 20）

    Raises:
        ValueError: 输入越界，消息以字段名开头。
    """
    choice("known", known, ["mfu", "hours"])
    number("active_b", active_b, 0.001, 1000000)
    number("tokens_t", tokens_t, 0.0001, 100000)
    number("mfu", mfu, 0.1, 100)
    number("hours_k", hours_k, 0.001, 1000000000)
    whole("gpus", gpus, 1, 10000000)
    number("peak_tflops", peak_tflops, 0.1, 10000000)
    number("uptime", uptime, 1, 100)
    number("price", price, 0, 100000)
    flops = 6.0 * active_b * 1e9 * tokens_t * 1e12
    peak = peak_tflops * 1e12
    if known == "mfu":
        busy_hours = flops / (peak * mfu / 100) / 3600
        gpu_hours = busy_hours * 100 / uptime
        used = 1.0 * mfu
    else:
        gpu_hours = hours_k * 1000.0
        busy_hours = gpu_hours * uptime / 100
        used = 100 * flops / (busy_hours * 3600 * peak)
        if used > 100:
            raise ValueError("hours_k: 这么少的卡时做不完 6ND，反推的 MFU 超过 100%")
    return {
        "gpu_hours": gpu_hours,
        "cost": gpu_hours * price,
        "days": gpu_hours / gpus / 24,
        "flops": flops,
        "mfu_used": used,
        "tokens_per_s": tokens_t * 1e12 / (busy_hours * 3600 / gpus),
        "hours_per_trillion": gpu_hours / tokens_t,
        "tokens_per_param": tokens_t * 1000 / active_b,
    }
