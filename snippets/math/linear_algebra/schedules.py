"""学习率衰减：各种形状、公开模型的调度、Robbins–Monro 条件、带噪声二次函数上的精确比较（只用标准库）。"""

import math
from collections.abc import Callable, Sequence

from snippets.common.chart import lines

Schedule = Callable[[float, float], float]  # (t, total) → 学习率 ÷ 峰值；t 从 0 到 total


def _check(t: float, total: float) -> None:
    if not t >= 0 or not 0 < total < math.inf:
        raise ValueError(f"须有 t ≥ 0、0 < total < ∞，收到 {t, total}")


# --8<-- [start:shapes]
def step_decay(t: float, total: float, factor: float = 0.1, at: Sequence[float] = (0.5, 0.75)) -> float:
    """阶梯：走过 total 的每个比例 at，乘一次 factor。

    >>> [round(step_decay(t, 100), 4) for t in (0, 49, 50, 75, 100)]
    [1.0, 1.0, 0.1, 0.01, 0.01]
    """
    _check(t, total)
    return factor ** sum(t >= share * total for share in at)


def exponential(t: float, total: float, end: float = 0.01) -> float:
    """指数：每步乘同一个数，到 total 时剩 end。

    >>> [round(exponential(t, 100), 4) for t in (0, 50, 100)]
    [1.0, 0.1, 0.01]
    """
    _check(t, total)
    if not 0 < end <= 1:
        raise ValueError(f"end 须在 (0, 1]，收到 {end}")
    return end ** (t / total)


def cosine(t: float, total: float, end: float = 0.1) -> float:
    """余弦：end + (1 − end)·(1 + cos(πt/total))/2，total 之后停在 end。

    >>> [round(cosine(t, 100), 4) for t in (0, 25, 50, 100, 120)]
    [1.0, 0.8682, 0.55, 0.1, 0.1]
    """
    _check(t, total)
    return end + (1 - end) * (1 + math.cos(math.pi * min(t / total, 1))) / 2


def linear(t: float, total: float, end: float = 0.0) -> float:
    """线性降到 end。

    >>> [round(linear(t, 100), 4) for t in (0, 25, 100, 120)]
    [1.0, 0.75, 0.0, 0.0]
    """
    _check(t, total)
    return 1 - (1 - end) * min(t / total, 1)


def wsd(t: float, total: float, decay: float = 0.2, sqrt: bool = False) -> float:
    """WSD 的后两段：前 1 − decay 不变，最后 decay 降到 0；sqrt=True 用 1 − √(进度)，否则线性。

    >>> [round(wsd(t, 100), 4) for t in (0, 80, 90, 100)], round(wsd(90, 100, sqrt=True), 4)
    ([1.0, 1.0, 0.5, 0.0], 0.2929)
    """
    _check(t, total)
    if not 0 < decay <= 1:
        raise ValueError(f"decay 须在 (0, 1]，收到 {decay}")
    left = min(max(total - t, 0) / (decay * total), 1.0)  # 衰减段还剩多少；这样写，末尾恰好是 0
    return 1 - math.sqrt(1 - left) if sqrt else left


def inverse_sqrt(t: float, total: float, warmup: float = 0.1) -> float:
    """Transformer 原始调度：线性升到 warmup·total，之后 √(预热步数/t)。不需要知道 total，这里只用它定预热长度。

    >>> [round(inverse_sqrt(t, 100), 4) for t in (0, 5, 10, 40, 100, 1000)]
    [0.0, 0.5, 1.0, 0.5, 0.3162, 0.1]
    """
    _check(t, total)
    steps = warmup * total
    return t / steps if t < steps else math.sqrt(steps / t)


def inverse_time(t: float, total: float, offset: float = 0.03) -> float:
    """1/(1 + t/τ)，τ = offset·total：满足 Robbins–Monro 的经典形状。

    >>> [round(inverse_time(t, 100), 4) for t in (0, 3, 100)]
    [1.0, 0.5, 0.0291]
    """
    _check(t, total)
    if offset <= 0:
        raise ValueError(f"offset 必须为正，收到 {offset}")
    return 1 / (1 + t / (offset * total))


