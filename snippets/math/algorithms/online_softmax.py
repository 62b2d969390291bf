"""在线 softmax：一遍扫过分数就得到 softmax 加权和；部分结果可以任意合并（只用标准库）。"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from snippets.common.chart import grid


# --8<-- [start:state]
@dataclass(frozen=True)
class Partial:
    """看过一部分 key 之后的状态：最大分数 m、指数和 l（以 m 为基准）、未归一化的输出 acc: (d,)。

    初始状态是 m = −inf、l = 0、acc = 0；它是 merge 的单位元。
    """

    m: float
    l: float
    acc: tuple[float, ...]

    @property
    def output(self) -> tuple[float, ...]:
        """归一化的输出；一个可见的 key 也没有时定义为 0（不是 NaN）。"""
        return tuple(x / self.l for x in self.acc) if self.l > 0 else tuple(0.0 for _ in self.acc)

    @property
    def logsumexp(self) -> float:
        return self.m + math.log(self.l) if self.l > 0 else -math.inf


def empty(d: int) -> Partial:
    """d 维输出的初始状态。"""
    if d < 1:
        raise ValueError(f"d 必须 ≥ 1，收到 {d}")
    return Partial(-math.inf, 0.0, (0.0,) * d)


def merge(x: Partial, y: Partial) -> Partial:
    """合并两段互不相交的 key 的状态：各自乘 e^(m−m') 换到同一基准再相加。可结合、可交换。

    >>> a, b = absorb(empty(1), [1000.0, 999.0], [[1.0], [2.0]]), absorb(empty(1), [998.0], [[4.0]])
    >>> whole = absorb(empty(1), [1000.0, 999.0, 998.0], [[1.0], [2.0], [4.0]])
    >>> math.isclose(merge(a, b).output[0], whole.output[0]), round(whole.output[0], 4)
    (True, 1.5148)
    >>> merge(a, empty(1)) == a                                  # 单位元：全被掩掉的块不影响结果
    True
    """
    if len(x.acc) != len(y.acc):
        raise ValueError(f"输出维数不同：{len(x.acc)} 与 {len(y.acc)}")
    m = max(x.m, y.m)
    if m == -math.inf:  # 两边都没有可见的 key：−inf − (−inf) 会得到 NaN
        return x
    scale_x, scale_y = math.exp(x.m - m), math.exp(y.m - m)
    return Partial(m, x.l * scale_x + y.l * scale_y, tuple(a * scale_x + b * scale_y for a, b in zip(x.acc, y.acc, strict=True)))


def absorb(state: Partial, scores: Sequence[float], values: Sequence[Sequence[float]]) -> Partial:
    """吸收一块 key：scores: (n,)，被掩掉的写 −inf；values: (n, d)。块可以为空。

    >>> absorb(empty(2), [-math.inf], [[7.0, 7.0]]).output       # 全部掩掉
    (0.0, 0.0)
    >>> absorb(empty(1), [math.nan], [[1.0]])
    Traceback (most recent call last):
    ...
    ValueError: 分数里有 NaN 或 +inf
    """
    if len(scores) != len(values):
        raise ValueError(f"分数与 value 个数不同：{len(scores)} 与 {len(values)}")
    if any(math.isnan(score) or score == math.inf for score in scores):
        raise ValueError("分数里有 NaN 或 +inf")
    m = max(scores, default=-math.inf)
    if m == -math.inf:
        return state
    weights = [math.exp(score - m) for score in scores]
    acc = tuple(math.fsum(w * v[j] for w, v in zip(weights, values, strict=True)) for j in range(len(state.acc)))
    return merge(state, Partial(m, math.fsum(weights), acc))


# --8<-- [end:state]


# --8<-- [start:cost]
def attention_bytes(s: int, heads: int, d: int, elem_bytes: int = 2) -> tuple[float, float]:
    """一层一条序列的前向：(显式写出分数矩阵的 GB, 分块只写输出与 logsumexp 的 GB)；GB = 10⁹ 字节。

    显式：分数与 softmax 各写一份 a·s² 个元素；分块：输出 a·s·d 个元素加每行一个 fp32 的 logsumexp。

    >>> for s in (8192, 131072):                                  # Llama-3-8B：32 头，d = 128
    ...     naive, tiled = attention_bytes(s, 32, 128)
    ...     print(f"{s:>6}  显式 {naive:8.2f} GB  分块 {tiled:6.3f} GB")
      8192  显式     8.59 GB  分块  0.068 GB
    131072  显式  2199.02 GB  分块  1.091 GB
    """
    if min(s, heads, d, elem_bytes) < 1:
        raise ValueError(f"s、heads、d、elem_bytes 都必须 ≥ 1，收到 {s, heads, d, elem_bytes}")
    return 2 * heads * s * s * elem_bytes / 1e9, heads * s * (d * elem_bytes + 4) / 1e9


def attention_flops(s: int, heads: int, d: int, causal: bool = False) -> float:
    """一层前向两个矩阵乘的 FLOPs：4·a·s²·d；causal=True 只数看得见的一半（含对角）。

    >>> attention_flops(8192, 32, 128) / 1e12, round(attention_flops(8192, 32, 128, causal=True) / 1e12, 3)
    (1.099511627776, 0.55)
    """
    if min(s, heads, d) < 1:
        raise ValueError(f"s、heads、d 都必须 ≥ 1，收到 {s, heads, d}")
    pairs = s * (s + 1) / 2 if causal else s * s
    return 4 * heads * d * pairs


def hbm_accesses(s: int, d: int, sram_elements: int) -> tuple[float, float]:
    """HBM 读写的元素数（一个头，量级）：(显式 Θ(sd + s²)，分块 Θ(s²d²/M))，常数取 4sd + 4s² 与 4s²d²/M（Dao 2022，定理 2）。

    >>> naive, tiled = hbm_accesses(8192, 128, sram_elements=98_304)     # 192 KB 的 SRAM，bf16
    >>> round(naive / tiled, 1)
    6.1
    """
    if min(s, d, sram_elements) < 1:
        raise ValueError(f"s、d、sram_elements 都必须 ≥ 1，收到 {s, d, sram_elements}")
    return 4 * s * d + 4 * s * s, 4 * s * s * d * d / sram_elements


# --8<-- [end:cost]


def figure_tiles() -> str:
    """因果掩码下的分块：整块可见、跨对角、整块跳过。"""
    tiles = 8
    names = {"full": "整块可见，不用掩码", "edge": "跨对角，块内加掩码", "skip": "整块不可见，跳过"}
    cells = [["skip" if k > q else "edge" if k == q else "full" for k in range(tiles)] for q in range(tiles)]
    return grid(
        cells,
        title="因果注意力按 8×8 块计算：28 块整块、8 块跨对角、28 块跳过",
        legend=names,
        row_title="查询块",
        column_title="key 块",
    )
