"""KL 散度：方向的后果、k1/k2/k3 估计量的偏差与方差、蒸馏的 T² 与梯度、支撑不同时的无穷（只用标准库）。"""

import math
import random
from collections.abc import Sequence

from snippets.math.probability.cross_entropy import kl


# --8<-- [start:direction]
def gaussian(x: float, mean: float, std: float) -> float:
    return math.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def fit_gaussian_to_two_modes(direction: str) -> tuple[float, float, float]:
    """用单个高斯 q 去拟合 ½N(−3, 1) + ½N(3, 1)，返回 (均值, 标准差, KL)；在网格上搜索。

    forward 最小化 KL(p‖q)：q 必须盖住 p 有质量的地方，于是居中变宽。
    reverse 最小化 KL(q‖p)：q 不能放在 p 几乎没有质量的地方，于是只占一个峰。

    >>> fit_gaussian_to_two_modes("forward")
    (0.0, 3.2, 0.462)
    >>> mean, std, value = fit_gaussian_to_two_modes("reverse")
    >>> abs(mean), std, value
    (3.0, 1.0, 0.689)
    """
    if direction not in ("forward", "reverse"):
        raise ValueError(f"direction 须为 forward 或 reverse，收到 {direction!r}")
    grid = [i / 10 for i in range(-120, 121)]
    p = [0.5 * gaussian(x, -3, 1) + 0.5 * gaussian(x, 3, 1) for x in grid]
    best = (math.inf, 0.0, 0.0)
    for mean in (i / 2 for i in range(-8, 9)):
        for std in (i / 5 for i in range(2, 26)):
            q = [gaussian(x, mean, std) + 1e-300 for x in grid]
            a, b = (p, q) if direction == "forward" else (q, p)
            best = min(best, (0.1 * math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0), mean, std))
    return best[1], best[2], round(best[0], 3)


# --8<-- [end:direction]


# --8<-- [start:estimators]
def estimators(log_ratio: float) -> tuple[float, float, float]:
    """单个样本 x ~ q 对 KL(q‖p) 的三个估计；log_ratio = ln p(x) − ln q(x)，r = e^log_ratio（Schulman 2020）。

    k1 = −ln r：无偏，可为负。k2 = ½(ln r)²：有偏，恒非负。k3 = (r − 1) − ln r：无偏，恒非负；r 大时方差随 e^{d} 增长。
    log_ratio = −inf（p 为 0）时三者都是 inf；r 超出双精度范围时 k3 是 inf。

    >>> [round(k, 4) for k in estimators(math.log(1.1))]
    [-0.0953, 0.0045, 0.0047]
    """
    if math.isnan(log_ratio) or log_ratio == math.inf:
        raise ValueError(f"log_ratio 不能是 NaN 或 +inf（x 抽自 q，q(x) 不会是 0），收到 {log_ratio}")
    try:
        ratio_minus_one = math.expm1(log_ratio)  # 不写 exp(x) − 1：两分布很近时会把有效数字减光，k3 变成 0 甚至负数
    except OverflowError:
        ratio_minus_one = math.inf
    return -log_ratio, 0.5 * log_ratio**2, ratio_minus_one - log_ratio


def estimator_moments(shift: float) -> list[tuple[str, float, float]]:
    """q = N(0, 1)、p = N(shift, 1) 时的闭式：[(名字, 相对偏差, 单样本标准差 ÷ 真值)]，真值 d/2，d = shift²。

    ln r ~ N(−d/2, d)，所以 E[k2] = d/2 + d²/8，方差依次是 d、(2d² + d³)/4、e^d − 1 − d。

    >>> for shift in (0.1, 1.0, 2.0, 3.0):
    ...     rows = (f"{name} 偏差 {100 * bias:+.3g}%、标准差 {std:.1f}×" for name, bias, std in estimator_moments(shift))
    ...     print(f"KL = {shift**2 / 2:.3f}  " + "；".join(rows))
    KL = 0.005  k1 偏差 +0%、标准差 20.0×；k2 偏差 +0.25%、标准差 1.4×；k3 偏差 +0%、标准差 1.4×
    KL = 0.500  k1 偏差 +0%、标准差 2.0×；k2 偏差 +25%、标准差 1.7×；k3 偏差 +0%、标准差 1.7×
    KL = 2.000  k1 偏差 +0%、标准差 1.0×；k2 偏差 +100%、标准差 2.4×；k3 偏差 +0%、标准差 3.5×
    KL = 4.500  k1 偏差 +0%、标准差 0.7×；k2 偏差 +225%、标准差 3.3×；k3 偏差 +0%、标准差 20.0×
    """
    if not 0 < abs(shift) <= 20:
        raise ValueError(f"shift 须非零且绝对值 ≤ 20（等于 0 时真值是 0，相对量没有定义），收到 {shift}")
    d = shift * shift
    variances = d, (2 * d**2 + d**3) / 4, math.expm1(d) - d
    return [(f"k{i}", bias, math.sqrt(v) / (d / 2)) for i, (bias, v) in enumerate(zip((0.0, d / 4, 0.0), variances, strict=True), 1)]


