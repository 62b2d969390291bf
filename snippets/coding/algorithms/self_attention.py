"""手写自注意力层：MHA、GQA、因果与填充掩码、KV cache，一份代码（PyTorch）。"""

import math

import torch
from torch import Tensor, nn


# --8<-- [start:cache]
class Cache:
    """一层的 K、V，形状 (b, kv_heads, t, d)。这里每步拼接，每步复制一遍旧的；预分配与分页的写法在 Q127。"""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """接上新的 s 个，返回全部 t 个。"""
        if self.k is not None and self.v is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.k, self.v = k, v
        return k, v


# --8<-- [end:cache]


# --8<-- [start:layer]
class SelfAttention(nn.Module):
    """因果自注意力。x: (b, s, h) → (b, s, h)；kv_heads 等于 heads 是 MHA，等于 1 是 MQA，之间是 GQA。

    padding: (b, t) 布尔，True 是真 token，含缓存里的；cache 里已有 t − s 个时，第 i 个查询的绝对位置是 t − s + i。

    >>> layer = SelfAttention(4096, heads=32, kv_heads=8)                    # Llama-3-8B 一层的尺寸
    >>> sum(p.numel() for p in layer.parameters()), tuple(layer(torch.zeros(1, 3, 4096)).shape)
    (41943040, (1, 3, 4096))
    >>> SelfAttention(10, heads=4)
    Traceback (most recent call last):
    ValueError: h 须被 heads 整除，heads 须被 kv_heads 整除，收到 10、4、4
    """

    def __init__(self, h: int, heads: int, kv_heads: int | None = None) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if min(h, heads, kv_heads) < 1 or h % heads or heads % kv_heads:
            raise ValueError(f"h 须被 heads 整除，heads 须被 kv_heads 整除，收到 {h}、{heads}、{kv_heads}")
        self.heads, self.kv_heads, self.d = heads, kv_heads, h // heads
        self.q_proj = nn.Linear(h, heads * self.d, bias=False)
        self.k_proj = nn.Linear(h, kv_heads * self.d, bias=False)
        self.v_proj = nn.Linear(h, kv_heads * self.d, bias=False)
        self.o_proj = nn.Linear(heads * self.d, h, bias=False)

    def forward(self, x: Tensor, padding: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        b, s, _ = x.shape
        # --8<-- [start:blank-split]
        # 拆头：q 是 (b, heads, s, d)，k、v 是 (b, kv_heads, s, d)
        q = self.q_proj(x).view(b, s, self.heads, self.d).transpose(1, 2)
        k = self.k_proj(x).view(b, s, self.kv_heads, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, s, self.kv_heads, self.d).transpose(1, 2)
        # --8<-- [end:blank-split]
        if cache is not None:
            k, v = cache.append(k, v)
        t = k.shape[2]
        # --8<-- [start:blank-group]
        # GQA：让 k、v 也有 heads 个头，相邻的 heads/kv_heads 个查询头共用一份
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        # --8<-- [end:blank-group]
        # --8<-- [start:blank-scores]
        # 分数 (b, heads, s, t)：先缩放 q，再用不低于 fp32 的精度相乘
        wide = torch.promote_types(x.dtype, torch.float32)
        scores = (q / math.sqrt(self.d)).to(wide) @ k.to(wide).transpose(-1, -2)
        # --8<-- [end:blank-scores]
        # --8<-- [start:blank-mask]
        # 掩码 seen：因果对齐到最后一个键，再与 padding 取交，能广播到 scores
        seen = torch.ones(s, t, dtype=torch.bool, device=x.device).tril(t - s)
        if padding is not None:
            seen = seen & padding[:, None, None, :]
        # --8<-- [end:blank-mask]
        # --8<-- [start:blank-softmax]
        # 权重：看不见的不占分母；一个键都看不见的行 softmax 是 0/0，改成全 0
        weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(~seen.any(dim=-1, keepdim=True), 0)
        # --8<-- [end:blank-softmax]
        # --8<-- [start:blank-merge]
        # 合头，回到 (b, s, heads·d)
        out = (weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, s, self.heads * self.d)
        # --8<-- [end:blank-merge]
        return self.o_proj(out)


# --8<-- [end:layer]


# --8<-- [start:cost]
def cost(s: int, t: int, h: int, heads: int, kv_heads: int) -> dict[str, float]:
    """一条序列、一层前向：s 个新查询、t 个键。GFLOP（乘加记 2，因果不减半），与 fp32 分数矩阵的 MB。

    >>> cost(8192, 8192, 4096, 32, 8)                                       # Llama-3-8B 的 prefill
    {'投影': 687.2, '分数与加权和': 1099.5, '分数 MB': 8589.9}
    >>> cost(1, 8192, 4096, 32, 8)                                          # 解码一个 token
    {'投影': 0.1, '分数与加权和': 0.1, '分数 MB': 1.0}
    """
    if min(s, t, h, heads, kv_heads) < 1 or s > t or h % heads or heads % kv_heads:
        raise ValueError(f"要求 1 ≤ s ≤ t，头数整除，收到 {s}、{t}、{h}、{heads}、{kv_heads}")
    projections = 2 * s * h * (2 * h + 2 * h * kv_heads // heads)
    return {
        "投影": round(projections / 1e9, 1),
        "分数与加权和": round(4 * s * t * h / 1e9, 1),
        "分数 MB": round(4 * heads * s * t / 1e6, 1),
    }


# --8<-- [end:cost]


# --8<-- [start:debug]
def attention_to_debug(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, heads: int) -> Tensor:
    """找错题：x 是 (b, s, h)，四个权重都是 (h, h)，应是因果多头注意力。能跑，形状对，有 5 处错。"""
    b, s, h = x.shape
    q = (x @ wq).view(b, heads, s, h // heads)
    k = (x @ wk).view(b, s, heads, h // heads).transpose(1, 2)
    v = (x @ wv).view(b, s, heads, h // heads).transpose(1, 2)
    scores = q @ k.transpose(-1, -2) / math.sqrt(h)
    seen = torch.ones(s, s, dtype=torch.bool).triu()
    weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-2)
    return (weights @ v).reshape(b, s, h) @ wo


# --8<-- [end:debug]
