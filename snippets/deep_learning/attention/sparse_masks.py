"""稀疏注意力：各种掩码画出来、数出来，以及按内容选块的 NSA、MoBA、DSA 的账（只用标准库）。"""

import math
from collections.abc import Callable, Sequence
from random import Random

from snippets.common.chart import grid

Mask = list[list[bool]]


# --8<-- [start:masks]
def build(s: int, allowed: Callable[[int, int], bool]) -> Mask:
    """因果的 (s, s) 掩码：j ≤ i 且 allowed(i, j)。True 表示第 i 个查询能看第 j 个键。"""
    if s < 1:
        raise ValueError(f"s 须为正，收到 {s}")
    return [[j <= i and allowed(i, j) for j in range(s)] for i in range(s)]


def window(s: int, w: int) -> Mask:
    """滑动窗口：最近 w 个（含自己）。Mistral、Gemma 的局部层。

    >>> [sum(row) for row in window(6, 3)]
    [1, 2, 3, 3, 3, 3]
    """
    if w < 1:
        raise ValueError(f"窗口须为正，收到 {w}")
    return build(s, lambda i, j: i - j < w)


def dilated(s: int, w: int, step: int) -> Mask:
    """空洞窗口：往前每 step 个看一个，共 w 个（Longformer）。"""
    if w < 1 or step < 1:
        raise ValueError(f"窗口与步长须为正，收到 {w}、{step}")
    return build(s, lambda i, j: (i - j) % step == 0 and (i - j) // step < w)


def sink_and_window(s: int, w: int, sinks: int) -> Mask:
    """开头几个加最近 w 个（StreamingLLM）；Longformer、BigBird 的全局 token 同理。"""
    if w < 1 or sinks < 0:
        raise ValueError(f"窗口须为正、sinks 不能为负，收到 {w}、{sinks}")
    return build(s, lambda i, j: i - j < w or j < sinks)


def strided(s: int, stride: int) -> Mask:
    """Sparse Transformer 的两种头合在一起：最近 stride 个，与每隔 stride 的那一列（Child 2019）。"""
    if stride < 1:
        raise ValueError(f"步长须为正，收到 {stride}")
    return build(s, lambda i, j: i - j < stride or j % stride == stride - 1)


def global_and_random(s: int, w: int, block: int, globals_: int, picks: int, seed: int = 0) -> Mask:
    """窗口、开头的全局 token，再加每行随机的几个过去的块（BigBird 的三种成分，原文是双向，这里取因果的一半）。

    >>> mask = global_and_random(64, 8, block=4, globals_=2, picks=1)
    >>> min(map(sum, mask[20:])), max(map(sum, mask[20:]))        # 窗口 8、全局 2、一个块 4，可能重叠
    (10, 14)
    """
    if min(w, block) < 1 or min(globals_, picks) < 0:
        raise ValueError(f"窗口与块须为正、全局与随机的个数不能为负，收到 {w}、{block}、{globals_}、{picks}")
    random = Random(seed)
    chosen = [random.sample(range(i // block + 1), min(picks, i // block + 1)) for i in range(s)]
    return build(s, lambda i, j: i - j < w or j < globals_ or j // block in chosen[i])


def tokens_by_score(scores: Sequence[Sequence[float]], top: int) -> Mask:
    """逐 token 选：每个查询在过去（含自己）里取分数最高的 top 个（DSA 的索引器选出的形状）。

    >>> [j for j, seen in enumerate(tokens_by_score([[j % 3 for j in range(9)]] * 9, 3)[8]) if seen]
    [2, 5, 8]
    """
    s = len(scores)
    if top < 1 or any(len(row) != s for row in scores):
        raise ValueError(f"scores 须是方阵，top 为正，收到 {top}")
    chosen = [set(sorted(range(i + 1), key=lambda j: (-row[j], j))[:top]) for i, row in enumerate(scores)]
    return build(s, lambda i, j: j in chosen[i])


def blocks_by_score(scores: Sequence[Sequence[float]], block: int, top: int, local: int = 1) -> Mask:
    """按内容选块：每个查询按块的平均分挑 top 个过去的块，另加自己所在的 local 块（MoBA、NSA 的选择支路的骨架）。

    scores: (s, s) 任意实数，只用因果部分。选哪些块由查询当场决定，所以掩码每条输入都不同。

    >>> s = 8
    >>> scores = [[5.0 if j < 2 else 0.0 for j in range(s)] for _ in range(s)]
    >>> [j for j, seen in enumerate(blocks_by_score(scores, block=2, top=1)[7]) if seen]
    [0, 1, 6, 7]
    """
    s = len(scores)
    if block < 1 or top < 0 or local < 1 or any(len(row) != s for row in scores):
        raise ValueError(f"scores 须是方阵，block、local 为正，top 非负，收到 {block}、{top}、{local}")
    chosen: list[set[int]] = []
    for i, row in enumerate(scores):
        own = i // block
        past = range(max(0, own - local + 1))
        mean = {b: math.fsum(row[b * block : (b + 1) * block]) / block for b in past}
        best = sorted(past, key=lambda b: (-mean[b], b))[:top]
        chosen.append({*best, *range(max(0, own - local + 1), own + 1)})
    return build(s, lambda i, j: j // block in chosen[i])


# --8<-- [end:masks]


# --8<-- [start:count]
def density(mask: Mask) -> float:
    """看得见的对数占因果全部对数的比例。

    >>> [round(density(m), 3) for m in (window(1024, 128), sink_and_window(1024, 128, 4), strided(1024, 32))]
    [0.234, 0.241, 0.09]
    """
    s = len(mask)
    return sum(map(sum, mask)) / (s * (s + 1) // 2)


def reachable_layers(w: int, s: int) -> int:
    """只有窗口层时，最后一个 token 要几层才能间接看到第一个：⌈(s − 1)/(w − 1)⌉。

    >>> reachable_layers(4096, 131_072)
    33
    """
    if w < 2 or s < 1:
        raise ValueError(f"窗口须大于 1、s 为正，收到 {w}、{s}")
    return math.ceil((s - 1) / (w - 1))


# --8<-- [end:count]


# --8<-- [start:published]
def keys_read(s: int) -> dict[str, int]:
    """解码到第 s 个 token，一层要读多少个键（或压缩后的等价物）。

    NSA（Yuan 2025 的配置）：压缩块长 32 步长 16，选 16 个长 64 的块，窗口 512；
    DSA（DeepSeek-V3.2）：轻量索引器扫全部 s 个（维数小），主注意力只读选出的 2048 个；
    MoBA（Lu 2025 扩展律实验的配置）：块长 512 选 3 块，含当前块。

    >>> for s in (8192, 65_536):
    ...     print(s, keys_read(s))
    8192 {'全注意力': 8192, '窗口 4096': 4096, 'NSA': 2047, 'DSA 主注意力': 2048, 'MoBA': 1536}
    65536 {'全注意力': 65536, '窗口 4096': 4096, 'NSA': 5631, 'DSA 主注意力': 2048, 'MoBA': 1536}
    """
    if s < 1:
        raise ValueError(f"s 须为正，收到 {s}")
    compressed = max(0, (s - 32) // 16 + 1)
    return {
        "全注意力": s,
        "窗口 4096": min(s, 4096),
        "NSA": min(s, compressed + 16 * 64 + 512),
        "DSA 主注意力": min(s, 2048),
        "MoBA": min(s, 3 * 512),
    }


# --8<-- [end:published]


# --8<-- [start:wrong]
def bank_mask(s: int, w: int) -> Mask:
    """反例：题库的 local_attention，mask = triu(ones, diagonal=w//2)，保留 mask ≠ 0。

    留下的是 j ≥ i + w/2：只看远处的未来，窗口内一个也没有；最后 w/2 行全被屏蔽。

    >>> mask = bank_mask(128, 32)
    >>> sum(mask[i][j] for i in range(128) for j in range(128) if abs(i - j) < 16), mask[0].index(True), sum(not any(r) for r in mask)
    (0, 16, 16)
    """
    return [[j - i >= w // 2 for j in range(s)] for i in range(s)]


# --8<-- [end:wrong]


def _drawn(mask: Mask, title: str) -> str:
    cells = [["看得见" if seen else None for seen in row] for row in mask]
    return grid(cells, title=title, legend={"看得见": "看得见"}, row_title="查询", column_title="键")


def _parts(title: str, parts: dict[str, Mask]) -> str:
    """几种成分叠在一张图上：同一格属于多种时，记给先列出的一种。"""
    s = len(next(iter(parts.values())))
    cells = [[next((name for name, mask in parts.items() if mask[i][j]), None) for j in range(s)] for i in range(s)]
    return grid(cells, title=title, legend={name: name for name in parts}, row_title="查询", column_title="键")


def figure_sink() -> str:
    """开头 2 个加最近 4 个，16×16。"""
    return _parts("开头 2 个加窗口 4", {"窗口": window(16, 4), "开头": sink_and_window(16, 1, 2)})


def figure_bigbird() -> str:
    """窗口 3、开头 2 个全局、每行随机一个块（块长 4），16×16。"""
    alone = global_and_random(16, 1, 4, 0, 1)
    return _parts("窗口、全局与随机块", {"窗口": window(16, 3), "全局": sink_and_window(16, 1, 2), "随机块": alone})


def figure_strided() -> str:
    """最近 4 个，与每隔 4 的列，16×16。"""
    return _parts("步长 4", {"最近 4 个": window(16, 4), "每隔 4 的列": strided(16, 4)})


def _toy_scores() -> list[list[float]]:
    return [[math.cos(1.9 * i - 2.1 * (j // 4)) + 0.3 * math.sin(2.1 * j + i) for j in range(16)] for i in range(16)]


def figure_blocks() -> str:
    """按内容选 1 个块（块长 4）、自己所在的块与窗口 3，16×16：NSA 的选择支路与窗口支路（压缩支路看所有块的摘要，没有单独的格子）。"""
    own = blocks_by_score(_toy_scores(), 4, 0)
    return _parts("按块选", {"窗口": window(16, 3), "自己的块": own, "选中的块": blocks_by_score(_toy_scores(), 4, 1)})


def figure_tokens() -> str:
    """逐 token 选 4 个，16×16：DSA 的形状。"""
    return _drawn(tokens_by_score(_toy_scores(), 4), "逐 token 选 4 个")
