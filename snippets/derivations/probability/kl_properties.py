"""KL 散度的性质：对数似然比、链式法则、数据处理、序列的前缀、Fisher 二阶、三角不等式的反例（只用标准库）。"""

import math
from collections.abc import Sequence
from random import Random

from snippets.derivations.probability.elbo import gaussian_kl
from snippets.math.probability.cross_entropy import entropy, kl


# --8<-- [start:ratio]
def log_likelihood_ratio(p: Sequence[float], q: Sequence[float], samples: int, random: Random) -> float:
    """从 p 抽 samples 个样本，(1/N)·Σ ln p(x)/q(x)：大数定律下趋于 KL(p‖q)（nat）。抽到 q 为 0 的类时是 inf。

    >>> p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    >>> [round(log_likelihood_ratio(p, q, n, Random(0)), 3) for n in (10, 1000, 100_000)], round(kl(p, q), 3)
    ([0.367, 0.291, 0.275], 0.275)
    >>> log_likelihood_ratio([0.5, 0.5], [1.0, 0.0], 100, Random(0))
    inf
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples 须是不小于 1 的整数，收到 {samples}")
    kl(p, q)  # 检查两个分布
    drawn = random.choices(range(len(p)), p, k=samples)
    if any(q[x] == 0 for x in drawn):
        return math.inf
    return math.fsum(math.log(p[x]) - math.log(q[x]) for x in drawn) / samples


def code_lengths(p: Sequence[float], q: Sequence[float]) -> tuple[float, float, float]:
    """（H(p)，H(p, q)，两者之差），bit：用 q 设计的理想码去编 p，多付的就是 KL。

    >>> tuple(round(x, 4) for x in code_lengths([0.5, 0.25, 0.125, 0.125], [0.25] * 4))     # 2 bit 的定长码，多付 0.25
    (1.75, 2.0, 0.25)
    """
    divergence = kl(p, q) / math.log(2)
    own = entropy(p) / math.log(2)
    return own, own + divergence, divergence


# --8<-- [end:ratio]


# --8<-- [start:chain]
def _normalize(row: Sequence[float]) -> list[float]:
    total = math.fsum(row)
    return [x / total for x in row]


def chain_rule(p: Sequence[Sequence[float]], q: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """联合分布 p[x][y]、q[x][y]：（KL(联合)，KL(x 的边缘)，E_{p(x)} KL(p(y|x)‖q(y|x))），第一个是后两个的和。

    >>> p, q = [[0.3, 0.2], [0.1, 0.4]], [[0.2, 0.2], [0.3, 0.3]]
    >>> [round(v, 4) for v in chain_rule(p, q)]
    [0.1269, 0.0204, 0.1064]
    """
    if len(p) != len(q) or any(len(a) != len(b) or not a for a, b in zip(p, q, strict=True)):
        raise ValueError("p、q 须是同形状的非空表")
    joint = kl([v for row in p for v in row], [v for row in q for v in row])
    if math.isinf(joint):
        raise ValueError("q 为 0 而 p 大于 0：KL 是无穷，拆不开")
    marginal = kl([math.fsum(row) for row in p], [math.fsum(row) for row in q])
    conditional = math.fsum(math.fsum(a) * kl(_normalize(a), _normalize(b)) for a, b in zip(p, q, strict=True) if math.fsum(a) > 0)
    return joint, marginal, conditional


def sequence_kl(
    p: Sequence[Sequence[float]], q: Sequence[Sequence[float]], first_p: Sequence[float], first_q: Sequence[float]
) -> dict[str, float]:
    """两步序列：首 token 服从 first，第二个服从 p[x]、q[x]。前缀从谁采，逐 token 的 KL(p‖q) 之和就是不同的数。

    反例：“序列的 KL 等于各 token 的 KL 之和，在哪批前缀上算都行”。

    >>> agree, clash = [0.5, 0.5], [0.99, 0.01]                             # 首 token 为 0 时两模型一致，为 1 时冲突
    >>> rows = sequence_kl([agree, clash], [agree, clash[::-1]], [0.9, 0.1], [0.1, 0.9])
    >>> {name: round(v, 3) for name, v in rows.items()}
    {'整条': 2.208, '前缀来自 p': 2.208, '前缀来自 q': 5.811}
    """
    if not len(p) == len(q) == len(first_p) == len(first_q):
        raise ValueError(f"p、q、first_p、first_q 的首 token 个数须相同，收到 {len(p), len(q), len(first_p), len(first_q)}")
    joint_p = [[a * y for y in row] for a, row in zip(first_p, p, strict=True)]
    joint_q = [[a * y for y in row] for a, row in zip(first_q, q, strict=True)]
    whole, start, after = chain_rule(joint_p, joint_q)
    rows = [kl(x, y) for x, y in zip(p, q, strict=True)]
    wrong = start + math.fsum(b * row for b, row in zip(first_q, rows, strict=True) if b > 0)
    return {"整条": whole, "前缀来自 p": start + after, "前缀来自 q": wrong}


# --8<-- [end:chain]


# --8<-- [start:processing]
def merge(p: Sequence[float], groups: Sequence[Sequence[int]]) -> list[float]:
    """把类按 groups 归并（每个类恰属一组），粗化后的分布。"""
    entropy(p)  # 检查分布
    if sorted(i for group in groups for i in group) != list(range(len(p))):
        raise ValueError("groups 须不重不漏地覆盖每个类")
    return [math.fsum(p[i] for i in group) for group in groups]


def top_k_divergences(p: Sequence[float], q: Sequence[float], k: int) -> dict[str, float]:
    """教师 p 只存 top-k：尾部并成一类，还是丢掉再归一？前者不超过真 KL（数据处理不等式），后者没有大小关系。

    >>> p = [0.3, 0.3, 0.2, 0.2]
    >>> for q in ([0.1, 0.5, 0.2, 0.2], [0.1, 0.05, 0.05, 0.8]):
    ...     print({name: round(v, 3) for name, v in top_k_divergences(p, q, 2).items()})
    {'完整': 0.176, '尾部并成一类': 0.176, '丢尾再归一': 0.294}
    {'完整': 0.867, '尾部并成一类': 0.566, '丢尾再归一': 0.059}
    """
    whole = kl(p, q)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k < len(p):
        raise ValueError(f"k 须是 [1, {len(p) - 1}] 内的整数，收到 {k}")
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    kept = order[:k]
    groups = [[i] for i in kept] + [order[k:]]
    if not math.fsum(q[i] for i in kept) > 0:
        raise ValueError("q 在保留的类上须有正概率")
    return {
        "完整": whole,
        "尾部并成一类": kl(merge(p, groups), merge(q, groups)),
        "丢尾再归一": kl(_normalize([p[i] for i in kept]), _normalize([q[i] for i in kept])),
    }


# --8<-- [end:processing]


# --8<-- [start:fisher]
def _softmax(logits: Sequence[float]) -> list[float]:
    if not logits or not all(map(math.isfinite, logits)):
        raise ValueError("logits 须非空且全部有限")
    top = max(logits)
    return _normalize([math.exp(z - top) for z in logits])


def second_order(logits: Sequence[float], direction: Sequence[float], step: float) -> tuple[float, float, float]:
    """δ = step·direction：（KL(p_z‖p_{z+δ})，KL(p_{z+δ}‖p_z)，½δᵀFδ），F = diag(p) − ppᵀ 是 softmax 对 logits 的 Fisher 信息。

    >>> for step in (1.0, 0.1, 0.01):
    ...     a, b, half = second_order([2.0, 0.0, -1.0], [1.0, -1.0, 0.5], step)
    ...     print(step, round(a / half, 3), round(b / half, 3))
    1.0 0.627 0.361
    0.1 0.952 0.905
    0.01 0.995 0.99
    """
    if len(direction) != len(logits) or not all(map(math.isfinite, direction)) or not (math.isfinite(step) and step):
        raise ValueError("direction 须与 logits 等长且有限，step 须非零有限")
    p, shifted = _softmax(logits), _softmax([z + step * v for z, v in zip(logits, direction, strict=True)])
    mean = math.fsum(a * v for a, v in zip(p, direction, strict=True))
    variance = math.fsum(a * (v - mean) ** 2 for a, v in zip(p, direction, strict=True))  # vᵀFv
    return kl(p, shifted), kl(shifted, p), 0.5 * step**2 * variance


# --8<-- [end:fisher]


# --8<-- [start:wrong]
def triangle() -> tuple[float, float]:
    """反例：“KL 满足三角不等式”。N(0, 1)、N(1, 1)、N(2, 1)：返回（一步到位，两段之和）。

    >>> triangle()
    (2.0, 1.0)
    """
    return gaussian_kl(0, 1, 2, 1), gaussian_kl(0, 1, 1, 1) + gaussian_kl(1, 1, 2, 1)


def pinsker(p: Sequence[float], q: Sequence[float]) -> tuple[float, float]:
    """（全变差，上界 √(KL/2)）。

    >>> [round(x, 4) for x in pinsker([0.7, 0.3], [0.5, 0.5])], round(math.sqrt(0.01 / 2), 3)      # 后者：KL = 0.01 nat 的上界
    ([0.2, 0.2028], 0.071)
    """
    bound = math.sqrt(max(0.0, kl(p, q)) / 2)  # 两者几乎相同时，舍入会给出 −1e−17
    return math.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2, bound


# --8<-- [end:wrong]
