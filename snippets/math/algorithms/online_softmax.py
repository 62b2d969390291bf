"""在线 softmax：一遍扫过分数就得到 softmax 加权和；部分结果可以任意合并。附分块注意力的字节、FLOPs 与时间下限（只用标准库）。"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from snippets.common.chart import grid


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0 or math.isinf(value):
            raise ValueError(f"{name} 必须为正且有限，收到 {value}")


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
    _positive(d=d)
    return Partial(-math.inf, 0.0, (0.0,) * d)


def merge(x: Partial, y: Partial) -> Partial:
    """合并两段互不相交的 key 的状态：各自换到较大的基准再相加。可结合、可交换（差别只在舍入）。

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
    """吸收一块 key：scores: (n,)，被掩掉的写 −inf，其 value 不读；values: (n, d)。块可以为空。

    >>> absorb(empty(2), [-math.inf], [[7.0, 7.0]]).output       # 全部掩掉
    (0.0, 0.0)
    >>> absorb(empty(1), [math.nan], [[1.0]])
    Traceback (most recent call last):
    ...
    ValueError: 分数里有 NaN 或 +inf
    """
    if len(scores) != len(values):
        raise ValueError(f"分数与 value 个数不同：{len(scores)} 与 {len(values)}")
    d = len(state.acc)
    if any(len(value) != d for value in values):
        raise ValueError(f"每个 value 须有 {d} 维，收到 {sorted({len(value) for value in values})}")
    if any(math.isnan(score) or score == math.inf for score in scores):
        raise ValueError("分数里有 NaN 或 +inf")
    seen = [(score, value) for score, value in zip(scores, values, strict=True) if score > -math.inf]
    if not seen:
        return state
    m = max(score for score, _ in seen)
    weights = [math.exp(score - m) for score, _ in seen]
    acc = tuple(math.fsum(w * value[j] for w, (_, value) in zip(weights, seen, strict=True)) for j in range(d))
    return merge(state, Partial(m, math.fsum(weights), acc))


# --8<-- [end:state]


# --8<-- [start:tiles]
def causal_tiles(s: int, t: int, tile_q: int, tile_k: int) -> list[list[str]]:
    """右下对齐的因果掩码按块分类，行是查询块、列是 key 块："full" 整块可见、"edge" 跨边界、"skip" 整块不可见。

    s 个查询是 t 个 key 的最后 s 个位置；查询 i 看得见 key j 当且仅当 j ≤ i + t − s。边角不满的块按实际大小判断。

    >>> from collections import Counter
    >>> counts = Counter(kind for row in causal_tiles(8192, 8192, 128, 128) for kind in row)
    >>> counts["full"], counts["edge"], counts["skip"]                  # 要算 2080 / 4096 = 50.8%，只有 64 块要掩码
    (2016, 64, 2016)
    >>> for row in causal_tiles(3, 5, 1, 2):                            # chunked prefill：2 个缓存，3 个新 token
    ...     print(row)
    ['full', 'edge', 'skip']
    ['full', 'full', 'skip']
    ['full', 'full', 'full']
    """
    _positive(s=s, t=t, tile_q=tile_q, tile_k=tile_k)

    def kind(i: int, j: int) -> str:
        last_row, last_column = min(i + tile_q, s) - 1, min(j + tile_k, t) - 1
        if j > last_row + t - s:
            return "skip"
        return "full" if last_column <= i + t - s else "edge"

    return [[kind(i, j) for j in range(0, t, tile_k)] for i in range(0, s, tile_q)]


# --8<-- [end:tiles]


# --8<-- [start:cost]
def attention_memory(s: int, heads: int, d: int, elem_bytes: int = 2) -> tuple[float, float]:
    """一层一条序列的前向新分配的 GB：(显式，分块)；GB = 10⁹ 字节，不含 Q、K、V。

    显式：分数与 softmax 各一份 a·s² 个元素；分块：输出 a·s·d 个元素，每行另有一个 fp32 的 logsumexp。

    >>> for s in (8192, 131072):                                  # Llama-3-8B：32 头，d = 128，bf16
    ...     explicit, tiled = attention_memory(s, 32, 128)
    ...     print(f"s = {s:>6}  显式 {explicit:8.2f} GB  分块 {tiled:6.3f} GB")
    s =   8192  显式     8.59 GB  分块  0.068 GB
    s = 131072  显式  2199.02 GB  分块  1.091 GB
    >>> 131072**2 / 1e9                                           # 光是一张 (s, s) 的 bool 掩码
    17.179869184
    """
    _positive(s=s, heads=heads, d=d, elem_bytes=elem_bytes)
    return 2 * heads * s * s * elem_bytes / 1e9, heads * s * (d * elem_bytes + 4) / 1e9


