"""高斯的 KL：多元闭式、VAE 的对角情形、仿射不变、平均场在两个方向上的最优（NumPy）。"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _mean(value: Array, name: str) -> Array:
    value = np.asarray(value, dtype=np.float64)
    if value.ndim != 1 or not value.size or not np.isfinite(value).all():
        raise ValueError(f"{name} 须是非空、有限的 (d,)，收到形状 {value.shape}")
    return value


def _cholesky(covariance: Array, d: int, name: str) -> Array:
    covariance = np.asarray(covariance, dtype=np.float64)
    scale = np.abs(covariance).max(initial=0.0)  # 对称与否按相对误差判，协方差可以很小
    if covariance.shape != (d, d) or not np.isfinite(covariance).all() or not np.allclose(covariance, covariance.T, atol=1e-9 * scale):
        raise ValueError(f"{name} 须是有限的对称 ({d}, {d})，收到形状 {covariance.shape}")
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise ValueError(f"{name} 须正定") from None


def _representable(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("KL 超出浮点范围：均值与方差的量级须更接近")
    return max(0.0, value)  # 两个分布相同时，舍入会给出 −1e−16


# --8<-- [start:full]
def gaussian_kl_full(mean1: Array, cov1: Array, mean2: Array, cov2: Array) -> float:
    """KL(N(μ₁, Σ₁) ‖ N(μ₂, Σ₂)) = ½[tr(Σ₂⁻¹Σ₁) + ΔᵀΣ₂⁻¹Δ − d + ln|Σ₂| − ln|Σ₁|]，nat，Δ = μ₁ − μ₂。均值 (d,)，协方差 (d, d)。

    用 Cholesky（Σ = LLᵀ）：tr(Σ₂⁻¹Σ₁) = ‖L₂⁻¹L₁‖²，ln|Σ| = 2Σ ln L_ii，不求逆、不算行列式。

    >>> identity = np.eye(2)
    >>> round(gaussian_kl_full([1.0, 0.0], identity, [0.0, 0.0], identity), 4)                    # 只差均值：½‖Δ‖²
    0.5
    >>> round(gaussian_kl_full([0.0, 0.0], [[1, 0.9], [0.9, 1]], [0.0, 0.0], identity), 4)        # −½ln(1 − 0.81)：互信息
    0.8304
    >>> big = 1e-3 * np.eye(512)                                                                 # |Σ| = 1e−1536 下溢，对数不会
    >>> round(gaussian_kl_full(np.zeros(512), big, np.zeros(512), np.eye(512)), 2)
    1512.64
    """
    mean1, mean2 = _mean(mean1, "mean1"), _mean(mean2, "mean2")
    if mean1.shape != mean2.shape:
        raise ValueError(f"两个均值的形状须相同，收到 {mean1.shape}、{mean2.shape}")
    d = mean1.size
    l1, l2 = _cholesky(cov1, d, "cov1"), _cholesky(cov2, d, "cov2")
    with np.errstate(over="ignore"):
        trace = np.sum(np.linalg.solve(l2, l1) ** 2)
        distance = np.sum(np.linalg.solve(l2, mean1 - mean2) ** 2)
    log_det = 2 * np.sum(np.log(np.diag(l2)) - np.log(np.diag(l1)))
    return _representable(float(0.5 * (trace + distance - d + log_det)))


def diagonal_to_standard(mean: Array, log_variance: Array) -> float:
    """VAE 的正则项 KL(N(μ, diag σ²) ‖ N(0, I)) = ½Σ(μ² + σ² − 1 − ln σ²)，nat；网络输出 ln σ²，免去正性约束。

    >>> diagonal_to_standard(np.zeros(4), np.zeros(4))                                           # 恰是先验
    0.0
    >>> round(diagonal_to_standard([1.0, 0.0], [0.0, -2.0]), 4)
    1.0677
    """
    mean, log_variance = _mean(mean, "mean"), _mean(log_variance, "log_variance")
    if mean.shape != log_variance.shape:
        raise ValueError(f"mean 与 log_variance 的形状须相同，收到 {mean.shape}、{log_variance.shape}")
    with np.errstate(over="ignore"):
        return _representable(float(0.5 * np.sum(mean**2 + np.expm1(log_variance) - log_variance)))


# --8<-- [end:full]


# --8<-- [start:direction]
def mean_field(rho: float) -> dict[str, tuple[float, float]]:
    """目标 p：两维标准正态，相关 rho。坐标独立的高斯 q，两个方向各自最优的（每维方差，KL，nat）。

    前向 KL(p‖q)：矩匹配，方差 1；反向 KL(q‖p)：方差 1/(Σ⁻¹)_ii = 1 − rho²。两个最小值都是 −½ln(1 − rho²)。

    >>> for rho in (0.0, 0.5, 0.9, 0.99):
    ...     print(rho, {name: tuple(round(x, 4) for x in pair) for name, pair in mean_field(rho).items()})
    0.0 {'前向': (1.0, 0.0), '反向': (1.0, 0.0)}
    0.5 {'前向': (1.0, 0.1438), '反向': (0.75, 0.1438)}
    0.9 {'前向': (1.0, 0.8304), '反向': (0.19, 0.8304)}
    0.99 {'前向': (1.0, 1.9585), '反向': (0.0199, 1.9585)}
    """
    if not -1 < rho < 1:
        raise ValueError(f"rho 须在 (−1, 1) 内，收到 {rho}")
    zero, target = np.zeros(2), np.array([[1.0, rho], [rho, 1.0]])
    narrow = 1 - rho**2
    return {
        "前向": (1.0, gaussian_kl_full(zero, target, zero, np.eye(2))),
        "反向": (narrow, gaussian_kl_full(zero, narrow * np.eye(2), zero, target)),
    }


def rescaled(scale: float) -> tuple[float, float]:
    """换单位（坐标乘 scale）：（KL，p 的微分熵），p = N(1, 0.5²)、q = N(0, 1)。KL 不变，微分熵加 ln scale。

    >>> [tuple(round(x, 4) for x in rescaled(scale)) for scale in (1, 1000)]
    [(0.8181, 0.7258), (0.8181, 7.6335)]
    """
    if not 1e-100 <= scale <= 1e100:
        raise ValueError(f"scale 须在 [1e-100, 1e100] 内（平方不溢出），收到 {scale}")
    var = (0.5 * scale) ** 2
    divergence = gaussian_kl_full([scale], [[var]], [0.0], [[scale**2]])
    return divergence, 0.5 * math.log(2 * math.pi * math.e * var)


# --8<-- [end:direction]
