"""一步训练里什么时候搬什么：把每次矩阵乘的 FLOPs 与每次通信的字节按发生的次序记下来（PyTorch，gloo）。

只数矩阵乘；CPU 上融合的注意力核不在 PyTorch 的 FLOPs 表里，不计。
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.flop_counter import flop_registry

from snippets.infra.memory import tensor_parallel
from snippets.infra.memory.sharded_training import ENGINES
from snippets.infra.memory.tiny_llama import SMALL, build, count_tokens, make_batch
from snippets.infra.memory.traffic import Traffic

COMPUTE = "计算"


# --8<-- [start:record]
@dataclass(frozen=True)
class Event:
    """kind 是 "计算" 或一种通信；amount 是 FLOPs，或环形算法下这个 rank 发出的字节；phase 是 前向、反向、更新。"""

    kind: str
    amount: float
    phase: str


class Recorder(Traffic):
    """在 Traffic 之上再记矩阵乘，并给每个事件标上阶段。"""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.turned = False

    def phase(self) -> str:
        if torch._C._current_graph_task_id() != -1:  # 正在 autograd 引擎里
            self.turned = True
            return "反向"
        return "更新" if self.turned else "前向"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen = len(self.calls)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if out is NotImplemented:
            return out
        if len(self.calls) > seen:
            self.events.append(Event(self.calls[-1].kind, self.calls[-1].sent, self.phase()))
        elif func._overloadpacket in flop_registry:
            flops = flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
            self.events.append(Event(COMPUTE, flops, self.phase()))
        return out


# --8<-- [end:record]


def merged(events: list[Event]) -> list[Event]:
    """相邻的同类同阶段事件合并。

    >>> merged([Event("计算", 1, "前向"), Event("计算", 2, "前向"), Event("send", 3, "前向")])
    [Event(kind='计算', amount=3, phase='前向'), Event(kind='send', amount=3, phase='前向')]
    """
    out: list[Event] = []
    for event in events:
        if out and (out[-1].kind, out[-1].phase) == (event.kind, event.phase):
            out[-1] = Event(event.kind, out[-1].amount + event.amount, event.phase)
        else:
            out.append(event)
    return out


# --8<-- [start:step]
def record_step(rank: int, schemes: tuple[str, ...]) -> dict[str, list[tuple[str, float, str]]]:
    """每种并行训练两步，记第二步（第一步含初始化的通信）。schemes 取自 ENGINES 与 TP、TP + SP。"""
    out = {}
    for scheme in schemes:
        parallel = scheme in ("TP", "TP + SP")
        engine = tensor_parallel.TensorParallel(build(), 2, scheme == "TP + SP") if parallel else ENGINES[scheme](build(SMALL))
        split = 1 if parallel else dist.get_world_size()  # 张量并行组内吃同样的数据
        for step in range(2):
            x, y = make_batch(step)
            mine = slice(None) if parallel else slice(rank * len(x) // split, (rank + 1) * len(x) // split)
            with Recorder() as recorder:
                engine.backward(x[mine], y[mine], count_tokens(y))
                engine.step()
        out[scheme] = [(event.kind, event.amount, event.phase) for event in recorder.events]
    return out


# --8<-- [end:step]


def blocks(events: list[Event], flops: float, bandwidth: float) -> list[tuple[float, float, str]]:
    """排成时间线：计算按 flops（FLOP/s）、通信按 bandwidth（字节/s）换成秒，一件接一件，不重叠。相邻同类的合并，零长的略去。

    >>> blocks([Event("计算", 2e9, "前向"), Event("send", 1e9, "前向"), Event("计算", 4e9, "反向")], 1e9, 1e9)
    [(0.0, 2.0, '前向'), (2.0, 3.0, 'send'), (3.0, 7.0, '反向')]
    """
    if not (flops > 0 and bandwidth > 0):
        raise ValueError(f"flops、bandwidth 须为正，收到 {flops}、{bandwidth}")
    out, now = [], 0.0
    for event in merged(events):
        length = event.amount / (flops if event.kind == COMPUTE else bandwidth)
        if length:
            out.append((now, now + length, event.phase if event.kind == COMPUTE else event.kind))
            now += length
    return out


def totals(events: list[Event], phase: str | None = None) -> dict[str, int]:
    """每类事件的合计（可只算一个阶段）。

    >>> totals([Event("计算", 1, "前向"), Event("计算", 2, "反向")], "反向")
    {'计算': 2}
    """
    out: dict[str, float] = {}
    for event in events:
        if phase in (None, event.phase):
            out[event.kind] = out.get(event.kind, 0) + event.amount
    return {kind: round(amount) for kind, amount in out.items()}
