"""GAN 的博弈在离散分布上能算得一清二楚：最优判别器、JS 散度、梯度在哪里消失（只用标准库）。"""

import math
from collections.abc import Sequence


def _distribution(p: Sequence[float], name: str) -> None:
    if not p or not all(0 <= x <= 1 for x in p) or abs(math.fsum(p) - 1) > 1e-9:  # NaN 不满足 0 ≤ x
        raise ValueError(f"{name} 不是概率分布")


def _pair(p: Sequence[float], g: Sequence[float]) -> None:
    _distribution(p, "p")
    _distribution(g, "g")
    if len(p) != len(g):
        raise ValueError(f"p 与 g 的长度须相等，收到 {len(p)}、{len(g)}")


# --8<-- [start:value]
def optimal_discriminator(p: Sequence[float], g: Sequence[float]) -> list[float]:
    """固定生成分布 g 时，最优判别器 D*(x) = p(x) / (p(x) + g(x))；两边都是 0 的点无所谓，记 0.5。

    >>> [round(d, 2) for d in optimal_discriminator([0.5, 0.5, 0.0], [0.25, 0.25, 0.5])]
    [0.67, 0.67, 0.0]
    """
    _pair(p, g)
    return [a / (a + b) if a + b else 0.5 for a, b in zip(p, g, strict=True)]


def value(p: Sequence[float], g: Sequence[float], d: Sequence[float]) -> float:
    """V(D, G) = E_p ln D + E_g ln(1 − D)，单位 nat；0·ln 0 记 0，判错得斩钉截铁时是 −∞。"""
    _pair(p, g)
    if len(d) != len(p) or not all(0 <= x <= 1 for x in d):
        raise ValueError(f"d 须是 {len(p)} 个 0 到 1 的数")
    if any((a and x == 0) or (b and x == 1) for a, b, x in zip(p, g, d, strict=True)):
        return -math.inf
    terms = [a * math.log(x) for a, x in zip(p, d, strict=True) if a] + [b * math.log(1 - x) for b, x in zip(g, d, strict=True) if b]
    return math.fsum(terms)


def js(p: Sequence[float], g: Sequence[float]) -> float:
    """Jensen–Shannon 散度：½KL(p‖m) + ½KL(g‖m)，m = (p + g)/2，取值 0 到 ln 2。

    >>> p, g = [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]
    >>> v = value(p, g, optimal_discriminator(p, g))
    >>> round(v, 6) == round(-math.log(4) + 2 * js(p, g), 6), round(js(p, g), 3)
    (True, 0.216)
    >>> round(js([1.0, 0.0], [0.0, 1.0]), 3)                            # 不重叠：ln 2，与隔多远无关
    0.693
    """
    _pair(p, g)
    return 0.5 * math.fsum(a * math.log(2 * a / (a + b)) for a, b in zip(p, g, strict=True) if a) + 0.5 * math.fsum(
        b * math.log(2 * b / (a + b)) for a, b in zip(p, g, strict=True) if b
    )


# --8<-- [end:value]


# --8<-- [start:gradient]
def generator_gradients(logit: float) -> tuple[float, float]:
    """判别器对一个假样本打分 D = σ(logit)，两种生成器损失对 logit 的导数：ln(1 − D) 的，与 −ln D 的。

    >>> [tuple(round(g, 4) for g in generator_gradients(z)) for z in (0.0, -5.0, -10.0)]
    [(-0.5, -0.5), (-0.0067, -0.9933), (-0.0, -1.0)]
    """
    if math.isnan(logit):
        raise ValueError("logit 不能是 NaN")
    d = 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
    return -d, -(1 - d)


# --8<-- [end:gradient]


# --8<-- [start:distance]
def apart(distance: int, size: int = 20) -> tuple[float, float]:
    """两个单点分布相距 distance 格：（JS 散度，Wasserstein-1 距离）。JS 一分开就饱和，W₁ 仍与距离成正比。

    >>> [tuple(round(v, 3) for v in apart(k)) for k in (0, 1, 10)]
    [(0.0, 0.0), (0.693, 1.0), (0.693, 10.0)]
    """
    if any(type(n) is not int for n in (distance, size)) or not 0 <= distance < size:
        raise ValueError(f"须是整数且 0 ≤ distance < size，收到 {distance}、{size}")
    p, g = ([float(i == at) for i in range(size)] for at in (0, distance))
    cumulative, gap = 0.0, 0.0
    for a, b in zip(p, g, strict=True):
        cumulative += a - b
        gap += abs(cumulative)
    return js(p, g), gap


# --8<-- [end:distance]
