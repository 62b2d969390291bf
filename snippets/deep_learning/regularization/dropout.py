"""dropout：反向缩放、噪声有多大、掩码占多少显存（只用标准库）。"""

import math
from collections.abc import Sequence
from random import Random

from snippets.infra.memory.activation_memory import GPT3, Shape


# --8<-- [start:dropout]
def dropout(x: Sequence[float], p: float, random: Random, *, training: bool = True) -> list[float]:
    """反向缩放的 dropout：以概率 p 置 0，留下的除以 1 − p，于是期望不变，推理时什么也不用做。

    >>> kept = dropout([1.0] * 100_000, 0.1, Random(0))
    >>> round(math.fsum(kept) / len(kept), 3), sorted(set(kept))
    (1.0, [0.0, 1.1111111111111112])
    >>> dropout([1.0, 2.0], 0.5, Random(0), training=False)
    [1.0, 2.0]
    """
    if not 0 <= p < 1:
        raise ValueError(f"p 必须在 [0, 1) 内，收到 {p}")
    if not training or p == 0:
        return list(x)
    return [0.0 if random.random() < p else v / (1 - p) for v in x]


def relative_noise(p: float, n: int) -> float:
    """n 个同号等大的输入各自 dropout 再相加，标准差除以均值：√(p / ((1 − p) n))。

    >>> [round(relative_noise(p, 4096), 4) for p in (0.1, 0.5)]        # h = 4096 的一次点积
    [0.0052, 0.0156]
    >>> round(relative_noise(0.1, 1), 3)                               # 残差流上逐元素的噪声
    0.333
    """
    if not 0 <= p < 1 or not 1 <= n < math.inf:
        raise ValueError(f"须 0 ≤ p < 1 且 n ≥ 1，收到 {p}、{n}")
    return math.sqrt(p / ((1 - p) * n))


# --8<-- [end:dropout]


# --8<-- [start:memory]
def layer_bytes_per_sbh(shape: Shape = GPT3, *, dropout: bool = True) -> float:
    """GPT 式的一层为反向留的字节，以 sbh 为单位（Korthikanti 2022 的清单）。

    有 dropout：34 + 5as/h。没有：两处残差的掩码（1 + 1）、注意力的掩码（as/h）与 dropout 后的那份权重（2as/h）都不用留。

    >>> layer_bytes_per_sbh(), layer_bytes_per_sbh(dropout=False)       # as/h = 16
    (114.0, 64.0)
    """
    square = shape.a * shape.s / shape.h
    return 34 + 5 * square if dropout else 32 + 2 * square


# --8<-- [end:memory]
