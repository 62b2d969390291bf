"""读 chrome trace：一步的时间去了哪里、露在外面的通信、空隙该怪谁、谁是慢卡（只用标准库）。

输入是 torch.profiler 的 export_chrome_trace 写出的 JSON；时间单位一律 µs。
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from snippets.common.chart import timeline

# --8<-- [start:intervals]
Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """并集：按起点排序、首尾相接的合并；空区间丢掉。端点须有限且 起 ≤ 止。

    >>> union([(5, 9), (0, 2), (1, 3), (9, 10), (4, 4)])
    [(0, 3), (5, 10)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if not (math.isfinite(start) and math.isfinite(end) and start <= end):
            raise ValueError(f"区间须有限且 起 ≤ 止，收到 {(start, end)}")
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def subtract(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """在 a 里、不在 b 里的部分。

    >>> subtract([(0, 10)], [(2, 3), (8, 20)])
    [(0, 2), (3, 8)]
    """
    rest, holes, first = [], union(b), 0
    for start, end in union(a):
        while first < len(holes) and holes[first][1] <= start:
            first += 1  # 两边都有序，越过的洞不会再用到：一遍扫完
        for low, high in islice(holes, first, None):
            if low >= end:
                break
            if low > start:
                rest.append((start, low))
            start = max(start, high)
        if start < end:
            rest.append((start, end))
    return rest


def length(intervals: Iterable[Interval]) -> float:
    """并集的总长；重叠只算一次。

    >>> length([(0, 2), (1, 3)]), length([])
    (3.0, 0.0)
    """
    return math.fsum(end - start for start, end in union(intervals))


# --8<-- [end:intervals]


# --8<-- [start:events]
@dataclass(frozen=True)
class Event:
    """一个完整事件（ph 为 X）。lane 是 (pid, tid)：CPU 线程，或 GPU 的一条流；correlation 把核与发它的 CPU 调用连起来。"""

    name: str
    category: str
    lane: tuple
    start: float
    end: float
    correlation: int | None = None

    @property
    def kind(self) -> str | None:
        """compute、comm、copy；不在设备上的是 None。

        gpu_user_annotation 也画在 GPU 的泳道上，名字还叫 nccl:…，但它是标注不是核，算进去就数了两遍。
        通信核只认 NCCL 的；DeepEP、NVSHMEM 等自写的通信核会被当成计算，用它们时要把名字加进来。
        """
        if self.category in ("gpu_memcpy", "gpu_memset"):
            return "copy"
        if self.category != "kernel":
            return None
        return "comm" if self.name.startswith("nccl") else "compute"

    @property
    def span(self) -> Interval:
        return self.start, self.end


def load(trace: Mapping) -> list[Event]:
    """chrome trace（json.load 之后的 dict）→ 事件，按开始时间排序。

    >>> load({"traceEvents": [{"ph": "M", "name": "process_name"}]})
    []
    """
    if "traceEvents" not in trace:
        raise ValueError("不是 chrome trace：没有 traceEvents")
    events = []
    for raw in trace["traceEvents"]:
        if raw.get("ph") != "X":
            continue
        start, duration = raw["ts"], raw.get("dur", 0)
        if not (math.isfinite(start) and math.isfinite(duration) and duration >= 0):
            raise ValueError(f"{raw.get('name')!r} 的 ts、dur 须有限且 dur ≥ 0，收到 {start}、{duration}")
        correlation = raw.get("args", {}).get("correlation")
        events.append(Event(raw["name"], raw.get("cat", ""), (raw.get("pid"), raw.get("tid")), start, start + duration, correlation))
    return sorted(events, key=lambda event: (event.start, -event.end))


# --8<-- [end:events]


# --8<-- [start:budget]
def budget(events: Sequence[Event], window: Interval) -> dict[str, float]:
    """window 内设备时间的四分：计算、露出的拷贝、露出的通信、空闲，四项之和恰为 window。

    优先级 计算 > 拷贝 > 通信：同一时刻有计算在跑，通信就算藏住了。

    >>> events, window = load(synthetic_trace()), (0, 98_000)
    >>> {name: time / 1e3 for name, time in budget(events, window).items()}     # ms
    {'计算': 72.8, '露出的拷贝': 0.0, '露出的通信': 8.0, '空闲': 17.2}
    """
    low, high = window
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"窗口须有限且 起 < 止，收到 {window}")
    spans: dict[str, list[Interval]] = {"compute": [], "copy": [], "comm": []}
    for event in events:
        if event.kind and event.start < high and event.end > low:
            spans[event.kind].append((max(low, event.start), min(high, event.end)))
    compute, copy, comm = spans.values()
    return {
        "计算": length(compute),
        "露出的拷贝": length(subtract(copy, compute)),
        "露出的通信": length(subtract(comm, compute + copy)),
        "空闲": length(subtract([window], compute + copy + comm)),
    }


def busy_by_lane(events: Sequence[Event]) -> dict[tuple, float]:
    """每条流各自忙多久（流之间会重叠，所以加起来可以超过墙钟）。

    >>> {lane[1]: time / 1e3 for lane, time in busy_by_lane(load(synthetic_trace())).items()}   # 7 是计算流，20 是通信流
    {20: 32.0, 7: 72.8}
    """
    spans = defaultdict(list)
    for event in events:
        if event.kind:
            spans[event.lane].append(event.span)
    return {lane: length(intervals) for lane, intervals in spans.items()}


def kernel_table(events: Sequence[Event]) -> list[tuple[str, int, float]]:
    """核的总表 (名字, 次数, 总时间)，从大到小：各流直接相加，看不出重叠与空隙。

    >>> for name, calls, time in kernel_table(load(synthetic_trace())):
    ...     print(f"{name:<33} {calls:>3} 次 {time / 1e3:5.1f} ms  占墙钟 {time / 98_000:.0%}")
    gemm_backward                       4 次  48.0 ms  占墙钟 49%
    gemm_forward                        4 次  24.0 ms  占墙钟 24%
    ncclDevKernel_ReduceScatter_Sum     4 次  20.0 ms  占墙钟 20%
    ncclDevKernel_AllGather             4 次  12.0 ms  占墙钟 12%
    adam_one_tensor                    40 次   0.8 ms  占墙钟 1%
    """
    rows: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.kind:
            rows[event.name].append(event.end - event.start)
    return sorted(((name, len(times), math.fsum(times)) for name, times in rows.items()), key=lambda row: -row[2])


# --8<-- [end:budget]


# --8<-- [start:gaps]
@dataclass(frozen=True)
class Gap:
    """设备全空的一段。host 是核还没发出来的那部分，queued 是已经发出、在等依赖或启动的部分；phase 是 CPU 当时所在的标注。"""

    start: float
    end: float
    host: float
    queued: float
    phase: str


def gaps(events: Sequence[Event], window: Interval) -> list[Gap]:
    """window 内设备全空的段，从长到短；每段按“下一个核什么时候被 CPU 发出”切开。

    结束空隙的若有几个核，取最早被发出的；没有核（窗口末尾）或找不到发射记录时，整段算 host。
    """
    device = [event for event in events if event.kind]
    calls = [event for event in events if event.category in ("cuda_runtime", "cuda_driver")]  # Triton 的核走驱动 API
    launched = {event.correlation: event.start for event in calls if event.correlation is not None}
    phases = [event for event in events if event.category == "user_annotation"]
    starts: dict[float, list[float]] = defaultdict(list)  # 核的开始 → 发它的时刻
    for event in device:
        starts[event.start].append(launched.get(event.correlation, event.start))
    found = []
    for start, end in subtract([window], [event.span for event in device]):
        late = min(max(min(starts.get(end, [end])), start), end)
        shares: dict[str, float] = defaultdict(float)
        for phase in phases:
            shares[phase.name] += max(0.0, min(end, phase.end) - max(start, phase.start))
        name = max(shares, key=lambda key: shares[key], default="")
        found.append(Gap(start, end, late - start, end - late, name if shares.get(name) else "（无标注）"))
    return sorted(found, key=lambda gap: (gap.start - gap.end, gap.start))


def blame(events: Sequence[Event], window: Interval) -> dict[str, tuple[int, float, float]]:
    """按 CPU 的阶段汇总空隙：阶段 → (段数, 等 CPU 的 µs, 已排队的 µs)。

    >>> blame(load(synthetic_trace()), (0, 98_000))
    {'data': (1, 12000.0, 0.0), 'optimizer': (40, 5200.0, 0.0)}
    """
    total: dict[str, tuple[int, float, float]] = {}
    for gap in gaps(events, window):
        count, host, queued = total.get(gap.phase, (0, 0.0, 0.0))
        total[gap.phase] = (count + 1, host + gap.host, queued + gap.queued)
    return total


# --8<-- [end:gaps]


# --8<-- [start:synthetic]
def synthetic_trace() -> dict:
    """**合成**的一步（不是测得的），答案按构造已知，单位 µs；字段与 torch.profiler 在 GPU 上写出的相同。

    取数据 12 ms，GPU 空着。前向 4 层，每层 all-gather 3 ms（通信流）→ GEMM 6 ms（计算流），只有第一次 all-gather 露出。
    反向 4 层，每层 GEMM 12 ms → reduce-scatter 5 ms，只有最后一次露出。随后 .item() 放行 CPU，
    优化器逐个参数发核：CPU 每 150 µs 发一个，GPU 20 µs 就做完，40 个。

    12 + 3 + 4·6 + 4·12 + 5 + 40·0.15 = 98 ms。
    """
    raw: list[dict] = []

    def put(category: str, name: str, lane: int, start: float, duration: float, correlation: int | None = None) -> float:
        args = {} if correlation is None else {"correlation": correlation}
        pid = 0 if category in ("kernel", "gpu_user_annotation") else 1
        raw.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": lane, "ts": start, "dur": duration, "args": args})
        return start + duration

    def launch(name: str, lane: int, at: float, ready: float, duration: float) -> float:
        put("cuda_runtime", "cudaLaunchKernel", 1, at, 5, len(raw))
        return put("kernel", name, lane, max(at, ready), duration, len(raw) - 1)

    cpu = put("user_annotation", "data", 1, 0, 12_000)
    put("user_annotation", "forward", 1, cpu, 1_000)
    put("user_annotation", "backward", 1, cpu + 1_000, 1_000)
    compute = comm = cpu
    for i in range(4):
        comm = launch("ncclDevKernel_AllGather", 20, cpu + 200 * i, comm, 3_000)
        put("gpu_user_annotation", "nccl:_all_gather_base", 20, comm - 3_000, 3_000)
        compute = launch("gemm_forward", 7, cpu + 200 * i + 100, max(comm, compute), 6_000)
    for i in range(4):
        compute = launch("gemm_backward", 7, cpu + 1_000 + 200 * i, compute, 12_000)
        comm = launch("ncclDevKernel_ReduceScatter_Sum", 20, cpu + 1_100 + 200 * i, max(comm, compute), 5_000)
    put("cuda_runtime", "cudaStreamSynchronize", 1, cpu + 2_000, comm - cpu - 2_000)  # grad norm 的 .item()
    put("user_annotation", "optimizer", 1, comm, 6_000)
    for i in range(40):
        launch("adam_one_tensor", 7, comm + 150 * i + 130, comm, 20)
    return {"traceEvents": raw}


# --8<-- [end:synthetic]


# --8<-- [start:self]
def self_times(events: Iterable[Event]) -> dict[str, float]:
    """CPU 上每个名字的自用时间：自己的时长减去直接嵌在里面的事件。按 lane 各自成栈。

    >>> outer, inner = Event("linear", "cpu_op", (1, 1), 0, 10), Event("addmm", "cpu_op", (1, 1), 2, 9)
    >>> self_times([outer, inner])
    {'linear': 3.0, 'addmm': 7.0}
    """
    total: dict[str, list[float]] = {}
    stacks: dict[tuple, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        stack = stacks[event.lane]
        while stack and stack[-1].end <= event.start:
            stack.pop()
        if stack and event.end > stack[-1].end:
            raise ValueError(f"{event.name!r} 与 {stack[-1].name!r} 交叉而不是嵌套")
        total.setdefault(event.name, []).append(event.end - event.start)
        if stack:
            total[stack[-1].name].append(event.start - event.end)
        stack.append(event)
    return {name: math.fsum(parts) for name, parts in total.items()}


# --8<-- [end:self]


# --8<-- [start:straggler]
def transfer_and_wait(durations: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
    """durations[r][k] 是 rank r 第 k 次集合通信的核时长 → (真正在传的总时间, 各 rank 在核里等人的时间)。

    通信核从自己到齐起就在 GPU 上空转等人，大家差不多同时结束，所以同一次通信里**最短**的那个时长才是传输，
    最后到的 rank 等得最少。不需要对齐各机的时钟。点对点与 broadcast 没有“同时结束”，不能这样算。

    8 个 rank 做 10 次传输 2 ms 的 all-reduce，rank 5 每次晚到 3 ms：

    >>> durations = [[2000.0 if rank == 5 else 5000.0] * 10 for rank in range(8)]
    >>> transfer, waits = transfer_and_wait(durations)
    >>> transfer, waits.index(min(waits)), waits[0]
    (20000.0, 5, 30000.0)
    """
    if not durations or not durations[0] or any(len(row) != len(durations[0]) for row in durations):
        raise ValueError("每个 rank 须有同样多次通信，且不为空")
    if not all(math.isfinite(time) and time >= 0 for row in durations for time in row):
        raise ValueError("时长须有限且非负")
    shortest = [min(column) for column in zip(*durations, strict=True)]
    return math.fsum(shortest), [math.fsum(time - low for time, low in zip(row, shortest, strict=True)) for row in durations]


# --8<-- [end:straggler]


# --8<-- [start:async]
def async_times(
    kernels: Sequence[tuple[str, float]], launch: float, sync: Collection[str] = (), blocking: bool = False
) -> tuple[list[tuple[str, float, float]], float, float]:
    """一条流的异步执行（模型，不是测量）：CPU 每次发射花 launch，GPU 按次序执行；sync 里的名字之后 CPU 等 GPU 做完。

    返回 ([(名字, CPU 上掐表得到的, 核真实的)], 总时间, GPU 忙的比例)。blocking 是 CUDA_LAUNCH_BLOCKING=1：每个核后都等。

    8 个 1 ms 的 GEMM，最后 loss.item()。不同步就掐表，GEMM 只有 5 µs，账全记到 item 头上：

    >>> rows, total, _ = async_times([("gemm", 1000)] * 8 + [("item", 2)], launch=5, sync=["item"])
    >>> rows[0], rows[-1], total
    (('gemm', 5, 1000), ('item', 7967, 2), 8007)

    2000 个 3 µs 的小核、发射 6 µs：GPU 一半时间在等 CPU。开 CUDA_LAUNCH_BLOCKING 只会更慢，看到的也不再是原来的程序：

    >>> small = [("pointwise", 3)] * 2000
    >>> [(total, round(busy, 2)) for _, total, busy in (async_times(small, 6), async_times(small, 6, blocking=True))]
    [(12003, 0.5), (18000, 0.33)]
    """
    if not kernels or not (launch >= 0 and math.isfinite(launch)) or not all(0 <= time < math.inf for _, time in kernels):
        raise ValueError("须至少有一个核，launch 与各核时间须有限且非负")
    cpu = gpu = busy = 0
    rows = []
    for name, time in kernels:
        before = cpu
        cpu += launch
        gpu = max(cpu, gpu) + time
        busy += time
        if blocking or name in sync:
            cpu = max(cpu, gpu)
        rows.append((name, cpu - before, time))
    total = max(cpu, gpu)
    return rows, total, busy / total if total else 0.0


# --8<-- [end:async]


# --8<-- [start:wrong]
def kernel_sum_is_not_exposed() -> tuple[float, float]:
    """反例：“核的总表里通信占 33%，去掉通信就能快 33%。”返回合成的一步里 (核总表的占比, 露出的占比)。

    >>> share, exposed = kernel_sum_is_not_exposed()
    >>> f"{share:.1%} {exposed:.1%}"
    '32.7% 8.2%'
    """
    events, wall = load(synthetic_trace()), 98_000
    nccl = math.fsum(time for name, _, time in kernel_table(events) if name.startswith("nccl"))
    return nccl / wall, budget(events, (0, wall))["露出的通信"] / wall


def utilization_is_not_mfu() -> tuple[float, float]:
    """反例：“nvidia-smi 的利用率高就没有空间。”它数的是有没有核在跑：返回 (有任何核在跑的比例, 有计算核在跑的比例)。

    >>> smi, compute = utilization_is_not_mfu()
    >>> f"{smi:.1%} {compute:.1%}"
    '82.4% 74.3%'
    """
    parts = budget(load(synthetic_trace()), (0, 98_000))
    return 1 - parts["空闲"] / 98_000, parts["计算"] / 98_000


# --8<-- [end:wrong]


def figure_synthetic_timeline() -> str:
    """合成的一步：CPU、计算流、通信流。"""
    events = load(synthetic_trace())
    rows: dict[str, list[tuple]] = {"CPU": [], "计算流": [], "通信流": []}
    for event in events:
        span = (event.start / 1e3, event.end / 1e3)
        if event.category == "user_annotation":
            rows["CPU"].append((*span, "cpu", event.name))
        elif event.name == "cudaStreamSynchronize":
            rows["CPU"].append((*span, "sync", "CPU 在等 GPU（.item()）"))
        elif event.kind == "compute":
            rows["计算流"].append((*span, "compute"))
        elif event.kind == "comm":
            rows["通信流"].append((*span, "comm"))
    legend = {"cpu": "CPU 在干活", "sync": "CPU 等 GPU", "compute": "计算核", "comm": "通信核"}
    return timeline(
        rows, title="合成的一步：数据等待、露出的首尾通信、优化器的发射空隙", legend=legend, unit="ms", refs={"前向": 12, "优化器": 92}
    )
