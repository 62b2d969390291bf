"""混合精度的一步：fp32 主权重、半精度前向与反向、损失缩放、裁剪、更新（PyTorch，CPU）。"""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from snippets.deep_learning.training.loss_scaling import LossScaler


# --8<-- [start:step]
def mixed_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    dtype: torch.dtype,
    scaler: LossScaler | None = None,
    max_norm: float = 1.0,
) -> tuple[float, bool]:
    """一步混合精度训练，返回 (fp32 的损失, 是否更新了参数)。inputs: (b, n_in)，targets: (b,) 的类别。

    model 的参数就是 fp32 主权重；半精度副本每步现转，前向、反向、激活都用它；损失在 fp32 里算。
    次序固定：放大损失 → 反向 → 还原梯度 → 查 inf/NaN → 裁剪 → 更新。没有 scaler 时遇到 inf/NaN 抛 ValueError，不把坏梯度写进权重。

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(4, 3)
    >>> step = mixed_step(model, torch.optim.SGD(model.parameters(), 0.1), torch.randn(8, 4), torch.arange(8) % 3,
    ...                   dtype=torch.bfloat16)
    >>> step[1], model.weight.dtype, model.weight.grad.dtype
    (True, torch.float32, torch.float32)
    """
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise ValueError("主权重必须是 float32")
    if not dtype.is_floating_point or len(inputs) == 0:
        raise ValueError(f"dtype 须为浮点类型、inputs 不能为空，收到 {dtype} 与 {tuple(inputs.shape)}")
    scale = scaler.scale if scaler else 1.0
    half = {name: p.to(dtype) for name, p in model.named_parameters()}  # 转换可微：梯度回到 fp32 主权重
    logits = functional_call(model, half, (inputs.to(dtype),))
    loss = nn.functional.cross_entropy(logits.float(), targets)

    optimizer.zero_grad()
    (loss * scale).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for grad in grads:
        grad.div_(scale)
    overflow = not all(torch.isfinite(grad).all() for grad in grads)
    if overflow and not scaler:
        raise ValueError("梯度里有 inf 或 NaN，又没有损失缩放可调：查数据、学习率与数值范围")
    if scaler and not scaler.update(overflow):
        return loss.item(), False
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item(), True


# --8<-- [end:step]


# --8<-- [start:rope]
def distinct_positions(positions: int, dtype: torch.dtype) -> int:
    """把 0 … positions−1 存成 dtype 之后，还分得清几个位置。

    >>> [distinct_positions(8192, d) for d in (torch.float32, torch.float16, torch.bfloat16)]
    [8192, 4097, 897]
    """
    return torch.arange(positions).to(dtype).unique().numel()


# --8<-- [end:rope]
