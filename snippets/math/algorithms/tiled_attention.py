"""分块注意力：按块扫 key 与 query，前向只留输出与 logsumexp，反向按块重算；掩码、GQA、右下对齐的因果（PyTorch）。"""

import math

import torch
from torch import Tensor


# --8<-- [start:whiteboard]
def naive_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """白板版。q: (b, a, s, d)；k、v: (b, n_kv, t, d)，a 是 n_kv 的整数倍；mask: 可广播到 (b, a, s, t)，True 为可见。

    causal 按**右下角**对齐：第 i 个查询的绝对位置是 t − s + i。一行全被掩掉时输出 0。
    """
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    scores = q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.size(-1))
    visible = _visible(mask, causal, q.size(2), k.size(2), 0, 0, q.size(2), k.size(2), scores.shape)
    scores = scores.masked_fill(~visible, -math.inf)
    return (scores.softmax(dim=-1).nan_to_num(0.0) @ v.float()).to(q.dtype)


# --8<-- [end:whiteboard]


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        raise ValueError(f"须为 q (b, a, s, d)、k 与 v (b, n_kv, t, d)，收到 {tuple(q.shape)}、{tuple(k.shape)}、{tuple(v.shape)}")
    if q.size(0) != k.size(0) or q.size(3) != k.size(3):
        raise ValueError(f"batch 或 head_dim 不同：{tuple(q.shape)} 与 {tuple(k.shape)}")
    if k.size(1) == 0 or q.size(1) % k.size(1):
        raise ValueError(f"查询头数 {q.size(1)} 必须是 KV 头数 {k.size(1)} 的整数倍")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask 须为 bool（True 为可见），收到 {mask.dtype}")


def _visible(mask, causal, s, t, row, column, rows, columns, shape) -> Tensor:
    """块 [row : row+rows] × [column : column+columns] 里哪些位置可见。"""
    visible = torch.ones(shape[-2:], dtype=torch.bool)
    if causal:
        query = torch.arange(row, row + rows)[:, None] + (t - s)
        visible = torch.arange(column, column + columns)[None, :] <= query
    if mask is not None:
        full = mask.expand(*shape[:-2], s, t)
        visible = visible & full[..., row : row + rows, column : column + columns]
    return visible.expand(shape)


# --8<-- [start:tiled]
def tiled_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, tile_q: int = 64, tile_k: int = 64
) -> tuple[Tensor, Tensor]:
    """分块注意力，返回 (输出 (b, a, s, d), logsumexp (b, a, s)，fp32)。形状与掩码同 naive_attention。

    外层按查询分块，内层按 key 分块，块内用在线 softmax 更新 (m, l, acc)；任何时候都没有 (s, t) 的矩阵。
    GQA 把同一组的查询头叠到行上，K、V 不复制。累加用 fp32。

    >>> torch.manual_seed(0)                                                  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> q, k, v = torch.randn(1, 32, 200, 128), torch.randn(1, 8, 300, 128), torch.randn(1, 8, 300, 128)
    >>> out, lse = tiled_attention(q, k, v, causal=True)
    >>> reference = naive_attention(q, k, v, causal=True)
    >>> out.shape == reference.shape, bool((out - reference).abs().max() < 1e-5)
    (True, True)
    """
    _check(q, k, v, mask)
    if tile_q < 1 or tile_k < 1:
        raise ValueError(f"块大小必须 ≥ 1，收到 {tile_q, tile_k}")
    b, a, s, d = q.shape
    n_kv, t = k.size(1), k.size(2)
    group = a // n_kv
    out = torch.zeros(b, a, s, d)
    lse = torch.full((b, a, s), -math.inf)
    for row in range(0, s, tile_q):
        rows = min(tile_q, s - row)
        q_tile = q[:, :, row : row + rows].float().reshape(b, n_kv, group * rows, d) / math.sqrt(d)
        m = torch.full((b, n_kv, group * rows, 1), -math.inf)
        l = torch.zeros_like(m)
        acc = torch.zeros(b, n_kv, group * rows, d)
        last_visible = t - s + row + rows  # 因果时，再往右的块整块不可见，不必算
        for column in range(0, min(t, last_visible) if causal else t, tile_k):
            columns = min(tile_k, t - column)
            scores = q_tile @ k[:, :, column : column + columns].float().transpose(-2, -1)
            by_head = scores.view(b, a, rows, columns)
            visible = _visible(mask, causal, s, t, row, column, rows, columns, by_head.shape)
            scores = by_head.masked_fill(~visible, -math.inf).view_as(scores)
            new_m = torch.maximum(m, scores.amax(dim=-1, keepdim=True))
            base = new_m.masked_fill(new_m == -math.inf, 0.0)  # 还没见过可见的 key：避免 −inf − (−inf)
            weights = (scores - base).exp()
            scale = (m - base).exp()
            l = l * scale + weights.sum(dim=-1, keepdim=True)
            acc = acc * scale + weights @ v[:, :, column : column + columns].float()
            m = new_m
        out[:, :, row : row + rows] = (acc / l.masked_fill(l == 0, 1.0)).view(b, a, rows, d)
        lse[:, :, row : row + rows] = (m + l.log()).view(b, a, rows)
    return out.to(q.dtype), lse


