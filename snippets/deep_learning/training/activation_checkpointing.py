"""在真实的 autograd 上量激活检查点：峰值、前向次数、梯度是否逐位相同、随机数（PyTorch，CPU）。"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from snippets.infra.memory.saved_tensors import LiveStorages


# --8<-- [start:run]
class Block(nn.Module):
    """y = gelu(Wx)，反向要留两份 (b, h)：x 与 Wx。calls 记前向跑了几次。"""

    def __init__(self, h: int, p: float = 0.0) -> None:
        super().__init__()
        self.linear, self.dropout, self.calls = nn.Linear(h, h, bias=False), nn.Dropout(p), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.dropout(nn.functional.gelu(self.linear(x)))


def forward_in_segments(blocks: nn.Sequential, x: Tensor, k: int, *, preserve_rng_state: bool = True) -> Tensor:
    """每 k 层一段做检查点；k = 0 表示不用。x: (b, h)。"""
    if k < 0:
        raise ValueError(f"k 不能为负，收到 {k}")
    if k == 0:
        return blocks(x)
    for start in range(0, len(blocks), k):
        x = checkpoint(blocks[start : start + k], x, use_reentrant=False, preserve_rng_state=preserve_rng_state)
    return x


def measure(n: int, k: int, h: int = 16, b: int = 8192) -> tuple[float, float]:
    """n 层跑一次前向与反向，返回 (峰值，以一份 (b, h) 激活为单位；每层平均前向几次)。b ≫ h，权重的梯度可忽略。

    >>> for k in (0, 1, 4, 8, 16, 64):
    ...     print(k, *measure(64, k))
    0 128.0 1.0
    1 65.0 2.0
    4 23.0 2.0
    8 23.0 2.0
    16 35.0 2.0
    64 128.0 2.0
    """
    torch.manual_seed(0)
    blocks = nn.Sequential(*[Block(h) for _ in range(n)])
    x = torch.randn(b, h, requires_grad=True)
    with LiveStorages() as live:
        forward_in_segments(blocks, x, k).sum().backward()
    return round(live.peak / (b * h * x.element_size()), 1), sum(block.calls for block in blocks) / n


# --8<-- [end:run]


# --8<-- [start:rng]
def gradient_gap(p: float, *, preserve_rng_state: bool = True) -> float:
    """dropout 概率 p 时，用检查点与不用的梯度之差，除以梯度的最大值（两次都从同一个种子开始）。

    >>> gradient_gap(0.0), gradient_gap(0.1)                          # 逐位相同
    (0.0, 0.0)
    >>> gradient_gap(0.1, preserve_rng_state=False) > 0.1             # 重算时换了一张掩码，前向与反向对不上
    True
    """
    grads = []
    for k in (0, 4):
        torch.manual_seed(0)
        blocks, x = nn.Sequential(*[Block(16, p) for _ in range(8)]), torch.randn(64, 16, requires_grad=True)
        forward_in_segments(blocks, x, k, preserve_rng_state=preserve_rng_state).sum().backward()
        grads.append([x.grad, *(parameter.grad for parameter in blocks.parameters())])
    gap = max((a - b).abs().max().item() for a, b in zip(*grads, strict=True))
    return gap / max(g.abs().max().item() for g in grads[0])


# --8<-- [end:rng]
