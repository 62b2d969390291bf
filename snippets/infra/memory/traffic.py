"""数出一个进程发起的每个集合通信搬了多少字节：DDP、FSDP2、手写的都数得到（PyTorch，任何后端）。

PyTorch 的集合通信都经过 c10d 算子，TorchDispatchMode 拦得到它们，也拦得到 C++ 里的 DDP Reducer 发的。
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# --8<-- [start:ring]
RING = {  # 每个 rank 发出的量 ÷ 完整张量的大小，环形算法，n 个 rank
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send": lambda n: 1,
    "recv": lambda n: 0,
}


@dataclass(frozen=True)
class Call:
    """一次通信。size 是**完整**张量的字节：all-gather 拼好之后、reduce-scatter 切开之前。"""

    kind: str
    size: int
    ranks: int

    @property
    def sent(self) -> float:
        """环形算法下这个 rank 发出的字节。

        >>> [Call(kind, 800, 4).sent for kind in ("all_reduce", "all_gather", "reduce_scatter")]
        [1200.0, 600.0, 600.0]
        """
        return self.size * RING[self.kind](self.ranks)


# --8<-- [end:ring]

OPERATORS = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "send": "send",
    "recv_": "recv",
    "all_reduce": "all_reduce",  # 以下三个来自 _c10d_functional（DTensor 用它）
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
}
IGNORED = {"broadcast_", "barrier", "wait_tensor", "_wrap_tensor_autograd"}  # 初始化与同步，不属于训练的一步


# --8<-- [start:count]
class Traffic(TorchDispatchMode):
    """with Traffic() as traffic: … 之后 traffic.calls 是按次序的每次通信。认不出的集合通信抛 ValueError，不漏数。"""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # 先让 DTensor 展开成本地算子与通信，再来数
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._overloadpacket.__name__
            if name in OPERATORS:
                self.calls.append(Call(OPERATORS[name], *self._extent(name, args)))
            elif name not in IGNORED:
                raise ValueError(f"不认识的通信 {name}，不知道怎样计它的字节")
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _extent(name: str, args: tuple) -> tuple[int, int]:
        """(完整张量的字节, 组内 rank 数)。"""
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        groups = [arg for arg in args if isinstance(arg, torch.ScriptObject)]
        ranks = dist.ProcessGroup.unbox(groups[0]).size() if groups else dist.distributed_c10d._resolve_process_group(args[-1]).size()
        largest = max(tensor.numel() * tensor.element_size() for tensor in tensors)
        if name in ("allgather_", "all_gather_into_tensor"):  # 参数里只见得到分片
            largest *= ranks
        return largest, ranks

    def sent(self) -> dict[str, int]:
        """每种通信这个 rank 一共发出的字节（环形）。"""
        total: Counter = Counter()
        for call in self.calls:
            total[call.kind] += call.sent
        return {kind: round(size) for kind, size in total.items() if size}


# --8<-- [end:count]
