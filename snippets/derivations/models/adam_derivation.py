"""推导 Adam 时用到的每个闭式：EMA 的权重、偏差与滞后、有效样本数、步长上确界、信噪比形式、衰减的不动点（只用标准库）。"""

import math
from collections.abc import Sequence
from random import Random

from snippets.math.optimization.adam import Adam


def _beta(beta: float, name: str = "beta") -> None:
    if isinstance(beta, bool) or not 0 <= beta < 1:
        raise ValueError(f"{name} 须在 [0, 1) 内，收到 {beta}")


def _steps(t: int) -> None:
    if isinstance(t, bool) or not isinstance(t, int) or t < 1:
        raise ValueError(f"步数 t 须是不小于 1 的整数，收到 {t}")


def _finite(values: Sequence[float], name: str) -> None:
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"{name} 须非空且全部有限")


# --8<-- [start:weights]
def ema_weights(beta: float, t: int) -> list[float]:
    """第 t 步的**未修正** EMA 给 g_1…g_t 的权重 (1 − β)β^(t−i)，由递推展开得到；和是 1 − βᵗ。

    >>> [round(w, 4) for w in ema_weights(0.9, 4)]
    [0.0729, 0.081, 0.09, 0.1]
    >>> [round(math.fsum(ema_weights(beta, 10)), 4) for beta in (0.9, 0.95, 0.999)]      # 第 10 步：少了 35%、60%、99%
    [0.6513, 0.4013, 0.01]
    >>> round(0.999**999, 2), round(ema_weights(0.999, 1000)[0] / math.fsum(ema_weights(0.999, 1000)), 5)   # g_1 的份额：作初值、修正
    (0.37, 0.00058)
    >>> ema_weights(0.0, 3)                                                             # β = 0：只看当前一步
    [0.0, 0.0, 1.0]
    """
    _beta(beta)
    _steps(t)
    return [(1 - beta) * beta ** (t - i) for i in range(1, t + 1)]


def corrected_mean(values: Sequence[float], beta: float) -> float:
    """除以 1 − βᵗ 之后：权重和为 1 的加权平均，所以常数列原样还原，结果夹在最小与最大之间。

    >>> [round(corrected_mean([3.7] * t, 0.999), 12) for t in (1, 10, 1000)]
    [3.7, 3.7, 3.7]
    """
    _finite(values, "values")
    weights = ema_weights(beta, len(values))
    return math.fsum(w * x for w, x in zip(weights, values, strict=True)) / math.fsum(weights)


