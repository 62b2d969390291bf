"""布隆过滤器（Bloom filter）：位数与哈希数怎么选、误判率、实现、在语料去重里丢多少数据（只用标准库）。"""

import hashlib
import math

from snippets.common.chart import lines


# --8<-- [start:sizing]
def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0 or math.isinf(value):
            raise ValueError(f"{name} 必须为正且有限，收到 {value}")


def optimal_bits(n: int, p: float) -> int:
    """存 n 个元素、目标误判率 p 所需的位数 m = ⌈−n·ln p / (ln 2)²⌉（Bloom 1970 的模型取最优 k）。

    >>> round(optimal_bits(10**9, 0.01) / 8 / 1e9, 3)   # 10 亿条 URL，误判率 1%：GB（10⁹ 字节）
    1.198
    >>> optimal_bits(1, 1.0)
    Traceback (most recent call last):
    ...
    ValueError: p 必须在 (0, 1) 内，收到 1.0
    """
    _positive(n=n)
    if not 0 < p < 1:
        raise ValueError(f"p 必须在 (0, 1) 内，收到 {p}")
    return math.ceil(-n * math.log(p) / math.log(2) ** 2)


def optimal_hashes(m: int, n: int) -> int:
    """使误判率最小的哈希个数：(m/n)·ln 2 两侧的整数里误判率较低的那个，至少 1。

    >>> optimal_hashes(9_585, 1_000)               # 6.64 两侧是 6 与 7
    7
    >>> optimal_hashes(10, 1_000)                  # 位太少时一个哈希已经过多
    1
    """
    _positive(m=m, n=n)
    low = max(1, math.floor(m / n * math.log(2)))
    return min(low, low + 1, key=lambda k: false_positive_rate(m, n, k))


def false_positive_rate(m: int, n: int, k: int) -> float:
    """插入 n 个元素后，查一个没插入过的元素被判为“在”的概率：(1 − e^(−kn/m))^k。

    >>> round(false_positive_rate(9_585, 1_000, 7), 5)
    0.01004
    >>> round(false_positive_rate(9_585, 2_000, 7), 3)   # 装到设计容量的两倍：1% 变成 15.7%
    0.157
    >>> false_positive_rate(9_585, 0, 7)                 # 空过滤器从不误判
    0.0
    """
    _positive(m=m, k=k)
    if not 0 <= n < math.inf:
        raise ValueError(f"n 不能为负且须有限，收到 {n}")
    return (-math.expm1(-(k * n / m))) ** k


# --8<-- [end:sizing]


