"""一个最小的因果解码块：训练一次算完所有位置，解码一次一个（PyTorch，CPU）。"""

import math

import torch
from torch import Tensor, nn


# --8<-- [start:block]
class Block(nn.Module):
    """pre-norm 解码块：x + Attn(norm x)，再 x + MLP(norm x)。x: (b, s, h)。"""

    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        if any(type(n) is not int or n < 1 for n in (h, heads)) or h % heads:
            raise ValueError(f"h 与头数须为正整数且整除，收到 h={h}、头数 {heads}")
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h, bias=False), nn.Linear(h, h, bias=False)
        self.mlp = nn.Sequential(nn.Linear(h, 4 * h, bias=False), nn.GELU(), nn.Linear(4 * h, h, bias=False))

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        """没有 cache：s 个位置并行，因果掩码。有 cache（两个张量 K、V，可为空）：x 是新来的一个位置，追加进去。"""
        h = self.out.in_features
        if x.dim() != 3 or not x.shape[1] or x.shape[2] != h:
            raise ValueError(f"x 须是 (b, s, {h})、s ≥ 1，收到 {tuple(x.shape)}")
        if cache is not None and x.shape[1] != 1:
            raise ValueError(f"有 cache 时一次只能喂一个位置，收到 {x.shape[1]} 个")
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        if cache is not None:
            cache[:] = [torch.cat([old, new], dim=2) for old, new in zip(cache, (k, v), strict=True)] if cache else [k, v]
            k, v = cache
        scores = q @ k.transpose(-1, -2) / math.sqrt(h // self.heads)  # (b, a, s, 已有的长度)
        if cache is None:
            scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, h))
        return x + self.mlp(self.norm2(x))


def decode(block: Block, x: Tensor) -> Tensor:
    """一次喂一个位置，靠 KV cache 得到与并行相同的结果；步数等于长度。

    >>> _ = torch.manual_seed(0)
    >>> block, x = Block(64, 4), torch.randn(2, 10, 64)
    >>> torch.allclose(block(x), decode(block, x), atol=1e-5)
    True
    """
    if x.dim() != 3 or not x.shape[1]:
        raise ValueError(f"x 须是 (b, s, h)、s ≥ 1，收到 {tuple(x.shape)}")
    cache: list[Tensor] = []
    return torch.cat([block(x[:, t : t + 1], cache) for t in range(x.shape[1])], dim=1)


# --8<-- [end:block]


# --8<-- [start:cost]
def attention_share(s: int, h: int) -> float:
    """一层前向里注意力分数与加权和（4s²h，不因因果减半）占全部 FLOPs 的比例；线性层按 MHA 与 4h 的 MLP 计 24sh²。

    >>> [round(attention_share(s, 4096), 3) for s in (2048, 8192, 24_576, 131_072)]       # s = 6h 时各占一半
    [0.077, 0.25, 0.5, 0.842]
    """
    if any(type(n) is not int or n < 1 for n in (s, h)):
        raise ValueError(f"s、h 必须为正整数，收到 {s}、{h}")
    return s / (s + 6 * h)


# --8<-- [end:cost]
