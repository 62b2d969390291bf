"""交叉熵：与最大似然、KL 的关系，数值稳定的实现与梯度，z-loss，归一化口径，logits 的显存（只用标准库）。"""

import math
from collections.abc import Sequence


# --8<-- [start:identity]
def _distribution(p: Sequence[float], name: str) -> None:
    if not p or min(p) < 0 or abs(math.fsum(p) - 1) > 1e-9:
        raise ValueError(f"{name} 须是非负且和为 1 的分布，收到 {list(p)[:5]}")


def entropy(p: Sequence[float]) -> float:
    """H(p) = −Σ p ln p，nats；0·ln 0 记为 0。

    >>> round(entropy([0.25] * 4) / math.log(2), 6)          # 比特
    2.0
    """
    _distribution(p, "p")
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def cross_entropy(p: Sequence[float], q: Sequence[float]) -> float:
    """H(p, q) = −Σ p ln q；p 有质量而 q 为 0 时是 inf。

    >>> p, q = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]
    >>> math.isclose(cross_entropy(p, q), entropy(p) + kl(p, q))
    True
    >>> cross_entropy([0.5, 0.5], [1.0, 0.0])
    inf
    """
    _distribution(p, "p")
    _distribution(q, "q")
    if any(x > 0 and y == 0 for x, y in zip(p, q, strict=True)):
        return math.inf
    return -math.fsum(x * math.log(y) for x, y in zip(p, q, strict=True) if x > 0)


def kl(p: Sequence[float], q: Sequence[float]) -> float:
    """KL(p‖q) = Σ p ln(p/q) ≥ 0。

    >>> kl([0.5, 0.5], [0.5, 0.5])
    0.0
    """
    return math.inf if math.isinf(cross_entropy(p, q)) else math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


# --8<-- [end:identity]


# --8<-- [start:stable]
def logsumexp(logits: Sequence[float]) -> float:
    """ln Σ e^z，先减最大值；全是 −inf 时为 −inf。

    >>> logsumexp([1000.0, 1000.0]) == 1000.0 + math.log(2)
    True
    """
    if not logits or any(math.isnan(z) or z == math.inf for z in logits):
        raise ValueError("logits 不能为空，也不能含 NaN 或 +inf")
    top = max(logits)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(z - top) for z in logits))


def softmax_cross_entropy(logits: Sequence[float], target: int) -> tuple[float, list[float]]:
    """损失 −z_y + logsumexp(z) 与对 logits 的梯度 softmax(z) − onehot(y)。

    >>> loss, grad = softmax_cross_entropy([0.0] * 128_256, 7)          # 第 0 步：均匀，损失是 ln V
    >>> round(loss, 4), round(grad[7], 6), abs(math.fsum(grad)) < 1e-9
    (11.7618, -0.999992, True)
    >>> softmax_cross_entropy([1000.0, 0.0], 1)[0]                       # 不溢出
    1000.0
    """
    if not 0 <= target < len(logits):
        raise ValueError(f"target 必须在 [0, {len(logits)}) 内，收到 {target}")
    total = logsumexp(logits)
    if total == -math.inf:
        raise ValueError("logits 全是 −inf")
    grad = [math.exp(z - total) for z in logits]
    grad[target] -= 1
    return total - logits[target], grad


def naive_loss_overflows(logits: Sequence[float] = (1000.0, 0.0), target: int = 1) -> tuple[bool, float]:
    """反例：“先 softmax 再取 log 就行”。返回 (直接指数会溢出, 稳定写法的损失)。

    >>> naive_loss_overflows()
    (True, 1000.0)
    """
    try:
        math.fsum(math.exp(z) for z in logits)
        overflowed = False
    except OverflowError:
        overflowed = True
    return overflowed, softmax_cross_entropy(logits, target)[0]


# --8<-- [end:stable]


# --8<-- [start:zloss]
def z_loss(logits: Sequence[float], target: int, coefficient: float = 1e-4) -> tuple[float, list[float]]:
    """交叉熵 + coefficient·(logsumexp z)²：把配分函数的对数拉向 0（PaLM，Chowdhery 2022，§5）。返回 (损失, 梯度)。

    交叉熵对所有 logits 加同一个常数不变，所以整体可以漂移；z-loss 的梯度之和是 2·c·logsumexp，专管这个方向。

    >>> shifted = [z + 50.0 for z in (2.0, 1.0, 0.0)]
    >>> plain = softmax_cross_entropy(shifted, 0)[1]
    >>> abs(math.fsum(plain)) < 1e-12, round(math.fsum(z_loss(shifted, 0)[1]), 6)
    (True, 0.010482)
    """
    if coefficient < 0:
        raise ValueError(f"coefficient 不能为负，收到 {coefficient}")
    loss, grad = softmax_cross_entropy(logits, target)
    log_z = logsumexp(logits)
    extra = 2 * coefficient * log_z
    return loss + coefficient * log_z**2, [g + extra * math.exp(z - log_z) for g, z in zip(grad, logits, strict=True)]


# --8<-- [end:zloss]


# --8<-- [start:mean]
def token_mean_or_mean_of_means(losses: Sequence[Sequence[float]]) -> tuple[float, float]:
    """两种归一化：(按有效 token 汇总, 各 micro-batch 先平均再平均)。有效 token 数不等时两者不同。

    >>> token_mean_or_mean_of_means([[1.0, 1.0, 1.0, 1.0], [5.0]])
    (1.8, 3.0)
    """
    if not losses or not all(losses):
        raise ValueError("须至少一个 micro-batch，且都有有效 token")
    flat = [loss for batch in losses for loss in batch]
    return math.fsum(flat) / len(flat), math.fsum(math.fsum(batch) / len(batch) for batch in losses) / len(losses)


def logits_gigabytes(tokens: int, vocabulary: int, chunk: int | None = None) -> float:
    """逐算子算损失时 logits 的峰值，GB（10⁹ 字节）；分块时只有 chunk 个 token 同时在。

    峰值在反向，每个 logit 12 字节：log-softmax 4，两份 fp32 梯度 8（前向是 bf16 2 + fp32 4 + log-softmax 4 = 10）。
    系数由 infra/memory/saved_tensors.py 的 loss_peak 数出。

    >>> round(logits_gigabytes(8192, 128_256), 2), round(logits_gigabytes(8192, 128_256, chunk=1024), 2)
    (12.61, 1.58)
    """
    if tokens < 1 or vocabulary < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"tokens、vocabulary、chunk 都必须 ≥ 1，收到 {tokens, vocabulary, chunk}")
    return 12 * min(tokens, chunk or tokens) * vocabulary / 1e9


# --8<-- [end:mean]