# --8<-- [start:filter]
class BloomFilter:
    """按容量 n 与误判率 p 建的布隆过滤器。元素是 bytes；只增不删。

    >>> seen = BloomFilter(capacity=10_000, p=0.01)
    >>> for i in range(10_000):
    ...     _ = seen.add(b"https://example.org/%d" % i)
    >>> all(b"https://example.org/%d" % i in seen for i in range(10_000))   # 没有漏判
    True
    >>> wrong = sum(b"https://example.com/%d" % i in seen for i in range(100_000))
    >>> wrong / 100_000, round(false_positive_rate(seen.m, 10_000, seen.k), 5)
    (0.00973, 0.01004)
    >>> round(seen.estimated_count())                                       # 由置位比例反推元素数
    10024
    """

    def __init__(self, capacity: int, p: float):
        self.m = optimal_bits(capacity, p)
        self.k = optimal_hashes(self.m, capacity)
        self._bits = bytearray((self.m + 7) // 8)

    def _positions(self, item: bytes) -> list[int]:
        """k 个位置由两个 64 位哈希线性组合而成：(h1 + i·h2) mod m（Kirsch–Mitzenmacher 2006）。"""
        digest = hashlib.blake2b(item, digest_size=16).digest()
        h1, h2 = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1
        return [(h1 + i * h2) % self.m for i in range(self.k)]

    def add(self, item: bytes) -> bool:
        """放入元素；返回它此前是否（看起来）已在其中——去重只需这一次调用。"""
        present = True
        for position in self._positions(item):
            byte, mask = position >> 3, 1 << (position & 7)
            present = present and bool(self._bits[byte] & mask)
            self._bits[byte] |= mask
        return present

    def __contains__(self, item: bytes) -> bool:
        return all(self._bits[position >> 3] & (1 << (position & 7)) for position in self._positions(item))

    def union(self, other: "BloomFilter") -> None:
        """并入同样大小的过滤器（按位或）：各机器各建一份，再合并。"""
        if (self.m, self.k) != (other.m, other.k):
            raise ValueError(f"两个过滤器的 (m, k) 不同：{(self.m, self.k)} 与 {(other.m, other.k)}")
        merged = int.from_bytes(self._bits, "little") | int.from_bytes(other._bits, "little")
        self._bits[:] = merged.to_bytes(len(self._bits), "little")

    def estimated_count(self) -> float:
        """已放入的不同元素数的估计：−(m/k)·ln(1 − 置位比例)；全满时为 inf。"""
        ones = int.from_bytes(self._bits, "little").bit_count()
        return math.inf if ones == self.m else -self.m / self.k * math.log(1 - ones / self.m)


# --8<-- [end:filter]


# --8<-- [start:dedup]
def wrongly_dropped(p: float, k: int) -> float:
    """边插入边去重时，被误判为重复而丢掉的唯一元素的比例：误判率沿插入过程的平均值（中点法积分）。

    开头过滤器是空的，误判率从 0 涨到设计值 p，所以平均远小于 p。

    >>> f"{wrongly_dropped(0.01, 7):.2%}"
    '0.17%'
    >>> round(wrongly_dropped(0.01, 7) * 10**9 / 1e6, 2)       # 10 亿篇唯一文档丢掉的：百万篇
    1.66
    """
    _positive(k=k)
    if not 0 < p < 1:
        raise ValueError(f"p 必须在 (0, 1) 内，收到 {p}")
    load = -math.log1p(-(p ** (1 / k)))  # 装满时的 kn/m
    steps = 10_000
    return math.fsum((-math.expm1(-load * (i + 0.5) / steps)) ** k for i in range(steps)) / steps


def dedup_memory(n: int) -> list[tuple[str, float]]:
    """去重 n 个键的内存（GB = 10⁹ 字节）：布隆过滤器对指纹集合（只有指纹碰撞才会错）。

    指纹集合按开放寻址、装载率 0.5 计：每个 64 位指纹占 16 字节，128 位占 32 字节。

    >>> for name, gb in dedup_memory(10**10):                   # 100 亿个段落
    ...     print(f"{gb:6.1f} GB  {name}")
      12.0 GB  Bloom，p = 1e-2
      24.0 GB  Bloom，p = 1e-4
      35.9 GB  Bloom，p = 1e-6
     160.0 GB  64 位指纹集合
     320.0 GB  128 位指纹集合
    """
    _positive(n=n)
    filters = [(f"Bloom，p = 1e-{digits}", optimal_bits(n, 10.0**-digits) / 8 / 1e9) for digits in (2, 4, 6)]
    return [*filters, ("64 位指纹集合", 16 * n / 1e9), ("128 位指纹集合", 32 * n / 1e9)]


def lsh_candidate_probability(similarity: float, bands: int, rows: int) -> float:
    """MinHash-LSH：Jaccard 相似度为 s 的两篇文档至少在一个桶里相遇的概率 1 − (1 − s^r)^b。

    >>> [round(lsh_candidate_probability(s, bands=14, rows=8), 3) for s in (0.5, 0.75, 0.8, 0.9)]
    [0.053, 0.772, 0.924, 1.0]
    """
    _positive(bands=bands, rows=rows)
    if not 0 <= similarity <= 1:
        raise ValueError(f"similarity 必须在 [0, 1] 内，收到 {similarity}")
    return 1 - (1 - similarity**rows) ** bands


# --8<-- [end:dedup]


# --8<-- [start:wrong]
def vocabulary_check_accepts_garbage(vocabulary_size: int = 128_256, p: float = 0.01) -> tuple[float, int]:
    """反例：用布隆过滤器查“token 在不在词表”，返回 (过滤器 KB, 一万个非词里被当成词的个数)。

    词表是几十万个键的精确映射，还要由 token 查到编号；布隆过滤器省不下什么，却给不出编号，还会误判。

    >>> vocabulary_check_accepts_garbage()
    (153.7, 107)
    """
    words = BloomFilter(vocabulary_size, p)
    for i in range(vocabulary_size):
        words.add(b"token-%d" % i)
    return round(words.m / 8 / 1e3, 1), sum(b"garbage-%d" % i in words for i in range(10_000))


def one_edit_defeats_exact_dedup() -> tuple[bool, bool]:
    """反例：布隆过滤器只认逐字节相同的键，改一个字符就查不到，近似重复要靠 MinHash-LSH。

    返回 (原文被认出, 改一个标点后被认出)。

    >>> one_edit_defeats_exact_dedup()
    (True, False)
    """
    seen = BloomFilter(1_000, 1e-6)
    seen.add("大模型的训练语料需要去重。".encode())
    return "大模型的训练语料需要去重。".encode() in seen, "大模型的训练语料需要去重！".encode() in seen


# --8<-- [end:wrong]


def figure_load() -> str:
    """误判率随装载量变化：三种每元素位数，k 各取设计容量下的最优值。"""
    n = 1_000
    series = {}
    for bits in (8, 10, 16):
        k = optimal_hashes(bits * n, n)
        series[f"{bits} 位/元素，k = {k}"] = [(x / 10, false_positive_rate(bits * n, x * n // 10, k)) for x in range(2, 31)]
    return lines(
        series,
        title="布隆过滤器的误判率随装载量上升",
        x_label="已插入元素数 ÷ 设计容量",
        y_label="误判率",
        y_log=10,
        x_refs={"设计容量": 1},
    )
