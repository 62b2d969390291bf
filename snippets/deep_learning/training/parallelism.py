"""同一个 MLP 的三种切法：数据并行、张量并行、流水线并行，各在真实进程上算梯度（PyTorch，gloo）。

模型是 y = W₂·relu(W₁x)，损失是全批均方误差；w1: (f, h)，w2: (h, f)，x、y: (b, h)。
"""

import torch
import torch.distributed as dist
from torch import Tensor


def single_process(w1: Tensor, w2: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """不切分的参照：返回 [∂/∂W₁, ∂/∂W₂]。

    >>> w1, w2, x = torch.eye(2), torch.eye(2), torch.tensor([[1.0, -2.0]])
    >>> [g.tolist() for g in single_process(w1, w2, x, torch.zeros(1, 2))]
    [[[1.0, -2.0], [0.0, -0.0]], [[1.0, 0.0], [0.0, 0.0]]]
    """
    w1, w2 = w1.clone().requires_grad_(), w2.clone().requires_grad_()
    loss = ((x @ w1.T).relu() @ w2.T - y).square().mean()
    return list(torch.autograd.grad(loss, [w1, w2]))


# --8<-- [start:data]
def data_parallel(rank: int, w1: Tensor, w2: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """切**数据**：每个 rank 一份完整参数、一段 batch；梯度求和再除以 rank 数。各段必须一样长。"""
    n = dist.get_world_size()
    if len(x) == 0 or len(x) % n:
        raise ValueError(f"batch {len(x)} 为空或不能被 {n} 整除：均值的均值不等于全体的均值")
    grads = single_process(w1, w2, x.chunk(n)[rank], y.chunk(n)[rank])
    for g in grads:
        dist.all_reduce(g)
        g /= n
    return grads


# --8<-- [end:data]


# --8<-- [start:tensor]
class CopyToRanks(torch.autograd.Function):
    """Megatron 的 f：前向什么也不做，反向把各 rank 对输入的梯度相加。"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class SumOverRanks(torch.autograd.Function):
    """Megatron 的 g：前向把各 rank 的部分和相加，反向什么也不做。"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


def tensor_parallel(rank: int, w1: Tensor, w2: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """切**每一层**：W₁ 按输出切、W₂ 按输入切，中间的 relu 各算各的；所有 rank 吃同一批数据。

    返回本 rank 那一片的梯度与 ∂/∂x：[(f/t, h), (h, f/t), (b, h)]。
    """
    t = dist.get_world_size()
    if len(w1) % t:
        raise ValueError(f"中间宽度 {len(w1)} 不能被 {t} 整除")
    x = x.clone().requires_grad_()
    w1, w2 = w1.chunk(t)[rank].clone().requires_grad_(), w2.chunk(t, dim=1)[rank].clone().requires_grad_()
    hidden = (CopyToRanks.apply(x) @ w1.T).relu()  # (b, f/t)
    loss = (SumOverRanks.apply(hidden @ w2.T) - y).square().mean()
    return list(torch.autograd.grad(loss, [w1, w2, x]))


# --8<-- [end:tensor]


# --8<-- [start:pipeline]
def pipeline_parallel(rank: int, w1: Tensor, w2: Tensor, x: Tensor, y: Tensor, m: int) -> Tensor:
    """切**层的先后**：rank 0 放 W₁，rank 1 放 W₂；batch 切成 m 个 micro-batch，先全部前向、再全部反向（GPipe）。

    返回本 rank 那一层的梯度。两段之间只传激活与它的梯度，各 (b/m, f)。
    """
    if dist.get_world_size() != 2:
        raise ValueError("这个例子恰好两段")
    if m < 1 or len(x) == 0 or len(x) % m:
        raise ValueError(f"batch {len(x)} 不能切成 {m} 个非空的 micro-batch")
    weight = (w1 if rank == 0 else w2).clone().requires_grad_()
    alive = []  # 反向之前要留着的激活：GPipe 攒 m 份，1F1B 只攒到段数
    for xs, ys in zip(x.chunk(m), y.chunk(m), strict=True):
        if rank == 0:
            out = (xs @ weight.T).relu()
            dist.send(out.detach(), dst=1)
            alive.append(out)
        else:
            hidden = x.new_empty(len(xs), w1.shape[0])
            dist.recv(hidden, src=0)
            hidden.requires_grad_()
            alive.append((hidden, (hidden @ weight.T - ys).square().mean() / m))
    for item in alive:
        if rank == 1:
            hidden, loss = item
            loss.backward()
            dist.send(hidden.grad, dst=0)
        else:
            grad = torch.empty_like(item)
            dist.recv(grad, src=1)
            item.backward(grad)
    return weight.grad


# --8<-- [end:pipeline]