# --8<-- [end:shapes]


# --8<-- [start:published]
def gpt3_175b(billion_tokens: float) -> float:
    """GPT-3 175B（Brown 2020，附录 B、表 2.1）：3.75 亿 token 预热到 6e-5，余弦到 10%（第 2600 亿），再保持到 3000 亿。

    >>> [f"{gpt3_175b(b):.2e}" for b in (0.375, 130, 260, 300)]
    ['6.00e-05', '3.31e-05', '6.00e-06', '6.00e-06']
    """
    peak, warmup = 6e-5, 0.375
    _check(billion_tokens, 300)
    return peak * billion_tokens / warmup if billion_tokens < warmup else peak * cosine(billion_tokens - warmup, 260 - warmup)


def llama3_405b(step: float) -> float:
    """Llama 3 405B（Dubey 2024，§3.4.1）：8000 步线性预热到 8e-5，余弦到 8e-7（第 120 万步）。不含末尾的退火。

    >>> [f"{llama3_405b(s):.2e}" for s in (8000, 604_000, 1_200_000)]
    ['8.00e-05', '4.04e-05', '8.00e-07']
    """
    peak, warmup = 8e-5, 8_000
    _check(step, 1_200_000)
    return peak * step / warmup if step < warmup else peak * cosine(step - warmup, 1_200_000 - warmup, end=0.01)


def deepseek_v3(trillion_tokens: float) -> float:
    """DeepSeek-V3（2412.19437，§4.2）：2000 步预热到 2.2e-4，保持到 10T，余弦 4.3T 到 2.2e-5，保持 333B，再 7.3e-6 走 167B。

    预热按起始的 3072 条 × 4096 token 一批折成 0.0252T。

    >>> [f"{deepseek_v3(t):.1e}" for t in (1, 10, 12.15, 14.3, 14.6, 14.7)]
    ['2.2e-04', '2.2e-04', '1.2e-04', '2.2e-05', '2.2e-05', '7.3e-06']
    """
    peak, warmup = 2.2e-4, 2_000 * 3_072 * 4_096 / 1e12
    _check(trillion_tokens, 14.8)
    if trillion_tokens < warmup:
        return peak * trillion_tokens / warmup
    if trillion_tokens >= 14.3 + 0.333:
        return 7.3e-6
    return peak * cosine(max(trillion_tokens - 10, 0), 4.3, end=0.1)


def bert(step: float) -> float:
    """BERT（Devlin 2018，附录 A.2；官方 optimization.py）：1 万步预热到 1e-4，线性降到 0（第 100 万步）。

    官方代码的衰减从第 0 步算起，所以预热一结束就是 0.99e-4，不是 1e-4。

    >>> [f"{bert(s):.2e}" for s in (5_000, 9_999, 10_000, 500_000, 1_000_000)]
    ['5.00e-05', '1.00e-04', '9.90e-05', '5.00e-05', '0.00e+00']
    """
    _check(step, 1_000_000)
    return 1e-4 * (step / 10_000 if step < 10_000 else linear(step, 1_000_000))


def published() -> list[tuple[str, float, float, float]]:
    """(模型, 峰值, 末值 ÷ 峰值, 全程平均 ÷ 峰值)；平均是中点求和，横轴为 token 或步。

    >>> for name, peak, end, mean in published():
    ...     print(f"{name:14} {peak:.1e} {end:6.1%} {mean:6.1%}")
    GPT-3 175B     6.0e-05  10.0%  49.0%
    Llama 3 405B   8.0e-05   1.0%  50.5%
    DeepSeek-V3    2.2e-04   3.3%  83.7%
    BERT           1.0e-04   0.0%  49.5%
    """
    rows, n = [], 20_000
    for name, schedule, total, peak in (
        ("GPT-3 175B", gpt3_175b, 300, 6e-5),
        ("Llama 3 405B", llama3_405b, 1_200_000, 8e-5),
        ("DeepSeek-V3", deepseek_v3, 14.8, 2.2e-4),
        ("BERT", bert, 1_000_000, 1e-4),
    ):
        mean = math.fsum(schedule((i + 0.5) * total / n) for i in range(n)) / n
        rows.append((name, peak, schedule(total) / peak, mean / peak))
    return rows


