"""梯度同步的三本账：DDP、ZeRO、FSDP 每步每个 rank 发出多少字节，分桶怎样与反向重叠，FSDP2 累积时真的发了什么。"""

from collections.abc import Sequence

import torch.distributed as dist

from snippets.infra.memory.sharded_training import Fsdp2
from snippets.infra.memory.tiny_llama import build, count_tokens, loss_sum, make_batch
from snippets.infra.memory.traffic import Traffic

SCHEMES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


# --8<-- [start:volume]
def sent(scheme: str, psi: float, n: int, m: int = 1, *, accumulate: bool = True, gradient: int = 2, parameter: int = 2) -> float:
    """每步每个 rank 发出的 GB（10⁹ 字节），环形：n 个 DP rank，m 个 micro-batch。

    accumulate: 梯度先在本地攒 m 次再同步（DDP 的 no_sync、FSDP2 的 set_requires_gradient_sync）；代价是一份完整的梯度。
    False 则每个 micro-batch 同步一次（ZeRO-2、ZeRO-3 要让梯度一直切着，就得这样）。
    ZeRO-3 每个 micro-batch 的前向、反向各聚齐一次权重，与 accumulate 无关。

    >>> psi = 8_030_261_248                                          # Llama-3-8B，64 卡，bf16 通信
    >>> for scheme in SCHEMES:
    ...     print(scheme, *(round(sent(scheme, psi, 64, m, accumulate=keep), 1) for m, keep in ((1, True), (8, True), (8, False))))
    DDP 31.6 31.6 253.0
    ZeRO-1 31.6 31.6 142.3
    ZeRO-2 31.6 31.6 142.3
    ZeRO-3 47.4 268.8 379.4
    """
    if scheme not in SCHEMES:
        raise ValueError(f"scheme 须是 {SCHEMES} 之一，收到 {scheme!r}")
    if min(psi, n, m, gradient, parameter) < 1:
        raise ValueError("psi、n、m 与字节数须为正")
    ring = (n - 1) / n * psi / 1e9
    reductions = 1 if accumulate else m
    if scheme == "DDP":
        return 2 * ring * gradient * reductions
    gathers = 2 * m if scheme == "ZeRO-3" else 1  # ZeRO-1/2 只在更新之后聚一次新权重
    return ring * (gradient * reductions + parameter * gathers)


# --8<-- [end:volume]


# --8<-- [start:overlap]
def exposed(ready: Sequence[float], sizes: Sequence[float], backward: float, bandwidth: float, latency: float = 0.0) -> float:
    """反向结束后还要等多久（秒）。桶按 ready（开始反向后多少秒凑齐）的次序，在一条通信流上依次发，不抢计算。

    sizes 字节，bandwidth 字节每秒，每个桶另付 latency 秒。

    >>> layers, grad = 32, 2 * 218_112_000                            # 8B：每层的 bf16 梯度；反向 0.4 秒，逐层均匀
    >>> ready = [0.4 * (i + 1) / layers for i in range(layers)]
    >>> time = lambda per, bandwidth: exposed(ready[per - 1 :: per], [per * grad * 2 * 63 / 64] * (layers // per), 0.4, bandwidth)
    >>> [round(time(per, 50e9), 3) for per in (1, 4, 32)]             # 50 GB/s：每层一桶、四层一桶、整个模型一桶
    [0.162, 0.2, 0.55]
    >>> round(time(1, 150e9), 3)                                      # 带宽够时只露出最后一桶
    0.006
    """
    if not ready or len(ready) != len(sizes) or list(ready) != sorted(ready):
        raise ValueError("ready 与 sizes 须非空、等长，ready 不减")
    if min(ready) < 0 or max(ready) > backward or bandwidth <= 0 or latency < 0 or min(sizes) < 0:
        raise ValueError("须有 0 ≤ ready ≤ backward、bandwidth > 0、latency ≥ 0、sizes ≥ 0")
    free = 0.0
    for at, size in zip(ready, sizes, strict=True):
        free = max(free, at) + latency + size / bandwidth
    return max(0.0, free - backward)


# --8<-- [end:overlap]


# --8<-- [start:fsdp]
def fsdp2_accumulation(rank: int, m: int, accumulate: bool) -> tuple[dict[str, int], int]:
    """框架的 FSDP2 累积 m 个 micro-batch：(发出的字节, 累积途中这个 rank 上未切分的梯度元素数)。"""
    n, (x, y) = dist.get_world_size(), make_batch(0)
    engine = Fsdp2(build())
    micro = list(zip(x.chunk(n)[rank].chunk(m), y.chunk(n)[rank].chunk(m), strict=True))
    whole = 0
    with Traffic() as traffic:
        for i, (xs, ys) in enumerate(micro):
            engine.model.set_requires_gradient_sync(not accumulate or i == m - 1)
            (loss_sum(engine.model(xs), ys) * n / count_tokens(y)).backward()
            if i == 0:  # 看内部状态，只为数它攒了多少（PyTorch 2.13）
                states = engine.model._get_fsdp_state()._state_ctx.all_states
                inside = [p for state in states for group in state._fsdp_param_groups for p in group.fsdp_params]
                whole = sum(p._unsharded_param.grad.numel() for p in inside if p._unsharded_param.grad is not None)
    return traffic.sent(), whole


# --8<-- [end:fsdp]
