"""并行训练与单进程不相等的几种常见写法，各在真实进程上跑出差距（PyTorch，gloo）。"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from snippets.infra.memory import pipeline_1f1b, tensor_parallel
from snippets.infra.memory.sharded_training import ENGINES, Ddp, Zero1, square_sum, train
from snippets.infra.memory.tiny_llama import (
    CLIP,
    OPTIMIZER,
    SMALL,
    Size,
    build,
    clip,
    count_tokens,
    distance,
    loss_sum,
    make_batch,
    train_single,
)
from snippets.infra.memory.traffic import Traffic


# --8<-- [start:naive]
class MeanOfMeans(Ddp):
    """错：每个 rank 除以自己的 token 数，再取平均。样本一样长时看不出来。"""

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        n = dist.get_world_size()
        loss = super().backward(x, y, count_tokens(y) * n)
        return loss


class LocalClip(Zero1):
    """错：每个 rank 用自己分片的范数裁剪，于是各裁各的倍数。"""

    def optimize(self) -> None:
        shards = [unit.shard for unit in self.units]
        clip(shards, square_sum([shard.grad for shard in shards]))
        self.optimizer.step()
        self.optimizer.zero_grad()


# --8<-- [end:naive]

NAIVE = {"均值的均值": MeanOfMeans, "各裁各的": LocalClip}


def train_naive(rank: int, kind: str, dtype: torch.dtype, uneven: bool):
    ENGINES[kind] = NAIVE[kind]  # 子进程里登记，只影响这一次
    return train(rank, kind, SMALL, dtype, uneven)


# --8<-- [start:scale]
def effect_of_gradient_scale(factor: float, optimizer: str = "adamw", limit: float = CLIP, steps: int = 5) -> float:
    """梯度整体乘 factor（把平均写成求和就是乘 rank 数），训练几步后与正确权重的最大差。

    只要裁剪每步都生效，两边被裁到同一个范数，什么优化器都看不出来；不裁剪时 AdamW 只差 ε 的作用，SGD 立刻露馅。

    >>> effect_of_gradient_scale(8) < 1e-8, effect_of_gradient_scale(8, "sgd") < 1e-7
    (True, True)
    >>> off = 1e9                                                   # 等于不裁剪
    >>> round(effect_of_gradient_scale(8, "adamw", off), 4), round(effect_of_gradient_scale(8, "sgd", off), 2)
    (0.0013, 0.16)
    """
    results = []
    for scale in (1.0, factor):
        model = build(dtype=torch.float64)
        parameters = list(model.parameters())
        options = dict(OPTIMIZER) if optimizer == "adamw" else {"lr": 0.1}
        update = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer](parameters, **options)
        for step in range(steps):
            x, y = make_batch(step)
            (scale * loss_sum(model(x), y) / count_tokens(y)).backward()
            clip(parameters, square_sum([p.grad for p in parameters]), limit)
            update.step()
            update.zero_grad()
        results.append({name: p.detach() for name, p in model.named_parameters()})
    return distance(*results)


# --8<-- [end:scale]


# --8<-- [start:accumulate]
def accumulate(m: int, weighted: bool, dtype: torch.dtype = torch.float64) -> float:
    """变长样本切成 m 个 micro-batch 累积一步的梯度，与整批一次的相对差（差的范数 ÷ 整批梯度的范数）。

    weighted: 除以全局 token 数；否则各自平均再除 m。

    >>> accumulate(4, weighted=True) < 1e-14, round(accumulate(4, weighted=False), 2)
    (True, 0.75)
    """
    x, y = make_batch(0, uneven=True)
    whole, parts = build(dtype=dtype), build(dtype=dtype)
    (loss_sum(whole(x), y) / count_tokens(y)).backward()
    for xs, ys in zip(x.chunk(m), y.chunk(m), strict=True):
        denominator = count_tokens(y) if weighted else count_tokens(ys) * m
        (loss_sum(parts(xs), ys) / denominator).backward()
    one, other = (torch.cat([p.grad.flatten() for p in model.parameters()]) for model in (whole, parts))
    return ((one - other).norm() / one.norm()).item()


# --8<-- [end:accumulate]


# --8<-- [start:nosync]
def accumulation_traffic(rank: int, m: int, no_sync: bool) -> tuple[int, float]:
    """框架 DDP 累积 m 个 micro-batch 一步：(发出的字节, 梯度与整批的最大差)。no_sync 里只有最后一个 micro-batch 通信。"""
    x, y = make_batch(0, uneven=True)
    n, tokens = dist.get_world_size(), count_tokens(y)
    model = build(dtype=torch.float64)
    wrapped = DistributedDataParallel(model)
    micro = list(zip(x.chunk(n)[rank].chunk(m), y.chunk(n)[rank].chunk(m), strict=True))
    with Traffic() as traffic:
        for i, (xs, ys) in enumerate(micro):
            backward = lambda xs=xs, ys=ys: (loss_sum(wrapped(xs), ys) * n / tokens).backward()  # noqa: E731
            if no_sync and i < m - 1:
                with wrapped.no_sync():  # 前向也要在里面：桶的状态在前向时定
                    backward()
            else:
                backward()
    whole = build(dtype=torch.float64)
    (loss_sum(whole(x), y) / tokens).backward()
    gradients = [{name: p.grad for name, p in net.named_parameters()} for net in (whole, model)]
    return traffic.sent()["all_reduce"], distance(*gradients)


# --8<-- [end:nosync]


# --8<-- [start:dropout]
def mask(shape: tuple[int, ...], seed: int, p: float = 0.5) -> Tensor:
    """倒置的 dropout 掩码，由种子唯一决定。"""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= p) / (1 - p)


def tensor_parallel_dropout(rank: int, inside: str, outside: str) -> tuple[float, float, float]:
    """一个行切线性层，切开的输入与相加后的输出上各有一个 dropout；种子策略如下。

    "same" 各 rank 相同；"rank" 各不相同；"slice" 由同一颗种子造出整张掩码再切片。
    返回 (各 rank 输出的最大分歧, 与不切分的差, 切开处各 rank 掩码相同的比例)。
    """
    t, width = dist.get_world_size(), 64
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(8, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(16, width, generator=generator, dtype=torch.float64)

    def pick(policy: str, shape: tuple[int, ...], seed: int) -> Tensor:
        if policy == "slice":
            return mask((shape[0], shape[1] * t), seed).chunk(t, dim=1)[rank]
        return mask(shape, seed + (1 + rank if policy == "rank" else 0))

    inner = pick(inside, (8, width // t), 100)
    y = (x.chunk(t, dim=1)[rank] * inner) @ weight.chunk(t, dim=1)[rank].T
    dist.all_reduce(y)
    y = y * pick(outside, (8, 16), 200)
    reference = F.linear(x * mask((8, width), 100), weight) * mask((8, 16), 200)
    everyone = [torch.empty_like(y) for _ in range(t)]
    dist.all_gather(everyone, y)
    masks = [torch.empty_like(inner) for _ in range(t)]
    dist.all_gather(masks, inner)
    spread = max((one - y).abs().max().item() for one in everyone)
    alike = sum(float((one == masks[0]).double().mean()) for one in masks[1:]) / (t - 1)
    return spread, (y - reference).abs().max().item(), alike


# --8<-- [end:dropout]


# --8<-- [start:rounding]
def reduction_order(n: int = 8, numel: int = 4096, seed: int = 0) -> tuple[float, float]:
    """n 份同分布的梯度按不同次序相加：(fp32 的最大相对差, fp64 的)。分母是各份绝对值之和，即抵消前的尺度。

    这就是“数学上一致”剩下的那点差：ring、tree、本地累加各有各的次序。

    >>> single, double = reduction_order()
    >>> 0 < single < 8 * 2**-24, 0 < double < 8 * 2**-53            # (n−1)·u 以内
    (True, True)
    """
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(n, numel, generator=generator, dtype=torch.float64)

    def gap(values: Tensor) -> float:
        forward = values[0].clone()
        for part in values[1:]:
            forward += part
        pairs = values
        while len(pairs) > 1:
            pairs = pairs[0::2] + pairs[1::2]
        return ((forward - pairs[0]).abs() / values.abs().sum(0)).max().item()

    return gap(parts.float()), gap(parts)


# --8<-- [end:rounding]


# --8<-- [start:table]
def against_single(losses: list[float], weights: dict[str, Tensor], size: Size, dtype: torch.dtype, uneven: bool) -> tuple[float, float]:
    """(每步损失的最大差, 权重的最大差)，对照 train_single。"""
    expected, reference = train_single(size, dtype, uneven)
    return max(abs(a - b) for a, b in zip(losses, expected, strict=True)), distance(weights, reference)


def agreement(rank: int) -> list[tuple[str, float, float, dict[str, int]]]:
    """九种并行各训练 5 步：(名字, fp32 与单进程权重的最大差, fp64 的, fp32 一步里这个 rank 发出的字节)。

    >>> from snippets.common.processes import launch
    >>> for name, single, double, sent in launch(2, agreement)[0]:
    ...     print(single < 2e-5, double < 1e-12, name, sent)
    True True DDP（手写） {'all_reduce': 140416}
    True True DDP（框架） {'all_reduce': 140416}
    True True ZeRO-1 {'reduce_scatter': 70208, 'all_reduce': 4, 'all_gather': 70208}
    True True ZeRO-2 {'reduce_scatter': 70208, 'all_reduce': 4, 'all_gather': 70208}
    True True ZeRO-3 {'all_gather': 136320, 'reduce_scatter': 70208, 'all_reduce': 4}
    True True FSDP2（框架） {'all_gather': 132160, 'reduce_scatter': 70208, 'all_reduce': 4}
    True True TP {'all_reduce': 296452}
    True True TP + SP {'reduce_scatter': 147456, 'all_gather': 147456, 'all_reduce': 2692}
    True True 1F1B {'send': 16384, 'all_reduce': 4}
    """
    runs = {}
    for dtype in (torch.float32, torch.float64):
        every = {kind: train(rank, kind, SMALL, dtype) for kind in ENGINES}
        every["TP"] = tensor_parallel.train(rank, 2, dtype=dtype)
        every["TP + SP"] = tensor_parallel.train(rank, 2, sequence_parallel=True, dtype=dtype)
        every["1F1B"] = pipeline_1f1b.train(rank, 4, dtype=dtype)
        runs[dtype] = every
    gap = lambda dtype, name: against_single(*runs[dtype][name][:2], SMALL, dtype, uneven=False)[1]  # noqa: E731
    return [(name, gap(torch.float32, name), gap(torch.float64, name), runs[torch.float32][name][2]) for name in runs[torch.float32]]


# --8<-- [end:table]


# --8<-- [start:broken]
def broken(rank: int) -> list[tuple[str, float, float]]:
    """四种错各训练 5 步（fp64，所以差距不是舍入）：(名字, 损失的最大差, 权重的最大差)。学习率 3e-3，每步每个权重最多动约 3e-3。

    >>> from snippets.common.processes import launch
    >>> for name, loss_gap, weight_gap in launch(2, broken)[0]:
    ...     print(f"{loss_gap:.0e} {weight_gap:.0e} {name}")
    8e-02 3e-02 均值的均值（变长样本）
    2e-04 5e-04 各裁各的
    8e-04 2e-02 SP 下归一化的梯度没有相加
    8e-02 3e-02 首尾绑定的嵌入没有相加
    """
    double, tied = torch.float64, Size(tied=True)
    rows = {
        "均值的均值（变长样本）": (train_naive(rank, "均值的均值", double, uneven=True), SMALL, True),
        "各裁各的": (train_naive(rank, "各裁各的", double, uneven=False), SMALL, False),
        "SP 下归一化的梯度没有相加": (tensor_parallel.train(rank, 2, True, sync_norms=False, dtype=double), SMALL, False),
        "首尾绑定的嵌入没有相加": (pipeline_1f1b.train(rank, 4, sync_tied=False, size=tied, dtype=double), tied, False),
    }
    out = []
    for name, (run, size, uneven) in rows.items():
        expected = train_single(size, double, uneven)[1]
        out.append((name, *against_single(run[0], {key: run[1][key] for key in expected}, size, double, uneven)))
    return out


# --8<-- [end:broken]
