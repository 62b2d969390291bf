"""ZeRO 的三个 stage：每卡显存、每步通信量（真的搬数据来数）、分片后的 Adam 与不分片逐位相同（只用标准库）。"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from snippets.common.chart import bars
from snippets.math.algorithms.parameter_sync import Network, Vector, chunk
from snippets.math.optimization.adam import Adam


# --8<-- [start:memory]
@dataclass(frozen=True)
class Inventory:
    """每参数的字节：模型权重、梯度、优化器状态（含 fp32 主权重）。"""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


INVENTORIES = {
    "16 B：bf16 权重与梯度，fp32 主权重 + m + v": Inventory(2, 2, 12),
    "18 B：梯度改用 fp32": Inventory(2, 4, 12),
    "20 B：bf16 梯度之外再留一份 fp32 累加梯度": Inventory(2, 6, 12),
}
MIXED_ADAM = INVENTORIES["16 B：bf16 权重与梯度，fp32 主权重 + m + v"]


def state_bytes(psi: float, n: int, stage: int, inventory: Inventory = MIXED_ADAM) -> tuple[float, float, float]:
    """每卡的 (权重, 梯度, 优化器) 字节；psi 参数量，n 数据并行度，stage 0 是 DDP。不含激活、缓冲与碎片。

    stage 1 切优化器状态，stage 2 再切梯度，stage 3 再切权重（Rajbhandari 2020，图 1）。

    >>> [round(sum(state_bytes(7.5e9, 64, stage)) / 1e9, 1) for stage in range(4)]     # 论文图 1：120、31.4、16.6、1.9 GB
    [120.0, 31.4, 16.6, 1.9]
    >>> state_bytes(7.5e9, 1, 3) == state_bytes(7.5e9, 1, 0)                            # 一张卡没有东西可切
    True
    >>> state_bytes(7.5e9, 64, 4)
    Traceback (most recent call last):
    ...
    ValueError: stage 必须是 0、1、2、3，收到 4
    """
    if not psi > 0 or n < 1:
        raise ValueError(f"须有 psi > 0、n ≥ 1，收到 {psi, n}")
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage 必须是 0、1、2、3，收到 {stage}")
    divisors = (n if stage >= 3 else 1, n if stage >= 2 else 1, n if stage >= 1 else 1)
    sizes = (inventory.weights, inventory.gradients, inventory.optimizer)
    return tuple(psi * size / divisor for size, divisor in zip(sizes, divisors, strict=True))


def memory_table(models: Sequence[tuple[str, float]], ranks: Sequence[int]) -> list[tuple[str, int, list[float]]]:
    """每卡模型状态（GB = 10⁹ 字节），16 B/参数：每行 (模型, n, [stage 0–3])。

    >>> for model, n, row in memory_table([("Llama-3-8B", 8.03e9), ("Llama-3-70B", 70.55e9)], (8, 64, 512)):
    ...     print(f"{model:<12}{n:>4}" + "".join(f"{gb:>9.1f}" for gb in row))
    Llama-3-8B     8    128.5     44.2     30.1     16.1
    Llama-3-8B    64    128.5     33.6     17.8      2.0
    Llama-3-8B   512    128.5     32.3     16.3      0.3
    Llama-3-70B    8   1128.8    388.0    264.6    141.1
    Llama-3-70B   64   1128.8    295.4    156.5     17.6
    Llama-3-70B  512   1128.8    283.9    143.0      2.2
    """
    return [(name, n, [sum(state_bytes(psi, n, stage)) / 1e9 for stage in range(4)]) for name, psi in models for n in ranks]


def reduction(n: int, stage: int, inventory: Inventory = MIXED_ADAM) -> float:
    """相对 stage 0 缩小的倍数。4、8、N 是 n → ∞ 的极限，并且只对 16 B 的清单成立。

    >>> [round(reduction(8, stage), 2) for stage in (1, 2, 3)], [round(reduction(10**9, stage), 2) for stage in (1, 2)]
    ([2.91, 4.27, 8.0], [4.0, 8.0])
    >>> round(reduction(10**9, 2, INVENTORIES["18 B：梯度改用 fp32"]), 2)
    9.0
    """
    return inventory.total / sum(state_bytes(1.0, n, stage, inventory))


def stage2_is_not_total_over_n(n: int = 8) -> tuple[float, float]:
    """反例：“stage 2 每卡 = 总量 / N”。返回 (stage 2 的缩小倍数, N)：权重仍是整份。

    >>> stage2_is_not_total_over_n()
    (4.266666666666667, 8)
    """
    return reduction(n, 2), n


# --8<-- [end:memory]


# --8<-- [start:collectives]
def reduce_scatter(vectors: Sequence[Vector], net: Network) -> list[Vector]:
    """环形 reduce-scatter：rank r 得到第 r 段的总和，每个 rank 发 (N−1)/N·Ψ 个元素。"""
    data, n = [list(vector) for vector in vectors], len(vectors)
    for step in range(n - 1):
        segments = [chunk(len(vectors[0]), n, (rank - step - 1) % n) for rank in range(n)]
        arrived = net.exchange([(rank, (rank + 1) % n, data[rank][segments[rank]]) for rank in range(n)])
        for source, (target, part) in enumerate(arrived):
            data[target][segments[source]] = [a + b for a, b in zip(data[target][segments[source]], part, strict=True)]
    return [data[rank][chunk(len(vectors[0]), n, rank)] for rank in range(n)]


def all_gather(shards: Sequence[Vector], net: Network) -> list[Vector]:
    """环形 all-gather：每个 rank 拼出整个向量，每个 rank 发 (N−1)/N·Ψ 个元素。"""
    n = len(shards)
    held: list[dict[int, Vector]] = [{rank: list(shards[rank])} for rank in range(n)]
    for step in range(n - 1):
        indices = [(rank - step) % n for rank in range(n)]
        arrived = net.exchange([(rank, (rank + 1) % n, held[rank][indices[rank]]) for rank in range(n)])
        for source, (target, part) in enumerate(arrived):
            held[target][indices[source]] = part
    return [[value for index in range(n) for value in rank_held[index]] for rank_held in held]


# --8<-- [end:collectives]


# --8<-- [start:step]
def train(grads_per_step: Sequence[Sequence[Vector]], params: Vector, stage: int, lr: float = 0.1) -> tuple[list[Vector], Network]:
    """用给定的各 rank 梯度走若干步，返回 (每个 rank 看到的完整参数, 通信计数)。stage 0 是 DDP。

    grads_per_step[t][rank] 是第 t 步该 rank 的本地梯度，先求和再除以 N。各 stage 只在“谁持有什么、何时通信”上不同：

    - 0：梯度 all-reduce，每个 rank 更新全部参数；
    - 1、2：梯度 reduce-scatter，各自更新自己那一段，再 all-gather 参数（二者差别只在梯度存多久）；
    - 3：前向、反向前各 all-gather 一次参数，梯度 reduce-scatter，更新后不再 all-gather。
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage 必须是 0、1、2、3，收到 {stage}")
    if not grads_per_step or any(len(grad) != len(params) for grads in grads_per_step for grad in grads):
        raise ValueError("须至少一步，且每个 rank 的梯度与参数等长")
    n, length = len(grads_per_step[0]), len(params)
    net = Network(n)
    parts = [chunk(length, n, rank) for rank in range(n)]
    owned = [slice(0, length)] * n if stage == 0 else parts
    optimizers = [Adam(lr=lr, weight_decay=0.1) for _ in range(n)]
    shards = [params[part] for part in owned]
    full = [list(params) for _ in range(n)]
    for grads in grads_per_step:
        if stage == 3:
            for _ in ("forward", "backward"):
                full = all_gather(shards, net)
        summed = reduce_scatter(grads, net)
        if stage == 0:
            summed = all_gather(summed, net)
        for rank in range(n):
            shards[rank] = optimizers[rank].step(shards[rank], [g / n for g in summed[rank]])
        if stage in (1, 2):
            full = all_gather(shards, net)
        elif stage == 0:
            full = [list(shard) for shard in shards]
    if stage == 3:
        full = all_gather(shards, Network(n))  # 只为返回结果，不计入训练的通信
    return full, net


