"""Top-K 采样：选出最大的 k 个、截断后重新归一化、截断方法的先后次序、不放回采样（只用标准库）。"""

import heapq
import math
import random
from collections.abc import Sequence


# --8<-- [start:select]
def top_k_heap(values: Sequence[float], k: int) -> tuple[list[int], int]:
    """用大小为 k 的最小堆选出最大的 k 个值的下标（从大到小；相等时下标小的在前）。

    返回 (下标, 替换堆顶的次数)。先用前 k 个建堆，之后每个元素先与堆顶比一次，只有更大才替换，
    最坏 O(V log k)；次序随机时替换约 k·ln(V/k) 次，其余元素各只花一次比较。

    >>> top_k_heap([2.0, 5.0, 1.0, 5.0, 3.0], k=3)
    ([1, 3, 4], 2)
    >>> rng = random.Random(0)
    >>> logits = [rng.gauss(0, 1) for _ in range(128_256)]
    >>> chosen, replaced = top_k_heap(logits, k=50)
    >>> chosen == sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:50]
    True
    >>> replaced, round(50 * math.log(len(logits) / 50))        # 实测与 k·ln(V/k)
    (377, 392)
    """
    _check(values)
    if not 1 <= k <= len(values):
        raise ValueError(f"k 必须在 1 到 {len(values)} 之间，收到 {k}")
    heap = [(values[i], -i) for i in range(k)]  # 值相等时保留下标小的：−i 大者优先留下
    heapq.heapify(heap)
    replaced = 0
    for i in range(k, len(values)):
        if values[i] > heap[0][0]:
            heapq.heapreplace(heap, (values[i], -i))
            replaced += 1
    return [-negated for _, negated in sorted(heap, reverse=True)], replaced


def top_k_quickselect(values: Sequence[float], k: int, rng: random.Random) -> list[int]:
    """快速选择：随机主元三路划分，只递归含第 k 大的那一侧；期望 O(V)，最坏 O(V²)。返回下标集合（无序）。

    >>> sorted(top_k_quickselect([2.0, 5.0, 1.0, 5.0, 3.0], 3, random.Random(0)))
    [1, 3, 4]
    """
    _check(values)
    if not 1 <= k <= len(values):
        raise ValueError(f"k 必须在 1 到 {len(values)} 之间，收到 {k}")
    chosen: list[int] = []
    rest = list(range(len(values)))
    while True:
        pivot = values[rng.choice(rest)]
        larger = [i for i in rest if values[i] > pivot]
        equal = [i for i in rest if values[i] == pivot]
        if len(larger) >= k - len(chosen):
            if len(larger) == k - len(chosen):
                return chosen + larger
            rest = larger
            continue
        chosen += larger
        if len(equal) >= k - len(chosen):
            return chosen + equal[: k - len(chosen)]
        chosen += equal
        rest = [i for i in rest if values[i] < pivot]


def _check(values: Sequence[float]) -> None:
    if any(math.isnan(value) or value == math.inf for value in values):
        raise ValueError("logits 里有 NaN 或 +inf")
    if all(value == -math.inf for value in values):
        raise ValueError("logits 为空或全是 −inf，没有可采样的 token")


# --8<-- [end:select]


# --8<-- [start:filters]
def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """温度 T 的 softmax，先减最大值防溢出；−inf 得到概率 0。

    >>> [round(p, 4) for p in softmax([1000.0, 999.0, -math.inf])]
    [0.7311, 0.2689, 0.0]
    >>> softmax([1.0], temperature=0.0)
    Traceback (most recent call last):
    ...
    ValueError: temperature 必须为正且有限，收到 0.0；要贪心就直接取 argmax
    """
    _check(logits)
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature 必须为正且有限，收到 {temperature}；要贪心就直接取 argmax")
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _renormalize(probs: Sequence[float], kept: set[int]) -> list[float]:
    total = math.fsum(probs[i] for i in kept)
    return [p / total if i in kept else 0.0 for i, p in enumerate(probs)]


def _order(probs: Sequence[float]) -> list[int]:
    return sorted(range(len(probs)), key=lambda i: (-probs[i], i))


def top_k_filter(probs: Sequence[float], k: int) -> list[float]:
    """只留概率最大的 k 个再归一化；k ≥ 词表大小等于不截断。

    >>> top_k_filter([0.5, 0.25, 0.15, 0.1], 2)
    [0.6666666666666666, 0.3333333333333333, 0.0, 0.0]
    """
    if k < 1:
        raise ValueError(f"k 必须 ≥ 1，收到 {k}")
    return _renormalize(probs, set(_order(probs)[:k]))


