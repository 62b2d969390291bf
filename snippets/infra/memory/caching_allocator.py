"""PyTorch 的 CUDA 缓存分配器，缩到能读完的大小：取整、切块、合并、碎片与可扩展段（只用标准库）。

常数取自 torch 2.13 的 c10/core/AllocatorConfig.h；一条 stream、默认配置，不含事件与 CUDA graph 的私有池。
"""

from dataclasses import dataclass, field

MIB = 2**20

# --8<-- [start:rounding]
MIN_BLOCK = 512  # kMinBlockSize：每块取整到 512 B 的倍数
SMALL = 1 * MIB  # kSmallSize：不超过 1 MiB 走小池
SMALL_BUFFER = 2 * MIB  # kSmallBuffer：小池一次向驱动要 2 MiB
MIN_LARGE = 10 * MIB  # kMinLargeAlloc：不到 10 MiB 的大块共用一段
LARGE_BUFFER = 20 * MIB  # large_segment_size：那一段 20 MiB
ROUND_LARGE = 2 * MIB  # kRoundLarge：10 MiB 起，段取整到 2 MiB


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _check(size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"字节数须为正整数，收到 {size!r}")


def block_size(size: int) -> int:
    """一次请求实际占的块（计入 memory_allocated）。

    >>> block_size(1), block_size(513), block_size(12 * MIB + 1)
    (512, 1024, 12583424)
    """
    _check(size)
    return _up(size, MIN_BLOCK)


def segment_size(size: int) -> int:
    """缓存里没有合适的块时，向驱动 cudaMalloc 的段（计入 memory_reserved）。

    >>> [segment_size(size) // MIB for size in (4, MIB, MIB + 1, 9 * MIB, 10 * MIB, 11 * MIB)]
    [2, 2, 20, 20, 10, 12]
    >>> segment_size(0)
    Traceback (most recent call last):
    ...
    ValueError: 字节数须为正整数，收到 0
    """
    size = block_size(size)
    if size <= SMALL:
        return SMALL_BUFFER
    return LARGE_BUFFER if size < MIN_LARGE else _up(size, ROUND_LARGE)


# --8<-- [end:rounding]


# --8<-- [start:allocator]
class OutOfMemory(RuntimeError):
    """请求放不进卡：缓存里没有够大的整块，向驱动也要不到。"""


HOLE = "（已退还的页）"


@dataclass
class Segment:
    """一段连续的地址。blocks 按地址排，每个是 [大小, 名字]：名字为 None 即空闲，HOLE 即已把物理页退给驱动。"""

    small: bool
    blocks: list[list] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(size for size, name in self.blocks if name != HOLE)


