"""困惑度：从逐 token 的对数概率算起，掩码与平均、换底、bits per byte、滑动窗口评测（只用标准库）。"""

import math
from collections.abc import Sequence


# --8<-- [start:define]
def perplexity(logprobs: Sequence[float], mask: Sequence[int] | None = None) -> float:
    """exp(−平均对数概率)；logprobs 是每个目标 token 的 ln p，mask 为 0 的位置（padding、提示）不计。

    概率为 0（−inf）的 token 使困惑度为 inf（平均超过 709 nat、双精度装不下时也是）；没有有效 token 是错误，不是 1。

    >>> round(perplexity([math.log(1 / 128_256)] * 10))               # 均匀模型的困惑度就是词表大小
    128256
    >>> round(perplexity([math.log(0.5), math.log(0.125), 0.0], mask=[1, 1, 0]), 6)
    4.0
    >>> perplexity([math.log(0.9), -math.inf])
    inf
    >>> perplexity([0.0], mask=[0])
    Traceback (most recent call last):
    ...
    ValueError: 没有有效的 token
    """
    if mask is not None and len(mask) != len(logprobs):
        raise ValueError(f"mask 与 logprobs 的长度不同：{len(mask)} 与 {len(logprobs)}")
    kept = [lp for lp, keep in zip(logprobs, [1] * len(logprobs) if mask is None else mask, strict=True) if keep]
    if not kept:
        raise ValueError("没有有效的 token")
    if any(math.isnan(lp) or lp > 0 for lp in kept):
        raise ValueError("对数概率须 ≤ 0 且不是 NaN")
    return _exp(-math.fsum(kept) / len(kept))


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 709 else math.inf


def perplexity_base2(logprobs: Sequence[float]) -> float:
    """换底不改变困惑度：2 的“平均比特数”次方。

    >>> lps = [math.log(p) for p in (0.5, 0.1, 0.9)]
    >>> math.isclose(perplexity_base2(lps), perplexity(lps))
    True
    """
    if not logprobs or not all(lp <= 0 for lp in logprobs):
        raise ValueError("logprobs 须非空、≤ 0 且不是 NaN")
    bits = -math.fsum(logprobs) / len(logprobs) / math.log(2)
    return 2**bits if bits < 1023 else math.inf


def bits_per_byte(total_nats: float, n_bytes: int) -> float:
    """总负对数似然（nats）÷ ln 2 ÷ UTF-8 字节数：与分词无关，可以跨 tokenizer 比较。

    >>> round(bits_per_byte(693_147.18, 1_000_000), 4)
    1.0
    """
    if not total_nats >= 0 or n_bytes < 1:
        raise ValueError(f"须有 total_nats ≥ 0、n_bytes ≥ 1，收到 {total_nats, n_bytes}")
    return total_nats / math.log(2) / n_bytes


# --8<-- [end:define]


# --8<-- [start:tokenizers]
def same_model_two_tokenizers(total_nats: float = 650_000.0, n_bytes: int = 1_000_000) -> list[tuple[str, float, float]]:
    """反例：“困惑度低的模型更好”。同一段 1 MB 文本、同样的总似然，只是切成的 token 数不同。

    >>> for name, ppl, bpb in same_model_two_tokenizers():
    ...     print(f"{name}  困惑度 {ppl:6.2f}  bits/byte {bpb:.3f}")
    每 token 4.5 字节  困惑度  18.63  bits/byte 0.938
    每 token 3.5 字节  困惑度   9.73  bits/byte 0.938
    每 token 1.0 字节  困惑度   1.92  bits/byte 0.938
    """
    bpb = bits_per_byte(total_nats, n_bytes)
    sizes = (4.5, 3.5, 1.0)
    return [(f"每 token {size} 字节", _exp(total_nats / n_bytes * size), bpb) for size in sizes]


def per_unit(token_perplexity: float, tokens: int, units: int) -> float:
    """每 token 困惑度换算成每“词”（或别的单位）困惑度：同一个总 NLL 除以不同的个数，即 PPL^(tokens/units)。

    >>> round(per_unit(20.0, tokens=120, units=100), 2)             # 示例：每 100 个词切成 120 个 token
    36.41
    """
    if not token_perplexity >= 1 or tokens < 1 or units < 1:
        raise ValueError(f"须有 token_perplexity ≥ 1、tokens、units ≥ 1，收到 {token_perplexity, tokens, units}")
    return _exp(math.log(token_perplexity) * tokens / units)