def top_p_filter(probs: Sequence[float], p: float) -> list[float]:
    """留下累计概率**达到或超过** p 的最小集合（至少 1 个）再归一化（Holtzman 2020，式 2–3）。

    >>> [round(x, 4) for x in top_p_filter([0.5, 0.25, 0.15, 0.1], 0.7)]   # 0.5 不够，0.75 达到
    [0.6667, 0.3333, 0.0, 0.0]
    >>> top_p_filter([0.9, 0.1], 0.5)                                       # 第一个就超过 p，仍要留它
    [1.0, 0.0]
    >>> top_p_filter([1.0, 1e-20], 1.0)                                     # p = 1 不截断，不受累加舍入影响
    [1.0, 1e-20]
    """
    if not 0 < p <= 1:
        raise ValueError(f"p 必须在 (0, 1] 内，收到 {p}")
    kept: set[int] = set()
    total = 0.0
    for i in _order(probs):
        kept.add(i)
        total += probs[i]
        if p < 1 and total >= p:
            break
    return _renormalize(probs, kept)


def min_p_filter(probs: Sequence[float], min_p: float) -> list[float]:
    """留下概率不小于 min_p × 最大概率的 token 再归一化：分布尖时留得少，平时留得多。

    >>> [round(x, 4) for x in min_p_filter([0.5, 0.25, 0.15, 0.1], 0.4)]    # 门槛 0.2
    [0.6667, 0.3333, 0.0, 0.0]
    """
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p 必须在 [0, 1] 内，收到 {min_p}")
    threshold = min_p * max(probs)
    return _renormalize(probs, {i for i, p in enumerate(probs) if p >= threshold})


# --8<-- [end:filters]


# --8<-- [start:order]
def order_of_temperature(temperature: float = 2.0) -> dict[str, tuple[int, int]]:
    """同一组 logits，“先温度后截断”与“先截断后温度”各留下几个 token。

    温度单调，不改变名次，所以 top-k 留下的集合与次序无关；top-p、min-p 看概率大小，次序会改变集合。

    >>> for name, (first, last) in order_of_temperature().items():
    ...     print(f"{name}：温度在前留 {first} 个，温度在后留 {last} 个")
    top-k 50：温度在前留 50 个，温度在后留 50 个
    top-p 0.9：温度在前留 6816 个，温度在后留 51 个
    min-p 0.1：温度在前留 21 个，温度在后留 4 个
    """
    logits = [-1.5 * math.log(rank) for rank in range(1, 10_001)]  # 第 r 名的概率正比于 r^(−1.5)
    cuts = {
        "top-k 50": lambda probs: top_k_filter(probs, 50),
        "top-p 0.9": lambda probs: top_p_filter(probs, 0.9),
        "min-p 0.1": lambda probs: min_p_filter(probs, 0.1),
    }

    def kept(probs: list[float]) -> int:
        return sum(p > 0 for p in probs)

    return {name: (kept(cut(softmax(logits, temperature))), kept(cut(softmax(logits)))) for name, cut in cuts.items()}


# --8<-- [end:order]


# --8<-- [start:gumbel]
def gumbel(rng: random.Random) -> float:
    """标准 Gumbel 噪声 −ln E，E 服从参数 1 的指数分布（等价于 −ln(−ln U)）。E 恰为 0 时重抽。"""
    while not (exponential := rng.expovariate(1.0)):
        pass
    return -math.log(exponential)


def gumbel_top_k(logits: Sequence[float], k: int, rng: random.Random) -> list[int]:
    """从 softmax(logits) **不放回**地抽 k 个：给每个 logit 加独立 Gumbel 噪声，取最大的 k 个（Kool 2019）。

    k = 1 就是 Gumbel-max：一次 argmax 完成采样，不用归一化、不用累加。

    >>> rng = random.Random(0)
    >>> draws = [gumbel_top_k([0.0, math.log(2), math.log(5)], 1, rng)[0] for _ in range(20_000)]
    >>> [round(draws.count(i) / 20_000, 3) for i in range(3)]              # 应为 1/8, 2/8, 5/8
    [0.124, 0.251, 0.625]
    """
    _check(logits)
    support = sum(logit > -math.inf for logit in logits)
    if not 1 <= k <= support:
        raise ValueError(f"k 必须在 1 到 {support}（概率非零的 token 数）之间，收到 {k}")
    return top_k_heap([logit + gumbel(rng) for logit in logits], k)[0]


# --8<-- [end:gumbel]


# --8<-- [start:wrong]
def sorting_is_not_needed(vocabulary: int = 128_256, k: int = 50) -> tuple[int, int]:
    """反例：“top-k 要堆排序（全排序）”。返回 (全排序的比较次数, 堆选择的比较次数)，随机次序、种子固定。

    >>> full, selection = sorting_is_not_needed()
    >>> round(full / selection), round(selection / 128_256, 2)           # 选择接近每元素比较一次
    (15, 1.02)
    """

    class Counted(float):
        comparisons = 0

        def __lt__(self, other):
            Counted.comparisons += 1
            return float.__lt__(self, other)

        def __gt__(self, other):
            Counted.comparisons += 1
            return float.__gt__(self, other)

    rng = random.Random(0)
    values = [Counted(rng.gauss(0, 1)) for _ in range(vocabulary)]
    sorted(values)
    full, Counted.comparisons = Counted.comparisons, 0
    heap = values[:k]
    heapq.heapify(heap)
    for value in values[k:]:
        if value > heap[0]:
            heapq.heapreplace(heap, value)
    return full, Counted.comparisons


# --8<-- [end:wrong]
