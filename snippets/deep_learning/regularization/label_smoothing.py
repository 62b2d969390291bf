"""标签平滑：软标签、稳定的损失与梯度、最优 logit 差、损失的下限（只用标准库）。"""

import math
from collections.abc import Sequence


def _check(epsilon: float, k: int) -> None:
    if not 0 <= epsilon < 1:
        raise ValueError(f"epsilon 必须在 [0, 1) 内，收到 {epsilon}")
    if k < 2:
        raise ValueError(f"至少两类，收到 {k}")


# --8<-- [start:loss]
def smooth(y: int, k: int, epsilon: float) -> list[float]:
    """软标签 (1 − ε)·onehot(y) + ε/K：正确类得 1 − ε + ε/K，其余各 ε/K。

    >>> [round(v, 4) for v in smooth(1, 2, 0.1)], [round(v, 4) for v in smooth(0, 5, 0.1)]
    ([0.05, 0.95], [0.92, 0.02, 0.02, 0.02, 0.02])
    """
    _check(epsilon, k)
    if y not in range(k):
        raise ValueError(f"类别须是 0 到 {k - 1} 的整数，收到 {y}")
    return [epsilon / k + (1 - epsilon) * (i == y) for i in range(k)]


def loss_and_gradient(z: Sequence[float], y: int, epsilon: float) -> tuple[float, list[float]]:
    """ℓ = logsumexp(z) − (1 − ε) z_y − ε·mean(z)，梯度 softmax(z) − 软标签。z 须有限。

    >>> loss, grad = loss_and_gradient([2.0, 0.0, 0.0], 0, 0.1)
    >>> round(loss, 4), [round(g, 4) for g in grad]
    (0.3729, [-0.1463, 0.0732, 0.0732])
    """
    target = smooth(y, len(z), epsilon)
    if not all(map(math.isfinite, z)):
        raise ValueError("logits 须有限：平滑后每一类都有权重，−inf 会给出无穷的损失")
    top = max(z)
    exps = [math.exp(v - top) for v in z]
    total = math.fsum(exps)
    loss = top + math.log(total) - (1 - epsilon) * z[y] - epsilon * math.fsum(z) / len(z)
    return loss, [e / total - t for e, t in zip(exps, target, strict=True)]


# --8<-- [end:loss]


# --8<-- [start:optimum]
def optimal_gap(k: int, epsilon: float) -> float:
    """损失最小时，正确类比其他类高出的 logit：ln(1 + K(1 − ε)/ε)；ε = 0 时没有有限的最优。

    >>> [round(optimal_gap(k, 0.1), 2) for k in (2, 1000, 37_000, 128_256)]
    [2.94, 9.11, 12.72, 13.96]
    >>> optimal_gap(1000, 0.0)
    inf
    """
    _check(epsilon, k)
    return math.log1p(k * (1 - epsilon) / epsilon) if epsilon else math.inf


def loss_floor(k: int, epsilon: float) -> float:
    """损失的下限：软标签自己的熵（nat）。ε 不变时随 K 增大，约 H(ε) + ε ln K。

    >>> [round(loss_floor(k, 0.1), 2) for k in (2, 1000, 37_000, 128_256)]
    [0.2, 1.01, 1.38, 1.5]
    >>> round(math.exp(loss_floor(37_000, 0.1)), 2)                    # 按平滑后的损失取指数，困惑度永远到不了 1
    3.96
    """
    _check(epsilon, k)
    top, rest = 1 - epsilon + epsilon / k, epsilon / k
    return -top * math.log(top) - ((k - 1) * rest * math.log(rest) if rest else 0.0)


# --8<-- [end:optimum]


# --8<-- [start:cost]
def likelihood_cost(n: int, k: int, epsilon: float) -> float:
    """真实的续写均匀落在 k 个 token 中的 n 个上，用平滑训练到最优，真实的交叉熵（nat）比不平滑高多少。

    平滑后的最优预测是 (1 − ε)·真实分布 + ε/K，多出的是 KL(真实 ‖ 平滑后) = −ln(1 − ε + ε·n/K)。
    一般的真实分布 p 是 −Σ p ln(1 − ε + ε/(K p))，同样不超过 −ln(1 − ε)。

    >>> [round(likelihood_cost(n, 128_256, 0.1), 4) for n in (1, 100, 10_000, 128_256)]
    [0.1054, 0.1053, 0.0967, 0.0]
    >>> round(math.exp(likelihood_cost(1, 128_256, 0.1)) - 1, 3)        # 困惑度至多高 11%
    0.111
    """
    _check(epsilon, k)
    if not 1 <= n <= k:
        raise ValueError(f"n 须在 1 与 K 之间，收到 {n}")
    return -math.log1p(epsilon * n / k - epsilon) + 0.0  # 末尾加 0 把 −0 变成 0


# --8<-- [end:cost]


# --8<-- [start:dpo]
def conservative_dpo(margin: float, epsilon: float) -> float:
    """保守 DPO：偏好标签以概率 ε 标反，损失 −(1 − ε) ln σ(m) − ε ln σ(−m)，m 是 β 乘以两条回答的对数比之差。

    最小值在 m = ln((1 − ε)/ε)，而不是无穷远。

    >>> [round(conservative_dpo(m, 0.1), 3) for m in (0.0, math.log(9), 10.0)]
    [0.693, 0.325, 1.0]
    >>> round(conservative_dpo(800.0, 0.0), 3), round(conservative_dpo(-800.0, 0.0), 3)
    (0.0, 800.0)
    """
    if not 0 <= epsilon < 0.5:
        raise ValueError(f"epsilon 必须在 [0, 0.5) 内，收到 {epsilon}")
    if not math.isfinite(margin):
        raise ValueError(f"margin 须有限，收到 {margin}")

    def softplus(x: float) -> float:
        return max(x, 0.0) + math.log1p(math.exp(-abs(x)))

    return (1 - epsilon) * softplus(-margin) + epsilon * softplus(margin)


# --8<-- [end:dpo]
