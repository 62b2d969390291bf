"""训练的成本账：一个百分点的 MFU 值多少钱，DeepSeek-V3 公布的账怎样分解，哪些没有算进去（只用标准库）。

租金是输入，不是事实；默认 2 美元每卡时只因为 DeepSeek-V3 的报告用它。
"""

from snippets.common.chart import lines
from snippets.infra.mfu.utilization import MODELS, flops_per_token, matmul_parameters


# --8<-- [start:point]
def gpu_hours(flops: float, mfu: float, peak: float = 989e12, goodput: float = 1.0) -> float:
    """做完 flops 要多少卡时；mfu、goodput（有效训练时间占比）都是 0 到 1 的小数。

    >>> round(gpu_hours(3.8e25, 0.40) / 1e6, 1)                      # Llama 3 405B 的 3.8e25 FLOPs
    26.7
    """
    if not (flops > 0 and peak > 0 and 0 < mfu <= 1 and 0 < goodput <= 1):
        raise ValueError("flops、峰值须为正，mfu、goodput 在 (0, 1] 内")
    return flops / (peak * mfu * goodput) / 3600


def one_point(flops: float, mfu: float, price: float = 2.0, peak: float = 989e12) -> tuple[float, float]:
    """MFU 从 mfu 提高一个百分点：省下的 (万卡时, 百万美元)。

    成本 ∝ 1/MFU，所以相对省 1/(100·mfu + 1)：40% → 41% 省 2.4%，20% → 21% 省 4.8%。

    >>> for flops in (1e24, 3.8e25, 1e27):
    ...     hours, dollars = one_point(flops, 0.40)
    ...     print(f"{flops:.0e}  {hours:8.1f} 万卡时  {dollars:7.2f} 百万美元")
    1e+24       1.7 万卡时     0.03 百万美元
    4e+25      65.1 万卡时     1.30 百万美元
    1e+27    1712.6 万卡时    34.25 百万美元
    """
    saved = gpu_hours(flops, mfu, peak) - gpu_hours(flops, mfu + 0.01, peak)
    return saved / 1e4, saved * price / 1e6


def budget_point(budget: float, mfu: float) -> float:
    """一笔 budget 美元的训练，MFU 多一个百分点值多少美元（同样的 FLOPs 少花的钱）。

    >>> round(budget_point(1e9, 0.40) / 1e6, 1), round(budget_point(5.576e6, 0.39) / 1e6, 2)
    (24.4, 0.14)
    """
    if not (budget > 0 and 0 < mfu < 0.99):
        raise ValueError("预算须为正，mfu 在 (0, 0.99) 内")
    return budget * (1 - mfu / (mfu + 0.01))


# --8<-- [end:point]


# --8<-- [start:account]
DEEPSEEK_V3 = {"预训练": 2664e3, "长上下文扩展": 119e3, "后训练": 5e3}  # H800 卡时，DeepSeek-V3 报告，表 1


def published_cost(price: float = 2.0) -> dict[str, float]:
    """公布的账，百万美元（卡时 × 租金）。

    >>> {name: round(dollars, 3) for name, dollars in published_cost().items()}
    {'预训练': 5.328, '长上下文扩展': 0.238, '后训练': 0.01, '合计': 5.576}
    """
    if price <= 0:
        raise ValueError(f"租金须为正，收到 {price}")
    parts = {name: hours * price / 1e6 for name, hours in DEEPSEEK_V3.items()}
    return parts | {"合计": sum(parts.values())}


def decompose() -> dict[str, float]:
    """Llama 3.1 405B 的 30.84M H100 卡时是 DeepSeek-V3 预训练 2.664M H800 卡时的几倍，拆成三个因子的积。

    每 token 的 FLOPs（因果减半，8K 与 4K）、token 数（15.6T、14.8T）、每卡每秒做成的模型 FLOPs（由前两者与卡时反推）。
    Llama 的卡时取自模型卡，含全部训练阶段，所以第三个因子里混着口径的差别，只当量级看。

    >>> {name: round(value, 2) for name, value in decompose().items()}
    {'卡时': 11.58, '每 token FLOPs': 10.08, 'token 数': 1.05, '每卡有效 FLOP/s 的倒数': 1.09}
    """
    llama, deepseek = flops_per_token(MODELS["Llama-3-405B"], 8192), flops_per_token(MODELS["DeepSeek-V3"], 4096)
    hours = 30.84e6 / DEEPSEEK_V3["预训练"]
    per_token, tokens = llama / deepseek, 15.6 / 14.8
    return {"卡时": hours, "每 token FLOPs": per_token, "token 数": tokens, "每卡有效 FLOP/s 的倒数": hours / per_token / tokens}


# --8<-- [end:account]


# --8<-- [start:levers]
def sparsity_multiple() -> float:
    """若 DeepSeek-V3 的 671B 参数每个 token 全用上，训练 FLOPs 是现在的几倍：稀疏这一项值多少。

    >>> round(sparsity_multiple(), 1)
    16.2
    """
    model = MODELS["DeepSeek-V3"]
    attention = flops_per_token(model, 4096) - 6 * matmul_parameters(model)
    every = model.parameters - (model.active - matmul_parameters(model))
    return (6 * every + attention) / flops_per_token(model, 4096)


def rate_multiple(old: float, new: float) -> float:
    """只改速率（MFU 从 old 到 new），成本变成几倍。

    >>> round(rate_multiple(0.39, 0.44), 2), round(rate_multiple(0.20, 0.39), 2)
    (0.89, 0.51)
    """
    if not (0 < old <= 1 and 0 < new <= 1):
        raise ValueError(f"MFU 在 (0, 1] 内，收到 {old}、{new}")
    return old / new


# --8<-- [end:levers]


def figure_cost_of_a_point() -> str:
    """不同起点的 MFU，多一个百分点省下成本的几成。"""
    points = [(100 * mfu, 100 * budget_point(1.0, mfu)) for mfu in (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)]
    return lines(
        {"多一个百分点": points},
        title="MFU 多一个百分点，同样的 FLOPs 省几成",
        x_label="原来的 MFU，%",
        y_label="省下的成本，%",
        markers=True,
    )