def estimator_table(shift: float, samples: int = 100_000) -> list[tuple[str, float, float]]:
    """同上，用 samples 个样本实测，种子固定。

    >>> for shift in (0.1, 1.0):
    ...     print("；".join(f"{name} 偏差 {bias:+.1%}、标准差 {std:.1f}×" for name, bias, std in estimator_table(shift)))
    k1 偏差 -10.6%、标准差 20.0×；k2 偏差 -0.1%、标准差 1.4×；k3 偏差 -0.2%、标准差 1.4×
    k1 偏差 -1.1%、标准差 2.0×；k2 偏差 +24.2%、标准差 1.7×；k3 偏差 -0.2%、标准差 1.6×
    """
    if samples < 2 or not 0 < abs(shift) <= 20:
        raise ValueError(f"须有 samples ≥ 2、shift 非零且绝对值 ≤ 20，收到 {samples, shift}")
    rng, true = random.Random(0), shift * shift / 2
    draws = [estimators(rng.gauss(0, 1) * shift - true) for _ in range(samples)]
    rows = []
    for name, values in zip(("k1", "k2", "k3"), zip(*draws, strict=True), strict=True):
        mean = math.fsum(values) / samples
        variance = math.fsum((v - mean) ** 2 for v in values) / (samples - 1)
        rows.append((name, mean / true - 1, math.sqrt(variance) / true))
    return rows


# --8<-- [end:estimators]


# --8<-- [start:distill]
def soften(logits: Sequence[float], temperature: float) -> list[float]:
    """softmax(z / T)；允许 −inf（被屏蔽的类），不允许全是 −inf。"""
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature 必须为正且有限，收到 {temperature}")
    if not logits or any(math.isnan(z) or z == math.inf for z in logits) or max(logits) == -math.inf:
        raise ValueError("logits 须非空、不含 NaN 或 +inf，且至少一个有限")
    top = max(logits)
    weights = [math.exp((z - top) / temperature) for z in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


def distillation_gradient(student: Sequence[float], teacher: Sequence[float], temperature: float, scaled: bool = True) -> list[float]:
    """KL(softmax(z_t/T)‖softmax(z_s/T)) 对学生 logits 的梯度 (q − p)/T；scaled=True 再乘 T²（Hinton 2015，§2.1）。

    >>> student, teacher = [1.0, 0.0, -1.0], [2.0, 1.0, -3.0]
    >>> norm = lambda g: round(math.hypot(*g), 4)
    >>> [norm(distillation_gradient(student, teacher, t, scaled=False)) for t in (1, 4, 16)]      # 随 T² 消失
    [0.1079, 0.0355, 0.003]
    >>> [norm(distillation_gradient(student, teacher, t)) for t in (1, 4, 16)]                    # 乘 T² 后同量级
    [0.1079, 0.5675, 0.7609]
    """
    if len(student) != len(teacher):
        raise ValueError(f"student 与 teacher 的类数不同：{len(student)} 与 {len(teacher)}，KL 没有定义")
    p, q = soften(teacher, temperature), soften(student, temperature)
    factor = temperature if scaled else 1 / temperature
    return [factor * (b - a) for a, b in zip(p, q, strict=True)]


# --8<-- [end:distill]


# --8<-- [start:wrong]
def kl_is_not_symmetric() -> tuple[float, float]:
    """反例：“KL 是两个分布的距离”。返回 (KL(p‖q), KL(q‖p))；q 在 p 有质量处为 0 时是 inf。

    >>> [round(x, 3) for x in kl_is_not_symmetric()]
    [0.368, 0.511]
    >>> kl([0.5, 0.5], [1.0, 0.0]), round(kl([1.0, 0.0], [0.5, 0.5]), 3)
    (inf, 0.693)
    """
    p, q = [0.9, 0.1], [0.5, 0.5]
    return kl(p, q), kl(q, p)


# --8<-- [end:wrong]
