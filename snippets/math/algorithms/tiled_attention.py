"""分块注意力：按块扫 query 与 key，前向只留输出与 logsumexp，反向按块重算；掩码、GQA、右下对齐的因果（PyTorch）。"""

import math
import time

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


# --8<-- [start:whiteboard]
def naive_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """白板版。q: (b, a, s, d)；k: (b, n_kv, t, d)；v: (b, n_kv, t, d_v)，a 是 n_kv 的整数倍；返回 (b, a, s, d_v)。

    mask 可广播到 (b, a, s, t)：bool 时 True 为可见，浮点时加到分数上。causal 按**右下角**对齐：
    第 i 个查询的绝对位置是 t − s + i。一行全被掩掉时输出 0，梯度也是 0。
    """
    s, t, group = q.size(2), k.size(2), q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    wide = torch.promote_types(q.dtype, torch.float32)  # 半精度输入用 fp32 算分数
    scores = q.to(wide) @ k.to(wide).mT / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        visible = torch.ones(s, t, dtype=torch.bool, device=q.device).tril(t - s)
        scores = scores.masked_fill(~visible, -math.inf)
    hidden = (scores == -math.inf).all(dim=-1, keepdim=True)  # 先换成 0 再做 softmax，前向与梯度都不出 NaN
    weights = scores.masked_fill(hidden, 0.0).softmax(dim=-1).masked_fill(hidden, 0.0)
    return (weights @ v.to(wide)).to(q.dtype)


# --8<-- [end:whiteboard]


def _check(q: Tensor, k: Tensor, v: Tensor, tile_q: int, tile_k: int) -> None:
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
        shapes = "、".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"须为 q (b, a, s, d)、k (b, n_kv, t, d)、v (b, n_kv, t, d_v)，收到 {shapes}")
    if q.size(0) != k.size(0) or q.size(3) != k.size(3) or q.size(3) == 0:
        raise ValueError(f"batch 与 head_dim 须相同，head_dim 不为 0，收到 {tuple(q.shape)} 与 {tuple(k.shape)}")
    if k.size(1) == 0 or q.size(1) % k.size(1):
        raise ValueError(f"查询头数 {q.size(1)} 必须是 KV 头数 {k.size(1)} 的整数倍")
    if tile_q < 1 or tile_k < 1:
        raise ValueError(f"块大小必须 ≥ 1，收到 {tile_q, tile_k}")


# --8<-- [start:tiled]
def mask_tile(scores: Tensor, i: int, j: int, offset: int, mask: Tensor | None, causal: bool) -> Tensor:
    """遮住一块分数 (b, a, rows, cols)，它的左上角是 (i, j)；offset = t − s；mask 已展开成 (b, a, s, t) 的视图。"""
    rows, cols = scores.shape[-2:]
    if mask is not None:
        part = mask[..., i : i + rows, j : j + cols]
        scores = scores.masked_fill(~part, -math.inf) if mask.dtype == torch.bool else scores + part
    if causal and j + cols - 1 > i + offset:  # 整块可见的块不必掩
        visible = torch.ones(rows, cols, dtype=torch.bool, device=scores.device).tril(i + offset - j)
        scores = scores.masked_fill(~visible, -math.inf)
    return scores


