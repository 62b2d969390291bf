"""手写采样：温度、top-k、top-p，一次排序、一次抽取（只用标准库）。"""

import math
from collections.abc import Sequence
from random import Random


def _check(logits: Sequence[float], temperature: float, top_k: int, top_p: float) -> None:
    if not logits or any(math.isnan(x) or x == math.inf for x in logits) or max(logits) == -math.inf:
        raise ValueError("logits 不能为空，不能有 NaN 或 +∞，至少一个不是 −∞")
    if not 0 <= temperature < math.inf or isinstance(top_k, bool) or top_k < 0 or not 0 <= top_p <= 1:
        raise ValueError(f"要求 temperature ≥ 0、top_k ≥ 0、0 ≤ top_p ≤ 1，收到 {temperature}、{top_k}、{top_p}")


# --8<-- [start:sample]
def candidates(logits: Sequence[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[tuple[int, float]]:
    """截断并归一之后的候选：(token, 概率)，从大到小。top_k = 0 表示不限；次序是温度、top-k、top-p。

    >>> logits = [2.0, 1.0, 1.0, 0.0, -math.inf]
    >>> [(token, round(p, 3)) for token, p in candidates(logits, top_k=2)]      # 并列时取编号小的，恰好 k 个
    [(0, 0.731), (1, 0.269)]
    >>> [(token, round(p, 3)) for token, p in candidates(logits, top_p=0.6)]    # 达到或超过 0.6 的最小集合
    [(0, 0.731), (1, 0.269)]
    >>> candidates(logits, temperature=0), len(candidates(logits, top_k=99)), len(candidates(logits, top_p=0))
    ([(0, 1.0)], 4, 1)
    """
    _check(logits, temperature, top_k, top_p)
    # --8<-- [start:blank-order]
    # order：按 logit 从大到小、并列按编号排的 token，不要 −∞ 的，最多 top_k 个；temperature 为 0 时只要 1 个
    order = sorted((i for i, x in enumerate(logits) if x > -math.inf), key=lambda i: (-logits[i], i))
    order = order[:1] if temperature == 0 else order[: top_k or None]
    # --8<-- [end:blank-order]
    # --8<-- [start:blank-weights]
    # weights：各候选的 exp(logit / temperature)，先减最大值；temperature 为 0 时是 [1.0]
    weights = [math.exp((logits[i] - logits[order[0]]) / (temperature or 1.0)) for i in order]
    # --8<-- [end:blank-weights]
    # --8<-- [start:blank-nucleus]
    # kept 个候选：累计达到或超过 top_p · 总和的最短前缀，至少 1 个
    total, mass, kept = math.fsum(weights), weights[0], 1
    while kept < len(weights) and mass < top_p * total:
        mass += weights[kept]
        kept += 1
    # --8<-- [end:blank-nucleus]
    mass = math.fsum(weights[:kept])
    return [(token, weight / mass) for token, weight in zip(order[:kept], weights, strict=False) if weight > 0]


def sample(logits: Sequence[float], random: Random, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> int:
    """抽一个 token：对候选的累积分布求逆。

    >>> random = Random(0)
    >>> draws = [sample([2.0, 1.0, 0.0], random, top_k=2) for _ in range(10_000)]
    >>> draws.count(0) / 10_000 - 1 / (1 + math.exp(-1)) < 0.01, draws.count(2)
    (True, 0)
    """
    kept = candidates(logits, temperature, top_k, top_p)
    # --8<-- [start:blank-draw]
    # u 均匀取自 [0, 1)，返回累计第一次超过 u 的 token；舍入使总和略小于 1 时返回最后一个
    u = random.random()
    for token, p in kept:
        u -= p
        if u < 0:
            return token
    return kept[-1][0]
    # --8<-- [end:blank-draw]


# --8<-- [end:sample]


# --8<-- [start:counts]
def nucleus_sizes(vocabulary: int = 128_256) -> list[str]:
    """Zipf 分布（p ∝ 1/名次）上，同样的 top-p 在不同温度下留下多少个 token，最大的概率是多少。

    >>> print(*nucleus_sizes(), sep="\\n")
    T=0.7: top-p 0.9 留    113，第一名 0.380
    T=1.0: top-p 0.9 留  37342，第一名 0.090
    T=1.5: top-p 0.9 留  94004，第一名 0.007
    """
    logits = [-math.log(rank) for rank in range(1, vocabulary + 1)]
    lines = []
    for temperature in (0.7, 1.0, 1.5):
        kept = candidates(logits, temperature, top_p=0.9)
        lines.append(f"T={temperature}: top-p 0.9 留 {len(kept):>6}，第一名 {kept[0][1]:.3f}")
    return lines


# --8<-- [end:counts]


# --8<-- [start:wrong]
def kept_by_threshold(logits: Sequence[float], k: int) -> int:
    """反例：留下 logit ≥ 第 k 大者的全部 token。有并列就超过 k 个，全并列时等于没有截断。

    >>> kept_by_threshold([1.0] * 1000, 50), len(candidates([1.0] * 1000, top_k=50))
    (1000, 50)
    """
    if not 1 <= k <= len(logits):
        raise ValueError(f"k 须在 1 与 {len(logits)} 之间，收到 {k}")
    bar = sorted(logits, reverse=True)[k - 1]
    return sum(x >= bar for x in logits)


def nucleus_below(probs: Sequence[float], p: float) -> int:
    """反例：取累计**不超过** p 的前缀。最大的概率超过 p 时一个也不剩。

    >>> nucleus_below([0.95, 0.05], 0.9), nucleus_below([0.5, 0.3, 0.2], 0.9)
    (0, 2)
    """
    kept, mass = 0, 0.0
    for q in sorted(probs, reverse=True):
        mass += q
        if mass > p:
            break
        kept += 1
    return kept


# --8<-- [end:wrong]
