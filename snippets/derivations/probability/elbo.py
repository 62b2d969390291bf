"""ELBO：共轭高斯上的恒等式、多样本的界、两种梯度估计、β 与坍缩、扩散模型的界（只用标准库）。"""

import math
from random import Random

LOG_2PI = math.log(2 * math.pi)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} 须为正的有限数，收到 {value}")


def _finite(**values: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} 须有限，收到 {value}")


# --8<-- [start:model]
def log_normal(x: float, mean: float, std: float) -> float:
    """正态分布的对数密度（nat）。"""
    return -0.5 * (LOG_2PI + ((x - mean) / std) ** 2) - math.log(std)


def gaussian_kl(m1: float, s1: float, m2: float, s2: float) -> float:
    """KL(N(m1, s1²) ‖ N(m2, s2²))，nat。

    >>> gaussian_kl(0, 1, 0, 1), round(gaussian_kl(1, 0.5, 0, 1), 4)
    (0.0, 0.8181)
    """
    _finite(m1=m1, m2=m2)
    _positive(s1=s1, s2=s2)
    return math.log(s2 / s1) + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5


def log_evidence(x: float, noise: float) -> float:
    """z ~ N(0, 1)，x | z ~ N(z, noise²)，所以 x ~ N(0, 1 + noise²)：ln p(x)。"""
    _positive(noise=noise)
    return log_normal(x, 0, math.sqrt(1 + noise**2))


def posterior(x: float, noise: float) -> tuple[float, float]:
    """真后验 p(z | x) 的（均值，标准差）。

    >>> mean, std = posterior(2.0, 1.0)
    >>> mean, round(std, 4)
    (1.0, 0.7071)
    """
    _positive(noise=noise)
    return x / (1 + noise**2), noise / math.sqrt(1 + noise**2)


def elbo(x: float, noise: float, m: float, s: float, beta: float = 1.0) -> float:
    """q = N(m, s²) 时 E_q[ln p(x | z)] − β·KL(q ‖ p(z))，闭式。β = 1 是 ELBO。

    >>> x, noise = 2.0, 0.5
    >>> for m, s in ((0.0, 1.0), (1.0, 0.3), posterior(x, noise)):
    ...     gap = gaussian_kl(m, s, *posterior(x, noise))
    ...     print(f"ELBO {elbo(x, noise, m, s):8.4f} + 差距 {gap:7.4f} = {elbo(x, noise, m, s) + gap:.4f}")
    ELBO -10.2258 + 差距  7.5953 = -2.6305
    ELBO  -3.6548 + 差距  1.0243 = -2.6305
    ELBO  -2.6305 + 差距  0.0000 = -2.6305
    """
    _positive(noise=noise, s=s)
    _finite(x=x, m=m, beta=beta)
    reconstruction = log_normal(x, m, noise) - s**2 / (2 * noise**2)
    return reconstruction - beta * gaussian_kl(m, s, 0, 1)


# --8<-- [end:model]


# --8<-- [start:many]
def importance_bound(x: float, noise: float, m: float, s: float, k: int, runs: int, random: Random) -> float:
    """K 个样本的界 E ln (1/K)Σ p(x, z_i)/q(z_i) 的蒙特卡洛估计（Burda 2016）；K = 1 是 ELBO，K → ∞ 到 ln p(x)。

    >>> [round(importance_bound(2.0, 0.5, 1.0, 0.6, k, 4000, Random(0)), 2) for k in (1, 10, 100)], round(log_evidence(2.0, 0.5), 2)
    ([-3.63, -2.69, -2.63], -2.63)
    """
    if min(k, runs) < 1:
        raise ValueError(f"k、runs 须为正，收到 {k}、{runs}")
    _positive(noise=noise, s=s)
    total = 0.0
    for _ in range(runs):
        logs = []
        for _ in range(k):
            z = m + s * random.gauss(0, 1)
            logs.append(log_normal(x, z, noise) + log_normal(z, 0, 1) - log_normal(z, m, s))
        top = max(logs)
        total += top + math.log(math.fsum(math.exp(v - top) for v in logs) / k)
    return total / runs


# --8<-- [end:many]


# --8<-- [start:gradient]
def gradient_samples(x: float, noise: float, m: float, s: float, n: int, random: Random) -> tuple[list[float], list[float]]:
    """∂ELBO/∂m 的 n 个单样本估计：（重参数化，得分函数）。期望相同，是 (x − m)/noise² − m。

    >>> path, score = gradient_samples(2.0, 0.5, 0.0, 1.0, 20_000, Random(0))
    >>> for samples in (path, score):
    ...     mean = math.fsum(samples) / len(samples)
    ...     print(round(mean), round(math.fsum((g - mean) ** 2 for g in samples) / len(samples), -1))
    8 20.0
    8 310.0
    """
    if n < 1:
        raise ValueError(f"n 须为正，收到 {n}")
    _positive(noise=noise, s=s)
    path, score = [], []
    for _ in range(n):
        e = random.gauss(0, 1)
        z = m + s * e
        # 重参数化：z = m + s·e，对 m 求导；ln q(z) 在这条路上与 m 无关
        path.append((x - z) / noise**2 - z)
        # 得分函数：被积函数的值乘 ∂ln q/∂m
        score.append((log_normal(x, z, noise) + log_normal(z, 0, 1) - log_normal(z, m, s)) * e / s)
    return path, score