def mean_of_means(batches: Sequence[Sequence[float]]) -> tuple[float, float]:
    """反例：各序列（或各 batch）的困惑度再平均。返回 (按 token 汇总, 各序列困惑度的平均)；输入是各序列的 ln p。

    >>> easy, hard = [math.log(0.5)] * 90, [math.log(0.01)] * 10      # 一长一短
    >>> [round(x, 2) for x in mean_of_means([easy, hard])]
    [2.96, 51.0]
    """
    if not batches or not all(batches):
        raise ValueError("须至少一个序列，且都不为空")
    return perplexity([lp for batch in batches for lp in batch]), math.fsum(map(perplexity, batches)) / len(batches)


# --8<-- [end:tokenizers]


# --8<-- [start:window]
def windowed_perplexity(bits: Sequence[int], window: int, stride: int) -> tuple[float, int]:
    """用最多 window 长的上下文评测一个会“边看边学”的模型，返回 (困惑度, 前向处理的 token 数)。

    每个窗口只给**新**的 stride 个 token 计分，其余作上下文；stride = window 就是不重叠地切块
    （末尾不足一块时仍取满 window 的上下文）。
    模型是 Krichevsky–Trofimov 估计：看过 n₁ 个 1、n₀ 个 0 之后，下一个是 1 的概率为 (n₁+½)/(n₀+n₁+1)。

    >>> import random
    >>> rng = random.Random(0)
    >>> bits = [int(rng.random() < 0.9) for _ in range(4096)]
    >>> for stride in (64, 32, 8, 1):
    ...     ppl, cost = windowed_perplexity(bits, window=64, stride=stride)
    ...     print(f"stride {stride:>2}  困惑度 {ppl:.4f}  前向 {cost / len(bits):5.1f} 倍")
    stride 64  困惑度 1.4355  前向   1.0 倍
    stride 32  困惑度 1.4076  前向   2.0 倍
    stride  8  困惑度 1.4062  前向   7.9 倍
    stride  1  困惑度 1.4062  前向  63.0 倍
    """
    if not bits or not 1 <= stride <= window or set(bits) - {0, 1}:
        raise ValueError(f"bits 须为非空的 0/1 序列，且 1 ≤ stride ≤ window，收到 stride={stride}, window={window}")
    logprobs: list[float] = []
    cost, scored = 0, 0
    while scored < len(bits):
        end = min(len(bits), max(window, scored + stride) if scored == 0 else scored + stride)
        start = max(0, end - window)
        cost += end - start
        ones = sum(bits[start:scored])
        for position in range(scored, end):
            seen = position - start
            p_one = (ones + 0.5) / (seen + 1)
            logprobs.append(math.log(p_one if bits[position] else 1 - p_one))
            ones += bits[position]
        scored = end
    return perplexity(logprobs), cost


# --8<-- [end:window]


# --8<-- [start:compute]
def compute_multiple(loss: float, drop: float) -> tuple[float, float]:
    """损失从 loss 降 drop，按两条公开的 scaling law 要多少倍算力：(Kaplan 2020, Hoffmann 2022)。

    Kaplan：L ∝ C^−0.050。Hoffmann：L = 1.69 + 406.4/N^0.34 + 410.7/D^0.28，算力最优时 L − 1.69 ∝ C^−(0.34·0.28/0.62)。

    >>> [round(x, 1) for x in compute_multiple(2.0, 0.05)]
    [1.7, 3.1]
    """
    if not 0 < drop < loss - 1.69:
        raise ValueError(f"须有 0 < drop < loss − 1.69（1.69 是拟合出的下限），收到 {loss, drop}")
    lower = loss - drop
    return (loss / lower) ** (1 / 0.050), ((loss - 1.69) / (lower - 1.69)) ** (0.62 / (0.34 * 0.28))


# --8<-- [end:compute]
