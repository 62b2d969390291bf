"""KV cache 的三种存法：每步拼接、预分配、分页；注意力的结果相同（PyTorch）。"""

import math

import torch
from torch import Tensor

from snippets.coding.system_design.kv_blocks import BlockManager


# --8<-- [start:contiguous]
class ContiguousCache:
    """一条序列一层，按最大长度预分配：写入 O(1)，不复制旧的；没用到的位置白占着。"""

    def __init__(self, longest: int, kv_heads: int, d: int, dtype: torch.dtype = torch.float32) -> None:
        self.k, self.v = (torch.empty(longest, kv_heads, d, dtype=dtype) for _ in range(2))
        self.length = 0

    def write(self, k: Tensor, v: Tensor) -> None:
        """接上 n 个新 token 的 K、V，形状 (n, kv_heads, d)。"""
        end = self.length + len(k)
        if end > len(self.k):
            raise ValueError(f"超过预分配的 {len(self.k)}：已有 {self.length}，又来 {len(k)}")
        self.k[self.length : end], self.v[self.length : end] = k, v
        self.length = end

    def read(self) -> tuple[Tensor, Tensor]:
        """已写的部分，(length, kv_heads, d) 的视图。"""
        return self.k[: self.length], self.v[: self.length]


# --8<-- [end:contiguous]


# --8<-- [start:paged]
class PagedCache:
    """所有序列共用一层的一个池 (blocks, size, kv_heads, d)；哪个 token 在哪里由块表说了算。"""

    def __init__(self, manager: BlockManager, kv_heads: int, d: int, dtype: torch.dtype = torch.float32) -> None:
        self.manager = manager
        blocks = len(manager.refs)
        self.k, self.v = (torch.empty(blocks, manager.size, kv_heads, d, dtype=dtype) for _ in range(2))

    def _slots(self, seq: int, start: int, end: int) -> Tensor:
        """第 start 到 end − 1 个 token 在摊平的池里的下标：块号·size + 块内偏移。"""
        at = torch.arange(start, end)
        return torch.tensor(self.manager.tables[seq])[at // self.manager.size] * self.manager.size + at % self.manager.size

    def write(self, seq: int, start: int, k: Tensor, v: Tensor) -> None:
        """写 seq 从 start 起的 n 个 token，k、v: (n, kv_heads, d)；块表里要已经有位置。"""
        slots = self._slots(seq, start, start + len(k))
        self.k.flatten(0, 1)[slots], self.v.flatten(0, 1)[slots] = k, v

    def read(self, seq: int) -> tuple[Tensor, Tensor]:
        """按块表收集成连续的 (length, kv_heads, d)。真正的核不收集，边走块表边算。"""
        slots = self._slots(seq, 0, len(self.manager.tokens[seq]))
        return self.k.flatten(0, 1)[slots], self.v.flatten(0, 1)[slots]

    def copy(self, pair: tuple[int, int] | None) -> None:
        """执行 append 要求的写时复制。"""
        if pair is not None:
            old, new = pair
            self.k[new], self.v[new] = self.k[old], self.v[old]


# --8<-- [end:paged]


# --8<-- [start:attend]
def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """末尾 n 个查询对缓存里全部 t 个键的因果注意力。q: (n, heads, d)，k、v: (t, kv_heads, d) → (n, heads, d)。

    >>> attend(torch.zeros(1, 8, 4), torch.zeros(3, 2, 4), torch.arange(3.0)[:, None, None].expand(3, 2, 4))[0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    n, heads, d = q.shape
    t, kv_heads, _ = k.shape
    if heads % kv_heads or n > t or k.shape != v.shape:
        raise ValueError(f"头数须整除、n ≤ t，收到 {tuple(q.shape)}、{tuple(k.shape)}、{tuple(v.shape)}")
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,thd->hnt", q / math.sqrt(d), k)
    seen = torch.ones(n, t, dtype=torch.bool).tril(t - n)
    return torch.einsum("hnt,thd->nhd", scores.masked_fill(~seen, -math.inf).softmax(-1), v)


# --8<-- [end:attend]


# --8<-- [start:flops]
def decode_tflops(prompt: int, new: int, h: int = 4096, layers: int = 32, params: float = 8.03e9) -> tuple[float, float]:
    """生成 new 个 token，有缓存与每步重算全部前缀各要多少 TFLOP（2·参数量·token，加注意力 4·s·h 每层每查询，不计因果减半）。

    >>> [round(x, 1) for x in decode_tflops(1000, 500)]                    # 缓存省下约 420 倍
    [24.9, 10448.2]
    """
    if min(prompt, new, h, layers) < 1 or params <= 0:
        raise ValueError("prompt、new、h、layers、params 须为正")

    def forward(tokens: int, keys: int) -> float:
        return 2 * params * tokens + 4 * tokens * keys * h * layers

    cached = forward(prompt, prompt) + math.fsum(forward(1, prompt + i) for i in range(1, new))
    again = math.fsum(forward(prompt + i, prompt + i) for i in range(new))
    return cached / 1e12, again / 1e12


# --8<-- [end:flops]