# --8<-- [end:published]


# --8<-- [start:rm]
def robbins_monro(power: float) -> tuple[bool, bool]:
    """η_t = c·t^(−power)：(Σ η 发散, Σ η² 收敛)。两个都要：1/2 < power ≤ 1。

    >>> [robbins_monro(p) for p in (0, 0.5, 0.75, 1, 1.5)]
    [(True, False), (True, False), (True, True), (True, True), (False, True)]
    """
    if not power >= 0:
        raise ValueError(f"power 须 ≥ 0，收到 {power}")
    return power <= 1, power > 0.5


def partial_sums(schedule: Callable[[int], float], terms: int) -> tuple[float, float]:
    """(Σ_{t=1}^{terms} η_t, Σ η_t²)。

    >>> for name, eta in (("1/t", lambda t: 1 / t), ("1/√t", lambda t: t**-0.5), ("0.99^t", lambda t: 0.99**t)):
    ...     print(f"{name:7}", *(" ".join(f"{x:9.3f}" for x in partial_sums(eta, n)) for n in (10**3, 10**6)), sep=" | ")
    1/t     |     7.485     1.644 |    14.393     1.645
    1/√t    |    61.801     7.485 |  1998.540    14.393
    0.99^t  |    98.996    49.251 |    99.000    49.251
    """
    if terms < 1:
        raise ValueError(f"terms 必须 ≥ 1，收到 {terms}")
    values = [schedule(t) for t in range(1, terms + 1)]
    return math.fsum(values), math.fsum(v * v for v in values)


# --8<-- [end:rm]


# --8<-- [start:noisy]
CURVATURES = (1.0, 0.3, 0.1, 0.03, 0.01)  # 条件数 100


def final_loss(schedule: Schedule, peak: float, steps: int = 1000, horizon: int | None = None) -> float:
    """SGD 在 ½Σ h·x² 上走 steps 步后的期望损失：梯度噪声方差 1，起点每维 x² = 100。精确递推，不采样。

    E[x²] ← (1 − ηh)²·E[x²] + η²：第一项忘掉起点（要 Ση 大），第二项是噪声（要 Ση² 小）。
    horizon 是调度以为的总步数，缺省就是 steps。

    >>> round(final_loss(lambda t, total: 1.0, 0.1), 3), round(sum(0.1 / (2 * (2 - 0.1 * h)) for h in CURVATURES), 3)
    (0.195, 0.127)
    >>> round(final_loss(lambda t, total: 1.0, 0.1, steps=100_000), 3)       # 恒定学习率停在噪声地板 Σ η/(2(2 − ηh))
    0.127
    """
    if peak <= 0 or steps < 1:
        raise ValueError(f"须有 peak > 0、steps ≥ 1，收到 {peak, steps}")
    moments = [100.0] * len(CURVATURES)
    for t in range(steps):
        eta = peak * schedule(t, horizon or steps)
        moments = [(1 - eta * h) ** 2 * m + eta * eta for h, m in zip(CURVATURES, moments, strict=True)]
    return math.fsum(h * m for h, m in zip(CURVATURES, moments, strict=True)) / 2


def best_final_loss(schedule: Schedule, steps: int = 1000, horizon: int | None = None) -> tuple[float, float]:
    """36 个峰值里最好的：(期望损失, 峰值)。峰值从 1.9（稳定上限 2 之内）向下，每十倍 12 格。"""
    return min((final_loss(schedule, peak, steps, horizon), peak) for peak in (1.9 * 10 ** (-i / 12) for i in range(36)))


