"""Megatron 的进程网格与每个 rank 分到的参数（只用标准库）。"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

ORDER = "tp-cp-ep-dp-pp"  # Megatron-LM 的默认次序：越靠左，相邻 rank 越近


# --8<-- [start:grid]
def coordinates(rank: int, sizes: Mapping[str, int], order: str = ORDER) -> dict[str, int]:
    """全局 rank 在各维上的坐标。最左的维变得最快，所以 TP 组是连续的 rank，落在同一台机器里。

    >>> coordinates(13, {"tp": 4, "dp": 2, "pp": 2})
    {'tp': 1, 'cp': 0, 'ep': 0, 'dp': 1, 'pp': 1}
    """
    dims = order.split("-")
    full = [sizes.get(dim, 1) for dim in dims]
    if set(sizes) - set(dims) or min(full) < 1 or not 0 <= rank < math.prod(full):
        raise ValueError(f"维须取自 {order}、大小为正、rank 在 [0, {math.prod(full)}) 内")
    out = {}
    for dim, size in zip(dims, full, strict=True):
        rank, out[dim] = divmod(rank, size)
    return out


def groups(along: str, sizes: Mapping[str, int], order: str = ORDER) -> list[list[int]]:
    """沿若干维（用 - 连起来）的全部通信组：组内的 rank 只有这些维的坐标不同。

    >>> sizes = {"tp": 2, "dp": 2, "pp": 2}
    >>> groups("tp", sizes), groups("pp", sizes)
    ([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]])
    >>> groups("tp-dp", sizes)
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    chosen = set(along.split("-"))
    if not chosen <= set(order.split("-")):
        raise ValueError(f"{along} 里有不在 {order} 中的维")
    world = math.prod(sizes.values())
    key = lambda rank: tuple(v for dim, v in reversed(coordinates(rank, sizes, order).items()) if dim not in chosen)  # noqa: E731
    ranked = sorted(range(world), key=lambda rank: (key(rank), rank))
    return [list(members) for _, members in itertools.groupby(ranked, key=key)]


# --8<-- [end:grid]


# --8<-- [start:parameters]
@dataclass(frozen=True)
class Dense:
    """一个稠密的 Llama 式模型：kv 个 KV 头、d 每头维度、f MLP 宽、vocabulary 词表，首尾嵌入不绑定。"""

    layers: int
    h: int
    a: int
    kv: int
    d: int
    f: int
    vocabulary: int


LLAMA3_70B = Dense(80, 8192, 64, 8, 128, 28672, 128256)
LLAMA3_8B = Dense(32, 4096, 32, 8, 128, 14336, 128256)


def per_rank(model: Dense, t: int, p: int) -> list[dict[str, int]]:
    """每一段（p 段）里一个 TP rank 分到的参数：切开的与复制的分开数。

    KV 头少于 t 时 Megatron 仍把合成的 QKV 权重平分（激活再聚齐取用），所以参数照样除以 t。

    >>> for stage in per_rank(LLAMA3_70B, 8, 4):
    ...     print(stage, sum(stage.values()))
    {'切开的': 2270429184, '复制的': 327680} 2270756864
    {'切开的': 2139095040, '复制的': 327680} 2139422720
    {'切开的': 2139095040, '复制的': 327680} 2139422720
    {'切开的': 2270429184, '复制的': 335872} 2270765056
    >>> one = per_rank(LLAMA3_70B, 1, 1)[0]
    >>> sum(one.values())                                             # 不切：与公布的结构一致
    70553706496
    """
    if min(t, p) < 1 or model.layers % p or model.a % t or model.f % t or model.vocabulary % t:
        raise ValueError(f"层数须被 p 整除，头数、MLP 宽、词表须被 t 整除，收到 t={t}、p={p}")
    if (model.a + 2 * model.kv) * model.d % t:
        raise ValueError(f"合成的 QKV 宽 {(model.a + 2 * model.kv) * model.d} 须被 t={t} 整除")
    attention = 2 * model.h * (model.a + model.kv) * model.d
    layer = (attention + 3 * model.h * model.f) // t
    out = []
    for stage in range(p):
        split, copied = layer * (model.layers // p), 2 * model.h * (model.layers // p)
        ends = (stage == 0) + (stage == p - 1)
        split += ends * model.vocabulary * model.h // t
        copied += model.h * (stage == p - 1)
        out.append({"切开的": split, "复制的": copied})
    return out


# --8<-- [end:parameters]


# --8<-- [start:states]
def state_gb(model: Dense, t: int, p: int, d: int) -> list[float]:
    """每段每卡的模型状态（GB = 10⁹）：bf16 权重 2 + fp32 梯度 4，分布式优化器把 fp32 主权重、m、v 的 12 字节切到 d 份。

    >>> [round(x, 1) for x in state_gb(LLAMA3_70B, 8, 4, 32)], [round(x, 1) for x in state_gb(LLAMA3_70B, 8, 4, 1)]
    ([14.5, 13.6, 13.6, 14.5], [40.9, 38.5, 38.5, 40.9])
    """
    if d < 1:
        raise ValueError(f"d 须为正，收到 {d}")
    return [sum(stage.values()) * (2 + 4 + 12 / d) / 1e9 for stage in per_rank(model, t, p)]


# --8<-- [end:states]
