"""相对位置编码：Shaw、T5 分桶、ALiBi、RoPE，以及把 RoPE 拉长的三种办法（只用标准库）。"""

import cmath
import math
from collections.abc import Sequence

from snippets.common.chart import binary, lines


# --8<-- [start:rope]
def frequencies(d: int, base: float = 10_000.0) -> list[float]:
    """RoPE 的 d/2 个角频率 θ_i = base^(−2i/d)，从快到慢。

    >>> f = frequencies(128)
    >>> len(f), round(2 * math.pi / f[0], 2), round(2 * math.pi / f[-1])         # 波长从 2π 到 5 万 token
    (64, 6.28, 54410)
    """
    if d < 2 or d % 2 or base <= 1:
        raise ValueError(f"d 须为正偶数、base > 1，收到 {d}、{base}")
    return [base ** (-2 * i / d) for i in range(d // 2)]


def rotate(x: Sequence[float], position: float, theta: Sequence[float]) -> list[float]:
    """把 x 的第 i 对坐标 (x_{2i}, x_{2i+1}) 当复数，乘 e^{i·position·θ_i}（相邻配对）。"""
    if len(x) != 2 * len(theta):
        raise ValueError(f"x 有 {len(x)} 维，频率 {len(theta)} 个")
    out = []
    for i, t in enumerate(theta):
        z = complex(x[2 * i], x[2 * i + 1]) * cmath.exp(1j * position * t)
        out += [z.real, z.imag]
    return out


def rope_score(q: Sequence[float], k: Sequence[float], m: int, n: int, theta: Sequence[float]) -> float:
    """位置 m 的 q 与位置 n 的 k 旋转之后的点积，只依赖 m − n。

    >>> theta, q, k = frequencies(4), [1.0, 2.0, 3.0, 4.0], [0.5, -1.0, 2.0, 0.0]
    >>> [round(rope_score(q, k, m, m - 4, theta), 9) for m in (7, 107, 100_007)]
    [8.169356388, 8.169356388, 8.169356388]
    """
    return math.fsum(a * b for a, b in zip(rotate(q, m, theta), rotate(k, n, theta), strict=True))


# --8<-- [end:rope]


# --8<-- [start:bias]
def alibi_slopes(heads: int) -> list[float]:
    """ALiBi 每个头的斜率：头数是 2 的幂时 2^(−8/heads), 2^(−16/heads), …；分数减去 斜率·(i − j)。

    >>> alibi_slopes(8)
    [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    """
    if heads < 1 or heads & (heads - 1):
        raise ValueError(f"这里只处理 2 的幂，收到 {heads}")
    return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]


def t5_bucket(relative: int, *, buckets: int = 32, far: int = 128, bidirectional: bool = True) -> int:
    """T5 的分桶。relative = 键的位置 − 查询的位置；近处一个距离一个桶，远处按对数合并，超过 far 的都进最后一个桶。

    >>> [t5_bucket(r) for r in (0, -1, -8, -16, -64, -128, -1000, 1, 8)]
    [0, 1, 8, 10, 14, 15, 15, 17, 24]
    """
    if buckets < 4 or buckets % 2 or far <= buckets // 4:
        raise ValueError(f"buckets 须是不小于 4 的偶数且 far 足够大，收到 {buckets}、{far}")
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return offset + distance
    log = exact + int(math.log(distance / exact) / math.log(far / exact) * (buckets - exact))
    return offset + min(log, buckets - 1)


def shaw_index(i: int, j: int, clip: int) -> int:
    """Shaw 2018：第 j 个键相对第 i 个查询的偏移截断到 [−clip, clip]，再加 clip 变成查表的下标（共 2·clip + 1 个向量）。

    >>> [shaw_index(10, j, 4) for j in (0, 7, 10, 12, 99)]
    [0, 1, 4, 6, 8]
    """
    if clip < 0:
        raise ValueError(f"clip 不能为负，收到 {clip}")
    return max(-clip, min(clip, j - i)) + clip


# --8<-- [end:bias]


# --8<-- [start:stretch]
def stretched(
    d: int, factor: float, trained: int, method: str, base: float = 10_000.0, low: float = 1.0, high: float = 32.0
) -> list[float]:
    """把训练长度 trained 拉长 factor 倍的三种改频率的办法。

    interpolate：所有频率除以 factor（位置插值）；ntk：base 乘 factor^(d/(d−2))，最快的不动、最慢的恰好除以 factor；
    yarn：按训练长度内转的圈数 r 分段，r > high 不动，r < low 除以 factor，中间线性过渡（Peng 2023，式 13 的斜坡）。

    >>> for method in ("interpolate", "ntk", "yarn"):
    ...     new, old = stretched(128, 4, 8192, method), frequencies(128)
    ...     print(method, [round(old[i] / new[i], 2) for i in (0, 20, 40, 63)])
    interpolate [4.0, 4.0, 4.0, 4.0]
    ntk [1.0, 1.55, 2.41, 4.0]
    yarn [1.0, 1.0, 3.07, 4.0]
    """
    if factor < 1 or trained < 1:
        raise ValueError(f"factor ≥ 1、trained ≥ 1，收到 {factor}、{trained}")
    theta = frequencies(d, base)
    if method == "interpolate":
        return [t / factor for t in theta]
    if method == "ntk":
        return frequencies(d, base * factor ** (d / (d - 2)))
    if method == "yarn":
        out = []
        for t in theta:
            turns = trained * t / (2 * math.pi)
            keep = min(1.0, max(0.0, (turns - low) / (high - low)))
            out.append(t * (keep + (1 - keep) / factor))
        return out
    raise ValueError(f"method 须为 interpolate、ntk、yarn，收到 {method!r}")


def yarn_temperature(factor: float) -> float:
    """YaRN 另把 q、k 各乘 √(1/t) = 0.1·ln(factor) + 1，抵消长上下文里注意力变散。

    >>> round(yarn_temperature(4), 4), round(yarn_temperature(32), 4)
    (1.1386, 1.3466)
    """
    if factor < 1:
        raise ValueError(f"factor ≥ 1，收到 {factor}")
    return 0.1 * math.log(factor) + 1


# --8<-- [end:stretch]


def figure_decay() -> str:
    """q = k = 全 1 时 RoPE 分数（除以 d）随距离：整体下降但有振荡；base 大则降得慢。"""
    theta = frequencies(128)
    distances = [0] + [2**k for k in range(15)]
    return lines(
        {
            "RoPE，base 1 万": [(max(m, 0.5), math.fsum(math.cos(m * t) for t in theta) / 64) for m in distances],
            "RoPE，base 50 万": [(max(m, 0.5), math.fsum(math.cos(m * t) for t in frequencies(128, 5e5)) / 64) for m in distances],
        },
        title="q = k 全为 1 时的 RoPE 分数 ÷ d",
        x_label="距离（最左是 0）",
        y_label="分数 ÷ d",
        x_log=2,
        x_fmt=binary,
        markers=True,
    )
