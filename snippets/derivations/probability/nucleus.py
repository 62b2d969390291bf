"""核采样（top-p）截断后的分布：最小集合、条件分布与 KL 投影、全变差、熵、温度、与 top-k / min-p 的关系（只用标准库）。"""

import math
from collections.abc import Sequence
from random import Random

from snippets.math.algorithms.top_k_sampling import min_p_filter, softmax, top_k_filter, top_p_filter
from snippets.math.probability.cross_entropy import entropy, kl


def _check(probs: Sequence[float], p: float | None = None) -> None:
    if not probs or not all(x >= 0 for x in probs) or not abs(math.fsum(probs) - 1) <= 1e-9:  # NaN 也被拦下
        raise ValueError("probs 须是非空、非负、和为 1 的分布")
    if p is not None and (isinstance(p, bool) or not 0 < p <= 1):
        raise ValueError(f"p 须在 (0, 1] 内，收到 {p}")


# --8<-- [start:measure]
def nucleus(probs: Sequence[float], p: float) -> dict[str, float]:
    """top-p 之后的分布 q 与原分布 P：个数 k、质量 Z、全变差、KL(q‖P)、两个熵（nat）。截断用 Q020 的 top_p_filter。

    >>> for name, probs in (("尖", [0.9] + [0.1 / 9] * 9), ("中", [0.5, 0.2, 0.1, 0.08, 0.06, 0.03, 0.03]), ("平", [0.1] * 10)):
    ...     print(name, {key: round(x, 3) for key, x in nucleus(probs, 0.75).items()})
    尖 {'k': 1, 'Z': 0.9, 'TV': 0.1, 'KL': 0.105, 'H(P)': 0.545, 'H(q)': 0.0}
    中 {'k': 3, 'Z': 0.8, 'TV': 0.2, 'KL': 0.223, 'H(P)': 1.48, 'H(q)': 0.9}
    平 {'k': 8, 'Z': 0.8, 'TV': 0.2, 'KL': 0.223, 'H(P)': 2.303, 'H(q)': 2.079}
    >>> nucleus([0.25] * 4, 1.0)["Z"], nucleus([0.25] * 4, 1e-9)["k"]                 # p = 1 不截；p → 0 是贪心
    (1.0, 1)
    """
    _check(probs, p)
    q = top_p_filter(probs, p)
    kept = [i for i, x in enumerate(q) if x > 0]
    mass = min(1.0, math.fsum(probs[i] for i in kept))
    variation = math.fsum(abs(a - b) for a, b in zip(q, probs, strict=True)) / 2
    return {
        "k": len(kept),
        "Z": mass,
        "TV": variation,
        "KL": kl(q, probs),
        "H(P)": entropy(probs),
        "H(q)": entropy(q) + 0.0,
    }  # + 0.0：把 −0.0 写成 0.0


def kl_to_original(candidate: Sequence[float], probs: Sequence[float], p: float) -> tuple[float, float]:
    """（KL(Q‖P)，KL(Q‖q) − ln Z）：Q 只要支撑在核里，两者就恒等，所以 q 是核上离 P 最近的分布。

    >>> probs = [0.5, 0.2, 0.1, 0.08, 0.06, 0.03, 0.03]                             # p = 0.75 的核是前 3 个，Z = 0.8
    >>> for candidate in ([0.625, 0.25, 0.125], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]):
    ...     print([round(x, 4) for x in kl_to_original([*candidate, 0, 0, 0, 0], probs, 0.75)])
    [0.2231, 0.2231]
    [0.4364, 0.4364]
    [0.6931, 0.6931]
    """
    _check(probs, p)
    _check(candidate)
    if len(candidate) != len(probs):
        raise ValueError(f"两个分布的长度须相同，收到 {len(candidate)}、{len(probs)}")
    q = top_p_filter(probs, p)
    if any(c > 0 and x == 0 for c, x in zip(candidate, q, strict=True)):
        raise ValueError("candidate 须支撑在核里")
    mass = math.fsum(a for a, x in zip(probs, q, strict=True) if x > 0)
    return kl(candidate, probs), kl(candidate, q) - math.log(mass)


# --8<-- [end:measure]


# --8<-- [start:rules]
def threshold_of(probs: Sequence[float], rule: str, value: float) -> tuple[float, int, float]:
    """三种规则都是 {P_i ≥ τ}：返回（τ，个数，1 − Z）。rule 为 top-k、top-p、min-p。

    >>> spread = [0.1] + [0.9 / 9001] * 9001                                        # 一个 10% 的 token 加一条平尾巴
    >>> for rule, value in (("top-k", 50), ("top-p", 0.9), ("min-p", 0.1)):
    ...     tau, k, lost = threshold_of(spread, rule, value)
    ...     print(f"{rule} {value}：τ = {tau:.2g}，留 {k} 个，全变差 {lost:.3f}")
    top-k 50：τ = 0.0001，留 50 个，全变差 0.895
    top-p 0.9：τ = 0.0001，留 8002 个，全变差 0.100
    min-p 0.1：τ = 0.1，留 1 个，全变差 0.900
    """
    _check(probs)
    filters = {"top-k": top_k_filter, "top-p": top_p_filter, "min-p": min_p_filter}
    if rule not in filters:
        raise ValueError(f"rule 须为 top-k、top-p、min-p，收到 {rule!r}")
    if isinstance(value, bool) or (rule == "top-k" and not isinstance(value, int)):
        raise ValueError(f"{rule} 的参数须是{'整数' if rule == 'top-k' else '小数'}，收到 {value!r}")
    kept = [x for x, q in zip(probs, filters[rule](probs, value), strict=True) if q > 0]
    return min(kept), len(kept), max(0.0, 1 - math.fsum(kept))