def adam_from_sums(
    params: Sequence[float],
    grads: Sequence[Sequence[float]],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> list[float]:
    """不用递推：每一步的 m̂、v̂ 都按展开的和重算（解耦衰减，即 AdamW）。params: (n,)，grads: T 个 (n,)。O(T²)，只供核对。

    >>> theta = adam_from_sums([1.0, 1.0], [[1e-3, -50.0]] * 3, eps=0.0)          # 常数梯度：每步恰走 lr·sign(g)
    >>> [round(x, 12) for x in theta]
    [0.997, 1.003]
    """
    _finite(params, "params")
    if not (0 < lr < math.inf and 0 <= eps < math.inf and 0 <= weight_decay < math.inf):
        raise ValueError(f"须有 lr > 0、eps ≥ 0、weight_decay ≥ 0 且有限，收到 {lr, eps, weight_decay}")
    if any(len(g) != len(params) for g in grads):
        raise ValueError(f"每步梯度须有 {len(params)} 个分量")
    theta = list(params)
    for t in range(1, len(grads) + 1):
        for j in range(len(theta)):
            seen = [g[j] for g in grads[:t]]
            m_hat, v_hat = corrected_mean(seen, betas[0]), corrected_mean([g * g for g in seen], betas[1])
            if m_hat and not math.sqrt(v_hat) + eps:
                raise ValueError("梯度的平方下溢成 0，eps 须大于 0")
            theta[j] *= 1 - lr * weight_decay
            theta[j] -= lr * m_hat / (math.sqrt(v_hat) + eps) if m_hat else 0.0
    return theta


# --8<-- [end:weights]


# --8<-- [start:lag]
def mean_lag(beta: float, t: int) -> float:
    """修正后权重的平均滞后 Σ w̄_i (t − i) = β/(1 − β) − tβᵗ/(1 − βᵗ)，步。均值每步漂移 δ 时，m̂ 落后 δ·lag。

    >>> for beta in (0.9, 0.95, 0.999):
    ...     print(beta, [round(mean_lag(beta, t), 2) for t in (1, 10, 100, 100_000)])
    0.9 [0.0, 3.65, 9.0, 9.0]
    0.95 [0.0, 4.08, 18.4, 19.0]
    0.999 [0.0, 4.49, 48.67, 999.0]
    """
    _beta(beta)
    _steps(t)
    if t * (1 - beta) < 1e-3:  # 两项都近 1/(1 − β)，直接相减会相消：对 −ln β 展开
        return (t - 1) / 2 + (t * t - 1) / 12 * math.log(beta)
    return beta / (1 - beta) - t * beta**t / (1 - beta**t)


def effective_samples(beta: float, t: int) -> float:
    """独立同分布时 Var(m̂) = σ²/n_eff，n_eff = 1/Σ w̄_i² = (1+β)/(1−β) · (1−βᵗ)/(1+βᵗ)，t → ∞ 是 (1+β)/(1−β)。

    >>> [round(effective_samples(beta, 10**6)) for beta in (0.9, 0.95, 0.999)]
    [19, 39, 1999]
    >>> effective_samples(0.999, 1), round(effective_samples(0.999, 100), 1)            # 刚开始时就是样本个数
    (1.0, 99.9)
    """
    _beta(beta)
    _steps(t)
    return (1 + beta) / (1 - beta) * (1 - beta**t) / (1 + beta**t)


# --8<-- [end:lag]


# --8<-- [start:bound]
def step_supremum(beta1: float, beta2: float, t: int) -> float:
    """第 t 步 |m̂/√v̂| 对任意梯度序列的上确界（单位 lr，ε = 0）：Cauchy–Schwarz 的 √(Σ w̄₁²/w̄₂)。

    >>> for betas in ((0.9, 0.999), (0.9, 0.95), (0.95, 0.95)):
    ...     print(betas, [round(step_supremum(*betas, t), 3) for t in (1, 10, 100, 10_000)])
    (0.9, 0.999) [1.0, 1.043, 2.243, 7.27]
    (0.9, 0.95) [1.0, 1.011, 1.162, 1.165]
    (0.95, 0.95) [1.0, 1.0, 1.0, 1.0]
    """
    _beta(beta1, "beta1")
    _beta(beta2, "beta2")
    _steps(t)
    if beta2 == 0:  # v̂ 只看当前一步，过去的梯度不受约束
        return 1.0 if beta1 == 0 or t == 1 else math.inf
    scale = (1 - beta1) ** 2 * (1 - beta2**t) / ((1 - beta2) * (1 - beta1**t) ** 2)
    ratio = beta1**2 / beta2
    try:
        series = t if ratio == 1 else (1 - ratio**t) / (1 - ratio)
    except OverflowError:  # β₁² > β₂：没有上界
        return math.inf
    return math.sqrt(scale * series) if ratio < math.inf else math.inf


def worst_gradients(beta1: float, beta2: float, t: int) -> list[float]:
    """取到上确界的梯度：g_i ∝ w̄₁/w̄₂ ∝ (β₂/β₁)^i，最后一步归一到 1。"""
    _steps(t)
    if not (0 < beta1 < 1 and 0 < beta2 < 1):
        raise ValueError(f"beta1、beta2 须在 (0, 1) 内，收到 {beta1}、{beta2}")
    if (t - 1) * math.log(beta1 / beta2) > 700:
        raise ValueError(f"(beta1/beta2)^(t − 1) 超出浮点范围，t 须小一些，收到 {t}")
    return [(beta1 / beta2) ** (t - i) for i in range(1, t + 1)]


# --8<-- [end:bound]


# --8<-- [start:snr]
def snr_step(grads: Sequence[float], beta: float) -> tuple[float, float]:
    """β₁ = β₂ = β、ε = 0 时的（m̂/√v̂，sign(m̂)/√(1 + s²/m̂²)）。s² = v̂ − m̂² 是同一组权重下的加权方差，两者恒等。

    >>> [round(x, 6) for x in snr_step([1.0, 2.0, 3.0, 4.0], 0.95)]      # 方向一致：接近 1
    [0.916812, 0.916812]
    >>> [round(x, 6) for x in snr_step([1.0, -1.0] * 50, 0.95)]          # 来回：接近 0
    [-0.025641, -0.025641]
    """
    m, v = corrected_mean(grads, beta), corrected_mean([g * g for g in grads], beta)
    if m == 0:
        raise ValueError("m̂ 为 0 时右边的 s²/m̂² 没有定义（左边是 0）")
    if v < 1e-300 or m * m < 1e-300:
        raise ValueError("梯度太小，平方下溢，须先放大")
    variance = corrected_mean([(g - m) ** 2 for g in grads], beta)
    return m / math.sqrt(v), math.copysign(1, m) / math.sqrt(1 + variance / m**2)


def expected_first_step(probability: float, large: float, small: float) -> tuple[float, float]:
    """反例：“修正后 m̂、v̂ 都无偏，所以步长无偏”。梯度以 probability 取 +large，否则取 −small。

    返回（第一步 E[m̂/√v̂]，E[g]/√E[g²]）。第一步恒为 ±1，前者只数符号。

    >>> [round(x, 3) for x in expected_first_step(0.2, 10.0, 1.0)]        # 平均梯度为正，第一步的期望却是负的
    [-0.6, 0.263]
    """
    if not 0 < probability < 1 or not (0 < large < math.inf and 0 < small < math.inf):
        raise ValueError(f"须有 0 < probability < 1、large 与 small 为正，收到 {probability, large, small}")
    mean = probability * large - (1 - probability) * small
    return 2 * probability - 1, mean / math.hypot(math.sqrt(probability) * large, math.sqrt(1 - probability) * small)


# --8<-- [end:snr]


# --8<-- [start:units]
def after_rescaling_loss(scale: float, *, eps: float, decoupled: bool = True, weight_decay: float = 0.0, steps: int = 200) -> float:
    """同一串随机梯度都乘 scale（损失乘 scale），返回参数末值。ε = 1e-300 近似 0。用的是 Q011 的 Adam。

    >>> [round(after_rescaling_loss(c, eps=1e-300), 6) for c in (1.0, 1e-6)]                                # ε = 0：不变
    [0.918287, 0.918287]
    >>> [round(after_rescaling_loss(c, eps=1e-8), 4) for c in (1.0, 1e-6, 1e-9)]                            # ε 与梯度同单位
    [0.9183, 0.919, 0.9916]
    >>> [round(after_rescaling_loss(c, eps=1e-300, weight_decay=0.1), 4) for c in (1.0, 1e-3)]              # 解耦：仍不变
    [0.8993, 0.8993]
    >>> [round(after_rescaling_loss(c, eps=1e-300, weight_decay=0.1, decoupled=False), 4) for c in (1.0, 1e-3)]   # L2：变了
    [0.9048, 0.8084]
    """
    _steps(steps)
    if not (1e-100 <= scale <= 1e100 and 0 < eps < math.inf and 0 <= weight_decay < math.inf):
        raise ValueError(f"须有 1e-100 ≤ scale ≤ 1e100（平方不溢出）、eps > 0、weight_decay ≥ 0 且有限，收到 {scale, eps, weight_decay}")
    rng, theta = Random(0), [1.0]
    adam = Adam(lr=1e-3, eps=eps, weight_decay=weight_decay, decoupled=decoupled)
    for _ in range(steps):
        theta = adam.step(theta, [scale * rng.gauss(0.5, 1.0)])
    return theta[0]


def decay_fixed_point(gradient: float, weight_decay: float, decoupled: bool, steps: int = 20_000, lr: float = 1e-2) -> float:
    """梯度恒为 gradient、从 0 出发，走 steps 步后的参数。解耦：停在 −sign(g)/λ，与 |g| 无关；L2：停在 −g/λ（差几个 lr 的摆动）。

    >>> [round(decay_fixed_point(g, 0.1, True), 3) for g in (0.01, 1.0)]
    [-10.0, -10.0]
    >>> [round(decay_fixed_point(g, 0.1, False), 1) for g in (0.01, 1.0)]
    [-0.1, -10.0]
    """
    _steps(steps)
    if not (1e-6 <= abs(gradient) <= 1e100 and 0 < lr * weight_decay < 1 and 0 < lr < math.inf):
        raise ValueError(f"须有 1e-6 ≤ |gradient| ≤ 1e100、lr > 0、0 < lr·weight_decay < 1，收到 {gradient, lr, weight_decay}")
    adam, theta = Adam(lr=lr, weight_decay=weight_decay, decoupled=decoupled, eps=1e-12), [0.0]
    for _ in range(steps):
        theta = adam.step(theta, [gradient])
    return theta[0]


def equilibrium_scale(lr: float, weight_decay: float) -> float:
    """梯度是零均值白噪声时 AdamW 权重的均方根：√(lr/(2λ))，要求 lr·λ ≪ 1 − β₁。

    更新是单位方差白噪声的 EMA，权重和为 1，长程方差 lr²；衰减每步去掉 2·lr·λ·θ²，两者相等。

    >>> round(equilibrium_scale(3e-4, 0.1), 4)
    0.0387
    """
    if not (0 < lr < math.inf and 0 < weight_decay < math.inf and lr * weight_decay <= 0.01):
        raise ValueError(f"lr、weight_decay 须为正的有限数且乘积不超过 0.01，收到 {lr}、{weight_decay}")
    return math.sqrt(lr / (2 * weight_decay))


# --8<-- [end:units]
