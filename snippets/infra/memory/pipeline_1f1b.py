"""1F1B 流水线，在真实进程上训练同一个小模型（PyTorch，gloo）。

每个 rank 一段层；段间只传激活与它的梯度。绑定的嵌入在首尾两段各有一份，梯度要在这两段之间相加。
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from snippets.infra.memory.sharded_training import square_sum
from snippets.infra.memory.tiny_llama import OPTIMIZER, SMALL, Llama, Size, build, clip, count_tokens, loss_sum, make_batch
from snippets.infra.memory.traffic import Traffic


# --8<-- [start:order]
def order_1f1b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """第 stage 段依次做什么：先 p − 1 − stage 个前向热身，再一前一后交替，最后排空。

    >>> " ".join(f"{kind}{i}" for kind, i in order_1f1b(0, 3, 4))
    'F0 F1 F2 B0 F3 B1 B2 B3'
    >>> " ".join(f"{kind}{i}" for kind, i in order_1f1b(2, 3, 4))
    'F0 B0 F1 B1 F2 B2 F3 B3'
    """
    if not 0 <= stage < stages or micro_batches < 1:
        raise ValueError(f"段号须在 [0, {stages})、micro-batch 数须为正，收到 {stage}、{micro_batches}")
    warm = min(stages - 1 - stage, micro_batches)
    order = [("F", i) for i in range(warm)]
    for i in range(micro_batches - warm):
        order += [("F", warm + i), ("B", i)]
    return order + [("B", i) for i in range(micro_batches - warm, micro_batches)]


# --8<-- [end:order]


# --8<-- [start:stage]
class Stage(nn.Module):
    """第 index 段的层；首段多嵌入，末段多归一化与输出层（绑定时输出层是嵌入的另一份拷贝）。"""

    def __init__(self, model: Llama, index: int, stages: int):
        super().__init__()
        if model.size.layers % stages:
            raise ValueError(f"{model.size.layers} 层不能平分给 {stages} 段")
        per = model.size.layers // stages
        self.first, self.last = index == 0, index == stages - 1
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in range(index * per, (index + 1) * per)})
        if self.first:
            self.embed = model.embed
        if self.last:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) if self.first else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


# --8<-- [end:stage]


# --8<-- [start:pipeline]
class Pipeline:
    """每步把全局 batch 切成 m 个 micro-batch，梯度在本地累加。sync_tied=False 是故意留的错：首尾两份嵌入各走各的。"""

    def __init__(self, model: Llama, m: int, sync_tied: bool = True):
        self.rank, self.p, self.m = dist.get_rank(), dist.get_world_size(), m
        self.size, self.stage, self.sync_tied = model.size, Stage(model, self.rank, self.p), sync_tied
        self.parameters = dict(self.stage.named_parameters())
        self.ends = dist.new_group([0, self.p - 1]) if self.p > 1 else None
        self.optimizer = torch.optim.AdamW(list(self.parameters.values()), **OPTIMIZER)
        self.peak = 0  # 同时在途（前向做完、反向没做）的 micro-batch 数

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        xs, ys = x.chunk(self.m), y.chunk(self.m)
        alive: dict[int, tuple[Tensor, Tensor]] = {}
        pending, total = [], torch.zeros((), dtype=next(iter(self.parameters.values())).dtype)
        for kind, i in order_1f1b(self.rank, self.p, self.m):
            if kind == "F":
                source = xs[i] if self.stage.first else self.receive(xs[i], self.rank - 1)
                out = self.stage(source)
                if self.stage.last:
                    out = loss_sum(out, ys[i]) / tokens  # 除以**全局** token 数，累加才等于一个大 batch
                    total += out.detach()
                else:
                    pending.append(self.send(out.detach(), self.rank + 1))
                alive[i] = source, out
                self.peak = max(self.peak, len(alive))
            else:
                source, out = alive.pop(i)
                out.backward(None if self.stage.last else self.receive(xs[i], self.rank + 1, gradient=True))
                if not self.stage.first:
                    pending.append(self.send(source.grad, self.rank - 1))
        for work, _ in pending:
            work.wait()
        self.synchronize_tied()
        return total

    def receive(self, tokens: Tensor, source: int, gradient: bool = False) -> Tensor:
        hidden = torch.empty(*tokens.shape, self.size.h, dtype=next(iter(self.parameters.values())).dtype)
        dist.recv(hidden, src=source)
        return hidden if gradient else hidden.requires_grad_()

    def send(self, tensor: Tensor, to: int):
        """异步发：两边同时阻塞地发会互等。返回的张量要留到发完。"""
        return dist.isend(tensor.contiguous(), dst=to), tensor

    def synchronize_tied(self) -> None:
        if self.size.tied and self.sync_tied and self.p > 1 and (self.stage.first or self.stage.last):
            weight = self.stage.embed.weight if self.stage.first else self.stage.head.weight
            dist.all_reduce(weight.grad, group=self.ends)

    def step(self) -> None:
        counted = [p.grad for name, p in self.parameters.items() if not (self.size.tied and self.p > 1 and name == "head.weight")]
        total = square_sum(counted)  # 绑定的那份只在首段算一次
        dist.all_reduce(total)
        clip(list(self.parameters.values()), total)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def full(self) -> dict[str, Tensor]:
        """各段的权重合成一份；绑定时末段那份也留着（名为 head.weight），好看它与嵌入是否还相同。"""
        parts = [None] * self.p
        dist.all_gather_object(parts, {name: p.detach().clone() for name, p in self.parameters.items()})
        return {name: value for part in parts for name, value in part.items()}


# --8<-- [end:pipeline]


def train(
    rank: int,
    m: int = 4,
    sync_tied: bool = True,
    size: Size = SMALL,
    dtype: torch.dtype = torch.float32,
    uneven: bool = False,
    steps: int = 5,
):
    """返回 (每步损失, 完整权重, 这个 rank 一步里每种通信发出的字节, 在途 micro-batch 的峰值)。"""
    engine = Pipeline(build(size, dtype), m, sync_tied)
    losses = []
    for step in range(steps):
        x, y = make_batch(step, uneven=uneven)
        with Traffic() as traffic:
            loss = engine.backward(x, y, count_tokens(y))
            engine.step()
        dist.broadcast(loss, src=engine.p - 1)
        losses.append(loss.item())
    return losses, engine.full(), traffic.sent(), engine.peak
