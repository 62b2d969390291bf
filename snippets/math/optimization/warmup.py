"""学习率预热：Transformer 原始调度、Adam 头几步为什么大、RAdam 的修正系数、早期曲率大时的发散（只用标准库）。"""

import math
import random

from snippets.common.chart import lines


# --8<-- [start:noam]
def transformer_lr(step: int, d_model: int = 512, warmup: int = 4000) -> float:
    """Vaswani 2017 式 3：d_model^(−0.5) · min(step^(−0.5), step · warmup^(−1.5))，step 从 1 起。

    >>> f"{transformer_lr(4000):.2e}"                        # 峰值在第 4000 步
    '6.99e-04'
    >>> f"{transformer_lr(10_000, warmup=10_000):.2e}"       # 误记成 10000 步，峰值就变成
    '4.42e-04'
    >>> f"{transformer_lr(1):.2e}", f"{transformer_lr(100_000):.2e}"
    ('1.75e-07', '1.40e-04')
    """
    if step < 1 or d_model < 1 or warmup < 1:
        raise ValueError(f"step、d_model、warmup 都必须 ≥ 1，收到 {step, d_model, warmup}")
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def linear_warmup(step: int, peak: float, warmup: int) -> float:
    """线性预热，step 从 1 起：第 warmup 步到峰值，之后保持（衰减另算）。warmup = 0 表示不预热。

    >>> [linear_warmup(s, 3e-4, 4) for s in (1, 2, 4, 9)]
    [7.5e-05, 0.00015, 0.0003, 0.0003]
    """
    if step < 1 or not peak > 0 or warmup < 0:
        raise ValueError(f"须有 step ≥ 1、peak > 0、warmup ≥ 0，收到 {step, peak, warmup}")
    return peak * min(1.0, step / warmup) if warmup else peak


# --8<-- [end:noam]


# --8<-- [start:early]
def mean_update(steps: tuple[int, ...], beta1: float = 0.9, beta2: float = 0.999, runs: int = 4_000) -> list[float]:
    """梯度全是噪声 N(0, 1) 时，Adam 在各步的平均步长 E|m̂/√v̂|（单位 lr）。种子固定的模拟。

    第 1 步恒为 1：m̂/√v̂ = ±1，每个参数都走满一个 lr；要到几十步后才降到稳态的约 0.18。

    >>> [round(x, 2) for x in mean_update((1, 2, 5, 20, 100))]
    [1.0, 0.63, 0.38, 0.21, 0.19]
    >>> round(math.sqrt((1 - 0.9) / (1 + 0.9)) * math.sqrt(2 / math.pi), 3)      # 稳态：高斯的平均绝对值
    0.183
    """
    if not steps or min(steps) < 1 or runs < 1 or not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError("须有 steps ≥ 1、runs ≥ 1、0 ≤ beta1, beta2 < 1")
    rng = random.Random(0)
    totals = dict.fromkeys(steps, 0.0)
    for _ in range(runs):
        m = v = 0.0
        for t in range(1, max(steps) + 1):
            g = rng.gauss(0, 1)
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            if t in totals:
                totals[t] += abs(m / (1 - beta1**t)) / math.sqrt(v / (1 - beta2**t))
    return [totals[t] / runs for t in steps]


def radam_factor(step: int, beta2: float = 0.999) -> float | None:
    """RAdam 的修正系数 r_t（Liu 2019，算法 2）；ρ_t ≤ 4 时方差无界，返回 None（该步不用自适应）。

    >>> [radam_factor(t) and round(radam_factor(t), 3) for t in (1, 4, 5, 100, 1000, 5000)]
    [None, None, 0.017, 0.215, 0.645, 0.983]
    >>> round(radam_factor(100, beta2=0.95), 3)              # 记忆短，修正早早结束
    0.982
    """
    if step < 1 or not 0.6 < beta2 < 1:
        raise ValueError(f"须有 step ≥ 1、0.6 < beta2 < 1（否则 ρ∞ ≤ 4），收到 {step, beta2}")
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * beta2**step / (1 - beta2**step)
    if rho <= 4:
        return None
    return math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


# --8<-- [end:early]


# --8<-- [start:sharp]
def worst_excursion(peak: float, warmup: int, steps: int = 1_000) -> float:
    """曲率从 100 降到 1 的一维二次函数上做梯度下降，x 从 1 出发，返回途中最大的 |x| 的常用对数。

    第 t 步的曲率设为 1 + 99·e^(−t/50)（把“训练早期最陡、随后变平”写成一个给定的函数，不是测出来的）；
    稳定要求 lr < 2/曲率，开头是 0.02，后来是 2。

    >>> [round(worst_excursion(0.5, warmup), 1) for warmup in (0, 50, 200, 400)]
    [154.9, 131.2, 53.0, 0.0]
    >>> round(worst_excursion(0.01, 0), 1)                  # 不预热而全程用小学习率也不炸，只是后面慢
    0.0
    """
    if not peak > 0 or warmup < 0 or steps < 1:
        raise ValueError(f"须有 peak > 0、warmup ≥ 0、steps ≥ 1，收到 {peak, warmup, steps}")
    log_x = worst = 0.0
    for step in range(1, steps + 1):
        curvature = 1 + 99 * math.exp(-step / 50)
        factor = abs(1 - linear_warmup(step, peak, warmup) * curvature)
        log_x += math.log10(max(factor, 1e-300))
        worst = max(worst, log_x)
    return worst


# --8<-- [end:sharp]


def figure_update() -> str:
    """噪声梯度下 Adam 的平均步长随步数变化，两种 β₂。"""
    steps = (1, 2, 3, 5, 8, 13, 20, 35, 60, 100)
    series = {
        f"β₂ = {beta2}": list(zip(map(float, steps), mean_update(steps, beta2=beta2, runs=2_000), strict=True)) for beta2 in (0.999, 0.95)
    }
    return lines(
        series,
        title="梯度全是噪声时 Adam 的平均步长",
        x_label="步",
        y_label="平均步长 ÷ 学习率",
        x_log=10,
        y_range=(0, 1),
        markers=True,
    )
