"""2017 年的 Transformer 层与今天的解码器层，各按配置写成模块（PyTorch）。"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _check(x: Tensor, h: int) -> None:
    """二维输入在 a = 1 时会广播成 (s, s, h) 而不报错，所以先查形状。"""
    if x.dim() != 3 or x.shape[-1] != h:
        raise ValueError(f"输入须是 (b, s, {h})，收到 {tuple(x.shape)}")


# --8<-- [start:old]
class Block2017(nn.Module):
    """Vaswani 2017 的一层（只画自注意力的那种）：MHA、ReLU、4h、处处有偏置，post-LN：norm(x + F(x))。x: (b, s, h)。"""

    def __init__(self, h: int, a: int, f: int) -> None:
        super().__init__()
        if min(h, a, f) < 1 or h % a:
            raise ValueError(f"尺寸须为正且 h 是头数的整数倍，收到 {h, a, f}")
        self.a = a
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, f), nn.Linear(f, h)
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.out.in_features)
        q, k, v = (t.unflatten(-1, (self.a, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(self.up(x).relu()))


# --8<-- [end:old]


def rotate(x: Tensor, base: float) -> Tensor:
    """RoPE，前后半配对。x: (b, a, s, d)。推导见 Q027。"""
    s, d = x.shape[-2:]
    positions, pairs = torch.arange(s, dtype=torch.float32, device=x.device), torch.arange(0, d, 2, device=x.device)
    angles = positions[:, None] * base ** (-pairs / d)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


# --8<-- [start:modern]
class BlockToday(nn.Module):
    """今天常见的一层：pre-RMSNorm、GQA、RoPE、可选的 QK-norm、SwiGLU，没有偏置与 dropout。x: (b, s, h)。"""

    def __init__(self, h: int, a: int, kv: int, d: int, f: int, *, qk_norm: bool = False, base: float = 5e5) -> None:
        super().__init__()
        if min(h, a, kv, d, f) < 1 or a % kv or d % 2:
            raise ValueError(f"尺寸须为正，查询头数 a 须是 KV 头数 kv 的整数倍，d 须为偶数，收到 {h, a, kv, d, f}")
        self.a, self.kv, self.base = a, kv, base
        self.q, self.k, self.v = (nn.Linear(h, heads * d, bias=False) for heads in (a, kv, kv))
        self.out = nn.Linear(a * d, h, bias=False)
        self.gate, self.up, self.down = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False), nn.Linear(f, h, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-5), nn.RMSNorm(h, eps=1e-5)
        self.norm_q, self.norm_k = (nn.RMSNorm(d) if qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.q.in_features)
        y = self.norm1(x)
        q = rotate(self.norm_q(self.q(y).unflatten(-1, (self.a, -1))).transpose(1, 2), self.base)
        k = rotate(self.norm_k(self.k(y).unflatten(-1, (self.kv, -1))).transpose(1, 2), self.base)
        v = self.v(y).unflatten(-1, (self.kv, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))  # 残差流没有经过任何归一化
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


# --8<-- [end:modern]


# --8<-- [start:count]
def parameters(module: nn.Module) -> int:
    """可训练的参数量。

    >>> with torch.device("meta"):                                     # 只要形状，不占内存
    ...     old = Block2017(512, 8, 2048)
    ...     today = BlockToday(4096, 32, 8, 128, 14336)
    >>> parameters(old), parameters(today)                             # Transformer base 与 Llama-3-8B 的一层
    (3152384, 218112000)
    >>> 32 * parameters(today) + 2 * 128_256 * 4096 + 4096             # 加 embedding、输出头、最后的归一化
    8030261248
    """
    return sum(p.numel() for p in module.parameters())


# --8<-- [end:count]
