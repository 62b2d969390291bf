"""自注意力一步一步：形状、缩放、掩码、多头、FLOPs（NumPy）。"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


# --8<-- [start:attention]
def softmax(scores: Array) -> Array:
    """最后一维的 softmax，先减最大值；整行都是 −inf（全被屏蔽）时返回全 0，而不是 NaN。"""
    top = scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = exps.sum(axis=-1, keepdims=True)
    return exps / np.where(total == 0, 1, total)


def attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """softmax(qkᵀ/√d)·v。q: (…, s, d)，k: (…, t, d)，v: (…, t, d_v)，mask: (…, s, t) 布尔，True 表示能看；返回 (…, s, d_v)。

    >>> q = k = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> attention(q, k, np.array([[10.0], [20.0]])).round(3).tolist()          # 权重 0.67 与 0.33
    [[13.302], [16.698]]
    """
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"形状不合：q {q.shape}、k {k.shape}、v {v.shape}")
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        if mask.dtype != bool:
            raise ValueError(f"mask 须为布尔，收到 {mask.dtype}")
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


def multi_head(x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, heads: int, mask: Array | None = None) -> Array:
    """x: (b, s, h)，四个权重都是 (h, h)，返回 (b, s, h)。先拆头 (b, a, s, d)，最后拼回去。"""
    b, s, h = x.shape
    if h % heads:
        raise ValueError(f"h={h} 不能被头数 {heads} 整除")

    def split(y: Array) -> Array:
        return y.reshape(b, s, heads, h // heads).swapaxes(1, 2)  # 先拆最后一维，再换轴；直接 reshape 成 (b, a, s, d) 会串位

    out = attention(split(x @ w_q), split(x @ w_k), split(x @ w_v), mask)
    return out.swapaxes(1, 2).reshape(b, s, h) @ w_o


# --8<-- [end:attention]


# --8<-- [start:masks]
def causal_mask(s: int, t: int | None = None) -> Array:
    """(s, t) 的因果掩码：最后一个查询对齐最后一个键，第 i 个查询看到前 t − s + i + 1 个键。

    >>> causal_mask(3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    >>> causal_mask(1, 4).astype(int).tolist()                                   # 解码：新来的一个看全部
    [[1, 1, 1, 1]]
    """
    t = s if t is None else t
    if s < 0 or t < s:
        raise ValueError(f"须 0 ≤ s ≤ t，收到 {s}、{t}")
    return np.arange(t)[None, :] <= np.arange(t - s, t)[:, None]


def padding_mask(lengths: list[int], s: int) -> Array:
    """(b, 1, 1, s)：每条序列只看自己的有效长度，广播到所有头与查询。

    >>> padding_mask([2, 3], 3)[:, 0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    if any(not 0 <= n <= s for n in lengths):
        raise ValueError(f"长度须在 0 到 {s} 之间，收到 {lengths}")
    return (np.arange(s) < np.array(lengths)[:, None])[:, None, None, :]


# --8<-- [end:masks]


# --8<-- [start:scale]
def score_statistics(d: int, *, scaled: bool, s: int = 512, seed: int = 0) -> tuple[float, float]:
    """q、k 各元素独立、方差 1 时：（分数的标准差，最大的注意力权重的平均）。

    >>> for d in (16, 64, 256, 1024):
    ...     print(d, *(tuple(round(v, 2) for v in score_statistics(d, scaled=s)) for s in (False, True)))
    16 (3.97, 0.45) (0.99, 0.03)
    64 (8.01, 0.72) (1.0, 0.03)
    256 (16.05, 0.87) (1.0, 0.03)
    1024 (31.95, 0.93) (1.0, 0.03)
    """
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((s, d)), rng.standard_normal((s, d))
    scores = q @ k.T / (math.sqrt(d) if scaled else 1.0)
    return float(scores.std()), float(softmax(scores).max(axis=-1).mean())


def softmax_gradient_size(scores: Array) -> float:
    """一行 softmax 的雅可比 diag(p) − ppᵀ 的最大绝对值：p 接近 one-hot 时趋于 0，梯度断了。

    >>> [f"{softmax_gradient_size(np.array([gap, 0.0])):.1e}" for gap in (0.0, 5.0, 20.0)]
    ['2.5e-01', '6.6e-03', '2.1e-09']
    """
    p = softmax(scores)
    return float(np.abs(np.diag(p) - np.outer(p, p)).max())


# --8<-- [end:scale]


# --8<-- [start:cost]
def cost(b: int, s: int, h: int, heads: int, element: int = 2) -> dict[str, float]:
    """一层自注意力前向（MHA，不因因果减半）：投影与分数的 GFLOP，显式存下 (b, a, s, s) 的权重要多少 GB（10⁹ 字节）。

    读写按逐算子数：读 Q、K、V，写 O，分数与权重各写一次读一次；强度是分数与加权和的 FLOP 除以这些字节。

    >>> for s in (2048, 8192, 32_768):
    ...     print(s, {k: round(v, 1) for k, v in cost(1, s, 4096, 32).items()})
    2048 {'投影': 274.9, '分数与加权和': 68.7, '权重 GB': 0.3, '读写 GB': 1.1, '强度': 60.2}
    8192 {'投影': 1099.5, '分数与加权和': 1099.5, '权重 GB': 4.3, '读写 GB': 17.4, '强度': 63.0}
    32768 {'投影': 4398.0, '分数与加权和': 17592.2, '权重 GB': 68.7, '读写 GB': 276.0, '强度': 63.8}
    """
    if min(b, s, h, heads, element) < 1:
        raise ValueError("b、s、h、heads、element 都须为正")
    scores = 4 * b * s * s * h
    moved = element * (4 * b * s * h + 4 * b * heads * s * s)
    return {
        "投影": 8 * b * s * h * h / 1e9,
        "分数与加权和": scores / 1e9,
        "权重 GB": element * b * heads * s * s / 1e9,
        "读写 GB": moved / 1e9,
        "强度": scores / moved,
    }


# --8<-- [end:cost]