class Allocator:
    """按最佳适配取空闲块；剩余够大才切（小池 ≥ 512 B，大池 > 1 MiB）；释放时与相邻空闲块合并，但不还给驱动。

    expandable=True 模拟 expandable_segments：每个池一段连续的虚拟地址，按 2 MiB（小池）或 20 MiB（大池）的页映射，
    可以在末尾接着长，也可以把中间的空闲页退掉。
    """

    def __init__(self, capacity: int, expandable: bool = False):
        _check(capacity)
        self.capacity, self.expandable = capacity, expandable
        self.segments: list[Segment] = []

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def allocated(self) -> int:
        return sum(size for segment in self.segments for size, name in segment.blocks if name not in (None, HOLE))

    @property
    def largest_free(self) -> int:
        return max((size for segment in self.segments for size, name in segment.blocks if name is None), default=0)

    def malloc(self, name: str, size: int) -> None:
        need = block_size(size)
        if name in (None, HOLE) or any(name == held for segment in self.segments for _, held in segment.blocks):
            raise ValueError(f"名字 {name!r} 已在用，或为空")
        small = need <= SMALL
        if not self._take(name, need, small):
            if not self._grow(need, small):
                self.empty_cache()  # 真的分配器也是：先把整段空闲的还给驱动，再试一次
                if not self._grow(need, small):
                    raise OutOfMemory(
                        f"要 {need / MIB:.0f} MiB；已分配 {self.allocated / MIB:.0f}，"
                        f"已保留 {self.reserved / MIB:.0f}，最大空闲块 {self.largest_free / MIB:.0f} MiB"
                    )
            self._take(name, need, small)

    def free(self, name: str) -> None:
        for segment in self.segments:
            for block in segment.blocks:
                if name not in (None, HOLE) and block[1] == name:
                    block[1] = None
                    self._merge(segment)
                    return
        raise ValueError(f"没有名为 {name!r} 的块")

    def empty_cache(self) -> None:
        """退还缓存：普通的段要整段空闲，切过而还有一块活着就动不了；可扩展段逐页退。"""
        if self.expandable:
            for segment in self.segments:
                page = SMALL_BUFFER if segment.small else LARGE_BUFFER
                start, blocks = 0, []
                for size, name in segment.blocks:
                    end = start + size
                    low, high = _up(start, page), end // page * page
                    if name is None and low < high:
                        parts = [[low - start, None], [high - low, HOLE], [end - high, None]]
                        blocks += [part for part in parts if part[0]]
                    else:
                        blocks.append([size, name])
                    start = end
                segment.blocks = blocks
        else:
            self.segments = [s for s in self.segments if any(name is not None for _, name in s.blocks)]

    def _merge(self, segment: Segment) -> None:
        merged: list[list] = []
        for size, name in segment.blocks:
            if merged and merged[-1][1] is None and name is None:
                merged[-1][0] += size
            else:
                merged.append([size, name])
        segment.blocks = merged

    def _take(self, name: str, need: int, small: bool) -> bool:
        fits = [
            (size, s, i)
            for s, segment in enumerate(self.segments)
            if segment.small == small
            for i, (size, held) in enumerate(segment.blocks)
            if held is None and size >= need
        ]
        if not fits:
            return False
        size, s, i = min(fits)
        rest = size - need
        split = rest >= MIN_BLOCK if small or self.expandable else rest > SMALL
        self.segments[s].blocks[i : i + 1] = [[need, name], [rest, None]] if split else [[size, name]]
        return True

    def _grow(self, need: int, small: bool) -> bool:
        if not self.expandable:
            size = segment_size(need)
            if self.reserved + size > self.capacity:
                return False
            self.segments.append(Segment(small, [[size, None]]))
            return True
        page = SMALL_BUFFER if small else LARGE_BUFFER
        segment = next((s for s in self.segments if s.small == small), None)
        tail = segment.blocks[-1][0] if segment and segment.blocks[-1][1] is None else 0
        size = _up(need - tail, page)
        if self.reserved + size > self.capacity:
            return False
        if segment is None:
            self.segments.append(segment := Segment(small))
        segment.blocks.append([size, None])
        self._merge(segment)
        return True


# --8<-- [end:allocator]


# --8<-- [start:fragmentation]
def growing_sequences(expandable: bool) -> tuple[int, int]:
    """变长样本：每步的激活都比上一步大，缓存里的旧块全不够大，只好再要一段。返回峰值 MiB (已分配, 已保留)。

    >>> growing_sequences(False), growing_sequences(True)
    ((200, 900), (200, 200))
    """
    device = Allocator(1000 * MIB, expandable)
    peak = [0, 0]
    for size in (100, 120, 140, 160, 180, 200):
        device.malloc("激活", size * MIB)
        peak = [max(peak[0], device.allocated), max(peak[1], device.reserved)]
        device.free("激活")
    return peak[0] // MIB, peak[1] // MIB


def fragmented(expandable: bool) -> str:
    """800 MiB 的卡：一块 800 MiB 用完被切成 40 块 20 MiB，隔一块放一块，空闲 400 MiB，再要 200 MiB。

    >>> fragmented(False)
    'OOM：要 200 MiB；已分配 400，已保留 800，最大空闲块 20 MiB'
    >>> fragmented(True)
    '成功：已分配 600，已保留 600 MiB'
    """
    device = Allocator(800 * MIB, expandable)
    device.malloc("上一阶段", 800 * MIB)
    device.free("上一阶段")
    for i in range(40):
        device.malloc(f"块 {i}", 20 * MIB)
    for i in range(0, 40, 2):
        device.free(f"块 {i}")
    try:
        device.malloc("大块", 200 * MIB)
    except OutOfMemory as error:
        return f"OOM：{error}"
    return f"成功：已分配 {device.allocated // MIB}，已保留 {device.reserved // MIB} MiB"


# --8<-- [end:fragmentation]
