"""Megatron 的切法，在真实进程上训练同一个小模型：列切、行切、按词表切，可选序列并行，可与数据并行相乘（PyTorch，gloo）。

张量并行组内的 rank 吃同样的数据、各算每一层的 1/t；层本身就是 tiny_llama.Block，只在 enter、leave 两处插通信。
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from snippets.infra.memory.sharded_training import square_sum
from snippets.infra.memory.tiny_llama import IGNORE, OPTIMIZER, SMALL, Llama, Size, build, clip, count_tokens, make_batch
from snippets.infra.memory.traffic import Traffic

Group = dist.ProcessGroup
COLUMN, ROW = ("wq", "wk", "wv", "gate", "up"), ("wo", "down")  # 按输出维切、按输入维切


# --8<-- [start:operators]
class Copy(torch.autograd.Function):
    """f：前向不动，反向 all-reduce。放在列切的线性层之前。"""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduce(torch.autograd.Function):
    """g：前向 all-reduce，反向不动。放在行切的线性层之后。"""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


def gather_sequence(x: Tensor, group: Group) -> Tensor:
    """(b, s/t, h) → (b, s, h)。"""
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=1)


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """各 rank 的 (b, s, h) 相加后只留自己那一段 (b, s/t, h)。集合通信切第 0 维，所以先把 s 换到最前：Megatron 干脆用 (s, b, h)。"""
    x = x.transpose(0, 1).contiguous()
    out = x.new_empty(len(x) // group.size(), *x.shape[1:])
    dist.reduce_scatter_single(out, x, group=group)
    return out.transpose(0, 1)


class GatherSequence(torch.autograd.Function):
    """序列并行的 f：前向 all-gather，反向 reduce-scatter。"""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return gather_sequence(x, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return scatter_sequence(grad, ctx.group), None


class ScatterSequence(torch.autograd.Function):
    """序列并行的 g：前向 reduce-scatter，反向 all-gather。"""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return scatter_sequence(x, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return gather_sequence(grad, ctx.group), None


# --8<-- [end:operators]


# --8<-- [start:vocabulary]
def parallel_embedding(tokens: Tensor, weight: Tensor, group: Group) -> Tensor:
    """weight 是自己那段词表 (V/t, h)：不归自己的 token 查出零，相加之后就是完整的查表（还没相加）。"""
    low = group.rank() * len(weight)
    mine = (tokens >= low) & (tokens < low + len(weight))
    return F.embedding((tokens - low).where(mine, 0), weight) * mine[..., None]


def parallel_cross_entropy(logits: Tensor, targets: Tensor, group: Group) -> Tensor:
    """logits (b, s, V/t) 是自己那段词表：每个 token 只通信三个标量，不聚齐 V 个 logits。返回损失之和。"""
    peak = logits.detach().amax(dim=-1)
    dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
    shifted = logits - peak[..., None]
    total = Reduce.apply(shifted.exp().sum(dim=-1), group)
    low = group.rank() * logits.shape[-1]
    mine = (targets >= low) & (targets < low + logits.shape[-1])
    picked = shifted.gather(-1, (targets - low).where(mine, 0)[..., None])[..., 0] * mine
    loss = total.log() - Reduce.apply(picked, group)
    return loss[targets != IGNORE].sum()


# --8<-- [end:vocabulary]


def slice_parameter(name: str, full: Tensor, index: int, t: int) -> Tensor:
    """Llama 的参数 name 归第 index 个 rank 的那一片；归一化不切。"""
    dim = shard_dim(name)
    if dim is None:
        return full.clone()
    if full.shape[dim] % t:
        raise ValueError(f"{name} 的第 {dim} 维 {full.shape[dim]} 不能被 {t} 整除")
    return full.chunk(t, dim=dim)[index].clone()


def shard_dim(name: str) -> int | None:
    """沿第几维切：列切与词表是 0，行切是 1，复制是 None。

    >>> [shard_dim(name) for name in ("blocks.0.wq.weight", "blocks.0.down.weight", "head.weight", "norm.weight")]
    [0, 1, 0, None]
    """
    layer = name.split(".")[-2]
    if layer in COLUMN or layer in ("embed", "head"):
        return 0
    return 1 if layer in ROW else None


# --8<-- [start:engine]
class TensorParallel:
    """t 路张量并行 × 数据并行。sync_norms=False 是故意留的错：序列并行下归一化的梯度没有在组内相加。"""

    def __init__(self, model: Llama, t: int, sequence_parallel: bool = False, sync_norms: bool = True):
        if model.size.kv % t:
            raise ValueError(f"{model.size.kv} 个 KV 头不能平分给 {t} 个 rank")
        mesh = init_device_mesh("cpu", (dist.get_world_size() // t, t), mesh_dim_names=("dp", "tp"))
        self.dp, self.tp = mesh.get_group("dp"), mesh.get_group("tp")
        self.model, self.sync_norms = model, sync_norms
        self.sequence_parallel = sequence_parallel
        self.parameters = dict(model.named_parameters())
        for name, p in self.parameters.items():
            p.data = slice_parameter(name, p.data, self.tp.rank(), t)
        self.optimizer = torch.optim.AdamW(list(self.parameters.values()), **OPTIMIZER)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        enter, leave = (GatherSequence, ScatterSequence) if self.sequence_parallel else (Copy, Reduce)
        into = lambda z: enter.apply(z, self.tp)  # noqa: E731
        out_of = lambda z: leave.apply(z, self.tp)  # noqa: E731
        hidden = out_of(parallel_embedding(x, self.model.embed.weight, self.tp))
        for block in self.model.blocks:
            hidden = block(hidden, into, out_of)
        logits = self.model.head(into(self.model.norm(hidden)))
        return parallel_cross_entropy(logits, y, self.tp)

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        loss = self.forward(x, y) / tokens
        loss.backward()
        for name, p in self.parameters.items():
            if shard_dim(name) is None and self.sequence_parallel and self.sync_norms:
                dist.all_reduce(p.grad, group=self.tp)  # 各 rank 只见过 s/t 个位置
            dist.all_reduce(p.grad, group=self.dp)
        return loss

    def step(self) -> None:
        gradients: Callable = lambda sharded: [p.grad for name, p in self.parameters.items() if (shard_dim(name) is None) != sharded]  # noqa: E731
        total = square_sum(gradients(True))
        dist.all_reduce(total, group=self.tp)  # 切开的参数：各片的平方和相加
        total += square_sum(gradients(False))  # 复制的参数：只算一次
        clip(list(self.parameters.values()), total)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def full(self) -> dict[str, Tensor]:
        out = {}
        for name, p in self.parameters.items():
            value = p.detach().contiguous()
            if (dim := shard_dim(name)) is not None:
                parts = [torch.empty_like(value) for _ in range(self.tp.size())]
                dist.all_gather(parts, value, group=self.tp)
                value = torch.cat(parts, dim=dim)
            out[name] = value.clone()
        return out


# --8<-- [end:engine]


def train(
    rank: int,
    t: int,
    sequence_parallel: bool = False,
    sync_norms: bool = True,
    size: Size = SMALL,
    dtype: torch.dtype = torch.float32,
    uneven: bool = False,
    steps: int = 5,
):
    """返回 (每步全局损失, 完整权重, 一步里每种通信发出的字节)。"""
    engine = TensorParallel(build(size, dtype), t, sequence_parallel, sync_norms)
    losses = []
    for step in range(steps):
        x, y = make_batch(step, uneven=uneven)
        mine = lambda z: z.chunk(engine.dp.size())[engine.dp.rank()]  # noqa: E731
        with Traffic() as traffic:
            loss = engine.backward(mine(x), mine(y), count_tokens(y)).detach()
            engine.step()
        dist.all_reduce(loss, group=engine.dp)
        losses.append(loss.item())
    return losses, engine.full(), traffic.sent()