def sizes_by_temperature(logits: Sequence[float], p: float, temperatures: Sequence[float]) -> list[int]:
    """先除温度再取核，各留几个：对温度单调不减，T → 0 是 1（无并列时），T → ∞ 是 ⌈pV⌉。

    >>> zipf = [-1.5 * math.log(rank) for rank in range(1, 10_001)]
    >>> sizes_by_temperature(zipf, 0.9, (0.01, 0.5, 1.0, 1.5, 2.0, 1000.0))
    [1, 2, 51, 3758, 6816, 8999]
    """
    return [int(nucleus(softmax(logits, t), p)["k"]) for t in temperatures]


# --8<-- [end:rules]


# --8<-- [start:sequence]
def local_is_not_global(p: float = 0.9) -> list[tuple[str, float, float, float]]:
    """反例：“逐步 top-p 等于在没被截掉的序列里按原概率采样”。两步：A（55%）之后很散，B（45%）之后很确定。

    A 之后 5 个 token：0.5、0.2、0.12、0.1、0.08，核里 4 个（Z = 0.92）；B 之后 0.99、0.01，核里 1 个（Z = 0.99）。
    返回（第一步的 token，原概率，逐步 top-p，整条序列的条件概率）。

    >>> for row in local_is_not_global():
    ...     print(row[0], [round(x, 4) for x in row[1:]])
    A [0.55, 0.55, 0.5318]
    B [0.45, 0.45, 0.4682]
    """
    _check([1.0], p)
    first = {"A": 0.55, "B": 0.45}
    after = {"A": [0.5, 0.2, 0.12, 0.1, 0.08], "B": [0.99, 0.01]}
    local = dict(zip(first, top_p_filter(list(first.values()), p), strict=True))
    mass = {name: nucleus(after[name], p)["Z"] * (local[name] > 0) for name in first}
    total = math.fsum(first[name] * mass[name] for name in first)
    return [(name, first[name], local[name], first[name] * mass[name] / total) for name in first]


def sequence_bounds(p: float, tokens: int) -> tuple[float, float]:
    """n = tokens 步的上界：（全变差 1 − pⁿ，KL −n ln p nat）。

    >>> [tuple(round(x, 3) for x in sequence_bounds(p, 50)) for p in (0.9, 0.99)]
    [(0.995, 5.268), (0.395, 0.503)]
    >>> round(sequence_bounds(0.95, 1000)[1], 1)                                    # 重要性权重的对数最多差这么多
    51.3
    """
    _check([1.0], p)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ValueError(f"tokens 须是不小于 1 的整数，收到 {tokens}")
    return 1 - p**tokens, -tokens * math.log(p)


# --8<-- [end:sequence]


# --8<-- [start:sampling]
def by_rejection(probs: Sequence[float], p: float, draws: int, random: Random) -> tuple[list[float], float]:
    """从 P 采样、不在核里就重抽：返回（频率，每个样本平均抽几次）。期望 1/Z ≤ 1/p 次，频率趋于 q：条件分布的定义。

    >>> frequency, tries = by_rejection([0.5, 0.2, 0.1, 0.08, 0.06, 0.03, 0.03], 0.75, 20_000, Random(0))
    >>> [round(x, 2) for x in frequency[:4]], round(tries, 2)                       # 应为 0.625、0.25、0.125；1/0.8 = 1.25
    ([0.62, 0.25, 0.13, 0.0], 1.25)
    """
    _check(probs, p)
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"draws 须是不小于 1 的整数，收到 {draws}")
    kept = [x > 0 for x in top_p_filter(probs, p)]
    counts, tries, tokens = [0] * len(probs), 0, range(len(probs))
    for _ in range(draws):
        while True:
            tries += 1
            token = random.choices(tokens, probs)[0]
            if kept[token]:
                break
        counts[token] += 1
    return [c / draws for c in counts], tries / draws


# --8<-- [end:sampling]


# --8<-- [start:wrong]
def at_most_p(probs: Sequence[float], p: float) -> list[int]:
    """反例：“留下累计不超过 p 的 token”。质量总是 ≤ p，全变差没有 1 − p 的保证，第一名超过 p 时是空集。

    >>> at_most_p([0.9, 0.1], 0.75), at_most_p([0.4, 0.35, 0.25], 0.74)              # 空集；只剩 0.4，丢掉 60%
    ([], [0])
    """
    _check(probs, p)
    kept, total = [], 0.0
    for i in sorted(range(len(probs)), key=lambda i: (-probs[i], i)):
        total += probs[i]
        if total > p:
            break
        kept.append(i)
    return kept


def rounding_keeps_one_more() -> list[int]:
    """累计和恰好等于 p 时，浮点舍入决定多留一个还是不留：各留几个，数学上都是 2。

    >>> rounding_keeps_one_more()                                                    # 0.6 + 0.3 = 0.8999999999999999 < 0.9
    [2, 3]
    """
    cases = ([0.5, 0.2, 0.2, 0.1], 0.7), ([0.6, 0.3, 0.1], 0.9)
    return [int(nucleus(probs, p)["k"]) for probs, p in cases]


# --8<-- [end:wrong]
