"""绝对与相对位置编码放在一起量：平移之后分数变不变，超出训练长度之后哪些相位没见过（只用标准库）。"""

import math
from collections.abc import Callable, Sequence
from random import Random

from snippets.deep_learning.attention.relative_positions import alibi_slopes, frequencies, rope_score, t5_bucket

Vector = Sequence[float]


# --8<-- [start:absolute]
def sinusoidal(position: int, d: int) -> list[float]:
    """Vaswani 2017：PE[2i] = sin(pos/10000^(2i/d))，PE[2i+1] 是同一个角的 cos（指数同为 2i/d）。

    >>> [round(v, 4) for v in sinusoidal(1, 4)]
    [0.8415, 0.5403, 0.01, 1.0]
    """
    if position < 0:
        raise ValueError(f"位置不能为负，收到 {position}")
    return [f(position * t) for t in frequencies(d) for f in (math.sin, math.cos)]


# --8<-- [end:absolute]


def _dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


# --8<-- [start:shift]
def schemes(d: int = 64, seed: int = 0) -> dict[str, Callable[[int, int], float]]:
    """同一对内容向量 q、k 在位置 m、n 上的分数，五种做法；参数随机（未训练），只看函数的形状。"""
    random = Random(seed)
    q, k = ([random.gauss(0, 1) for _ in range(d)] for _ in range(2))
    learned = [[random.gauss(0, 1) for _ in range(d)] for _ in range(512)]
    bias = [random.gauss(0, 1) for _ in range(32)]

    def added(table: Callable[[int], Vector]) -> Callable[[int, int], float]:
        return lambda m, n: _dot([a + p for a, p in zip(q, table(m), strict=True)], [a + p for a, p in zip(k, table(n), strict=True)])

    theta, slope = frequencies(d), alibi_slopes(8)[0]
    return {
        "学习的绝对位置": added(lambda m: learned[m]),
        "正弦绝对位置": added(lambda m: sinusoidal(m, d)),
        "T5 偏置": lambda m, n: _dot(q, k) + bias[t5_bucket(n - m)],
        "ALiBi": lambda m, n: _dot(q, k) - slope * (m - n),
        "RoPE": lambda m, n: rope_score(q, k, m, n, theta),
    }


def shift_changes(by: int = 100) -> dict[str, float]:
    """把 (m, n) = (7, 3) 整体平移 by，分数变多少（四位小数）：相对编码都是 0。

    >>> shift_changes()
    {'学习的绝对位置': 17.8314, '正弦绝对位置': 4.0976, 'T5 偏置': 0.0, 'ALiBi': 0.0, 'RoPE': 0.0}
    """
    if not 0 <= by < 500:
        raise ValueError(f"by 须在 0 到 499 之间（学习的位置表只有 512 行），收到 {by}")
    return {name: abs(round(score(7 + by, 3 + by) - score(7, 3), 4)) for name, score in schemes().items()}


# --8<-- [end:shift]


# --8<-- [start:phase]
def unfinished_pairs(d: int, trained: int, base: float) -> int:
    """训练长度内连一圈都没转完的频率有几对：这些维在更远处的角度从未见过。

    >>> unfinished_pairs(128, 4096, 1e4), unfinished_pairs(128, 8192, 5e5)      # Llama 2 与 Llama 3 的设置，共 64 对
    (18, 29)
    """
    if trained < 1:
        raise ValueError(f"trained 须为正，收到 {trained}")
    return sum(2 * math.pi / t > trained for t in frequencies(d, base))


def largest_unseen_angle(d: int, trained: int, length: int, base: float) -> float:
    """直接外推到 length 时，最慢的没转完的那些维里，超出见过范围的最大角度（弧度）。0 表示没有新角度。

    >>> [round(largest_unseen_angle(128, 4096, length, 1e4), 2) for length in (4096, 8192, 32_768)]
    [0.0, 3.07, 5.44]
    """
    if length < trained:
        raise ValueError(f"length 须不小于 trained，收到 {length}、{trained}")
    worst = 0.0
    for t in frequencies(d, base):
        seen = min(2 * math.pi, (trained - 1) * t)
        worst = max(worst, min(2 * math.pi, (length - 1) * t) - seen)
    return worst


# --8<-- [end:phase]