# --8<-- [end:tiled]


# --8<-- [start:backward]
def tiled_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, causal: bool = False, tile_k: int = 64
) -> tuple[Tensor, Tensor, Tensor]:
    """反向：由 logsumexp 按块重算权重 P = e^(S − lse)，返回 (dq, dk, dv)。不需要前向存下任何 (s, t) 的矩阵。

    D = rowsum(dO ∘ O)，dV = Pᵀ·dO，dS = P ∘ (dO·Vᵀ − D)，dQ = dS·K/√d，dK = dSᵀ·Q/√d（Dao 2022，附录 B）。
    """
    _check(q, k, v, None)
    b, a, s, d = q.shape
    n_kv, t = k.size(1), k.size(2)
    group = a // n_kv
    fold = lambda x: x.float().reshape(b, n_kv, group * s, -1)  # noqa: E731
    q_rows, grad_rows = fold(q), fold(grad)
    delta = (grad_rows * fold(out)).sum(dim=-1, keepdim=True)
    lse_rows = lse.reshape(b, n_kv, group * s, 1).masked_fill(lse.reshape(b, n_kv, group * s, 1) == -math.inf, math.inf)
    dq, dk, dv = torch.zeros_like(q_rows), torch.zeros(b, n_kv, t, d), torch.zeros(b, n_kv, t, d)
    for column in range(0, t, tile_k):
        part = slice(column, min(column + tile_k, t))
        k_tile, v_tile = k[:, :, part].float(), v[:, :, part].float()
        scores = q_rows @ k_tile.transpose(-2, -1) / math.sqrt(d)
        by_head = scores.view(b, a, s, -1)
        visible = _visible(None, causal, s, t, 0, column, s, by_head.size(-1), by_head.shape)
        weights = (by_head.masked_fill(~visible, -math.inf).view_as(scores) - lse_rows).exp()
        ds = weights * (grad_rows @ v_tile.transpose(-2, -1) - delta) / math.sqrt(d)
        dq += ds @ k_tile
        dk[:, :, part] = ds.transpose(-2, -1) @ q_rows
        dv[:, :, part] = weights.transpose(-2, -1) @ grad_rows
    return dq.view_as(q).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


# --8<-- [end:backward]


# --8<-- [start:wrong]
def layout_mistake_goes_unnoticed() -> tuple[bool, bool]:
    """反例：把 (b, s, a, d) 直接交给 SDPA。形状合法、不报错，却在头之间做了注意力。返回 (形状相同, 数值相同)。

    >>> layout_mistake_goes_unnoticed()
    (True, False)
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 16, 8, 32) for _ in range(3))  # (b, s, a, d)
    wrong = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    right = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    return wrong.shape == right.shape, bool(torch.allclose(wrong, right))


def is_causal_is_top_left(cached: int = 7) -> tuple[bool, bool]:
    """反例：解码一个新 token 时传 is_causal=True。它按左上角对齐，新 token 只看得到第 0 个 key。

    返回 (等于只看第 0 个 key, 等于看全部缓存)。

    >>> is_causal_is_top_left()
    (True, False)
    """
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 4, cached + 1, 16), torch.randn(1, 4, cached + 1, 16)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return bool(torch.allclose(out, v[:, :, :1])), bool(torch.allclose(out, whole))


# --8<-- [end:wrong]
