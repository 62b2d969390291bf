"""KV cache 的块管理：块表、引用计数、前缀共享、写时复制、LRU 淘汰；只管编号，不管张量（只用标准库）。"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence


class OutOfBlocks(RuntimeError):
    """没有空块，也没有可淘汰的块：调用者应当等待或抢占。"""


# --8<-- [start:manager]
class BlockManager:
    """把每条序列的 KV 放进大小为 size 个 token 的块里。一个块处于三种状态之一：在用（引用 ≥ 1）、闲置可复用、空。

    >>> manager = BlockManager(blocks=8, size=4)
    >>> manager.add(0, [1, 2, 3, 4, 5, 6]), manager.tables[0]              # 返回命中前缀缓存的 token 数
    (0, [0, 1])
    >>> manager.add(1, [1, 2, 3, 4, 9]), manager.tables[1]                 # 第一块共享
    (4, [0, 2])
    >>> manager.fork(0, 2)
    >>> manager.append(2, 7)                                               # 写共享的半块：先复制 1 → 3
    (1, 3)
    """

    def __init__(self, blocks: int, size: int) -> None:
        if min(blocks, size) < 1:
            raise ValueError(f"块数与块大小须为正，收到 {blocks}、{size}")
        self.size = size
        self.empty = list(range(blocks))[::-1]
        self.idle: OrderedDict[int, None] = OrderedDict()  # 引用为 0 但内容可复用，最早闲置的在前
        self.refs = [0] * blocks
        self.block_of: dict[bytes, int] = {}  # 前缀的摘要 → 满块
        self.key_of: dict[int, bytes] = {}
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}

    def _take(self) -> int:
        """一个可写的新块：先用空的，再淘汰最早闲置的。"""
        # --8<-- [start:blank-take]
        # 都没有时抛 OutOfBlocks；淘汰要把它从 block_of、key_of 里去掉；返回前引用置 1
        if self.empty:
            block = self.empty.pop()
        elif self.idle:
            block, _ = self.idle.popitem(last=False)
            del self.block_of[self.key_of.pop(block)]
        else:
            raise OutOfBlocks("没有空块")
        self.refs[block] = 1
        return block
        # --8<-- [end:blank-take]

    def _drop(self, block: int) -> None:
        """放掉一次引用；没人用了就闲置（有摘要）或变空。"""
        # --8<-- [start:blank-drop]
        # 闲置的放在 idle 末尾
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if block in self.key_of:
                self.idle[block] = None
            else:
                self.empty.append(block)
        # --8<-- [end:blank-drop]

    def _keys(self, tokens: Sequence[int]) -> list[bytes]:
        """每个满块的摘要，包含它之前的全部 token：同样的 4 个 token 接在不同前缀后面，KV 不同。"""
        keys, key = [], b""
        for start in range(0, len(tokens) - len(tokens) % self.size, self.size):
            key = hashlib.sha256(key + repr(list(tokens[start : start + self.size])).encode()).digest()
            keys.append(key)
        return keys

    def _publish(self, block: int, key: bytes) -> None:
        if key not in self.block_of and block not in self.key_of:
            self.block_of[key], self.key_of[block] = block, key

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        """放入一条新序列，返回命中的 token 数（总是整块；最后一个 token 一定要算，所以不会全部命中）。块不够时什么都不改。"""
        if seq in self.tables or not tokens:
            raise ValueError(f"序列 {seq} 已存在，或没有 token")
        keys = self._keys(tokens)
        # --8<-- [start:blank-match]
        # hits：从头开始连续命中的块，最多 ⌊(n − 1)/size⌋ 个
        hits: list[int] = []
        for key in keys[: (len(tokens) - 1) // self.size]:
            if key not in self.block_of:
                break
            hits.append(self.block_of[key])
        # --8<-- [end:blank-match]
        needed = -(-len(tokens) // self.size) - len(hits)
        if needed > len(self.empty) + sum(block not in hits for block in self.idle):
            raise OutOfBlocks(f"需要 {needed} 块")
        for block in hits:
            self.refs[block] += 1
            self.idle.pop(block, None)
        self.tables[seq] = hits + [self._take() for _ in range(needed)]
        self.tokens[seq] = list(tokens)
        for block, key in zip(self.tables[seq], keys, strict=False):
            self._publish(block, key)
        return len(hits) * self.size

    def append(self, seq: int, token: int) -> tuple[int, int] | None:
        """序列末尾加一个 token。返回要复制的（旧块，新块），不用复制时返回 None。块不够时抛 OutOfBlocks，什么都不改。"""
        table, tokens, copied = self.tables[seq], self.tokens[seq], None
        # --8<-- [start:blank-append]
        # 末块满了就接一个新块；末块没满但有人共享，就换成一个新块（写时复制）
        if len(tokens) % self.size == 0:
            table.append(self._take())
        elif self.refs[table[-1]] > 1:
            copied = (table[-1], self._take())
            self._drop(table[-1])
            table[-1] = copied[1]
        # --8<-- [end:blank-append]
        tokens.append(token)
        if len(tokens) % self.size == 0:
            self._publish(table[-1], self._keys(tokens)[-1])
        return copied

    def fork(self, seq: int, new: int) -> None:
        """新序列共享旧序列的全部块（并行采样、束搜索）。"""
        if new in self.tables:
            raise ValueError(f"序列 {new} 已存在")
        self.tables[new], self.tokens[new] = list(self.tables[seq]), list(self.tokens[seq])
        for block in self.tables[new]:
            self.refs[block] += 1

    def release(self, seq: int) -> None:
        """序列结束或被抢占。从尾到头放，使前缀的头部最后被淘汰。"""
        del self.tokens[seq]
        for block in reversed(self.tables.pop(seq)):
            self._drop(block)


# --8<-- [end:manager]


# --8<-- [start:bytes]
def bytes_per_token(layers: int = 32, kv_heads: int = 8, d: int = 128, element: int = 2) -> int:
    """每个 token 的 K 与 V，全部层；默认是 Llama-3-8B、bf16。

    >>> bytes_per_token(), bytes_per_token(layers=80)                       # 8B 与 70B
    (131072, 327680)
    """
    if min(layers, kv_heads, d, element) < 1:
        raise ValueError("层数、头数、维数、字节数须为正")
    return 2 * layers * kv_heads * d * element


def memory(lengths: Sequence[int], longest: int = 8192, size: int = 16) -> list[str]:
    """同一批序列，三种放法各占多少 GB（10⁹ 字节，Llama-3-8B），浪费多少。

    >>> print(*memory([200, 500, 1000, 3000, 600, 350, 900, 1500]), sep="\\n")
    1.06 GB 真正用到
    8.59 GB 按 8192 预留，空着 88%
    1.06 GB 整块 16，空着 1%
    1.14 GB 整块 256，空着 8%
    """
    if not lengths or min(lengths) < 1 or max(lengths) > longest or size < 1:
        raise ValueError(f"长度须在 1 与 {longest} 之间，块为正")
    unit, used = bytes_per_token() / 1e9, sum(lengths)
    lines = [f"{used * unit:.2f} GB 真正用到"]
    for name, held in (
        (f"按 {longest} 预留", longest * len(lengths)),
        (f"整块 {size}", sum(-(-n // size) * size for n in lengths)),
        (f"整块 {16 * size}", sum(-(-n // (16 * size)) * 16 * size for n in lengths)),
    ):
        lines.append(f"{held * unit:.2f} GB {name}，空着 {1 - used / held:.0%}")
    return lines


# --8<-- [end:bytes]


# --8<-- [start:wrong]
def key_of_tokens_alone(tokens: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """反例：只用块内的 token 当键。两条前缀不同的序列，第二块会被当成同一块，KV 却不同。

    >>> key_of_tokens_alone([1, 2, 7, 8], 2)[1] == key_of_tokens_alone([3, 4, 7, 8], 2)[1]
    True
    >>> manager = BlockManager(4, 2)
    >>> manager._keys([1, 2, 7, 8])[1] == manager._keys([3, 4, 7, 8])[1]
    False
    """
    if size < 1:
        raise ValueError(f"块大小须为正，收到 {size}")
    return [tuple(tokens[i : i + size]) for i in range(0, len(tokens) - len(tokens) % size, size)]


# --8<-- [end:wrong]