# --8<-- [end:gradient]


# --8<-- [start:beta]
def best_q(x: float, noise: float, beta: float = 1.0) -> tuple[float, float]:
    """使 elbo(…, beta) 最大的（m, s）：m = x/(1 + β·noise²)，s² = β·noise²/(1 + β·noise²)。

    >>> [tuple(round(v, 3) for v in best_q(2.0, 0.5, beta)) for beta in (0.1, 1.0, 10.0, 1000.0)]   # β 大了就坍缩到先验 (0, 1)
    [(1.951, 0.156), (1.6, 0.447), (0.571, 0.845), (0.008, 0.998)]
    """
    _positive(noise=noise, beta=beta)
    return x / (1 + beta * noise**2), math.sqrt(beta * noise**2 / (1 + beta * noise**2))


# --8<-- [end:beta]


# --8<-- [start:diffusion]
def diffusion_bound(steps: int, data_std: float = 0.5, variance: str = "posterior") -> dict[str, float]:
    """一维扩散模型的 −ELBO（nat，对数据取平均），数据 x₀ ~ N(0, data_std²)，反向均值取最优，方差按 variance。

    β 从 1e−4 到 0.02 线性（Ho 2020 的 T = 1000；步数不同时乘 1000/T）。variance："posterior" 取 β̃，"beta" 取 β，
    "optimal" 取真反向的方差：这时联合分布处处相等，界恰好是数据的熵。

    >>> for variance in ("posterior", "beta", "optimal"):
    ...     print(variance, [round(diffusion_bound(t, variance=variance)["多出"], 4) for t in (20, 100, 1000)])
    posterior [3.8629, 1.2501, 0.4563]
    beta [0.0565, 0.011, 0.0011]
    optimal [0.0, 0.0, 0.0]
    """
    if steps < 20:
        raise ValueError(f"steps 至少 20（β 才不超过 1），收到 {steps}")
    _positive(data_std=data_std)
    betas = [(1e-4 + (0.02 - 1e-4) * t / (steps - 1)) * 1000 / steps for t in range(steps)]
    var, kept, terms, first = data_std**2, 1.0, [], 0.0
    for t, beta in enumerate(betas):
        alpha = 1 - beta
        before, kept = kept, kept * alpha
        marginal = kept * var + 1 - kept  # Var(x_t)
        # 真反向 p(x_{t−1} | x_t) 是高斯：系数与方差由联合高斯得到
        prior = before * var + 1 - before  # Var(x_{t−1})
        gain = math.sqrt(alpha) * prior / marginal
        true_variance = prior - gain * math.sqrt(alpha) * prior
        small = (1 - before) / (1 - kept) * beta  # β̃：q(x_{t−1} | x_t, x_0) 的方差
        sigma2 = {"posterior": small or true_variance, "beta": beta, "optimal": true_variance}.get(variance)
        if sigma2 is None:
            raise ValueError(f"variance 须为 posterior、beta、optimal，收到 {variance!r}")
        if t == 0:  # L_0 = −E ln p(x_0 | x_1)
            first = 0.5 * (LOG_2PI + math.log(sigma2) + true_variance / sigma2)
            continue
        # E KL(q(x_{t−1} | x_t, x_0) ‖ p)；E(μ̃ − gain·x_t)² = 真反向的方差 − β̃（全方差公式）
        terms.append(0.5 * (small / sigma2 - 1 - math.log(small / sigma2) + (true_variance - small) / sigma2))
    last = 0.5 * (kept * var + (1 - kept) - 1 - math.log(1 - kept))  # L_T：E KL(q(x_T | x_0) ‖ N(0, 1))
    if variance == "optimal":  # 真反向从真的 x_T 边缘出发
        last = 0.5 * math.log(marginal / (1 - kept))
    entropy = 0.5 * (LOG_2PI + 1) + math.log(data_std)
    bound = last + math.fsum(terms) + first
    return {"L_T": last, "中间": math.fsum(terms), "L_0": first, "数据的熵": entropy, "多出": max(0.0, round(bound - entropy, 12))}


def noise_weight(alpha: float, kept_before: float, sigma2: float) -> float:
    """L_{t−1} 写成 ε 的均方误差时前面的权重 β²/(2σ²α(1 − ᾱ))（Ho 2020，式 12）。L_simple 把它换成 1。

    >>> betas = [1e-4 + (0.02 - 1e-4) * t / 999 for t in range(1000)]
    >>> for t in (1, 9, 99, 499, 999):                                        # DDPM 的调度，σ² = β
    ...     print(t + 1, f"{noise_weight(1 - betas[t], math.prod(1 - b for b in betas[:t]), betas[t]):.4f}")
    2 0.2727
    10 0.0737
    100 0.0101
    500 0.0055
    1000 0.0102
    """
    if not (0 < alpha < 1 and 0 < kept_before <= 1 and 0 < sigma2 < math.inf):
        raise ValueError(f"须 0 < α < 1、0 < ᾱ ≤ 1、σ² > 0，收到 {alpha}、{kept_before}、{sigma2}")
    return (1 - alpha) ** 2 / (2 * sigma2 * alpha * (1 - kept_before * alpha))


# --8<-- [end:diffusion]
