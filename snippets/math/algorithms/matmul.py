"""大矩阵乘法为什么快、快不上去卡在哪：缓存分块、算术强度与 roofline、wave 量化、Strassen（只用标准库）。"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from snippets.common.chart import lines

H100_BF16 = 989e12  # FLOP/s，稠密，H100 SXM 规格
H100_HBM = 3.35e12  # 字节/秒，H100 SXM 规格


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0 or math.isinf(value):
            raise ValueError(f"{name} 必须为正且有限，收到 {value}")


# --8<-- [start:cache]
def naive_accesses(n: int) -> Iterator[tuple[str, int, int]]:
    """三重循环 i、j、k 依次访问的元素：(矩阵名, 行, 列)。C[i][j] 留在寄存器，不计。"""
    for i in range(n):
        for j in range(n):
            for k in range(n):
                yield "A", i, k
                yield "B", k, j


def blocked_accesses(n: int, block: int) -> Iterator[tuple[str, int, int]]:
    """同样的乘加，外面套三层块循环：一个 A 块与一个 B 块在缓存里时，把它们之间的乘加做完。"""
    for i0 in range(0, n, block):
        for j0 in range(0, n, block):
            for k0 in range(0, n, block):
                for i in range(i0, min(i0 + block, n)):
                    for j in range(j0, min(j0 + block, n)):
                        for k in range(k0, min(k0 + block, n)):
                            yield "A", i, k
                            yield "B", k, j


def cache_misses(accesses: Iterable[tuple[str, int, int]], capacity: int) -> int:
    """容量为 capacity 个元素的全相联 LRU 缓存要从内存取多少个元素。

    64×64 的矩阵、缓存放得下 1/4 个矩阵：不分块时 B 的每个元素每次都要重取。

    >>> n, capacity = 64, 1024
    >>> cache_misses(naive_accesses(n), capacity)             # n³ + n²：B 每次都不命中，A 的一行留得住
    266240
    >>> cache_misses(blocked_accesses(n, 16), capacity)       # 2n³/16：少到 1/8
    32768
    """
    _positive(capacity=capacity)
    cache: OrderedDict[tuple[str, int, int], None] = OrderedDict()
    misses = 0
    for element in accesses:
        if element in cache:
            cache.move_to_end(element)
            continue
        misses += 1
        cache[element] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return misses


# --8<-- [end:cache]


# --8<-- [start:roofline]
def gemm_intensity(m: int, n: int, k: int, element_bytes: float = 2) -> float:
    """(m, k) × (k, n) 的算术强度（FLOP/字节）：2mnk ÷ 每个矩阵各搬一次的字节。

    >>> round(gemm_intensity(8192, 8192, 8192), 1)            # 方阵约 n/3
    2730.7
    >>> round(gemm_intensity(1, 14336, 4096), 3)              # 解码 batch 1：约 1
    1.0
    """
    _positive(m=m, n=n, k=k, element_bytes=element_bytes)
    return 2 * m * n * k / (element_bytes * (m * k + k * n + m * n))


def roofline_seconds(m: int, n: int, k: int, peak: float, bandwidth: float, element_bytes: float = 2) -> tuple[float, str]:
    """下限时间 max(FLOPs/峰值, 字节/带宽) 与卡在哪一边。peak: FLOP/s（稠密）；bandwidth: 字节/秒。

    Llama-3-8B 的 gate 投影（4096 → 14336，bf16），H100 SXM：

    >>> for tokens in (1, 64, 256, 512, 8192):
    ...     seconds, bound = roofline_seconds(tokens, 14336, 4096, H100_BF16, H100_HBM)
    ...     print(f"{tokens:>5} token  强度 {gemm_intensity(tokens, 14336, 4096):7.1f}  {seconds * 1e6:8.1f} µs  {bound}")
        1 token  强度     1.0      35.1 µs  带宽
       64 token  强度    62.7      35.8 µs  带宽
      256 token  强度   237.0      37.9 µs  带宽
      512 token  强度   441.1      60.8 µs  算力
     8192 token  强度  2293.8     972.8 µs  算力
    """
    _positive(m=m, n=n, k=k, peak=peak, bandwidth=bandwidth, element_bytes=element_bytes)
    compute = 2 * m * n * k / peak
    memory = element_bytes * (m * k + k * n + m * n) / bandwidth
    return max(compute, memory), "算力" if compute >= memory else "带宽"


# --8<-- [end:roofline]


# --8<-- [start:waves]
def wave_efficiency(m: int, n: int, tile_m: int = 128, tile_n: int = 256, sms: int = 132) -> tuple[int, float]:
    """每个输出块占一个 SM 时，要几波（wave），以及因尾波不满与边角块而剩下的利用率上限。

    利用率 = 有用输出元素 ÷ (波数 × SM 数 × 块大小)。H100 SXM 有 132 个 SM。

    >>> for size in (4096, 4097, 8192):
    ...     waves, efficiency = wave_efficiency(size, size)
    ...     print(f"{size}: {waves} 波，上限 {efficiency:.1%}")
    4096: 4 波，上限 97.0%
    4097: 5 波，上限 77.6%
    8192: 16 波，上限 97.0%
    """
    _positive(m=m, n=n, tile_m=tile_m, tile_n=tile_n, sms=sms)
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    waves = math.ceil(tiles / sms)
    return waves, m * n / (waves * sms * tile_m * tile_n)


# --8<-- [end:waves]


# --8<-- [start:strassen]
Matrix = list[list[float]]


def multiply(a: Matrix, b: Matrix) -> Matrix:
    """按定义相乘，fsum 累加，作为参照。"""
    if not a or not b or len(a[0]) != len(b):
        raise ValueError(f"形状不合：{len(a)}×{len(a[0]) if a else 0} 与 {len(b)}×{len(b[0]) if b else 0}")
    columns = list(zip(*b, strict=True))
    return [[math.fsum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a]


def _combine(a: Matrix, b: Matrix, sign: int = 1) -> Matrix:
    return [[x + sign * y for x, y in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)]


def strassen(a: Matrix, b: Matrix) -> tuple[Matrix, int]:
    """Strassen 1969：2×2 分块只做 7 次块乘法，递归到 1×1。返回 (乘积, 标量乘法次数)，阶须为 2 的幂。

    >>> c, multiplications = strassen([[1, 2], [3, 4]], [[5, 6], [7, 8]])
    >>> c, multiplications
    ([[19, 22], [43, 50]], 7)
    >>> identity = [[float(i == j) for j in range(16)] for i in range(16)]
    >>> strassen(identity, identity)[1], 16**3                # 7⁴ 对 16³
    (2401, 4096)
    """
    n = len(a)
    if n == 0 or n & (n - 1) or any(len(row) != n for row in (*a, *b)) or len(b) != n:
        raise ValueError(f"须是阶为 2 的幂的两个同阶方阵，收到 {n} 与 {len(b)}")
    if n == 1:
        return [[a[0][0] * b[0][0]]], 1
    h = n // 2
    a11, a12, a21, a22 = ([row[c : c + h] for row in a[r : r + h]] for r in (0, h) for c in (0, h))
    b11, b12, b21, b22 = ([row[c : c + h] for row in b[r : r + h]] for r in (0, h) for c in (0, h))
    products = [
        strassen(_combine(a11, a22), _combine(b11, b22)),
        strassen(_combine(a21, a22), b11),
        strassen(a11, _combine(b12, b22, -1)),
        strassen(a22, _combine(b21, b11, -1)),
        strassen(_combine(a11, a12), b22),
        strassen(_combine(a21, a11, -1), _combine(b11, b12)),
        strassen(_combine(a12, a22, -1), _combine(b21, b22)),
    ]
    m1, m2, m3, m4, m5, m6, m7 = (product for product, _ in products)
    c11 = _combine(_combine(m1, m4), _combine(m7, m5, -1))
    c12, c21 = _combine(m3, m5), _combine(m2, m4)
    c22 = _combine(_combine(m1, m2, -1), _combine(m3, m6))
    top = [p + q for p, q in zip(c11, c12, strict=True)]
    bottom = [p + q for p, q in zip(c21, c22, strict=True)]
    return top + bottom, sum(count for _, count in products)


def strassen_one_level(n: int, element_bytes: int = 2) -> tuple[float, float]:
    """大矩阵只展开一层 Strassen：返回 (FLOPs 比例, 额外加法搬的字节 ÷ 普通乘法的最少字节)。

    18 次 (n/2)² 加法，每次读两个写一个；加法没有 tensor core，且每字节只做 1/6 FLOP。

    >>> flops, traffic = strassen_one_level(8192)
    >>> round(flops, 4), traffic
    (0.8753, 4.5)
    """
    _positive(n=n, element_bytes=element_bytes)
    flops = (7 * 2 * (n / 2) ** 3 + 18 * (n / 2) ** 2) / (2 * n**3)
    return flops, 18 * 3 * (n / 2) ** 2 * element_bytes / (3 * n**2 * element_bytes)


# --8<-- [end:strassen]


# --8<-- [start:wrong]
def python_blocking_calls(n: int = 512, block: int = 32) -> tuple[int, float, float]:
    """反例：“用 Python 三重循环把矩阵切成 32×32 块再调 mm，就是分块优化”。

    返回 (调用次数, 每次调用的算术强度, 一次整体调用的算术强度)，fp32。BLAS 内部已经按缓存分块；
    外面再切，只是把一次高强度的调用换成几千次低强度的调用，还加上每次的启动开销。

    >>> calls, small, whole = python_blocking_calls()
    >>> calls, round(small, 2), round(whole, 2)
    (4096, 5.33, 85.33)
    """
    _positive(n=n, block=block)
    return math.ceil(n / block) ** 3, gemm_intensity(block, block, block, 4), gemm_intensity(n, n, n, 4)


# --8<-- [end:wrong]


def figure_roofline() -> str:
    """H100 上 gate 投影可达的 TFLOP/s 随 token 数变化。"""
    counts = [2**power for power in range(15)]
    attainable = [
        (tokens, 2 * tokens * 14336 * 4096 / roofline_seconds(tokens, 14336, 4096, H100_BF16, H100_HBM)[0] / 1e12) for tokens in counts
    ]
    return lines(
        {"roofline 上限": attainable},
        title="gate 投影（4096→14336，bf16）在 H100 上的 roofline 上限",
        x_label="一次送入的 token 数",
        y_label="TFLOP/s",
        x_log=2,
        y_log=10,
        y_refs={"稠密峰值 989": H100_BF16 / 1e12},
        markers=True,
    )
