"""在真实的 autograd 上量激活检查点：峰值、前向次数、梯度是否逐位相同、随机数（PyTorch，CPU）。"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

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
    if n < 1:
        raise ValueError(f"n 必须为正，收到 {n}")
    torch.manual_seed(0)
    blocks = nn.Sequential(*[Block(h) for _ in range(n)])
    x = torch.randn(b, h, requires_grad=True)
    with LiveStorages() as live:
        forward_in_segments(blocks, x, k).sum().backward()
    return round(live.peak / (b * h * x.element_size()), 1), sum(block.calls for block in blocks) / n


# --8<-- [end:run]


# --8<-- [start:selective]
class Gated(nn.Module):
    """x + W₃(silu(W₁x̂)·W₂x̂)，x̂ = LayerNorm(x)，中间宽 2h：每层留 x、x̂ 各 1 份，gate、up、silu、乘积各 2 份，共 10 份 (b, h)。"""

    def __init__(self, h: int):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((h, 2 * h), (h, 2 * h), (2 * h, h)))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.layer_norm(x, x.shape[-1:])
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class CountMatmuls(LiveStorages):
    """数存储的同时数矩阵乘。"""

    matmuls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.matmuls += func is torch.ops.aten.mm.default
        return super().__torch_dispatch__(func, types, args, kwargs)


def keep_matmuls(_context, op, *_args, **_kwargs) -> CheckpointPolicy:
    """选择性检查点的策略：矩阵乘的输出留着，其余（归一化、silu、乘积、加法）重算。"""
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


MODES = {"不重算": None, "选择性": {"context_fn": partial(create_selective_checkpoint_contexts, keep_matmuls)}, "全重算": {}}


def measure_mode(mode: str, n: int = 12, h: int = 64, b: int = 8192) -> tuple[float, float, int, Tensor]:
    """n 个 Gated 层：(前向结束时每层留几份 (b, h)，前向加反向的峰值是几份，一共几次矩阵乘，输入的梯度)。

    >>> rows = {mode: measure_mode(mode) for mode in MODES}
    >>> for mode, (kept, peak, matmuls, _) in rows.items():
    ...     print(mode, kept, peak, matmuls)
    不重算 10.0 124.4 108
    选择性 6.0 81.0 108
    全重算 1.0 25.1 132
    >>> all(torch.equal(rows[mode][3], rows["不重算"][3]) for mode in MODES)
    True
    """
    if mode not in MODES or n < 1:
        raise ValueError(f"mode 须是 {list(MODES)} 之一、n 为正，收到 {mode!r}、{n}")
    torch.manual_seed(0)
    layers, x = [Gated(h) for _ in range(n)], torch.randn(b, h, requires_grad=True)
    options = MODES[mode]
    with CountMatmuls() as live:
        y = x
        for layer in layers:
            y = layer(y) if options is None else checkpoint(layer, y, use_reentrant=False, **options)
        kept = live.now()
        y.sum().backward()
    unit = b * h * x.element_size()
    return round(kept / unit / n, 1), round(live.peak / unit, 1), live.matmuls, x.grad


# --8<-- [end:selective]


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