def compare_stages(n: int = 8, length: int = 1024, steps: int = 3) -> list[tuple[int, float, bool]]:
    """同样的梯度跑 stage 0–3，每行 (stage, 每 rank 每步发出的元素 ÷ Ψ, 参数是否与 stage 0 逐位相同)。

    >>> for stage, sent, equal in compare_stages():
    ...     print(stage, sent, equal)
    0 1.75 True
    1 1.75 True
    2 1.75 True
    3 2.625 True
    """
    params = [math.sin(i) for i in range(length)]
    grads = [[[math.cos(t + rank * 1.7 + i) for i in range(length)] for rank in range(n)] for t in range(steps)]
    reference, _ = train(grads, params, 0)
    rows = []
    for stage in range(4):
        result, net = train(grads, params, stage)
        rows.append((stage, net.sent[0] / length / steps, result == reference))
    return rows


# --8<-- [end:step]


# --8<-- [start:time]
def communication_gb(psi: float, n: int, stage: int, element_bytes: float = 2, micro_batches: int = 1) -> float:
    """每 rank 每步发出的 GB（10⁹ 字节）。micro_batches 是梯度累积的次数。

    stage 0、1：累积完同步一次，2(N−1)/N·Ψ。stage 2：梯度每个 micro-batch 都要 reduce-scatter（梯度已不留整份），
    参数 all-gather 一次。stage 3：每个 micro-batch 前后向各 all-gather 一次，再 reduce-scatter 一次。

    >>> [round(communication_gb(8.03e9, 64, stage), 1) for stage in range(4)]
    [31.6, 31.6, 31.6, 47.4]
    >>> [round(communication_gb(8.03e9, 64, stage, micro_batches=8), 1) for stage in range(4)]
    [31.6, 31.6, 142.3, 379.4]
    """
    if psi <= 0 or n < 1 or element_bytes <= 0 or micro_batches < 1 or stage not in (0, 1, 2, 3):
        raise ValueError(f"参数不合法：{psi, n, stage, element_bytes, micro_batches}")
    times = {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]
    return times * (n - 1) / n * psi * element_bytes / 1e9


