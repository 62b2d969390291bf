"""自注意力的反向：从输出投影一路推回 X 与四个权重，含掩码与 GQA；差分核对、恒等式、账目、反例（NumPy）。"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snippets.deep_learning.attention.self_attention import causal_mask, softmax

Array = NDArray[np.floating]


class Weights(NamedTuple):
    """q: (h, a·d)，k、v: (h, n_kv·d)，o: (a·d, h)。梯度也用这个形状。"""

    q: Array
    k: Array
    v: Array
    o: Array


@dataclass(frozen=True)
class Tape:
    """反向要用的量：x (b, s, h)、权重、q (b, a, s, d)、未展开的 k、v (b, n_kv, s, d)、p (b, a, s, s)、拼好的 c (b, s, a·d)。"""

    x: Array
    weights: Weights
    q: Array
    k: Array
    v: Array
    p: Array
    c: Array


# --8<-- [start:core]
def softmax_backward(p: Array, dp: Array) -> Array:
    """dS = P ⊙ (dP − D)，D_i = Σ_j P_ij dP_ij，逐行；P = 0 的位置（被屏蔽）恰得 0，每行的和是 0。

    >>> p, dp = np.array([[0.5, 0.5, 0.0]]), np.array([[1.0, 3.0, 99.0]])
    >>> softmax_backward(p, dp).tolist()                                         # 被屏蔽的 99 不进来
    [[-0.5, 0.5, 0.0]]
    """
    if p.shape != dp.shape or p.ndim < 1:
        raise ValueError(f"p 与 dp 须同形，收到 {p.shape}、{dp.shape}")
    if not (np.isfinite(p).all() and np.isfinite(dp).all()):
        raise ValueError("p、dp 须有限：全屏蔽的行须先置 0，NaN 乘 0 还是 NaN")
    return p * (dp - np.sum(p * dp, axis=-1, keepdims=True))


def core_backward(q: Array, k: Array, v: Array, p: Array, do: Array) -> tuple[Array, Array, Array]:
    """O = PV、P = softmax(QKᵀ/√d) 的 (dQ, dK, dV)。q: (…, s, d)，k: (…, t, d)，v: (…, t, d_v)，p: (…, s, t)，do: (…, s, d_v)。

    >>> one = np.ones((1, 2))
    >>> [g.tolist() for g in core_backward(one, one, one, np.ones((1, 1)), np.array([[5.0, 7.0]]))]   # s = 1：权重恒为 1
    [[[0.0, 0.0]], [[0.0, 0.0]], [[5.0, 7.0]]]
    """
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2] or p.shape[-2:] != (q.shape[-2], k.shape[-2]):
        raise ValueError(f"形状不合：q {q.shape}、k {k.shape}、v {v.shape}、p {p.shape}")
    dv = np.swapaxes(p, -1, -2) @ do  # (t, s)(s, d_v)
    dp = do @ np.swapaxes(v, -1, -2)  # (s, d_v)(d_v, t)
    ds = softmax_backward(p, dp) / math.sqrt(q.shape[-1])
    return ds @ k, np.swapaxes(ds, -1, -2) @ q, dv


# --8<-- [end:core]


# --8<-- [start:layer]
def forward(x: Array, weights: Weights, heads: int, kv_heads: int, mask: Array | None = None) -> tuple[Array, Tape]:
    """x: (b, s, h) → (y: (b, s, h), 反向要的量)。mask: 布尔，可广播到 (b, a, s, s)，True 可见；全屏蔽的行权重取 0。"""
    if x.ndim != 3 or min(x.shape) < 1 or not np.isfinite(x).all():
        raise ValueError(f"x 须是有限的 (b, s, h)，收到形状 {x.shape}")
    if heads < 1 or kv_heads < 1 or heads % kv_heads or weights.q.shape[1] % heads:
        raise ValueError(f"须 heads 被 kv_heads 整除、W_q 的列被 heads 整除，收到 {heads}、{kv_heads}、{weights.q.shape}")
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"mask 须为布尔，收到 {mask.dtype}")
    h, d = x.shape[2], weights.q.shape[1] // heads
    if [w.shape for w in weights] != [(h, heads * d), (h, kv_heads * d), (h, kv_heads * d), (heads * d, h)]:
        raise ValueError(f"权重的形状不合：{[w.shape for w in weights]}")
    q, k, v = (_split(x @ w, n) for w, n in zip(weights[:3], (heads, kv_heads, kv_heads), strict=True))
    wide_k, wide_v = (np.repeat(y, heads // kv_heads, axis=1) for y in (k, v))  # 相邻的查询头共用一份
    scores = q @ np.swapaxes(wide_k, -1, -2) / math.sqrt(d)
    p = softmax(scores if mask is None else np.where(mask, scores, -np.inf))
    c = _merge(p @ wide_v)
    return c @ weights.o, Tape(x, weights, q, k, v, p, c)


def backward(tape: Tape, dy: Array) -> tuple[Array, Weights]:
    """dy: (b, s, h) → (dX: (b, s, h), 四个权重的梯度)。每一行对应推导的一步。

    >>> rng = np.random.default_rng(0)
    >>> w = Weights(*(0.1 * rng.standard_normal(n) for n in ((64, 64), (64, 16), (64, 16), (64, 64))))    # 8 个查询头、2 个 KV 头
    >>> y, tape = forward(rng.standard_normal((2, 10, 64)), w, 8, 2, causal_mask(10))
    >>> dx, dw = backward(tape, np.ones_like(y))
    >>> dx.shape, [g.shape for g in dw]
    ((2, 10, 64), [(64, 64), (64, 16), (64, 16), (64, 64)])
    """
    x, w, group = tape.x, tape.weights, tape.q.shape[1] // tape.k.shape[1]
    if dy.shape != x.shape[:2] + w.o.shape[1:]:
        raise ValueError(f"dy 的形状须与输出相同，收到 {dy.shape}")
    do = _split(dy @ w.o.T, tape.q.shape[1])  # 步 3：合头是换位置，反向就是拆头
    wide_k, wide_v = (np.repeat(y, group, axis=1) for y in (tape.k, tape.v))
    dq, dk, dv = core_backward(tape.q, wide_k, wide_v, tape.p, do)  # 步 4 到 8
    dk, dv = (_sum_groups(g, group) for g in (dk, dv))  # 步 9：一份 K、V 被 group 个头用，梯度相加
    dq, dk, dv = (_merge(g) for g in (dq, dk, dv))
    dx = dq @ w.q.T + dk @ w.k.T + dv @ w.v.T  # 步 10：X 用了三次，三路相加
    return dx, Weights(_outer(x, dq), _outer(x, dk), _outer(x, dv), _outer(tape.c, dy))


def _split(y: Array, heads: int) -> Array:
    """(b, s, heads·d) → (b, heads, s, d)。"""
    return y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)


def _merge(y: Array) -> Array:
    """(b, heads, s, d) → (b, s, heads·d)，_split 的逆。"""
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def _sum_groups(g: Array, group: int) -> Array:
    """(b, n_kv·group, s, d) → (b, n_kv, s, d)：np.repeat 的反向是组内求和。"""
    b, heads, s, d = g.shape
    return g.reshape(b, heads // group, group, s, d).sum(axis=2)


def _outer(x: Array, dy: Array) -> Array:
    """y = xW 的 dW = xᵀ dy，对 batch 与位置求和：(b, s, m)、(b, s, n) → (m, n)。"""
    return np.einsum("bsm,bsn->mn", x, dy)


# --8<-- [end:layer]


# --8<-- [start:check]
def directional_check(step: float, seed: int = 0) -> float:
    """标量 L = ⟨R, Y⟩（R 固定随机）沿随机方向 U 的中心差分与 ⟨梯度, U⟩ 的相对差；X 与四个权重一起动。因果、GQA。

    >>> for step in (1e-1, 1e-2, 1e-3):                                          # 缩 10 倍，误差缩约 100 倍：二阶截断误差
    ...     print(step, f"{directional_check(step):.0e}")
    0.1 6e-02
    0.01 7e-04
    0.001 7e-06
    """
    if not 0 < step < math.inf:
        raise ValueError(f"step 须为正且有限，收到 {step}")
    rng = np.random.default_rng(seed)
    shapes = (2, 7, 12), (12, 12), (12, 6), (12, 6), (12, 12)
    point, direction = ([rng.standard_normal(n) * scale for n in shapes] for scale in (0.5, 1.0))
    upstream = rng.standard_normal((2, 7, 12))

    def loss(t: float) -> float:
        x, *w = (a + t * u for a, u in zip(point, direction, strict=True))
        return float(np.sum(upstream * forward(x, Weights(*w), 4, 2, causal_mask(7))[0]))

    _, tape = forward(point[0], Weights(*point[1:]), 4, 2, causal_mask(7))
    dx, dw = backward(tape, upstream)
    exact = float(sum(np.sum(g * u) for g, u in zip((dx, *dw), direction, strict=True)))
    return abs((loss(step) - loss(-step)) / (2 * step) - exact) / abs(exact)


# --8<-- [end:check]


# --8<-- [start:identities]
def identities(s: int = 64, d: int = 32, seed: int = 0) -> dict[str, float]:
    """一个头、因果：四条恒等式的偏差（应只剩舍入，约 1e-15）。

    >>> all(v < 1e-12 for v in identities().values()), list(identities())
    (True, ['D_i = dO_i·O_i', 'dS 每行和', 'Σ_j dk_j（键偏置的梯度）', '未来的 dS'])
    """
    rng = np.random.default_rng(seed)
    q, k, v, do = rng.standard_normal((4, s, d))
    seen = causal_mask(s)
    p = softmax(np.where(seen, q @ k.T / math.sqrt(d), -np.inf))
    dp = do @ v.T
    ds, dk = softmax_backward(p, dp), core_backward(q, k, v, p, do)[1]
    return {
        "D_i = dO_i·O_i": float(np.abs(np.sum(p * dp, axis=1) - np.sum(do * (p @ v), axis=1)).max()),
        "dS 每行和": float(np.abs(ds.sum(axis=1)).max()),
        "Σ_j dk_j（键偏置的梯度）": float(np.abs(dk.sum(axis=0)).max()),
        "未来的 dS": float(np.abs(ds[~seen]).max(initial=0.0)),
    }


def dead_rows(scale: float, s: int = 256, d: int = 64, seed: int = 0) -> tuple[float, float]:
    """缩放后的分数再乘 scale：（‖dS_i‖ < 1e-3 的行的占比, 每行最大权重的中位数）。这些查询对 Q、K 不再给梯度。

    >>> for scale in (1.0, 8.0, 64.0, 512.0):                                    # d = 64，8 就是忘了除以 √d
    ...     print(scale, *(round(r, 2) for r in dead_rows(scale)))
    1.0 0.0 0.04
    8.0 0.04 0.8
    64.0 0.67 1.0
    512.0 0.94 1.0
    """
    if not 0 < scale < math.inf:
        raise ValueError(f"scale 须为正且有限，收到 {scale}")
    rng = np.random.default_rng(seed)
    q, k, v, do = rng.standard_normal((4, s, d))
    p = softmax(scale * q @ k.T / math.sqrt(d))
    size = np.linalg.norm(softmax_backward(p, do @ v.T), axis=1)
    return float((size < 1e-3).mean()), float(np.median(p.max(axis=1)))


# --8<-- [end:identities]


# --8<-- [start:cost]
def cost(s: int, h: int, heads: int, kv_heads: int) -> dict[str, float]:
    """一条序列、一层，GFLOP（乘加记 2，因果不减半）；P（bf16）与 logsumexp（fp32）的字节；显式写出全部 softmax 雅可比要几个数。

    >>> for name, value in cost(8192, 4096, 32, 8).items():                      # Llama-3-8B
    ...     print(name, value)
    前向 投影 687.2
    前向 核心 1099.5
    反向 投影 1374.4
    反向 核心 2199.0
    反向 核心含重算 2748.8
    P 的 GB 4.29
    lse 的 MB 1.05
    雅可比 万亿个 17.6
    """
    if min(s, h, heads, kv_heads) < 1 or h % heads or heads % kv_heads:
        raise ValueError(f"须为正且整除，收到 {s}、{h}、{heads}、{kv_heads}")
    projection, core = 2 * s * h * (2 * h + 2 * h * kv_heads // heads) / 1e9, 4 * s * s * h / 1e9
    return {
        "前向 投影": round(projection, 1),
        "前向 核心": round(core, 1),
        "反向 投影": round(2 * projection, 1),  # 每个 C = AB 变成 dC·Bᵀ 与 Aᵀ·dC，各与前向同样大
        "反向 核心": round(2 * core, 1),  # dV、dP、dQ、dK
        "反向 核心含重算": round(2.5 * core, 1),  # 再算一遍 QKᵀ
        "P 的 GB": round(2 * heads * s * s / 1e9, 2),
        "lse 的 MB": round(4 * heads * s / 1e6, 2),
        "雅可比 万亿个": round(heads * s**3 / 1e12, 1),  # 每行一个 s×s
    }


# --8<-- [end:cost]


# --8<-- [start:wrong]
def without_row_term(p: Array, dp: Array) -> Array:
    """反例：“softmax 是逐元素的，dS = P ⊙ (1 − P) ⊙ dP”。漏了同一行其他位置的耦合。

    >>> p, dp = np.array([[0.5, 0.5]]), np.array([[3.0, 3.0]])                    # dP 整行相同：分数一起升，权重不变
    >>> without_row_term(p, dp).tolist(), softmax_backward(p, dp).tolist()
    ([[0.75, 0.75]], [[0.0, 0.0]])
    """
    return p * (1 - p) * dp


def fill_nan_afterwards(s: int = 4, d: int = 2) -> tuple[bool, bool]:
    """反例：“全屏蔽的行出 NaN，把输出里的 NaN 填 0 就行”。（填完的输出有限, dV 有限）。

    第 0 行一个键都看不见，权重是 NaN。输出填 0、上游梯度也置 0，可 dV = PᵀdO 里 NaN·0 = NaN，进到每个键的值。

    >>> fill_nan_afterwards()
    (True, False)
    """
    if min(s, d) < 1:
        raise ValueError(f"s、d 须为正，收到 {s}、{d}")
    v, p, do = np.ones((s, d)), np.full((s, s), 1 / s), np.ones((s, d))
    p[0] = np.nan
    out = p @ v
    out[0], do[0] = 0.0, 0.0
    return bool(np.isfinite(out).all()), bool(np.isfinite(p.T @ do).all())


# --8<-- [end:wrong]
