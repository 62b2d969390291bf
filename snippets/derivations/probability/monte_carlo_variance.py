"""蒙特卡洛估计的方差：独立与相关样本、控制变量、重要性采样、自归一化的偏差、基线、配对比较（只用标准库）。"""

import itertools
import math
from collections.abc import Sequence


# --8<-- [start:mean]
def mean_variance(sigma2: float, n: int, rho: float = 0.0) -> float:
    """n 个样本的均值的方差；相邻样本自相关 ρ、间隔 k 的自相关 ρᵏ（AR(1)）。独立时是 σ²/n。

    σ²/n · [1 + 2Σ_{k=1}^{n−1} (1 − k/n) ρᵏ]，n 大时约 σ²/n · (1 + ρ)/(1 − ρ)。

    >>> [round(mean_variance(1.0, 1000, rho), 6) for rho in (0.0, 0.9, -0.5)]
    [0.001, 0.01882, 0.000334]
    >>> round(1 / mean_variance(1.0, 1000, 0.9))                    # 相当于多少个独立样本
    53
    """
    if not (0 <= sigma2 < math.inf and n >= 1 and -1 < rho < 1):
        raise ValueError(f"须 σ² ≥ 0、n ≥ 1、|ρ| < 1，收到 {sigma2}、{n}、{rho}")
    return sigma2 / n * (1 + 2 * math.fsum((1 - k / n) * rho**k for k in range(1, n)))


def samples_needed(sigma: float, half_width: float, z: float = 1.96) -> int:
    """95% 置信区间的半宽不超过 half_width 要多少个独立样本：⌈(zσ/half_width)²⌉。

    >>> samples_needed(0.5, 0.02), samples_needed(0.5, 0.01)        # 正确率 0.5 的评测：精度翻倍，题数翻 4 倍
    (2401, 9604)
    """
    if not (0 <= sigma < math.inf and 0 < half_width < math.inf and 0 < z < math.inf):
        raise ValueError(f"须 σ ≥ 0、半宽与 z 为正，收到 {sigma}、{half_width}、{z}")
    return max(1, math.ceil((z * sigma / half_width) ** 2 - 1e-9))


# --8<-- [end:mean]


# --8<-- [start:control]
def control_variate(f: Sequence[float], g: Sequence[float]) -> tuple[float, float]:
    """控制变量 f − c(g − E g) 的最优系数 c = Cov(f, g)/Var(g)，与方差之比 1 − ρ²（由样本的矩算）。

    >>> u = [(i + 0.5) / 1000 for i in range(1000)]                 # 均匀分布的 1000 个分位点
    >>> c, ratio = control_variate([math.exp(x) for x in u], u)
    >>> round(c, 3), round(ratio, 4)                                # e^U 用 U 控制：方差剩 1.6%
    (1.69, 0.0163)
    """
    if len(f) != len(g) or len(f) < 2:
        raise ValueError(f"须是两个等长、至少 2 个的序列，收到 {len(f)}、{len(g)}")
    mf, mg = math.fsum(f) / len(f), math.fsum(g) / len(g)
    cov = math.fsum((a - mf) * (b - mg) for a, b in zip(f, g, strict=True))
    vf, vg = math.fsum((a - mf) ** 2 for a in f), math.fsum((b - mg) ** 2 for b in g)
    if not (0 < vf < math.inf and 0 < vg < math.inf):
        raise ValueError("两个序列的方差都须为正且有限")
    return cov / vg, 1 - cov * cov / (vf * vg)


# --8<-- [end:control]


# --8<-- [start:importance]
def gaussian_weight_moment(std: float) -> float:
    """目标 N(0, 1)、提议 N(0, std²)，权重的二阶矩 E_q w² = std²/√(2std² − 1)；std² ≤ 1/2 时无穷。有效样本占比是它的倒数。

    >>> [round(gaussian_weight_moment(s), 3) for s in (3.0, 1.0, 0.8, 0.71, 0.7)]
    [2.183, 1.0, 1.209, 5.567, inf]
    """
    if not 0 < std < math.inf:
        raise ValueError(f"std 须为正，收到 {std}")
    return std**2 / math.sqrt(2 * std**2 - 1) if 2 * std**2 > 1 else math.inf