def attention_flops(s: int, heads: int, d: int, causal: bool = False, backward: bool = False) -> float:
    """一层一条序列的矩阵乘 FLOPs：前向 2 个、带重算的反向 5 个，各 2·a·s²·d；causal=True 只数可见的 s(s+1)/2 对。

    >>> for causal in (False, True):                              # Llama-3-8B，s = 8192，TFLOP
    ...     print([round(attention_flops(8192, 32, 128, causal, backward) / 1e12, 2) for backward in (False, True)])
    [1.1, 2.75]
    [0.55, 1.37]
    """
    _positive(s=s, heads=heads, d=d)
    pairs = s * (s + 1) / 2 if causal else s * s
    return (5 if backward else 2) * 2 * heads * d * pairs


def forward_floor(
    s: int, heads: int, kv_heads: int, d: int, peak: float, bandwidth: float, elem_bytes: int = 2
) -> list[tuple[str, float, float, float]]:
    """前向（不因果）的下限：每行 (做法, HBM 读写 GB, 带宽时间 ms, 算力时间 ms)。peak: FLOP/s；bandwidth: 字节/秒。

    显式：S 写、读，P 写、读，共 4·a·s² 个元素，加上 Q、K、V、O 各一次。分块：只剩 Q、K、V、O 与 logsumexp；
    K、V 在 L2 里命中就只读一次，全不命中则每个查询头的每 128 行各读一遍。

    >>> for name, gb, memory, compute in forward_floor(8192, 32, 8, 128, peak=989e12, bandwidth=3.35e12):   # H100 SXM
    ...     print(f"{gb:6.2f} GB  带宽 {memory:5.2f} ms  算力 {compute:.2f} ms  {name}")
     17.35 GB  带宽  5.18 ms  算力 1.11 ms  显式
      8.73 GB  带宽  2.60 ms  算力 1.11 ms  分块，K、V 每次都从 HBM 读
      0.17 GB  带宽  0.05 ms  算力 1.11 ms  分块，K、V 只从 HBM 读一次
    """
    _positive(s=s, heads=heads, kv_heads=kv_heads, d=d, peak=peak, bandwidth=bandwidth, elem_bytes=elem_bytes)
    q_and_out, kv, lse = 2 * heads * s * d * elem_bytes, 2 * kv_heads * s * d * elem_bytes, 4 * heads * s
    traffic = {
        "显式": 4 * heads * s * s * elem_bytes + q_and_out + kv,
        "分块，K、V 每次都从 HBM 读": math.ceil(s / 128) * 2 * heads * s * d * elem_bytes + q_and_out + lse,
        "分块，K、V 只从 HBM 读一次": kv + q_and_out + lse,
    }
    compute = attention_flops(s, heads, d) / peak * 1e3
    return [(name, moved / 1e9, moved / bandwidth * 1e3, compute) for name, moved in traffic.items()]


# --8<-- [end:cost]


def figure_tiles() -> str:
    """右下对齐的因果掩码分块：整块可见、跨对角；整块不可见的留白。"""
    tiles = causal_tiles(640, 1024, 128, 128)
    return grid(
        [[None if kind == "skip" else kind for kind in row] for row in tiles],
        title="640 个新查询接在 384 个缓存之后，按 128 分块：25 块整块、5 块跨对角、空白的 10 块跳过",
        legend={"full": "整块可见，不用掩码", "edge": "跨对角，块内加掩码"},
        rows=[f"{384 + 128 * i}" for i in range(5)],
        columns=[f"{128 * j}" for j in range(8)],
        row_title="查询块的起始位置",
        column_title="key 块的起始位置",
    )
