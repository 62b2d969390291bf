"""手写 RoPE：两种配对、只旋转一部分维、KV cache 的位置偏移、换布局的权重置换（PyTorch）。"""

import torch
from torch import Tensor


# --8<-- [start:rope]
def rope_table(positions: Tensor, rotary: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """每个位置、每对坐标的 cos 与 sin。positions: (s,) 或 (b, s) 的整数；返回两个 (…, s, rotary/2)，fp32。

    角度是 position·base^(−2i/rotary)（Su 2021，§3.2.2），在 float64 里算，再存 fp32。

    >>> cos, sin = rope_table(torch.arange(4096), 128)
    >>> tuple(cos.shape), round(cos[1, 0].item(), 4), round(sin[4095, 63].item(), 4)
    ((4096, 64), 0.5403, 0.4555)
    >>> rope_table(torch.arange(4), 3)
    Traceback (most recent call last):
    ValueError: rotary 须是正偶数，base 须大于 1，收到 3、10000.0
    """
    if rotary < 2 or rotary % 2 or not 1 < base < float("inf"):
        raise ValueError(f"rotary 须是正偶数，base 须大于 1，收到 {rotary}、{base}")
    if positions.is_floating_point() or positions.dtype == torch.bool or (positions < 0).any():
        raise ValueError(f"位置须是非负整数，收到 {positions.dtype}")
    # --8<-- [start:blank-angles]
    # 第 i 对的频率 base^(−2i/rotary)，角度 (…, s, rotary/2)
    frequency = base ** (-torch.arange(0, rotary, 2, dtype=torch.float64, device=positions.device) / rotary)
    angle = positions.double()[..., None] * frequency
    # --8<-- [end:blank-angles]
    return angle.cos().float(), angle.sin().float()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """x: (b, a, s, d)，只旋转每个头的前 rotary = 2·cos.shape[-1] 维；形状与类型不变。

    interleaved：(0,1)、(2,3)… 相邻配对（论文、Meta 的 Llama）；否则 i 与 i + rotary/2 配对（GPT-NeoX、Hugging Face 的 Llama）。
    """
    half = cos.shape[-1]
    if cos.shape != sin.shape or 2 * half > x.shape[-1] or cos.shape[-2] != x.shape[-2]:
        raise ValueError(f"cos、sin 须是 (…, s, rotary/2) 且 rotary ≤ d，收到 {tuple(x.shape)} 与 {tuple(cos.shape)}、{tuple(sin.shape)}")
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # 头那一维广播
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    # --8<-- [start:blank-pairs]
    # 取出每一对的两个坐标 first、second，都是 (b, a, s, rotary/2)
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    # --8<-- [end:blank-pairs]
    # --8<-- [start:blank-rotate]
    # 每一对逆时针转 angle
    first, second = first * cos - second * sin, second * cos + first * sin
    # --8<-- [end:blank-rotate]
    # --8<-- [start:blank-join]
    # 按原来的配对放回 (b, a, s, rotary)
    out = torch.stack((first, second), dim=-1).flatten(-2) if interleaved else torch.cat((first, second), dim=-1)
    # --8<-- [end:blank-join]
    return torch.cat((out.to(x.dtype), rest), dim=-1)


# --8<-- [end:rope]


# --8<-- [start:layout]
def to_half_layout(rotary: int) -> Tensor:
    """相邻配对 → 前后半配对的坐标置换：新的第 j 个是旧的第几个。

    >>> to_half_layout(8).tolist()
    [0, 2, 4, 6, 1, 3, 5, 7]
    """
    if rotary < 2 or rotary % 2:
        raise ValueError(f"rotary 须是正偶数，收到 {rotary}")
    return torch.cat((torch.arange(0, rotary, 2), torch.arange(1, rotary, 2)))


def convert_projection(weight: Tensor, heads: int) -> Tensor:
    """把按相邻配对训练的 W_Q 或 W_K（(heads·d, h)，整头旋转）改成前后半配对用的：每个头内置换行。"""
    if weight.ndim != 2 or heads < 1 or weight.shape[0] % (2 * heads):
        raise ValueError(f"weight 须是 (heads·d, h)，d 为偶数，收到 {tuple(weight.shape)}、{heads}")
    d = weight.shape[0] // heads
    return weight.view(heads, d, -1)[:, to_half_layout(d)].reshape(weight.shape)


# --8<-- [end:layout]


# --8<-- [start:precision]
def table_error(position: int, dtype: torch.dtype, rotary: int = 128, base: float = 10_000.0) -> float:
    """若位置、频率与角度都用 dtype 算，64 个 cos 最大错多少（对照 float64）。2 就是符号全反。

    >>> [table_error(255, dtype) > 0.05 for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    [False, True, True]
    >>> [table_error(8191, dtype) > 1 for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    [False, True, True]
    >>> 1e-4 < table_error(131_071, torch.float32) < 1e-2          # 128K 处 fp32 也有千分之几，所以在 float64 里算表
    True
    """
    at = torch.tensor([position])
    exact, _ = rope_table(at, rotary, base)
    frequency = base ** (-torch.arange(0, rotary, 2).to(dtype) / rotary)
    return ((at.to(dtype)[:, None] * frequency).double().cos() - exact.double()).abs().max().item()


# --8<-- [end:precision]
