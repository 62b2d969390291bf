"""各种并行共用的小模型：Llama 式解码器（RMSNorm、SwiGLU、GQA、RoPE），以及单进程训练的参照结果。

所有切法都从同一颗种子造出同一份完整权重再切，吃同样的数据，最后把权重拼回来与这里的参照逐个比。
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE = -100  # 不计损失的位置（padding）


@dataclass(frozen=True)
class Size:
    """h hidden、a 头数、kv 个 KV 头、f MLP 宽；tied 时输出层与嵌入共用一份权重。"""

    vocabulary: int = 64
    h: int = 32
    a: int = 4
    kv: int = 2
    f: int = 48
    layers: int = 4
    tied: bool = False


SMALL = Size()


# --8<-- [start:model]
def rope(x: Tensor, base: float = 10000.0) -> Tensor:
    """旋转位置编码，前后两半配对。x: (b, 头, s, d)，位置从 0 起。"""
    s, half = x.shape[-2], x.shape[-1] // 2
    angle = torch.arange(s, dtype=x.dtype)[:, None] * base ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin, (x1, x2) = angle.cos(), angle.sin(), x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def identity(x: Tensor) -> Tensor:
    return x


class Block(nn.Module):
    """一层。头数由权重的形状反推，所以切过的权重也能直接用；enter、leave 是张量并行插通信的两处，单卡时什么也不做。"""

    def __init__(self, size: Size):
        super().__init__()
        h, self.d = size.h, size.h // size.a
        linear = lambda i, o: nn.Linear(i, o, bias=False)  # noqa: E731
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-6), nn.RMSNorm(h, eps=1e-6)
        self.wq, self.wk, self.wv = linear(h, h), linear(h, size.kv * self.d), linear(h, size.kv * self.d)
        self.wo = linear(h, h)
        self.gate, self.up, self.down = linear(h, size.f), linear(h, size.f), linear(size.f, h)

    def attention(self, x: Tensor) -> Tensor:
        heads = lambda y: y.unflatten(-1, (-1, self.d)).transpose(1, 2)  # noqa: E731
        q, k, v = heads(self.wq(x)), heads(self.wk(x)), heads(self.wv(x))
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, x: Tensor, enter: Callable[[Tensor], Tensor] = identity, leave: Callable[[Tensor], Tensor] = identity) -> Tensor:
        x = x + leave(self.attention(enter(self.norm1(x))))
        return x + leave(self.mlp(enter(self.norm2(x))))


class Llama(nn.Module):
    """tokens (b, s) → logits (b, s, V)。"""

    def __init__(self, size: Size):
        super().__init__()
        self.size = size
        self.embed = nn.Embedding(size.vocabulary, size.h)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.h, eps=1e-6)
        self.head = nn.Linear(size.h, size.vocabulary, bias=False)
        if size.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --8<-- [end:model]


def build(size: Size = SMALL, dtype: torch.dtype = torch.float32, seed: int = 0) -> Llama:
    """同一颗种子给出同一份权重；先在 fp32 里初始化再转，所以两种精度的起点相同。"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Llama(size).to(dtype)


def make_batch(step: int, b: int = 8, s: int = 16, vocabulary: int = 64, uneven: bool = False) -> tuple[Tensor, Tensor]:
    """第 step 步的全局 batch：(输入, 目标)，各 (b, s)；目标是下一个 token。

    uneven: 第 i 条只有前 1 + i·(s − 1)//(b − 1) 个目标计损失，像打了 padding 的变长样本。

    >>> x, y = make_batch(0, uneven=True)
    >>> (y != IGNORE).sum(dim=1).tolist()
    [1, 3, 5, 7, 9, 11, 13, 16]
    """
    generator = torch.Generator().manual_seed(1000 + step)
    start = torch.randint(vocabulary, (b, 1), generator=generator)
    stride = torch.randint(1, 4, (b, 1), generator=generator)
    tokens = (start + stride * torch.arange(s + 1)) % vocabulary  # 等差数列：小模型学得会，损失真的会降
    x, y = tokens[:, :-1], tokens[:, 1:].clone()
    if uneven:
        lengths = 1 + torch.arange(b) * (s - 1) // max(b - 1, 1)
        y[torch.arange(s)[None] >= lengths[:, None]] = IGNORE
    return x, y


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """计入的 token 的交叉熵之**和**（nat）：除以什么由调用方定。"""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def count_tokens(targets: Tensor) -> int:
    return int((targets != IGNORE).sum())


# --8<-- [start:reference]
OPTIMIZER = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CLIP, STEPS = 0.5, 5  # 初始范数约 0.8：每一步都真的裁到


def clip(parameters: list[Tensor], square_sum: Tensor, limit: float = CLIP) -> None:
    """按**给定的**全局平方和裁剪：分片时它必须先在所有分片上求和。"""
    factor = (limit / (square_sum.sqrt() + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        parameter.grad.mul_(factor)


def train_single(size: Size = SMALL, dtype: torch.dtype = torch.float32, uneven: bool = False, steps: int = STEPS):
    """参照：一个进程、整个全局 batch。返回 (每步损失, {名字: 权重})。

    >>> losses, _ = train_single()
    >>> len(losses), losses[0] > losses[-1]
    (5, True)
    """
    model = build(size, dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, **OPTIMIZER)
    losses = []
    for step in range(steps):
        x, y = make_batch(step, uneven=uneven)
        loss = loss_sum(model(x), y) / count_tokens(y)
        loss.backward()
        clip(parameters, sum(p.grad.square().sum() for p in parameters))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


# --8<-- [end:reference]


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """两份权重逐元素差的最大值；名字与形状必须一致。

    >>> distance({"w": torch.zeros(2)}, {"w": torch.tensor([0.0, 0.5])})
    0.5
    """
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        raise ValueError("两份权重的名字或形状不同")
    return max((one[name] - other[name]).abs().max().item() for name in one)
