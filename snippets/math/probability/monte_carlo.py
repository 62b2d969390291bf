"""蒙特卡洛：1/√N、重要性采样与有效样本数、方差缩减、pass@k、自洽投票、推测解码的接受率（只用标准库）。"""

import math
import random
from collections.abc import Callable, Sequence


# --8<-- [start:basic]
def estimate(f: Callable[[float], float], n: int, rng: random.Random) -> tuple[float, float]:
    """E[f(U)]，U ~ U(0, 1) 的蒙特卡洛估计：(均值, 标准误 = 样本标准差/√n)。

    >>> for n in (100, 10_000, 1_000_000):
    ...     mean, error = estimate(lambda u: u * u, n, random.Random(0))
    ...     print(f"{n:>9,} 个样本  误差 {abs(mean - 1 / 3):.5f}  标准误 {error:.5f}")
          100 个样本  误差 0.07963  标准误 0.02972
       10,000 个样本  误差 0.00014  标准误 0.00296
    1,000,000 个样本  误差 0.00031  标准误 0.00030
    """
    if n < 2:
        raise ValueError(f"n 必须 ≥ 2，收到 {n}")
    values = [f(rng.random()) for _ in range(n)]
    mean = math.fsum(values) / n
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def variance_ratios(n: int = 20_000) -> dict[str, float]:
    """估计 E[e^U]：同样的函数调用次数下，各方法的方差 ÷ 普通蒙特卡洛的方差（越小越好）。

    对偶变量用 (U, 1−U) 成对求平均；控制变量减去 c·(U − ½)，c 取最优 Cov(e^U, U)/Var(U)。

    >>> {name: round(ratio, 3) for name, ratio in variance_ratios().items()}
    {'对偶变量': 0.032, '控制变量': 0.016}
    """
    if n < 4:
        raise ValueError(f"n 必须 ≥ 4，收到 {n}")
    rng = random.Random(0)
    u = [rng.random() for _ in range(n)]
    plain = _variance([math.exp(x) for x in u])
    pairs = [(math.exp(x) + math.exp(1 - x)) / 2 for x in u[: n // 2]]
    c = 12 * (1 - (math.e - 1) / 2)  # Cov(e^U, U) = 1 − (e−1)/2，Var(U) = 1/12
    controlled = [math.exp(x) - c * (x - 0.5) for x in u]
    return {"对偶变量": 2 * _variance(pairs) / plain, "控制变量": _variance(controlled) / plain}


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


# --8<-- [end:basic]


# --8<-- [start:importance]
def effective_samples(weights: Sequence[float]) -> float:
    """有效样本数 (Σw)²/Σw²：权重全相等时是 n，只有一个有权重时是 1。

    >>> effective_samples([1.0] * 8), effective_samples([1.0, 0.0, 0.0])
    (8.0, 1.0)
    """
    if not weights or not all(0 <= w < math.inf for w in weights) or max(weights) == 0:  # 这样写，NaN 也被拦下
        raise ValueError("weights 须非空、非负、有限且不全为 0")
    top = max(weights)
    return math.fsum(w / top for w in weights) ** 2 / math.fsum((w / top) ** 2 for w in weights)


def sequence_weights(length: int, per_token_std: float = 0.05, n: int = 1000) -> tuple[float, float]:
    """整条序列的重要性权重 = 逐 token 概率比的连乘。返回 (有效样本占比, 用几何平均归一后的占比)。

    每个 token 的对数概率比取 N(−σ²/2, σ²)（均值使 E[r] = 1）；几何平均即 GSPO 的 (∏r)^(1/长度)。

    >>> for length in (1, 100, 1000, 10_000):
    ...     product, geometric = sequence_weights(length)
    ...     print(f"{length:>6} token  连乘 {product:6.1%}  几何平均 {geometric:6.1%}")
         1 token  连乘  99.8%  几何平均  99.8%
       100 token  连乘  76.7%  几何平均 100.0%
      1000 token  连乘   9.0%  几何平均 100.0%
     10000 token  连乘   0.1%  几何平均 100.0%
    """
    if length < 1 or n < 1 or per_token_std < 0:
        raise ValueError(f"须有 length ≥ 1、n ≥ 1、per_token_std ≥ 0，收到 {length, n, per_token_std}")
    rng = random.Random(0)
    mean, std = -length * per_token_std**2 / 2, math.sqrt(length) * per_token_std
    logs = [rng.gauss(mean, std) for _ in range(n)]
    top = max(logs)
    return (
        effective_samples([math.exp(log - top) for log in logs]) / n,
        effective_samples([math.exp((log - top) / length) for log in logs]) / n,
    )


def tail_probability(threshold: float, shift: float, n: int = 10_000) -> tuple[float, float, float]:
    """估稀有事件 P(Z > threshold)，Z ~ N(0, 1)，样本改从 N(shift, 1) 抽：(真值, 估计, 标准误 ÷ 真值)。

    权重 p(x)/q(x) = e^{shift²/2 − shift·x}；shift = 0 就是直接采样。

    >>> for shift in (0.0, 4.0, -1.0):
    ...     true, mean, relative = tail_probability(4.0, shift)
    ...     print(f"提议 N({shift:+.0f}, 1)  真值 {true:.3e}  估计 {mean:.3e}  相对标准误 {relative:.1%}")
    提议 N(+0, 1)  真值 3.167e-05  估计 0.000e+00  相对标准误 0.0%
    提议 N(+4, 1)  真值 3.167e-05  估计 3.188e-05  相对标准误 2.1%
    提议 N(-1, 1)  真值 3.167e-05  估计 0.000e+00  相对标准误 0.0%
    """
    if n < 2 or not (math.isfinite(threshold) and math.isfinite(shift)):
        raise ValueError(f"须有 n ≥ 2，threshold、shift 有限，收到 {n, threshold, shift}")
    rng, true = random.Random(0), math.erfc(threshold / math.sqrt(2)) / 2
    draws = [rng.gauss(shift, 1) for _ in range(n)]
    values = [math.exp(shift * shift / 2 - shift * x) if x > threshold else 0.0 for x in draws]
    return true, math.fsum(values) / n, math.sqrt(_variance(values) / n) / true


def truncated_weights(
    caps: Sequence[float], length: int = 1000, per_token_std: float = 0.05, n: int = 20_000
) -> list[tuple[float, float, float]]:
    """整条序列的权重截断成 min(w, C)，估一个真值为 1 的期望 E[w·1]：(C, 偏差, 单样本标准差)；C 为 inf 是不截断。

    对数正态有闭式：σ² = length·per_token_std²，E[min(w, C)] = Φ((ln C − σ²/2)/σ) + C·Φ(−(ln C + σ²/2)/σ)。

    >>> for cap, bias, std in truncated_weights([math.inf, 10.0, 2.0, 1.0]):
    ...     print(f"C = {cap:>4}  偏差 {bias:+.2f}  标准差 {std:.2f}")
    C =  inf  偏差 +0.01  标准差 3.23
    C = 10.0  偏差 -0.13  标准差 1.65
    C =  2.0  偏差 -0.42  标准差 0.65
    C =  1.0  偏差 -0.57  标准差 0.37
    """
    if length < 1 or n < 2 or not per_token_std > 0 or not caps or not min(caps) > 0:
        raise ValueError(f"须有 length ≥ 1、n ≥ 2、per_token_std > 0、caps 非空且为正，收到 {length, n, per_token_std, list(caps)}")
    rng, std = random.Random(0), math.sqrt(length) * per_token_std
    weights = [math.exp(rng.gauss(-std * std / 2, std)) for _ in range(n)]
    clipped = [(cap, [min(w, cap) for w in weights]) for cap in caps]
    return [(cap, math.fsum(values) / n - 1, math.sqrt(_variance(values))) for cap, values in clipped]


# --8<-- [end:importance]


# --8<-- [start:llm]
def pass_at_k(n: int, correct: int, k: int) -> float:
    """n 次采样里 correct 次通过，pass@k 的无偏估计 1 − C(n−c, k)/C(n, k)（Chen 2021，式 1）。

    >>> round(pass_at_k(200, 20, 1), 3), round(pass_at_k(200, 20, 10), 3)
    (0.1, 0.66)
    >>> round(1 - (1 - 20 / 200) ** 10, 3)                     # 把频率代入 1−(1−p)^k，有偏、偏低
    0.651
    """
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"须有 0 ≤ correct ≤ n、1 ≤ k ≤ n，收到 {n, correct, k}")
    return 1.0 if n - correct < k else 1 - math.comb(n - correct, k) / math.comb(n, k)


def majority_correct(p: float, n: int) -> float:
    """自洽投票：每次答对的概率 p、只有对错两种答案、n 为奇数时多数投票答对的概率。

    >>> [round(majority_correct(p, 41), 3) for p in (0.6, 0.5, 0.4)]      # 大于一半才有用，小于一半越投越错
    [0.903, 0.5, 0.097]
    """
    if not 0 <= p <= 1 or n < 1 or n % 2 == 0:
        raise ValueError(f"须有 0 ≤ p ≤ 1、n 为正奇数，收到 {p, n}")
    if p in (0.0, 1.0):
        return float(p)
    logs = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(n // 2 + 1, n + 1)
    )  # 在对数域里算：n 过千时组合数超出双精度
    return min(1.0, math.fsum(map(math.exp, logs)))


def speculative_step(target: Sequence[float], draft: Sequence[float], rng: random.Random) -> tuple[int, bool]:
    """推测解码的一步就是拒绝采样：草稿抽 x，以 min(1, p/q) 接受，否则从 (p − q)₊ 归一化后重抽。返回 (token, 是否接受)。

    输出恰服从 target；接受率 Σ min(p, q) = 1 − TV(p, q)（Leviathan 2023，§3）。

    >>> p, q, rng = [0.5, 0.3, 0.2], [0.6, 0.3, 0.1], random.Random(0)
    >>> draws = [speculative_step(p, q, rng) for _ in range(50_000)]
    >>> [round(sum(token == i for token, _ in draws) / 50_000, 2) for i in range(3)]
    [0.5, 0.3, 0.2]
    >>> round(sum(accepted for _, accepted in draws) / 50_000, 2), round(sum(map(min, p, q)), 2)
    (0.9, 0.9)
    """
    if len(target) != len(draft) or not all(d and min(d) >= 0 and abs(math.fsum(d) - 1) <= 1e-9 for d in (target, draft)):
        raise ValueError("target 与 draft 须是同样长的两个分布")
    (x,) = rng.choices(range(len(draft)), weights=draft)
    if rng.random() * draft[x] < target[x]:  # 严格小于：目标概率为 0 的 token 永不接受
        return x, True
    residual = [max(0.0, p - q) for p, q in zip(target, draft, strict=True)]
    if not any(residual):  # 两分布只差舍入
        return x, True
    return rng.choices(range(len(residual)), weights=residual)[0], False


# --8<-- [end:llm]