def self_normalized_bias(p: Sequence[float], q: Sequence[float], f: Sequence[float], n: int) -> float:
    """自归一化估计 Σwf/Σw 的偏差，n 个样本来自 q；枚举全部样本，精确值。

    >>> p, q, f = [0.7, 0.2, 0.1], [0.2, 0.3, 0.5], [1.0, 2.0, 6.0]
    >>> [round(n * self_normalized_bias(p, q, f, n), 3) for n in (1, 8, 32, 100)]    # 偏差 × n 趋于常数：O(1/n)
    [2.1, 2.319, 1.758, 1.639]
    >>> w = [a / b for a, b in zip(p, q, strict=True)]
    >>> mean = math.fsum(a * b for a, b in zip(p, f, strict=True))
    >>> round(-math.fsum(a * b * b * (c - mean) for a, b, c in zip(q, w, f, strict=True)), 3)      # 一阶近似 −E_q[w²(f − μ)]
    1.589
    """
    if not len(p) == len(q) == len(f) or n < 1:
        raise ValueError(f"p、q、f 须等长，n ≥ 1，收到 {len(p)}、{len(q)}、{len(f)}、{n}")
    if min(p) < 0 or min(q) <= 0 or abs(math.fsum(p) - 1) > 1e-9 or abs(math.fsum(q) - 1) > 1e-9:
        raise ValueError("p、q 须是分布，且 q 处处为正")
    w = [a / b for a, b in zip(p, q, strict=True)]
    total = 0.0
    for counts in itertools.product(range(n + 1), repeat=len(p)):
        if sum(counts) != n:
            continue
        chance = math.factorial(n) * math.prod(b**c / math.factorial(c) for b, c in zip(q, counts, strict=True))
        weights = [c * a for c, a in zip(counts, w, strict=True)]
        if (norm := math.fsum(weights)) == 0:
            raise ValueError("有的样本全部落在 p 为 0 处，自归一化没有定义")
        total += chance * math.fsum(a * b for a, b in zip(weights, f, strict=True)) / norm
    return total - math.fsum(a * b for a, b in zip(p, f, strict=True))


# --8<-- [end:importance]


# --8<-- [start:baseline]
def score_gradient_moments(p: float, reward: tuple[float, float], baseline: float) -> tuple[float, float]:
    """两个动作、π(1) = p = σ(θ)，估计 (r − b)·∂ln π/∂θ 的（期望, 方差）。期望与 b 无关。

    >>> for b in (0.0, 10.3, 10.7):                                 # 无基线、平均奖励、最优基线 E[r·s²]/E[s²]
    ...     print(b, [round(abs(v), 4) for v in score_gradient_moments(0.3, (11.0, 10.0), b)])
    0.0 [0.21, 24.0429]
    10.3 [0.21, 0.0336]
    10.7 [0.21, 0.0]
    """
    if not 0 < p < 1:
        raise ValueError(f"p 须在 (0, 1) 内，收到 {p}")
    values = ((p, (reward[0] - baseline) * (1 - p)), (1 - p, -(reward[1] - baseline) * p))
    mean = math.fsum(a * v for a, v in values)
    return mean, math.fsum(a * v * v for a, v in values) - mean * mean


def group_gradient(p: float, group: int, leave_one_out: bool) -> tuple[float, float]:
    """一题采 group 个回答，奖励 0/1（成功率 p = σ(θ)），基线取组内平均：估计的（期望 ÷ 真梯度, 方差）。枚举成功的个数，精确值。

    leave_one_out：基线不含自己（RLOO）；否则含自己（GRPO 不除标准差）。

    >>> for group in (2, 4, 16):
    ...     print(group, *([round(v, 4) for v in group_gradient(0.3, group, loo)] for loo in (False, True)))
    2 [0.5, 0.0152] [1.0, 0.0609]
    4 [0.75, 0.0089] [1.0, 0.0158]
    16 [0.9375, 0.0022] [1.0, 0.0025]
    """
    if not 0 < p < 1 or group < 2:
        raise ValueError(f"须 0 < p < 1、group ≥ 2，收到 {p}、{group}")
    values = []
    for wins in range(group + 1):
        chance = math.comb(group, wins) * p**wins * (1 - p) ** (group - wins)
        others = (group - 1) if leave_one_out else group
        base_win, base_loss = ((wins - 1) / others, wins / others) if leave_one_out else (wins / others, wins / others)
        gradient = (wins * (1 - base_win) * (1 - p) + (group - wins) * (0 - base_loss) * -p) / group
        values.append((chance, gradient))
    mean = math.fsum(a * g for a, g in values)
    return mean / (p * (1 - p)), math.fsum(a * g * g for a, g in values) - mean**2


# --8<-- [end:baseline]


# --8<-- [start:paired]
def accuracy_difference_error(a: float, b: float, disagree: float, n: int) -> tuple[float, float]:
    """两个模型的正确率 a、b，在 n 题上之差的标准误：（各测各的题, 同一批题）。disagree 是一对一错的题的比例。

    同题时每题之差取 −1、0、1，方差 disagree − (a − b)²。

    >>> [round(v, 4) for v in accuracy_difference_error(0.82, 0.80, 0.1, 1000)]      # 差 0.02：不配对是 1.1 倍标准误，配对是 2
    [0.0175, 0.01]
    """
    if not (0 <= a <= 1 and 0 <= b <= 1 and n >= 1):
        raise ValueError(f"正确率须在 [0, 1]、n ≥ 1，收到 {a}、{b}、{n}")
    if not abs(a - b) <= disagree <= min(a + b, 2 - a - b):
        raise ValueError(f"正确率 {a}、{b} 时不一致的比例须在 {abs(a - b):.3f} 与 {min(a + b, 2 - a - b):.3f} 之间，收到 {disagree}")
    return math.sqrt((a * (1 - a) + b * (1 - b)) / n), math.sqrt(max(0.0, disagree - (a - b) ** 2) / n)


# --8<-- [end:paired]