def tiled_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False, tile_q: int = 64, tile_k: int = 64
) -> tuple[Tensor, Tensor]:
    """分块注意力，返回 (输出 (b, a, s, d_v)，logsumexp (b, a, s))。输入与掩码同 naive_attention。

    外层按查询分块，内层按 key 分块，块内用在线 softmax 更新 (m, l, acc)；不产生 (s, t) 的矩阵。
    GQA 把同一组的查询头叠到行上，K、V 不复制。半精度输入用 fp32 累加。

    >>> _ = torch.manual_seed(0)
    >>> q, k, v = torch.randn(1, 32, 200, 128), torch.randn(1, 8, 300, 128), torch.randn(1, 8, 300, 128)
    >>> out, lse = tiled_attention(q, k, v, causal=True)
    >>> out.shape, bool((out - naive_attention(q, k, v, causal=True)).abs().max() < 1e-5)
    (torch.Size([1, 32, 200, 128]), True)
    """
    _check(q, k, v, tile_q, tile_k)
    (b, a, s, d), (n_kv, t), d_v = q.shape, k.shape[1:3], v.size(3)
    wide = torch.promote_types(q.dtype, torch.float32)
    mask = None if mask is None else mask.expand(b, a, s, t)  # 步长为 0 的视图，不占显存
    out = q.new_empty(b, a, s, d_v)
    lse = torch.empty(b, a, s, dtype=wide, device=q.device)
    for i in range(0, s, tile_q):
        rows = min(tile_q, s - i)
        queries = q[:, :, i : i + rows].to(wide).reshape(b, n_kv, -1, d) / math.sqrt(d)  # 行 = 组内的头 × rows
        m = torch.full((*queries.shape[:3], 1), -math.inf, dtype=wide, device=q.device)
        l = torch.zeros_like(m)
        acc = torch.zeros(*queries.shape[:3], d_v, dtype=wide, device=q.device)
        for j in range(0, min(t, t - s + i + rows) if causal else t, tile_k):  # 更右的块整块不可见
            cols = min(tile_k, t - j)
            scores = (queries @ k[:, :, j : j + cols].to(wide).mT).view(b, a, rows, cols)
            scores = mask_tile(scores, i, j, t - s, mask, causal).view(b, n_kv, -1, cols)
            new_m = torch.maximum(m, scores.amax(dim=-1, keepdim=True))
            base = new_m.masked_fill(new_m == -math.inf, 0.0)  # 还没见过可见的 key：−inf − (−inf) 是 NaN
            weights, scale = (scores - base).exp(), (m - base).exp()
            l = l * scale + weights.sum(dim=-1, keepdim=True)
            acc = acc * scale + weights @ v[:, :, j : j + cols].to(wide)
            m = new_m
        out[:, :, i : i + rows] = (acc / l.masked_fill(l == 0, 1.0)).view(b, a, rows, d_v)
        lse[:, :, i : i + rows] = (m + l.log()).view(b, a, rows)
    return out, lse


# --8<-- [end:tiled]


