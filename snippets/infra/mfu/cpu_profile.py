"""在 CPU 上真录一次 torch.profiler：一个有三处热点的小训练步，录、导出、解析、改一处再录（PyTorch）。

热点是故意埋的：取数据时 sleep、注意力用 Python 逐行循环、优化器逐个参数更新。
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from snippets.infra.mfu.trace_analysis import Event, length, load, self_times, subtract


# --8<-- [start:model]
@dataclass(frozen=True)
class Config:
    """三处热点各一个开关：stall_ms 取数据的等待，loop 逐行的注意力，fused 优化器是否一次更新全部参数。"""

    stall_ms: float = 20.0
    loop: bool = True
    fused: bool = False
    b: int = 4
    s: int = 32
    h: int = 128
    a: int = 4
    layers: int = 2
    vocabulary: int = 512


def loop_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """因果注意力，逐个 query 行循环：数学对，但每行 5 个左右的小算子。q、k、v: (b, a, s, d)。"""
    scale, rows = q.shape[-1] ** -0.5, []
    for i in range(q.shape[2]):
        scores = q[:, :, i : i + 1] @ k[:, :, : i + 1].transpose(-1, -2) * scale
        rows.append(scores.softmax(-1) @ v[:, :, : i + 1])
    return torch.cat(rows, dim=2)


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        h, self.config = config.h, config
        self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h, bias=False), nn.Linear(h, h, bias=False)
        self.up, self.down = nn.Linear(h, 4 * h, bias=False), nn.Linear(4 * h, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.config.a, -1).permute(2, 0, 3, 1, 4)
        core = loop_attention(q, k, v) if self.config.loop else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(core.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def batches(config: Config) -> Iterator[Tensor]:
    """(b, s+1) 的随机 token；stall_ms 模拟没有预取的读盘与分词。"""
    generator = torch.Generator().manual_seed(0)
    while True:
        time.sleep(config.stall_ms / 1e3)
        yield torch.randint(config.vocabulary, (config.b, config.s + 1), generator=generator)


# --8<-- [end:model]


# --8<-- [start:step]
def trainer(config: Config) -> Iterator[float]:
    """每 next 一次训一步，产出 loss；四个阶段都用 record_function 标上。"""
    torch.manual_seed(0)
    body = [Layer(config) for _ in range(config.layers)]
    model = nn.Sequential(nn.Embedding(config.vocabulary, config.h), *body, nn.Linear(config.h, config.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=config.fused)
    data = batches(config)
    while True:
        with record_function("data"):
            batch = next(data)
        with record_function("forward"):
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


@contextmanager
def one_thread() -> Iterator[None]:
    """小模型用多线程只会添噪声；退出时还原。"""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def record(config: Config, active: int = 3, with_stack: bool = False) -> tuple[dict, profile]:
    """等 1 步、预热 1 步、录 active 步；返回 (chrome trace, profiler)。"""
    if active < 1:
        raise ValueError(f"至少录 1 步，收到 {active}")
    steps = trainer(config)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        path = Path(folder) / "trace.json"
        with profile(
            activities=[ProfilerActivity.CPU],  # 有 GPU 时加上 ProfilerActivity.CUDA
            schedule=schedule(wait=1, warmup=1, active=active, repeat=1),
            on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
            with_stack=with_stack,
        ) as prof:
            for _ in range(2 + active):
                next(steps)
                prof.step()  # 忘了它，schedule 永远停在第一步
        return json.loads(path.read_text()), prof


# --8<-- [end:step]


# --8<-- [start:read]
PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Phase:
    """一个阶段：ms 最快一步的墙钟（别的进程只会让它变慢）；ops 顶层算子的个数，嵌套在别的算子里的不数；
    outside 墙钟里没有算子在跑的比例（各步的中位数）。
    """

    ms: float
    ops: int
    outside: float


def read(trace: dict) -> dict[str, Phase]:
    """把 trace 读成四行。outside 高 = 时间花在 Python、sleep、锁上：算子表里看不到它。

    >>> slow = read(record(Config(), active=1)[0])
    >>> slow["data"].ms >= 20, slow["data"].outside > 0.9     # 取数据慢，算子表里却没有它
    (True, True)
    >>> slow["backward"].ops > 2 * slow["forward"].ops        # 循环里的每个小算子，反向还要再付两个多
    True
    """
    events = load(trace)
    operators = [event for event in events if event.category == "cpu_op"]
    found: dict[str, list[tuple[float, int, float]]] = {name: [] for name in PHASES}
    for phase in events:
        if phase.category == "user_annotation" and phase.name in found:
            inside = [event for event in operators if phase.start <= event.start and event.end <= phase.end]
            wall, reached, top = phase.end - phase.start, phase.start, 0
            for event in inside:  # 已按开始排序：不早于前一个顶层算子结束的，才是顶层
                if event.start >= reached:
                    top, reached = top + 1, event.end
            empty = length(subtract([phase.span], [event.span for event in inside]))
            found[phase.name].append((wall / 1e3, top, empty / wall))
    if not all(found.values()):
        raise ValueError(f"trace 里缺少阶段：{[name for name, rows in found.items() if not rows]}")
    columns = {name: list(zip(*rows, strict=True)) for name, rows in found.items()}
    return {name: Phase(min(ms), ops[0], median(outside)) for name, (ms, ops, outside) in columns.items()}


def hot_operators(trace: dict, count: int = 5) -> list[tuple[str, int, float]]:
    """自用时间最多的算子 (名字, 次数, ms)，全部步合计；与 key_averages() 的 self CPU 是同一个量，那张表另外还列标注。"""
    operators = [event for event in load(trace) if event.category == "cpu_op"]
    calls = Counter(event.name for event in operators)
    rows = sorted(self_times(operators).items(), key=lambda row: -row[1])[:count]
    return [(name, calls[name], time / 1e3) for name, time in rows]


# --8<-- [end:read]


# --8<-- [start:fix]
FIXES = {
    "原样": Config(),
    "预取数据": Config(stall_ms=0),
    "再换 SDPA": Config(stall_ms=0, loop=False),
    "再用融合的 AdamW": Config(stall_ms=0, loop=False, fused=True),
}


def count_operators(config: Config) -> dict[str, int]:
    """每步每个阶段的算子个数：逐个改掉热点，看的是发射次数，所以与机器快慢无关。

    >>> for config in (Config(), Config(loop=False), Config(loop=False, fused=True)):
    ...     print(count_operators(config))
    {'data': 1, 'forward': 549, 'backward': 1444, 'optimizer': 150}
    {'data': 1, 'forward': 37, 'backward': 98, 'optimizer': 150}
    {'data': 1, 'forward': 37, 'backward': 98, 'optimizer': 2}
    """
    return {name: phase.ops for name, phase in read(record(replace(config, stall_ms=0), active=1)[0]).items()}


def step_ms(config: Config, steps: int = 20, profiled: bool = False, with_stack: bool = False) -> float:
    """最快一步的墙钟，ms：不开 profiler、开、开并记录调用栈。"""
    train, times = trainer(config), []
    with one_thread():
        next(train), next(train)
        with profile(activities=[ProfilerActivity.CPU], with_stack=with_stack) if profiled else nullcontext():
            for _ in range(steps):
                start = time.perf_counter()
                next(train)
                times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def report() -> None:
    """页面上那张表的来源：在自己的机器上跑 python -c "from snippets.infra.mfu.cpu_profile import report; report()"。"""
    for name, config in FIXES.items():
        trace, _ = record(config, active=20)
        plain, on, stack = (step_ms(config, profiled=p, with_stack=w) for p, w in ((False, False), (True, False), (True, True)))
        print(f"{name}：一步 {plain:.1f} ms；开 profiler {on:.1f}；再开 with_stack {stack:.1f}")
        for phase, row in read(trace).items():
            print(f"  {phase:<10}{row.ms:7.1f} ms  {row.ops:>5} 个算子  无算子在跑 {row.outside:.0%}")
        print("  自用时间：", "，".join(f"{op} {calls} 次 {ms:.1f} ms" for op, calls, ms in hot_operators(trace)))


# --8<-- [end:fix]


# --8<-- [start:wrong]
def table_misses_the_stall() -> tuple[bool, str]:
    """反例：“看最重的算子就知道热点。”返回 (所有算子的自用时间之和 < 墙钟的一半, key_averages() 里自用时间最多的一行)。

    那一行是我们标的 data，不是算子；不标注，这段时间就记在 ProfilerStep* 名下，看不出是谁。

    >>> table_misses_the_stall()
    (True, 'data')
    """
    trace, prof = record(Config(stall_ms=400, loop=False, fused=True), active=1)
    events = load(trace)
    steps = [event for event in events if event.name.startswith("ProfilerStep")]
    wall = sum(event.end - event.start for event in steps)
    operators: list[Event] = [event for event in events if event.category == "cpu_op"]
    first = max(prof.key_averages(), key=lambda row: row.self_cpu_time_total)
    return sum(self_times(operators).values()) < wall / 2, first.key


# --8<-- [end:wrong]
