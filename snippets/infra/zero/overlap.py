"""FSDP 的通信与计算怎样重叠：三条流的时间线，露出多少（只用标准库）。

前向：每层 all-gather → 计算。反向：每层（再 all-gather）→ 计算 → reduce-scatter。时间单位任意。
通信流与计算流各自依次执行；shared_link 时 all-gather 与 reduce-scatter 抢同一条链路，按发射次序排队。
"""

from dataclasses import dataclass

from snippets.common.chart import timeline

PREFETCH = ("none", "implicit")


# --8<-- [start:simulate]
@dataclass(frozen=True)
class Work:
    """一段：在哪条流（gather、scatter、compute）、起止、说明（如 “AG3”）。"""

    stream: str
    start: float
    end: float
    name: str


def simulate(
    layers: int,
    gather: float,
    scatter: float,
    forward: float,
    backward: float,
    *,
    prefetch: str = "implicit",
    reshard: bool = True,
    shared_link: bool = True,
) -> list[Work]:
    """一步的全部工作，按发射次序。

    prefetch="none"：这一层算完才发下一层的 all-gather（像是每层都同步）。
    "implicit"：CPU 跑在前面，下一层的 all-gather 在这一层计算时就在通信流上；最多领先一层（两块缓冲）。
    反向的次序与 FSDP2 相同：先发前一层的 all-gather，再算这一层，算完发它的 reduce-scatter。
    reshard=False：反向不用再聚。

    >>> work = simulate(3, gather=2, scatter=2, forward=3, backward=6)
    >>> " ".join(w.name for w in work if w.stream != "compute")
    'AG0 AG1 AG2 AG2 AG1 RS2 AG0 RS1 RS0'
    >>> total(work), exposed(work)
    (33.0, 6.0)
    """
    if layers < 1 or min(gather, scatter, forward, backward) < 0 or prefetch not in PREFETCH:
        raise ValueError(f"layers 须为正、时间非负、prefetch 取自 {PREFETCH}")
    work: list[Work] = []
    free = {"gather": 0.0, "scatter": 0.0, "compute": 0.0}

    def run(stream: str, ready: float, length: float, name: str) -> float:
        start = max(ready, free[stream])
        if shared_link and stream != "compute":
            start = max(start, free["gather"], free["scatter"])
        free[stream] = start + length
        work.append(Work(stream, start, start + length, name))
        return start + length

    started = [0.0] * (layers + 1)  # 各层计算开始的时刻：那时它的缓冲已拷出
    for i in range(layers):
        # 预取：第 i−1 层拷出之后才有空的缓冲；不预取：等上一层算完
        ready = free["compute"] if prefetch == "none" else started[i - 1] if i else 0.0
        arrived = run("gather", ready, gather, f"AG{i}")
        end = run("compute", arrived, forward, f"F{i}")
        started[i] = end - forward
    arrival: dict[int, float] = {}
    for i in range(layers - 1, -1, -1):
        ahead = [i, i - 1] if prefetch == "implicit" else [i]  # 进到第 i 层时：自己的（若还没有）与前一层的
        for j in ahead:
            if reshard and j >= 0 and j not in arrival:
                # 前一层的要等这一层拷出（计算开始）才有空的缓冲
                ready = free["compute"] if j == i else max(arrival.get(i, 0.0), free["compute"])
                arrival[j] = run("gather", ready, gather, f"AG{j}")
        end = run("compute", arrival.get(i, 0.0), backward, f"B{i}")
        run("scatter", end, scatter, f"RS{i}")
    return work


def total(work: list[Work]) -> float:
    return max(w.end for w in work)


def exposed(work: list[Work]) -> float:
    """步时间减去计算时间：等通信的时间。"""
    return total(work) - sum(w.end - w.start for w in work if w.stream == "compute")


# --8<-- [end:simulate]


# --8<-- [start:closed]
def hidden_total(layers: int, gather: float, scatter: float, forward: float, backward: float) -> float:
    """通信都藏得住时（gather ≤ forward，gather + scatter ≤ backward）的步时间：只露三处。

    第一层前向之前的 all-gather、反向开头重聚最后一层、最后一个 reduce-scatter。

    >>> hidden_total(32, 2, 2, 3, 6), total(simulate(32, 2, 2, 3, 6))
    (294, 294.0)
    """
    return layers * (forward + backward) + 2 * gather + scatter


def bound_total(layers: int, gather: float, scatter: float, forward: float, backward: float) -> float:
    """下限：计算之和与链路之和的较大者。"""
    return max(layers * (forward + backward), layers * (2 * gather + scatter))


# --8<-- [end:closed]


# --8<-- [start:numbers]
def llama_8b_step(tokens: int, gb_per_s: float, prefetch: str = "implicit", peak: float = 989e12, mfu: float = 0.5) -> tuple[float, float]:
    """Llama-3-8B 的 32 层（不含嵌入与输出层）、N 很大：一步的 (计算毫秒, 露出毫秒)。bf16，mfu 是计算自身的效率。

    >>> for tokens in (4096, 8192, 16384):
    ...     print(tokens, *(tuple(round(x) for x in llama_8b_step(tokens, 50, how)) for how in ("none", "implicit")))
    4096 (347, 838) (347, 494)
    8192 (694, 838) (694, 162)
    16384 (1388, 838) (1388, 26)
    """
    psi = 218_112_000
    moved = 2 * psi / (gb_per_s * 1e9)
    forward = 2 * psi * tokens / (peak * mfu)
    work = simulate(32, moved, moved, forward, 2 * forward, prefetch=prefetch)
    return 96e3 * forward, 1e3 * exposed(work)


# --8<-- [end:numbers]


def figure_streams() -> str:
    """4 层，隐式预取与不预取。"""
    rows = {}
    for how, text in (("none", "不预取"), ("implicit", "预取")):
        work = simulate(4, 2, 2, 3, 6, prefetch=how)
        for streams, name in ((("compute",), "计算"), (("gather", "scatter"), "通信")):
            blocks = [(w.start, w.end, w.name.rstrip("0123456789")) for w in sorted(work, key=lambda w: w.start) if w.stream in streams]
            rows[f"{text}·{name}"] = blocks
    legend = {"F": "前向", "B": "反向", "AG": "all-gather", "RS": "reduce-scatter"}
    return timeline(rows, title="4 层：一步里两条流各在做什么", legend=legend, unit="任意单位")