# --8<-- [start:backward]
def tiled_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    tile_k: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """由前向的 out、lse 按 key 块重算权重 P = e^(S − lse)，返回 (dq, dk, dv)；grad 是 dO，形状同 out。

    D = rowsum(dO ∘ O)，dV = Pᵀ·dO，dS = P ∘ (dO·Vᵀ − D)，dQ = dS·K/√d，dK = dSᵀ·Q/√d。
    GQA 的查询头叠在行上，dK、dV 对同组的头自动求和。不算对浮点掩码的梯度。
    """
    _check(q, k, v, 1, tile_k)
    (b, a, s, d), (n_kv, t) = q.shape, k.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    mask = None if mask is None else mask.expand(b, a, s, t)
    queries, grads, outs = (x.to(wide).reshape(b, n_kv, a // n_kv * s, -1) for x in (q, grad, out))
    delta = (grads * outs).sum(dim=-1, keepdim=True)
    lse = lse.masked_fill(lse == -math.inf, math.inf).view(b, n_kv, -1, 1)  # 整行被掩：让 P 恒为 0
    dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (queries, k, v))
    for j in range(0, t, tile_k):
        keys, values = (x[:, :, j : j + tile_k].to(wide) for x in (k, v))
        scores = (queries @ keys.mT / math.sqrt(d)).view(b, a, s, -1)
        scores = mask_tile(scores, 0, j, t - s, mask, causal).view(b, n_kv, a // n_kv * s, -1)
        weights = (scores - lse).exp()
        ds = weights * (grads @ values.mT - delta) / math.sqrt(d)
        dq += ds @ keys
        dk[:, :, j : j + tile_k] = ds.mT @ queries
        dv[:, :, j : j + tile_k] = weights.mT @ grads
    return dq.view(q.shape).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


# --8<-- [end:backward]


# --8<-- [start:speed]
def cpu_milliseconds(s: int, tiles: tuple[int, ...] = (16, 64, 256), heads: int = 4, d: int = 64) -> dict[str, float]:
    """本机 CPU 单线程、fp32、不因果的前向毫秒数（三次取最快）：白板版、各种块大小的分块版、SDPA。

    >>> list(cpu_milliseconds(64, tiles=(16, 64)))
    ['白板版', '分块 16', '分块 64', 'SDPA']
    """
    q, k, v = (torch.randn(1, heads, s, d) for _ in range(3))
    runs = {"白板版": lambda: naive_attention(q, k, v)}
    runs |= {f"分块 {size}": lambda size=size: tiled_attention(q, k, v, tile_q=size, tile_k=size) for size in tiles}
    runs["SDPA"] = lambda: scaled_dot_product_attention(q, k, v)
    threads, best = torch.get_num_threads(), {}
    torch.set_num_threads(1)
    for name, run in runs.items():
        times = []
        for _ in range(3):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        best[name] = min(times) * 1e3
    torch.set_num_threads(threads)
    return best


# --8<-- [end:speed]


# --8<-- [start:wrong]
def window_changes_the_function(window: int = 256, s: int = 1024) -> tuple[bool, bool]:
    """反例：分块是精确的，滑动窗口是另一个函数。返回 (分块与显式差不到 1e-5，窗口与显式差不到 1e-5)。

    >>> window_changes_the_function()
    (True, False)
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, s, 64) for _ in range(3))
    exact = naive_attention(q, k, v, causal=True)
    near = torch.ones(s, s, dtype=torch.bool).triu(1 - window)  # 只看最近 window 个
    tiled, windowed = tiled_attention(q, k, v, causal=True)[0], tiled_attention(q, k, v, mask=near, causal=True)[0]
    return bool((tiled - exact).abs().max() < 1e-5), bool((windowed - exact).abs().max() < 1e-5)


def layout_mistake_goes_unnoticed() -> tuple[bool, bool]:
    """反例：把 (b, s, a, d) 直接交给 SDPA，形状合法、不报错，却在头之间做了注意力。返回 (形状相同，数值相同)。

    >>> layout_mistake_goes_unnoticed()
    (True, False)
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 16, 8, 32) for _ in range(3))  # (b, s, a, d)
    wrong = scaled_dot_product_attention(q, k, v)
    right = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    return wrong.shape == right.shape, bool(torch.allclose(wrong, right))


def is_causal_is_top_left(cached: int = 7) -> tuple[bool, bool]:
    """反例：解码一个新 token 时传 is_causal=True。返回 (等于只看第 0 个 key，等于看全部缓存)。

    >>> is_causal_is_top_left()
    (True, False)
    """
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 4, cached + 1, 16), torch.randn(1, 4, cached + 1, 16)
    out, whole = scaled_dot_product_attention(q, k, v, is_causal=True), scaled_dot_product_attention(q, k, v)
    return bool(torch.allclose(out, v[:, :, :1])), bool(torch.allclose(out, whole))


def finite_masks_leak() -> tuple[float, float, float]:
    """反例：用有限的数当掩码。4 个同分的 key，返回

    (掩 2 个、加 −1e-9 时被掩的总权重，全掩、加 fp32 最小值时每个 key 的权重，−1e9 转成 fp16)。

    >>> finite_masks_leak()
    (0.5, 0.25, -inf)
    """
    half, everything = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.ones(4)
    leaked = (half * -1e-9).softmax(-1)[2:].sum()
    uniform = (everything * torch.finfo(torch.float32).min).softmax(-1)[0]
    return leaked.item(), uniform.item(), torch.tensor(-1e9).half().item()


def nan_to_num_hides_nan_gradients() -> tuple[bool, bool]:
    """反例：整行加 −inf，softmax 之后用 nan_to_num 补救。返回 (前向有限，梯度有限)。

    >>> nan_to_num_hides_nan_gradients()
    (True, False)
    """
    scores = torch.zeros(1, 4, requires_grad=True)
    weights = (scores + torch.full((1, 4), -math.inf)).softmax(-1).nan_to_num(0.0)
    (gradient,) = torch.autograd.grad(weights.sum(), scores)
    return bool(weights.isfinite().all()), bool(gradient.isfinite().all())


# --8<-- [end:wrong]
