"""两种注意力打分，与“软查表”的直觉（只用标准库）。"""

import math
from collections.abc import Sequence

Vector = Sequence[float]


# --8<-- [start:softmax]
def _check(name: str, rows: Sequence[Vector], width: int) -> None:
    """rows 须非空、每行都是 width 个有限数。"""
    if not rows or width < 1 or any(len(row) != width for row in rows) or not all(math.isfinite(x) for row in rows for x in row):
        raise ValueError(f"{name} 须非空、维数相等（{width}）且都是有限数")


def softmax(scores: Vector) -> list[float]:
    """减最大值的 softmax；−inf 表示屏蔽，权重恰为 0。全被屏蔽时没有定义。"""
    top = max(scores, default=-math.inf)
    if not math.isfinite(top) or any(math.isnan(s) for s in scores):  # 单看最大值会漏掉排在后面的 NaN
        raise ValueError("分数为空、全被屏蔽或不是有限数")
    exps = [math.exp(s - top) for s in scores]
    total = math.fsum(exps)
    return [e / total for e in exps]


def attend(scores: Vector, values: Sequence[Vector]) -> list[float]:
    """按 softmax(scores) 给 values 加权求和。scores: (n,)，values: (n, d)，返回 (d,)。"""
    if len(scores) != len(values):
        raise ValueError(f"分数 {len(scores)} 个，值 {len(values)} 个")
    weights = softmax(scores)
    _check("值", values, len(values[0]))
    return [math.fsum(w * v[i] for w, v in zip(weights, values, strict=True)) for i in range(len(values[0]))]


# --8<-- [end:softmax]


# --8<-- [start:scores]
def dot_scores(query: Vector, keys: Sequence[Vector]) -> list[float]:
    """缩放点积：q·k / √d。不含参数，一次矩阵乘算完所有位置。

    >>> [round(s, 3) for s in dot_scores([1.0, 0.0, 1.0, 0.0], [[2, 0, 2, 0], [0, 2, 0, 2]])]
    [2.0, 0.0]
    """
    _check("query 与 key", [query, *keys], len(query))
    return [math.fsum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in keys]


def additive_scores(query: Vector, keys: Sequence[Vector], w_q: Sequence[Vector], w_k: Sequence[Vector], v: Vector) -> list[float]:
    """加性（Bahdanau 2014）：v·tanh(W_q q + W_k k)。query 与 key 的维数可以不同，每个位置过一个小网络。

    w_q: (m, d_q)，w_k: (m, d_k)，v: (m,)。

    >>> [round(s, 3) for s in additive_scores([1.0], [[1.0, 0.0], [0.0, 9.0]], [[1.0]], [[1.0, 0.5]], [2.0])]
    [1.928, 2.0]
    """
    _check("query 与 w_q 的行", [query, *w_q], len(query))
    _check("key 与 w_k 的行", [*keys, *w_k], len(w_k[0]) if w_k else 0)
    _check("v", [v], len(v))
    if not len(w_q) == len(w_k) == len(v):
        raise ValueError(f"w_q、w_k 的行数与 v 的长度须相等，收到 {len(w_q)}、{len(w_k)}、{len(v)}")
    hidden = [math.fsum(a * b for a, b in zip(row, query, strict=True)) for row in w_q]
    return [
        math.fsum(
            out * math.tanh(h + math.fsum(a * b for a, b in zip(row, key, strict=True))) for out, h, row in zip(v, hidden, w_k, strict=True)
        )
        for key in keys
    ]


# --8<-- [end:scores]


# --8<-- [start:lookup]
def soft_lookup(sharpness: float) -> list[float]:
    """三个键各存一个数，用第一个键去查：sharpness 越大越像普通字典。

    >>> for sharpness in (0.0, 1.0, 4.0):
    ...     print(sharpness, [round(v, 2) for v in soft_lookup(sharpness)])
    0.0 [20.0]
    1.0 [15.64]
    4.0 [10.62]
    """
    if not 0 <= sharpness < math.inf:
        raise ValueError(f"sharpness 须是非负的有限数，收到 {sharpness}")
    keys = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
    query = [sharpness * v for v in keys[0]]
    return attend(dot_scores(query, keys), [[10.0], [20.0], [30.0]])


# --8<-- [end:lookup]
