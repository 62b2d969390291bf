"""GELU：erf 的精确式、tanh 近似、sigmoid 近似，它们的导数与误差（只用标准库）。"""

import math
from collections.abc import Callable

INV_SQRT2 = 1 / math.sqrt(2)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715


# --8<-- [start:gelu]
def gelu(x: float) -> float:
    """x·Φ(x)，Φ 是标准正态的分布函数。NaN 传下去，±∞ 取极限。

    >>> [round(gelu(x), 6) for x in (-3.0, -1.0, 0.0, 1.0, 3.0)]
    [-0.00405, -0.158655, 0.0, 0.841345, 2.99595]
    >>> gelu(-math.inf), gelu(math.inf), gelu(-20) < 0
    (-0.0, inf, True)
    """
    if x == -math.inf:
        return -0.0  # −∞ × 0 是 NaN，极限是 0
    # --8<-- [start:blank-erfc]
    # Φ(x)；x 很负时 1 + erf 会把有效数字抵消光，用 erfc
    phi = 0.5 * math.erfc(-x * INV_SQRT2)
    # --8<-- [end:blank-erfc]
    return x * phi


def gelu_grad(x: float) -> float:
    """导数 Φ(x) + x·φ(x)，φ 是标准正态的密度；两端的极限是 0 与 1。

    >>> [round(gelu_grad(x), 6) for x in (-2.0, 0.0, 1.0, 2.0)]
    [-0.085232, 0.5, 1.083315, 1.085232]
    """
    if math.isinf(x):
        return float(x > 0)
    # --8<-- [start:blank-grad]
    # 乘法法则：Φ + x·φ
    phi = 0.5 * math.erfc(-x * INV_SQRT2)
    return phi + x * INV_SQRT_2PI * math.exp(-0.5 * x * x)
    # --8<-- [end:blank-grad]


def gelu_tanh(x: float) -> float:
    """tanh 近似 0.5x(1 + tanh(√(2/π)(x + 0.044715x³)))（Hendrycks 2016；GPT-2 的代码用它）。

    >>> [round(gelu_tanh(x), 6) for x in (-3.0, -1.0, 0.0, 1.0, 3.0)]
    [-0.003637, -0.158808, 0.0, 0.841192, 2.996363]
    """
    if x == -math.inf:
        return -0.0
    # --8<-- [start:blank-tanh]
    # 注意三次方在括号里，系数在 x³ 前
    inner = SQRT_2_OVER_PI * (x + CUBIC * x * x * x)
    return 0.5 * x * (1 + math.tanh(inner))
    # --8<-- [end:blank-tanh]


# --8<-- [end:gelu]


# --8<-- [start:others]
def gelu_sigmoid(x: float) -> float:
    """x·σ(1.702x)，又叫 QuickGELU；原版 CLIP 用它。

    >>> round(gelu_sigmoid(1.0), 6)
    0.845796
    """
    return x * sigmoid(1.702 * x) if x != -math.inf else -0.0


def silu(x: float) -> float:
    """x·σ(x)，SwiGLU 里的那个。

    >>> round(silu(1.0), 6)
    0.731059
    """
    return x * sigmoid(x) if x != -math.inf else -0.0


def sigmoid(x: float) -> float:
    """1/(1 + e⁻ˣ)，按符号分两支，指数不会溢出。

    >>> sigmoid(-1000.0), sigmoid(0.0), sigmoid(1000.0)
    (0.0, 0.5, 1.0)
    """
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


# --8<-- [end:others]


# --8<-- [start:error]
def largest_gap(f: Callable[[float], float], g: Callable[[float], float], low: float = -8.0, high: float = 8.0) -> tuple[float, float]:
    """[low, high] 上 |f − g| 最大处与最大值，步长 1/4096 的网格。

    >>> x, gap = largest_gap(gelu, gelu_tanh, 0, 8)
    >>> round(x, 2), f"{gap:.2e}"                                  # tanh 近似：最大绝对误差 4.7e-4
    (2.7, '4.73e-04')
    >>> x, gap = largest_gap(gelu, gelu_sigmoid, 0, 8)
    >>> round(x, 2), f"{gap:.2e}"                                  # sigmoid 近似差 43 倍
    (2.27, '2.03e-02')
    """
    if not low < high or not math.isfinite(high - low):
        raise ValueError(f"要求有限的 low < high，收到 {low}、{high}")
    points = [low + k / 4096 for k in range(int((high - low) * 4096) + 1)]
    worst = max(points, key=lambda x: abs(f(x) - g(x)))
    return worst, abs(f(worst) - g(worst))


def minimum() -> tuple[float, float]:
    """GELU 的最小值：它不单调。在 [−2, 0] 上对导数二分。

    >>> [round(v, 4) for v in minimum()]
    [-0.7518, -0.17]
    """
    low, high = -2.0, 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gelu_grad(middle) < 0 else (low, middle)
    return low, gelu(low)


# --8<-- [end:error]


# --8<-- [start:wrong]
def gelu_by_erf(x: float) -> float:
    """反例：0.5x(1 + erf(x/√2))。数学相同，x 很负时 1 + erf 抵消：float64 在 −9 处全没了，fp32 在 −6 处就没了。

    >>> gelu_by_erf(-9.0), f"{gelu(-9.0):.3e}"
    (-0.0, '-1.016e-18')
    """
    return 0.5 * x * (1 + math.erf(x * INV_SQRT2))


# --8<-- [end:wrong]
