"""参数与优化器状态切开之后的 Adam：哪些步骤是逐元素的、哪些要通信，混合精度的副本，检查点换卡数（PyTorch，单进程）。"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


# --8<-- [start:adam]
def adamw(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int, *, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1
) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW 一步，返回新的 (w, m, v)。每一步运算都逐元素：切成任意几段分别做，与整块做逐位相同。"""
    if step < 1 or not w.shape == g.shape == m.shape == v.shape:
        raise ValueError("step 从 1 起；w、g、m、v 的形状须相同")
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    m_hat, v_hat = m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)
    return w - lr * decay * w - lr * m_hat / (v_hat.sqrt() + eps), m, v


def sharded_equals_whole(numel: int, cuts: Sequence[int], steps: int = 3, dtype: torch.dtype = torch.float32) -> bool:
    """在 cuts 处切开、各段各自更新，再拼起来，是否与整块**逐位**相同。

    >>> sharded_equals_whole(1000, [1, 250, 999]), sharded_equals_whole(1000, [500], dtype=torch.bfloat16)
    (True, True)
    """
    edges = [0, *cuts, numel]
    if sorted(set(edges)) != edges:
        raise ValueError(f"cuts 须严格递增并在 (0, {numel}) 内，收到 {list(cuts)}")
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype), *(torch.zeros(numel, dtype=dtype) for _ in "mv")]
    parts = [[x[a:b] for x in whole] for a, b in itertools.pairwise(edges)]
    for step in range(1, steps + 1):
        g = torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype)
        w, m, v = whole
        whole = adamw(w, g, m, v, step)
        parts = [adamw(w, g[a:b], m, v, step) for (w, m, v), a, b in zip(parts, edges, edges[1:], strict=False)]
    joined = [torch.cat(pieces) for pieces in zip(*parts, strict=True)]
    return all(torch.equal(a, b) for a, b in zip(whole, joined, strict=True))


# --8<-- [end:adam]


# --8<-- [start:norm]
def global_norm(shards: Sequence[Tensor], replicated: Sequence[Tensor] = ()) -> float:
    """全局 L2 范数：分片的平方和相加（真实训练里是一次标量 all-reduce），复制的参数只算一次。

    >>> shards = [torch.tensor([3.0]), torch.tensor([4.0])]
    >>> global_norm(shards), [shard.norm().item() for shard in shards]   # 各裁各的会用 3 与 4，而不是 5
    (5.0, [3.0, 4.0])
    >>> global_norm(shards, [torch.tensor([12.0])])
    13.0
    """
    total = sum(float(x.double().square().sum()) for x in (*shards, *replicated))
    if not math.isfinite(total):
        raise ValueError("梯度里有 inf 或 NaN：所有 rank 要一起跳过这一步")
    return math.sqrt(total)


# --8<-- [end:norm]


# --8<-- [start:local]
def layerwise_scale(w: Tensor, update: Tensor) -> Tensor:
    """LAMB/LARS 的信任比：整个张量的 ‖w‖/‖u‖ 乘更新。"""
    return w.norm() / update.norm() * update


def factored_second_moment(g: Tensor) -> Tensor:
    """Adafactor 对矩阵的二阶矩近似：行和乘列和除以总和。g: (行, 列)。"""
    square = g * g
    return square.sum(1, keepdim=True) * square.sum(0, keepdim=True) / square.sum()


def orthogonalized(g: Tensor) -> Tensor:
    """Muon 的更新方向 UVᵀ（这里用 SVD，训练里用 Newton–Schulz）。"""
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    return u @ vh


def is_local(rule: Callable[[Tensor], Tensor], g: Tensor, n: int) -> bool:
    """沿第 0 维切成 n 片分别用 rule，拼起来是否等于整块用。False 表示这个优化器在分片上不能直接用。

    >>> g = torch.randn(8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> trust = lambda u: layerwise_scale(u + 1, u)
    >>> rules = {"符号": torch.sign, "信任比": trust, "分解二阶矩": factored_second_moment, "正交化": orthogonalized}
    >>> {name: is_local(rule, g, 2) for name, rule in rules.items()}
    {'符号': True, '信任比': False, '分解二阶矩': False, '正交化': False}
    """
    if g.dim() != 2 or not 1 <= n <= len(g):
        raise ValueError(f"g 须是矩阵，n 在 [1, 行数] 内，收到 {tuple(g.shape)}、{n}")
    return torch.allclose(rule(g), torch.cat([rule(part) for part in g.chunk(n)]), rtol=1e-10, atol=0)


# --8<-- [end:local]


# --8<-- [start:mixed]
def stalled_fraction(w: Tensor, lr: float) -> float:
    """只有 bf16 权重、没有 fp32 主权重时，大小为 lr 的更新被舍入吃掉（权重一位不动）的比例。

    bf16 有 8 位有效数字，相邻两数的相对间隔在 2⁻⁸ 与 2⁻⁷ 之间；更新不到间隔的一半就被舍掉。

    >>> w = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).mul(0.02).bfloat16()
    >>> [round(stalled_fraction(w, lr), 2) for lr in (3e-4, 3e-5, 3e-6)]
    [0.0, 0.7, 0.96]
    """
    if w.dtype != torch.bfloat16 or not 0 < lr < math.inf:
        raise ValueError(f"w 须是 bf16、lr 须为正，收到 {w.dtype}、{lr}")
    return ((w - torch.tensor(lr, dtype=torch.bfloat16)) == w).float().mean().item()


def sent_per_rank(psi: int, n: int, gradient: int = 4, parameter: int = 2) -> dict[str, float]:
    """分布式优化器一步里每个 rank 发出的 GB（10⁹）：reduce-scatter 梯度、all-gather 权重，环形。

    all-gather 的是转成 bf16 之后的权重；fp32 的主权重与 m、v 从不通信。

    >>> {k: round(x, 2) for k, x in sent_per_rank(8_030_261_248, 64).items()}
    {'reduce-scatter': 31.62, 'all-gather': 15.81}
    >>> {k: round(x, 2) for k, x in sent_per_rank(8_030_261_248, 64, gradient=2).items()}
    {'reduce-scatter': 15.81, 'all-gather': 15.81}
    """
    if min(psi, n, gradient, parameter) < 1:
        raise ValueError("psi、n、gradient、parameter 须为正")
    ring = (n - 1) / n * psi / 1e9
    return {"reduce-scatter": ring * gradient, "all-gather": ring * parameter}


# --8<-- [end:mixed]


# --8<-- [start:reshard]
def reshard(shards: Sequence[Tensor], numel: int, n: int) -> list[Tensor]:
    """把补过零的平铺分片重新切给 n 个 rank。m、v、主权重用同样的切法搬，step 计数原样带走。

    >>> old = [torch.tensor([0.0, 1, 2, 3]), torch.tensor([4.0, 5, 6, 0])]      # 7 个数，2 个 rank，补 1 个零
    >>> [shard.tolist() for shard in reshard(old, 7, 3)]
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 0.0, 0.0]]
    """
    if n < 1 or not 0 < numel <= sum(map(len, shards)):
        raise ValueError(f"n 须为正，numel 在 (0, {sum(map(len, shards))}] 内，收到 {n}、{numel}")
    flat = torch.cat(list(shards))[:numel]
    return list(torch.cat([flat, flat.new_zeros(-numel % n)]).chunk(n))


# --8<-- [end:reshard]
