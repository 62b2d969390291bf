"""ZeRO-3 的通信量：公式、按链路拆分、ZeRO++，什么带宽下藏得住（这部分只用标准库的算术），以及 FSDP2 真的发了多少（PyTorch，gloo）。"""

import math

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from snippets.infra.memory.tiny_llama import build, loss_sum, make_batch
from snippets.infra.memory.traffic import Traffic


# --8<-- [start:volume]
def zero3_elements(psi: float, n: int, m: int = 1, *, reshard: bool = True, sync_every: bool = True) -> dict[str, float]:
    """每步每个 rank 发出的**元素**数，环形：m 个 micro-batch，前向之后是否重新切分，梯度每个 micro-batch 都归约还是只在最后。

    >>> psi = 8_030_261_248
    >>> for options in ({}, {"reshard": False}, {"m": 8}, {"m": 8, "sync_every": False}):
    ...     parts = zero3_elements(psi, 64, **options)
    ...     print(round(sum(parts.values()) / psi, 2), {kind: round(count / psi, 2) for kind, count in parts.items()}, options)
    2.95 {'all-gather': 1.97, 'reduce-scatter': 0.98} {}
    1.97 {'all-gather': 0.98, 'reduce-scatter': 0.98} {'reshard': False}
    23.62 {'all-gather': 15.75, 'reduce-scatter': 7.88} {'m': 8}
    16.73 {'all-gather': 15.75, 'reduce-scatter': 0.98} {'m': 8, 'sync_every': False}
    """
    if not psi > 0 or min(n, m) < 1:
        raise ValueError(f"psi、n、m 须为正，收到 {psi}、{n}、{m}")
    ring = (n - 1) / n * psi
    return {"all-gather": ring * m * (2 if reshard else 1), "reduce-scatter": ring * (m if sync_every else 1)}


# --8<-- [end:volume]


# --8<-- [start:links]
def across_nodes_gb(psi: float, nodes: int, local: int, scheme: str, element: int = 2) -> float:
    """一张卡每步经**机间**链路发出的 GB（10⁹），m = 1，每张卡一个网卡、流量平摊。

    flat：一个全局的环，每台机器出去 (n−1)/n·Ψ，摊到每张卡 1/local，三次。
    hierarchical：先机内、再机间，机间每张卡只搬自己那 1/local 的 (k−1)/k，三次。
    HSDP：机内切、机间复制，机间只有梯度分片的 all-reduce，是两次。
    ZeRO++：前向的 all-gather 用 int8（一半），反向的只走机内，梯度用 int4（四分之一）：共 0.75 次。

    >>> psi = 8_030_261_248
    >>> for scheme in ("flat", "hierarchical", "HSDP", "ZeRO++"):
    ...     print(round(across_nodes_gb(psi, 8, 8, scheme), 2), scheme)
    5.93 flat
    5.27 hierarchical
    3.51 HSDP
    1.32 ZeRO++
    """
    if min(nodes, local, element) < 1 or psi <= 0:
        raise ValueError("psi、nodes、local、element 须为正")
    n, share = nodes * local, psi * element / local / 1e9
    if scheme == "flat":
        return 3 * share * (n - 1) / n if nodes > 1 else 0.0
    times = {"hierarchical": 3.0, "HSDP": 2.0, "ZeRO++": 0.75}.get(scheme)
    if times is None:
        raise ValueError(f"scheme 须是 flat、hierarchical、HSDP、ZeRO++ 之一，收到 {scheme!r}")
    return times * share * (nodes - 1) / nodes


# --8<-- [end:links]


