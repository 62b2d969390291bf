"""FlashAttention 的前向与反向：分块、在线 softmax、由 logsumexp 重算，以及数显存读写（NumPy）。"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


# --8<-- [start:traffic]
@dataclass
class Traffic:
    """数与显存（HBM）之间搬了多少个数；片上的中间结果不计。"""

    read: int = 0
    written: int = 0

    def load(self, x: Array) -> Array:
        self.read += x.size
        return x

    def store(self, target: Array, value: Array) -> None:
        self.written += value.size
        target[...] = value

    @property
    def total(self) -> int:
        return self.read + self.written


# --8<-- [end:traffic]


def _check(q: Array, k: Array, v: Array, rows: int, cols: int) -> None:
    if q.ndim != 2 or k.shape != v.shape or q.shape[1] != k.shape[1] or rows < 1 or cols < 1:
        raise ValueError(f"须是 (s, d) 与两个 (t, d)，块为正，收到 {q.shape}、{k.shape}、{v.shape}、{rows}、{cols}")
    if len(q) > len(k):
        raise ValueError(f"因果对齐到最后，要求 s ≤ t，收到 {len(q)} 与 {len(k)}")


def _blocked(i: int, rows: int, j: int, cols: int, shift: int, causal: bool) -> Array | None:
    """这一块里 (查询, 键) 能不能看；整块都看得见返回 None。"""
    if not causal or j + cols - 1 <= i + shift:
        return None
    return np.arange(j, j + cols)[None, :] <= np.arange(i, i + rows)[:, None] + shift


# --8<-- [start:forward]
def forward(q: Array, k: Array, v: Array, rows: int, cols: int, *, causal: bool, hbm: Traffic) -> tuple[Array, Array]:
    """一个头。q: (s, d)，k、v: (t, d)；返回输出 (s, d) 与每行的 logsumexp (s,)。外层查询块，内层键块（FlashAttention-2 的次序）。"""
    _check(q, k, v, rows, cols)
    (s, d), t = q.shape, len(k)
    out, lse = np.empty((s, d)), np.empty(s)
    for i in range(0, s, rows):
        qi = hbm.load(q[i : i + rows]) / math.sqrt(d)
        top, total, acc = np.full(len(qi), -np.inf), np.zeros(len(qi)), np.zeros((len(qi), d))
        for j in range(0, t, cols):
            if causal and j > i + len(qi) - 1 + t - s:
                break  # 整块都在未来：不读也不算
            scores = qi @ hbm.load(k[j : j + cols]).T
            seen = _blocked(i, len(qi), j, scores.shape[1], t - s, causal)
            if seen is not None:
                scores = np.where(seen, scores, -np.inf)
            new_top = np.maximum(top, scores.max(axis=1))
            p = np.exp(scores - new_top[:, None])
            rescale = np.exp(top - new_top)  # 旧的和与输出都按旧最大值算的，改到新最大值
            total = total * rescale + p.sum(axis=1)
            acc = acc * rescale[:, None] + p @ hbm.load(v[j : j + cols])
            top = new_top
        hbm.store(out[i : i + rows], acc / total[:, None])  # 除法只在最后做一次
        hbm.store(lse[i : i + rows], top + np.log(total))
    return out, lse


# --8<-- [end:forward]


# --8<-- [start:backward]
def backward(
    q: Array, k: Array, v: Array, out: Array, lse: Array, grad: Array, rows: int, cols: int, *, causal: bool, hbm: Traffic
) -> tuple[Array, Array, Array]:
    """返回 (dq, dk, dv)。只存了 lse，P 由 exp(S − lse) 重算；外层键块，内层查询块。

    D_i = Σ_j P_ij dP_ij = dO_i·O_i，所以 softmax 的反向 dS = P ⊙ (dP − D) 也不用整行的 P。
    """
    _check(q, k, v, rows, cols)
    (s, d), t = q.shape, len(k)
    scale = 1 / math.sqrt(d)
    dq, dk, dv = np.zeros_like(q), np.empty_like(k), np.empty_like(v)
    delta = np.empty(s)
    hbm.store(delta, np.sum(hbm.load(grad) * hbm.load(out), axis=1))
    for j in range(0, t, cols):
        kj, vj = hbm.load(k[j : j + cols]), hbm.load(v[j : j + cols])
        dkj, dvj = np.zeros_like(kj), np.zeros_like(vj)
        for i in range(0, s, rows):
            qi, gi = q[i : i + rows], grad[i : i + rows]
            if causal and j > i + len(qi) - 1 + t - s:
                continue
            qi, gi = hbm.load(qi), hbm.load(gi)
            scores = scale * qi @ kj.T
            seen = _blocked(i, len(qi), j, len(kj), t - s, causal)
            p = np.exp(scores - hbm.load(lse[i : i + rows])[:, None])
            p = p if seen is None else np.where(seen, p, 0)
            ds = p * (gi @ vj.T - hbm.load(delta[i : i + rows])[:, None])
            dvj += p.T @ gi
            dkj += scale * ds.T @ qi
            hbm.store(dq[i : i + rows], hbm.load(dq[i : i + rows]) + scale * ds @ kj)
        hbm.store(dk[j : j + cols], dkj)
        hbm.store(dv[j : j + cols], dvj)
    return dq, dk, dv


# --8<-- [end:backward]


# --8<-- [start:io]
def standard_traffic(s: int, d: int) -> int:
    """逐算子的前向：读 Q、K、V，写 O；S 写一次读一次，P 写一次读一次（不因果、不融合掩码与 softmax）。

    >>> standard_traffic(1024, 64)
    4456448
    """
    if min(s, d) < 1:
        raise ValueError(f"s、d 须为正，收到 {s}、{d}")
    return 4 * s * d + 4 * s * s


def flash_traffic(s: int, d: int, rows: int) -> int:
    """分块的前向：Q 读一次，O 与 lse 写一次，K、V 被每个查询块各读一遍。

    >>> flash_traffic(1024, 64, 128), round(standard_traffic(1024, 64) / flash_traffic(1024, 64, 128), 1)
    (1180672, 3.8)
    """
    if min(s, d, rows) < 1:
        raise ValueError(f"s、d、rows 须为正，收到 {s}、{d}、{rows}")
    return 2 * s * d + s + 2 * s * d * math.ceil(s / rows)


def traffic_table() -> list[str]:
    """一个头、s = 8192、d = 128：查询块从 64 到 512，读写各多少 M 个数，是逐算子的几分之一。

    >>> print(*traffic_table(), sep="\\n")
    逐算子         272.6 M
    查询块   64    270.5 M   1/1.0
    查询块  128    136.3 M   1/2.0
    查询块  256     69.2 M   1/3.9
    查询块  512     35.7 M   1/7.6
    """
    naive = standard_traffic(8192, 128)
    lines = [f"逐算子        {naive / 1e6:6.1f} M"]
    for rows in (64, 128, 256, 512):
        tiled = flash_traffic(8192, 128, rows)
        lines.append(f"查询块 {rows:>4}   {tiled / 1e6:6.1f} M   1/{naive / tiled:.1f}")
    return lines


# --8<-- [end:io]


# --8<-- [start:wrong]
def softmax_per_block(q: Array, k: Array, v: Array, cols: int) -> Array:
    """反例：每块各做 softmax 再相加，没有改最大值与分母。每行权重的和是块数，不是 1。

    >>> ones = np.ones((8, 2))
    >>> softmax_per_block(ones, ones, ones, 2)[0].tolist()              # 应是 [1.0, 1.0]
    [4.0, 4.0]
    """
    total = np.zeros_like(q)
    for j in range(0, len(k), cols):
        scores = q @ k[j : j + cols].T / math.sqrt(q.shape[1])
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        total += p / p.sum(axis=1, keepdims=True) @ v[j : j + cols]
    return total


# --8<-- [end:wrong]
