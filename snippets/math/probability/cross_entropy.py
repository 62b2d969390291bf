"""交叉熵：最大似然与 KL、稳定实现与梯度、半精度的边界、z-loss、归一化口径、词表并行、logits 的显存（只用标准库）。"""

import math
import struct
from collections.abc import Sequence

from snippets.common.chart import lines


# --8<-- [start:identity]
def _distribution(p: Sequence[float], name: str) -> None:
    if not p or not min(p) >= 0 or not abs(math.fsum(p) - 1) <= 1e-9:  # 这样写，NaN 也被拦下
        raise ValueError(f"{name} 须是非负且和为 1 的分布，收到 {list(p)[:5]}")


def entropy(p: Sequence[float]) -> float:
    """H(p) = −Σ p ln p，nats；0·ln 0 记为 0。

    >>> round(entropy([0.25] * 4) / math.log(2), 6)          # 比特
    2.0
    """
    _distribution(p, "p")
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def cross_entropy(p: Sequence[float], q: Sequence[float]) -> float:
    """H(p, q) = −Σ p ln q，nats；p 有质量而 q 为 0 时是 inf。

    >>> p, q = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]
    >>> math.isclose(cross_entropy(p, q), entropy(p) + kl(p, q))
    True
    >>> cross_entropy([0.5, 0.5], [1.0, 0.0])
    inf
    """
    _distribution(p, "p")
    _distribution(q, "q")
    if len(p) != len(q):
        raise ValueError(f"p 与 q 的类数不同：{len(p)} 与 {len(q)}")
    if any(x > 0 and y == 0 for x, y in zip(p, q, strict=True)):
        return math.inf
    return -math.fsum(x * math.log(y) for x, y in zip(p, q, strict=True) if x > 0)


def kl(p: Sequence[float], q: Sequence[float]) -> float:
    """KL(p‖q) = Σ p ln(p/q) ≥ 0，nats。

    >>> kl([0.5, 0.5], [0.5, 0.5])
    0.0
    """
    if math.isinf(cross_entropy(p, q)):
        return math.inf
    return math.fsum(x * (math.log(x) - math.log(y)) for x, y in zip(p, q, strict=True) if x > 0)


def zero_is_not_the_floor() -> tuple[float, float, float]:
    """反例：“交叉熵最小能到 0”。三种续写各占 60%、30%、10%：(预测恰对时的损失, 熵, 只押第一种到 99% 时的损失)。

    >>> [round(x, 3) for x in zero_is_not_the_floor()]
    [0.898, 0.898, 2.125]
    """
    p = [0.6, 0.3, 0.1]
    return cross_entropy(p, p), entropy(p), cross_entropy(p, [0.99, 0.005, 0.005])


# --8<-- [end:identity]


# --8<-- [start:stable]
def logsumexp(logits: Sequence[float]) -> float:
    """ln Σ e^z，先减最大值；全是 −inf 时为 −inf。空、NaN、+inf 抛 ValueError。

    >>> logsumexp([1000.0, 1000.0]) == 1000.0 + math.log(2)
    True
    """
    if not logits or any(math.isnan(z) or z == math.inf for z in logits):
        raise ValueError("logits 不能为空，也不能含 NaN 或 +inf")
    top = max(logits)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(z - top) for z in logits))


def softmax_cross_entropy(logits: Sequence[float], target: int) -> tuple[float, list[float]]:
    """损失 logsumexp(z) − z_y 与对 logits 的梯度 softmax(z) − onehot(y)。logits: (V,)。

    >>> loss, grad = softmax_cross_entropy([0.0] * 128_256, 7)          # 第 0 步：均匀，损失是 ln V
    >>> round(loss, 4), round(grad[7], 6), abs(math.fsum(grad)) < 1e-9
    (11.7618, -0.999992, True)
    >>> softmax_cross_entropy([1000.0, 0.0], 1)[0]                       # 不溢出
    1000.0
    """
    if not 0 <= target < len(logits):
        raise ValueError(f"target 必须在 [0, {len(logits)}) 内，收到 {target}")
    total = logsumexp(logits)
    if total == -math.inf:
        raise ValueError("logits 全是 −inf")
    grad = [math.exp(z - total) for z in logits]
    grad[target] -= 1
    return total - logits[target], grad