# --8<-- [start:breakeven]
def breakeven_gb_per_s(tokens: int, peak: float = 989e12, mfu: float = 0.4, element: int = 2, recompute: bool = False) -> float:
    """每卡单向至少多少 GB/s，通信才等于计算（完全重叠的必要条件）：每卡每步 tokens 个 token，m = 1，卡数很多。

    通信 3·element·Ψ 字节，计算 (6 或全重算 8)·Ψ·tokens FLOPs：Ψ 约掉，**与模型大小无关**。

    >>> for tokens in (2048, 8192, 32768):
    ...     print(tokens, round(breakeven_gb_per_s(tokens), 1), round(breakeven_gb_per_s(tokens, recompute=True), 1))
    2048 193.2 144.9
    8192 48.3 36.2
    32768 12.1 9.1
    """
    if tokens < 1 or peak <= 0 or not 0 < mfu <= 1 or element < 1:
        raise ValueError("tokens、peak、element 须为正，mfu 在 (0, 1] 内")
    return 3 * element / ((8 if recompute else 6) * tokens / (peak * mfu)) / 1e9


def exposed_seconds(psi: float, n: int, tokens: int, gb_per_s: float, peak: float = 989e12, mfu: float = 0.4) -> tuple[float, float]:
    """(计算秒, 通信超出计算的秒)：完全重叠时的下限；真实还要加第一个 all-gather 与最后一个 reduce-scatter。

    >>> for psi, name in ((8.03e9, "8B"), (70.55e9, "70B"), (405.85e9, "405B")):
    ...     compute, exposed = exposed_seconds(psi, 512, 8192, 25)
    ...     print(f"{name}: 计算 {compute:.2f} s，露出 {exposed:.2f} s")
    8B: 计算 1.00 s，露出 0.93 s
    70B: 计算 8.77 s，露出 8.13 s
    405B: 计算 50.43 s，露出 46.79 s
    """
    if gb_per_s <= 0 or not math.isfinite(gb_per_s):
        raise ValueError(f"带宽须为正的有限数，收到 {gb_per_s}")
    compute = 6 * psi * tokens / (peak * mfu)
    moved = sum(zero3_elements(psi, n).values()) * 2
    return compute, max(0.0, moved / (gb_per_s * 1e9) - compute)


# --8<-- [end:breakeven]


# --8<-- [start:measured]
def fsdp2_step(rank: int, arrangement: str) -> tuple[dict[str, int], int]:
    """框架的 FSDP2 训一步小模型：(每种通信这个 rank 发出的字节, all-gather 次数)。每层一个 unit，根管嵌入与末尾。

    arrangement: plain；keep（reshard_after_forward=False）；half（前向之后切到一半的卡）；
    inside、outside、pairs（checkpoint 在 unit 里面、外面、一个 checkpoint 里两个 unit）。
    """
    model, n = build(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,))
    options = {"keep": {"reshard_after_forward": False}, "half": {"reshard_after_forward": n // 2}}.get(arrangement, {})
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
        if arrangement == "inside":
            block.forward = _checkpointed(block.forward)

    def body(tokens):
        hidden, blocks = model.embed(tokens), list(model.blocks)
        if arrangement == "outside":
            blocks = [_checkpointed(block) for block in blocks]
        if arrangement == "pairs":
            blocks = [_checkpointed(_chain(first, second)) for first, second in zip(blocks[::2], blocks[1::2], strict=True)]
        for block in blocks:
            hidden = block(hidden)
        return model.head(model.norm(hidden))

    model.forward = body
    fully_shard(model, mesh=mesh)
    for step in range(2):  # 第一步含惰性初始化
        x, y = make_batch(step)
        with Traffic() as traffic:
            loss_sum(model(x.chunk(n)[rank]), y.chunk(n)[rank]).backward()
    return traffic.sent(), sum(call.kind == "all_gather" for call in traffic.calls)


def _checkpointed(function):
    return lambda hidden: checkpoint(function, hidden, use_reentrant=False)


def _chain(first, second):
    return lambda hidden: second(first(hidden))


# --8<-- [end:measured]

ARRANGEMENTS = ("plain", "keep", "half", "inside", "outside", "pairs")


def fsdp2_steps(rank: int) -> dict[str, tuple[dict[str, int], int]]:
    return {name: fsdp2_step(rank, name) for name in ARRANGEMENTS if name != "half" or dist.get_world_size() == 4}