def tokens_to_hide_stage3(n: int, bandwidth: float, peak: float, mfu: float = 0.4, element_bytes: float = 2) -> float:
    """stage 3 的通信要能完全藏在计算后面，每卡每个 micro-batch 至少多少 token。

    通信 3(N−1)/N·Ψ·字节 ÷ 带宽 ≤ 计算 6Ψ·token ÷ (峰值·MFU)，Ψ 消掉。peak: 稠密 FLOP/s。
    bandwidth: 环上每卡单向字节/秒（busbw）。一台 8 卡都在组里时，跨机流量由 8 张网卡分担：每卡等效 8 × 50 GB/s，
    不超过 NVLink；组里每台只有一张卡时才是 50 GB/s。

    >>> round(tokens_to_hide_stage3(64, 8 * 50e9, 989e12))      # 8 台 × 8 张 H100，每卡一张 400 Gb/s 网卡，全部在组里
    974
    >>> round(tokens_to_hide_stage3(64, 50e9, 989e12))          # 64 台，每台只有一张卡在组里（例如机内是 TP 8）
    7788
    >>> round(tokens_to_hide_stage3(8, 450e9, 989e12))          # 只在一台机器内，NVLink 4
    769
    """
    if n < 1 or not bandwidth > 0 or not peak > 0 or not 0 < mfu <= 1:
        raise ValueError(f"参数不合法：{n, bandwidth, peak, mfu}")
    return 3 * (n - 1) / n * element_bytes / bandwidth * peak * mfu / 6


# --8<-- [end:time]


def figure_stages() -> str:
    """论文的 7.5B、N = 64：各 stage 每卡的权重、梯度、优化器。"""
    rows = [[gb / 1e9 for gb in state_bytes(7.5e9, 64, stage)] for stage in range(4)]
    names = ("权重", "梯度", "优化器状态")
    return bars(
        ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"],
        {name: [row[i] for row in rows] for i, name in enumerate(names)},
        title="7.5B 参数、64 卡：每卡的模型状态",
        unit="GB",
        refs={"80 GB": 80},
    )