def comparison() -> list[tuple[str, float, float]]:
    """各形状在同样 1000 步、各自调好峰值后的期望损失：(形状, 损失, 峰值)。

    >>> for name, loss, peak in comparison():
    ...     print(f"{loss:.3f} {peak:.2f} {name}")
    0.194 0.11 恒定
    0.158 0.28 阶梯
    0.141 0.73 1/√t
    0.130 0.16 WSD，最后 20%
    0.114 1.57 1/t，τ = 3%
    0.105 0.34 余弦到 10%
    0.107 0.34 余弦到 0
    0.102 0.34 线性到 0
    0.100 1.07 指数到 1%
    1.388 1.90 1/t，τ = 0.1%
    0.153 0.16 余弦到 0，以为有 2000 步
    """
    cases: list[tuple[str, Schedule, int | None]] = [
        ("恒定", lambda t, total: 1.0, None),
        ("阶梯", step_decay, None),
        ("1/√t", lambda t, total: (1 + t / (0.01 * total)) ** -0.5, None),
        ("WSD，最后 20%", wsd, None),
        ("1/t，τ = 3%", inverse_time, None),
        ("余弦到 10%", cosine, None),
        ("余弦到 0", lambda t, total: cosine(t, total, 0.0), None),
        ("线性到 0", linear, None),
        ("指数到 1%", exponential, None),
        ("1/t，τ = 0.1%", lambda t, total: inverse_time(t, total, 0.001), None),
        ("余弦到 0，以为有 2000 步", lambda t, total: cosine(t, total, 0.0), 2000),
    ]
    return [(name, *best_final_loss(schedule, horizon=horizon)) for name, schedule, horizon in cases]


# --8<-- [end:noisy]


# --8<-- [start:cost]
def sweep_cost(budgets: Sequence[float], decay: float = 0.1) -> tuple[float, float]:
    """要在每个预算处各得到一个训完的模型，总共训多少：(余弦, WSD)。

    余弦每个预算从头训；WSD 共用一条恒定学习率的主干，每个预算只从主干上分出最后 decay 的衰减段。

    >>> cosine_cost, wsd_cost = sweep_cost([20, 40, 60, 80, 100])
    >>> cosine_cost, round(wsd_cost, 6), f"{wsd_cost / cosine_cost:.0%}"
    (300, 120.0, '40%')
    """
    if not budgets or min(budgets) <= 0 or not 0 < decay <= 1:
        raise ValueError("须有正的 budgets 且 0 < decay ≤ 1")
    return sum(budgets), (1 - decay) * max(budgets) + decay * sum(budgets)


# --8<-- [end:cost]


def figure_shapes() -> str:
    """六种形状，横轴是训练进度，纵轴是学习率 ÷ 峰值。"""
    shapes: dict[str, Schedule] = {
        "阶梯": step_decay,
        "指数": exponential,
        "余弦到 10%": cosine,
        "线性到 0": linear,
        "1/√t": inverse_sqrt,
        "WSD": wsd,
    }
    grid = sorted({*range(0, 101, 2), 49.9, 74.9, 75})
    series = {name: [(float(t), shape(t, 100)) for t in grid] for name, shape in shapes.items()}
    return lines(series, title="学习率衰减的形状", x_label="训练进度，%", y_label="学习率 ÷ 峰值", x_range=(0, 100), y_range=(0, 1))


def figure_published() -> str:
    """GPT-3、Llama 3、DeepSeek-V3、BERT 公开的调度，都归一到自己的峰值与总长。"""
    models: dict[str, tuple[Callable[[float], float], float, float]] = {
        "GPT-3": (gpt3_175b, 300, 6e-5),
        "Llama 3 405B": (llama3_405b, 1_200_000, 8e-5),
        "DeepSeek-V3": (deepseek_v3, 14.8, 2.2e-4),
        "BERT": (bert, 1_000_000, 1e-4),
    }
    grid = sorted({*range(0, 101, 2), 0.1, 0.2, 0.5, 1, 98.8, 98.9})
    series = {name: [(float(x), f(x / 100 * total) / peak) for x in grid] for name, (f, total, peak) in models.items()}
    return lines(series, title="公开的学习率调度", x_label="训练进度，%", y_label="学习率 ÷ 峰值", x_range=(0, 100), y_range=(0, 1))
