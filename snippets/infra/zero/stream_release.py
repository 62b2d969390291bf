"""跨 stream 的显存何时能复用：record_stream、CPU 限速、FSDP2 的“持有引用 + 等事件”，离散事件模拟（只用标准库）。

一层 = 通信流上一次 all-gather（写缓冲）+ 计算流上读它。CPU 依次发射，每次发射花 launch 秒，跑在 GPU 前面。
缓冲由通信流分配；分配器只在有块能复用时复用，否则向驱动要新的一块，所以**块数就是 reserved 的峰值**。
"""

import random
from dataclasses import dataclass, field

from snippets.common.chart import lines

POLICIES = ("unsafe", "record_stream", "limiter", "fsdp2")


# --8<-- [start:simulate]
@dataclass
class Block:
    """free_at：从 CPU 的哪个时刻起可以复用（None 是还被引用着）；read_until：计算流读完它的时刻。"""

    free_at: float | None = None
    read_until: float = 0.0


@dataclass
class Result:
    """peak 块数；total 最后一次计算结束的时刻；cpu_wait CPU 停下来等 GPU 的时间；races 通信改写了还在被读的块几次。"""

    peak: int
    total: float
    cpu_wait: float
    races: int


@dataclass
class Machine:
    """CPU 的时钟、两条流各自做到哪一刻、分配器的块。"""

    launch: list[float]
    cpu: float = 0.0
    comm: float = 0.0
    compute: float = 0.0
    cpu_wait: float = 0.0
    races: int = 0
    blocks: list[Block] = field(default_factory=list)

    def issue(self) -> float:
        self.cpu += self.launch.pop()
        return self.cpu

    def allocate(self) -> Block:
        """先找到此刻 CPU 已知能复用的块：record_stream 的块要等它的事件真的完成，CPU 才查得到。"""
        for block in self.blocks:
            if block.free_at is not None and block.free_at <= self.cpu:
                block.free_at = None
                return block
        self.blocks.append(Block())
        return self.blocks[-1]

    def wait(self, until: float) -> None:
        self.cpu_wait += max(0.0, until - self.cpu)
        self.cpu = max(self.cpu, until)


def simulate(policy: str, layers: int, gather: float, compute: float, launch: float, *, jitter: float = 0.0, seed: int = 0) -> Result:
    """前向 layers 层。gather、compute、launch 是秒；jitter 让每次发射的耗时在 ±jitter 比例内随机。

    unsafe：缓冲一放掉就给通信流复用，不管计算流读完没有。
    record_stream：放掉时在计算流上记一个事件，事件完成之前不能复用。
    limiter：同上，但 CPU 最多让 2 个 all-gather 在途，再多就停下来等（FSDP1 的 limit_all_gathers）。
    fsdp2：多一次拷出；引用留到下一层的 all-gather 发射之后，先让通信流等“拷出完成”的事件，再放掉。CPU 不等。

    CPU 快（发射 0.1，计算 10，20 层）：

    >>> for policy in POLICIES:
    ...     r = simulate(policy, 20, gather=4, compute=10, launch=0.1)
    ...     print(f"{policy:<14}块 {r.peak:>2}  总时间 {r.total:5.1f}  CPU 等 {r.cpu_wait:5.1f}  踩坏 {r.races}")
    unsafe        块  1  总时间 204.1  CPU 等   0.0  踩坏 19
    record_stream 块 20  总时间 204.1  CPU 等   0.0  踩坏 0
    limiter       块  2  总时间 204.1  CPU 等 180.3  踩坏 0
    fsdp2         块  2  总时间 212.1  CPU 等   0.0  踩坏 0
    """
    if policy not in POLICIES:
        raise ValueError(f"policy 须是 {POLICIES} 之一，收到 {policy!r}")
    if layers < 1 or min(gather, compute, launch) <= 0 or not 0 <= jitter < 1:
        raise ValueError("layers、gather、compute、launch 须为正，jitter 在 [0, 1) 内")
    draw = random.Random(seed)
    machine = Machine([launch * (1 + jitter * (2 * draw.random() - 1)) for _ in range(4 * layers)])
    copy_out = gather / 10  # FSDP2 把缓冲拷成各个参数，在计算流上
    pending: list[float] = []  # limiter：还没等过的释放事件
    held: tuple[Block, float] | None = None  # fsdp2：上一层的缓冲与它拷出完成的时刻
    for _ in range(layers):
        if policy == "limiter" and len(pending) == 2:
            machine.wait(pending.pop(0))
        block = machine.allocate()
        start = max(machine.comm, machine.issue())
        machine.races += start < block.read_until - 1e-12
        machine.comm = start + gather
        if policy == "fsdp2":
            if held:
                previous, copied = held
                machine.comm = max(machine.comm, copied)  # 通信流等事件，之后它上面的一切都在拷出之后
                previous.free_at = machine.cpu
            machine.compute = max(machine.compute, machine.comm, machine.issue()) + copy_out
            block.read_until = machine.compute
            held = block, machine.compute
            machine.compute = max(machine.compute, machine.issue()) + compute
            continue
        machine.compute = max(machine.compute, machine.comm, machine.issue()) + compute
        block.read_until = machine.compute
        block.free_at = machine.cpu if policy == "unsafe" else machine.compute
        pending.append(machine.compute)
    return Result(len(machine.blocks), machine.compute, machine.cpu_wait, machine.races)


# --8<-- [end:simulate]


# --8<-- [start:lead]
def peaks_over_runs(policy: str, runs: int = 20, layers: int = 32, launch: float = 5.0) -> tuple[int, int]:
    """同一个程序跑 runs 次，每次发射的耗时随机抖动 ±90%：块数的（最小、最大）。

    >>> for policy in ("record_stream", "limiter", "fsdp2"):
    ...     print(policy, peaks_over_runs(policy))
    record_stream (4, 8)
    limiter (2, 2)
    fsdp2 (2, 2)
    """
    peaks = [simulate(policy, layers, 4, 10, launch, jitter=0.9, seed=seed).peak for seed in range(runs)]
    return min(peaks), max(peaks)


# --8<-- [end:lead]


def figure_peak() -> str:
    """块数随“CPU 每次发射的耗时 ÷ 一层的计算”变化。"""
    ratios = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0]
    names = {"record_stream": "record_stream", "limiter": "record_stream + CPU 限速", "fsdp2": "FSDP2"}
    series = {text: [(r, simulate(policy, 32, 4, 10, 10 * r).peak) for r in ratios] for policy, text in names.items()}
    return lines(
        series, title="32 层，同时占着几块聚齐的缓冲", x_label="每次发射的耗时 ÷ 一层的计算时间", y_label="块", x_log=10, markers=True
    )