# --8<-- [end:stable]


# --8<-- [start:formats]
def exp_limits(exponent_bits: int, mantissa_bits: int) -> tuple[float, float]:
    """(e^z 溢出的 z, e^z 变成 0 的 z)：前者是最大有限数加半个间隔的对数，后者是最小非规格化数一半的对数。

    >>> for name, e, m in (("fp16", 5, 10), ("bf16", 8, 7), ("fp32", 8, 23)):
    ...     print(name, *(round(z, 2) for z in exp_limits(e, m)))
    fp16 11.09 -17.33
    bf16 88.72 -92.88
    fp32 88.72 -103.97
    """
    if exponent_bits < 2 or mantissa_bits < 1:
        raise ValueError(f"须有 exponent_bits ≥ 2、mantissa_bits ≥ 1，收到 {exponent_bits, mantissa_bits}")
    bias = 2 ** (exponent_bits - 1) - 1
    overflow = (bias + 1) * math.log(2) + math.log1p(-(2.0 ** -(mantissa_bits + 2)))
    return overflow, (1 - bias - mantissa_bits - 1) * math.log(2)


def to_fp16(x: float) -> float:
    """舍入到 fp16（就近，平局取偶）；超出范围为 ±inf。"""
    try:
        return struct.unpack("<e", struct.pack("<e", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def log_of_softmax_in_fp16(gap: float) -> tuple[float, float]:
    """反例：“减了最大值，先 softmax 再取 log 就安全”。正确类落后 gap：(fp16 里 −ln softmax, 用 logsumexp 的损失)。

    减最大值只治上溢。概率不超过 2⁻²⁵ 时在 fp16 里是 0，取 log 得 inf，梯度也没了。gap ≥ 0。

    >>> [[round(x, 3) for x in log_of_softmax_in_fp16(gap)] for gap in (8.0, 16.0, 18.0)]
    [[8.0, 8.0], [15.945, 16.0], [inf, 18.0]]
    """
    if not gap >= 0:
        raise ValueError(f"gap 必须 ≥ 0，收到 {gap}")
    weights = [to_fp16(math.exp(0.0)), to_fp16(math.exp(-gap))]
    probability = to_fp16(weights[1] / to_fp16(math.fsum(weights)))
    return (math.inf if probability == 0 else to_fp16(-math.log(probability))), softmax_cross_entropy([0.0, -gap], 1)[0]


# --8<-- [end:formats]


# --8<-- [start:zloss]
def z_loss(logits: Sequence[float], target: int, coefficient: float = 1e-4) -> tuple[float, list[float]]:
    """交叉熵 + coefficient·(logsumexp z)²，返回 (损失, 梯度)；系数 1e-4 见 PaLM（Chowdhery 2022）。

    交叉熵的梯度之和恒为 0，管不了“所有 logits 加同一个数”；这一项的梯度是 2c·ln Z·softmax(z)，和为 2c·ln Z。

    >>> shifted = [z + 50.0 for z in (2.0, 1.0, 0.0)]
    >>> plain = softmax_cross_entropy(shifted, 0)[1]
    >>> abs(math.fsum(plain)) < 1e-12, round(math.fsum(z_loss(shifted, 0)[1]), 6)
    (True, 0.010482)
    """
    if not 0 <= coefficient < math.inf:
        raise ValueError(f"coefficient 须非负且有限，收到 {coefficient}")
    loss, grad = softmax_cross_entropy(logits, target)
    log_z = logsumexp(logits)
    extra = 2 * coefficient * log_z
    return loss + coefficient * log_z**2, [g + extra * math.exp(z - log_z) for g, z in zip(grad, logits, strict=True)]


def to_bf16(x: float) -> float:
    """舍入到 bf16：取 fp32 的高 16 位，就近，平局取偶。

    >>> to_bf16(257.0), to_bf16(32.1)                        # 8 位有效数：32 附近的间隔是 0.25
    (256.0, 32.0)
    """
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def drift_costs_precision(offset: float, vocabulary: int = 1000) -> tuple[float, float]:
    """所有 logits 整体漂移 offset 之后存成 bf16，损失的误差：各类作标签时的 (平均, 最大) |差|，nats。

    logits 取 3·sin(k)，固定。数学上漂移不改变损失，误差全来自 bf16 的间隔随绝对值变大。

    >>> for offset in (0, 10, 30, 100, 300):
    ...     print("漂移 {:>3}  平均 {:.4f}  最大 {:.4f}".format(offset, *drift_costs_precision(offset)))
    漂移   0  平均 0.0029  最大 0.0085
    漂移  10  平均 0.0132  最大 0.0316
    漂移  30  平均 0.0382  最大 0.1319
    漂移 100  平均 0.1176  最大 0.2783
    漂移 300  平均 0.6546  最大 1.4342
    """
    if vocabulary < 2:
        raise ValueError(f"vocabulary 必须 ≥ 2，收到 {vocabulary}")
    logits = [3 * math.sin(k) for k in range(vocabulary)]
    stored = [to_bf16(z + offset) for z in logits]
    exact, rounded = logsumexp(logits), logsumexp(stored)
    errors = [abs((rounded - b) - (exact - a)) for a, b in zip(logits, stored, strict=True)]
    return math.fsum(errors) / vocabulary, max(errors)


# --8<-- [end:zloss]


# --8<-- [start:mean]
def next_token_loss(logits: Sequence[Sequence[float]], labels: Sequence[int], ignore_index: int = -100) -> tuple[float, int]:
    """语言模型的损失：位置 t 的 logits 预测第 t+1 个标签，等于 ignore_index 的不计。返回 (损失之和, 有效 token 数)。

    返回和与个数而不是平均：除以多少，要到全局 batch 才知道。logits: (s, V)，labels: (s,)。

    >>> total, count = next_token_loss([[0.0] * 4] * 5, [1, 2, -100, 3, -100])   # 提示、padding 记作 −100
    >>> math.isclose(total / count, math.log(4)), count
    (True, 2)
    """
    if not logits or len(logits) != len(labels):
        raise ValueError(f"logits 与 labels 须等长且非空，收到 {len(logits), len(labels)}")
    losses = [softmax_cross_entropy(z, y)[0] for z, y in zip(logits[:-1], labels[1:], strict=True) if y != ignore_index]
    return math.fsum(losses), len(losses)


def token_mean_or_mean_of_means(losses: Sequence[Sequence[float]]) -> tuple[float, float]:
    """两种归一化：(按有效 token 汇总, 各 micro-batch 先平均再平均)。有效 token 数不等时两者不同。

    >>> token_mean_or_mean_of_means([[1.0, 1.0, 1.0, 1.0], [5.0]])
    (1.8, 3.0)
    """
    if not losses or not all(losses):
        raise ValueError("须至少一个 micro-batch，且都有有效 token")
    flat = [loss for batch in losses for loss in batch]
    return math.fsum(flat) / len(flat), math.fsum(math.fsum(batch) / len(batch) for batch in losses) / len(losses)


def token_weights(counts: Sequence[int]) -> list[float]:
    """“均值的均值”里每个 token 的权重 ÷ 按 token 平均时的权重；counts 是各 micro-batch 的有效 token 数。

    >>> [round(w, 3) for w in token_weights([4000, 4000, 4000, 50])]          # 三条长回答、一条短回答
    [0.753, 0.753, 0.753, 60.25]
    """
    if not counts or min(counts) < 1:
        raise ValueError(f"counts 须非空且都 ≥ 1，收到 {list(counts)}")
    return [sum(counts) / (len(counts) * count) for count in counts]


# --8<-- [end:mean]


# --8<-- [start:parallel]
def vocabulary_parallel_loss(shards: Sequence[Sequence[float]], target: int) -> tuple[float, list[list[float]]]:
    """词表切成几段（张量并行的各卡，或逐块流过的词表）：每段只交出 3 个数就能得到损失；梯度各段自己算。

    三个数：最大值（取 max）、e^{z−max} 之和（求和）、正确类的 logit（不在本段的给 0，求和）。

    >>> loss, grads = vocabulary_parallel_loss([[2.0, 1.0], [1000.0, -math.inf], [0.0]], target=2)
    >>> round(loss, 12), grads
    (0.0, [[0.0, 0.0], [0.0, 0.0], [0.0]])
    """
    if not shards or not all(shards):
        raise ValueError("shards 须非空，且每段都有 logits")
    sizes = [len(shard) for shard in shards]
    if not 0 <= target < sum(sizes):
        raise ValueError(f"target 必须在 [0, {sum(sizes)}) 内，收到 {target}")
    local = [target - sum(sizes[:i]) for i in range(len(sizes))]  # 标签在各段里的下标，可能在段外
    owns = [0 <= index < size for index, size in zip(local, sizes, strict=True)]
    if any(math.isnan(z) for shard in shards for z in shard):
        raise ValueError("logits 含 NaN")
    top = max(max(shard) for shard in shards)  # all-reduce MAX
    if not math.isfinite(top):
        raise ValueError("logits 全是 −inf，或含 +inf")
    total = math.fsum(math.fsum(math.exp(z - top) for z in shard) for shard in shards)  # all-reduce SUM
    picked = math.fsum(shard[i] if own else 0.0 for shard, i, own in zip(shards, local, owns, strict=True))  # all-reduce SUM
    grads = [[math.exp(z - top) / total for z in shard] for shard in shards]
    for grad, index, own in zip(grads, local, owns, strict=True):
        if own:
            grad[index] -= 1
    return top + math.log(total) - picked, grads


# --8<-- [end:parallel]


# --8<-- [start:memory]
def logits_gigabytes(tokens: int, vocabulary: int, chunk: int | None = None) -> float:
    """逐算子算损失时 logits 的峰值，GB（10⁹ 字节）；分块时只有 chunk 个 token 同时在。

    峰值在反向，每个 logit 12 字节：log-softmax 4，两份 fp32 梯度 8（前向是 bf16 2 + fp32 4 + log-softmax 4 = 10）。
    系数由 infra/memory/saved_tensors.py 的 loss_peak 数出。

    >>> for name, v in (("GPT-2", 50_257), ("Llama-3", 128_256), ("DeepSeek-V3", 129_280), ("Qwen3", 151_936), ("Gemma 2", 256_000)):
    ...     print(f"{name:11} {logits_gigabytes(8192, v):5.2f} GB，每次 1024 个 token {logits_gigabytes(8192, v, chunk=1024):4.2f} GB")
    GPT-2        4.94 GB，每次 1024 个 token 0.62 GB
    Llama-3     12.61 GB，每次 1024 个 token 1.58 GB
    DeepSeek-V3 12.71 GB，每次 1024 个 token 1.59 GB
    Qwen3       14.94 GB，每次 1024 个 token 1.87 GB
    Gemma 2     25.17 GB，每次 1024 个 token 3.15 GB
    """
    if tokens < 1 or vocabulary < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"tokens、vocabulary、chunk 都必须 ≥ 1，收到 {tokens, vocabulary, chunk}")
    return 12 * min(tokens, chunk or tokens) * vocabulary / 1e9


# --8<-- [end:memory]


# --8<-- [start:squared]
def gradient_at_margin(margin: float) -> tuple[float, float]:
    """二分类，正确类领先 margin（负数是错了）：对 margin 的梯度大小 (交叉熵, 概率的平方误差 ½(1 − q)²)。

    >>> [[round(g, 4) for g in gradient_at_margin(m)] for m in (-8.0, 0.0, 8.0)]      # 错得离谱、没把握、对得有把握
    [[0.9997, 0.0003], [0.5, 0.125], [0.0003, 0.0]]
    """
    q = 1 / (1 + math.exp(-margin)) if margin >= 0 else math.exp(margin) / (1 + math.exp(margin))
    return 1 - q, q * (1 - q) ** 2


# --8<-- [end:squared]


def figure_gradient() -> str:
    """交叉熵与平方误差的梯度随领先量的变化。"""
    margins = [i / 4 for i in range(-32, 33)]
    return lines(
        {
            "交叉熵 1 − q": [(m, gradient_at_margin(m)[0]) for m in margins],
            "平方误差 q(1 − q)²": [(m, gradient_at_margin(m)[1]) for m in margins],
        },
        title="正确类落后越多，交叉熵的梯度越大，平方误差的梯度趋于 0",
        x_label="正确类领先的 logit",
        y_label="梯度大小",
    )
