"""条件数：误差放大、梯度下降与动量的收敛率、归一化与 Adam、Muon 对它做了什么（NumPy）。"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from snippets.common.chart import lines
from snippets.math.linear_algebra.svd import with_spectrum
from snippets.math.optimization.second_order import newton_schulz

Matrix = NDArray[np.floating]


def _kappa(kappa: float) -> None:
    if not 1 <= kappa < math.inf:
        raise ValueError(f"条件数须在 [1, ∞)，收到 {kappa}")


# --8<-- [start:define]
def condition_number(a: Matrix) -> float:
    """κ₂(A) = σ_max/σ_min；奇异（σ_min = 0）为 inf。对称正定时等于 λ_max/λ_min。

    >>> condition_number(np.diag([100.0, 1.0])), condition_number(np.ones((2, 2))) > 1e15
    (100.0, True)
    >>> x = np.vander(np.linspace(0, 1, 20), 8)                      # 正规方程把条件数平方
    >>> f"{condition_number(x):.1e} {condition_number(x.T @ x):.1e}"
    '1.1e+05 1.1e+10'
    """
    a = np.asarray(a, dtype=np.float64)
    if a.ndim != 2 or 0 in a.shape or not np.isfinite(a).all():
        raise ValueError(f"须是非空、有限的二维矩阵，收到形状 {a.shape}")
    sigma = np.linalg.svd(a, compute_uv=False)
    return float(sigma[0] / sigma[-1]) if sigma[-1] > 0 else math.inf


def determinant_is_not_conditioning() -> list[tuple[str, float, float]]:
    """反例：“行列式接近 0 就是病态”。(矩阵, 行列式, κ)。

    >>> for name, det, kappa in determinant_is_not_conditioning():
    ...     print(f"det = {det:.0e}  κ = {kappa:.0e}  {name}")
    det = 1e-100  κ = 1e+00  0.1·I，100 维
    det = 1e+00  κ = 1e+12  diag(1e6, 1e-6)
    """
    matrices = {"0.1·I，100 维": 0.1 * np.eye(100), "diag(1e6, 1e-6)": np.diag([1e6, 1e-6])}
    return [(name, float(np.linalg.det(a)), condition_number(a)) for name, a in matrices.items()]


# --8<-- [end:define]


# --8<-- [start:rounding]
def round_significand(x: Matrix, bits: int) -> Matrix:
    """四舍六入五成双到 bits 位有效数：8 是 bf16，11 是 fp16，24 是 fp32。只模拟精度，不模拟指数范围。

    >>> round_significand(np.array([1 / 3, 257.0, -1e-30]), 8).tolist()
    [0.333984375, 256.0, -9.98402083170343e-31]
    """
    if bits < 1:
        raise ValueError(f"bits 必须 ≥ 1，收到 {bits}")
    mantissa, exponent = np.frexp(np.asarray(x, dtype=np.float64))
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


def error_amplification(kappa: float, bits: int, n: int = 32, runs: int = 50) -> float:
    """解 Ax = b，只把 b 舍入到 bits 位：x 的相对误差 ÷ 舍入单位 2^(−bits)，runs 次随机的均方根。上界是 κ。

    >>> formats = {"bf16": 8, "fp16": 11, "fp32": 24}
    >>> for kappa in (1, 10, 100, 1000, 10_000):                     # 打印相对误差本身
    ...     print(f"κ = {kappa:5}", *(f"{name} {error_amplification(kappa, b) * 2.0**-b:.1e}" for name, b in formats.items()))
    κ =     1 bf16 1.7e-03 fp16 2.1e-04 fp32 2.5e-08
    κ =    10 bf16 3.6e-03 fp16 4.7e-04 fp32 5.7e-08
    κ =   100 bf16 2.1e-02 fp16 2.7e-03 fp32 2.7e-07
    κ =  1000 bf16 1.3e-01 fp16 1.8e-02 fp32 2.1e-06
    κ = 10000 bf16 1.1e+00 fp16 1.4e-01 fp32 1.8e-05
    """
    _kappa(kappa)
    sigma = np.geomspace(1, 1 / kappa, n)
    total = 0.0
    for seed in range(runs):
        a = with_spectrum(sigma, n, seed)
        x = np.random.default_rng(seed + 1000).standard_normal(n)
        error = np.linalg.solve(a, round_significand(a @ x, bits)) - x
        total += float(error @ error / (x @ x))
    return math.sqrt(total / runs) * 2.0**bits


def worst_case_amplification(kappa: float) -> float:
    """取到上界的例子：b 沿 u₁，扰动沿 u_n。返回 (‖δx‖/‖x‖) ÷ (‖δb‖/‖b‖)。

    >>> [round(worst_case_amplification(k), 6) for k in (1, 100, 1e6)]
    [1.0, 100.0, 1000000.0]
    """
    _kappa(kappa)
    a = np.diag([1.0, 1 / kappa])
    b, change = np.array([1.0, 0.0]), np.array([0.0, 1e-3])
    x, moved = np.linalg.solve(a, b), np.linalg.solve(a, change)
    return float(np.linalg.norm(moved) / np.linalg.norm(x) / (np.linalg.norm(change) / np.linalg.norm(b)))


# --8<-- [end:rounding]


# --8<-- [start:rates]
def errors(kappa: float, steps: int, momentum: bool) -> list[float]:
    """二次函数 ½Σλx²（λ = 1 与 κ，起点全 1）上每步之后的 ‖x‖ ÷ 起点，参数取理论最优。

    梯度下降 η = 2/(μ + L)；重球 η = 4/(√L + √μ)²、β = ((√κ − 1)/(√κ + 1))²，x₋₁ = x₀。

    >>> [round(e, 4) for e in errors(3, 3, momentum=False)]            # (3 − 1)/(3 + 1) = 1/2，恰好减半
    [0.5, 0.25, 0.125]
    """
    _kappa(kappa)
    root = math.sqrt(kappa)
    eta, beta = (4 / (root + 1) ** 2, ((root - 1) / (root + 1)) ** 2) if momentum else (2 / (1 + kappa), 0.0)
    curvature = np.array([1.0, kappa])
    x, previous, history = np.ones(2), np.ones(2), []
    for _ in range(steps):
        x, previous = x - eta * curvature * x + beta * (x - previous), x
        history.append(float(np.linalg.norm(x) / math.sqrt(2)))
    return history


def heavy_ball_radius(kappa: float, eta: float | None = None, beta: float | None = None) -> float:
    """重球法迭代矩阵 [[1 + β − ηλ, −β], [1, 0]] 在 λ ∈ [1, κ] 上的最大谱半径；缺省参数取最优。

    >>> round(heavy_ball_radius(100), 4), round((10 - 1) / (10 + 1), 4)
    (0.8182, 0.8182)
    """
    _kappa(kappa)
    root = math.sqrt(kappa)
    eta = 4 / (root + 1) ** 2 if eta is None else eta
    beta = ((root - 1) / (root + 1)) ** 2 if beta is None else beta
    trace = 1 + beta - eta * np.linspace(1, kappa, 101)
    discriminant = np.sqrt(np.maximum(trace**2 - 4 * beta, 0))  # 复根的模都是 √β
    return float(np.max(np.where(trace**2 < 4 * beta, math.sqrt(beta), (np.abs(trace) + discriminant) / 2)))


def rate_table() -> list[tuple[int, float, float, int, float, int, float]]:
    """(κ, 梯度下降的实测收缩, 理论, 误差到 1e-6 的步数, 重球理论, 步数, 途中最大误差)。

    >>> for kappa, measured, theory, steps, ball, ball_steps, peak in rate_table():
    ...     print(f"{kappa:6} {measured:.4f} {theory:.4f} {steps:6} | {ball:.4f} {ball_steps:4} {peak:5.1f}")
        10 0.8182 0.8182     69 | 0.5195   27   1.1
       100 0.9802 0.9802    691 | 0.8182   93   2.7
      1000 0.9980 0.9980   6908 | 0.9387  315   8.3
     10000 0.9998 0.9998  69078 | 0.9802 1056  26.0
    """
    rows = []
    for kappa in (10, 100, 1000, 10_000):
        root = math.sqrt(kappa)
        plain, ball = errors(kappa, 8 * kappa, False), errors(kappa, int(30 * root), True)
        rows.append(
            (
                kappa,
                plain[-1] / plain[-2],
                (kappa - 1) / (kappa + 1),
                1 + next(i for i, e in enumerate(plain) if e <= 1e-6),
                (root - 1) / (root + 1),
                2 + max(i for i, e in enumerate(ball) if e > 1e-6),  # 从此不再超过
                max(ball),
            )
        )
    return rows


def kappa_is_not_a_rate(kappa: float = 100.0) -> tuple[float, float]:
    """反例：“‖x_{k+1} − x*‖ ≤ κ·‖x_k − x*‖”。κ ≥ 1，这句话不保证收缩；(它允许的因子, 实测的因子)。

    >>> [round(x, 4) for x in kappa_is_not_a_rate()]
    [100.0, 0.9802]
    """
    history = errors(kappa, 100, False)
    return kappa, history[-1] / history[-2]


# --8<-- [end:rates]


# --8<-- [start:features]
def nonzero_condition(features: Matrix) -> float:
    """特征二阶矩 FᵀF/n（线性层的 Gauss–Newton 块）的 λ_max/λ_min，只算非零特征值。"""
    values = np.linalg.eigvalsh(features.T @ features / len(features))
    values = values[values > values[-1] * 1e-10]
    return float(values[-1] / values[0])


def normalization_table(bias: float, n: int = 4096, width: int = 64) -> dict[str, float]:
    """随机 ReLU 特征 relu(xW + b) 经各种归一化后的条件数；b 的标准差为 bias。BatchNorm 按特征、其余按 token。

    >>> for bias in (0.0, 1.0):
    ...     print(f"偏置标准差 {bias}：", *(f"{name} {kappa:.3g}" for name, kappa in normalization_table(bias).items()))
    偏置标准差 0.0： 不归一化 143 BatchNorm 12.3 LayerNorm 12.7 RMSNorm 134
    偏置标准差 1.0： 不归一化 2.62e+04 BatchNorm 15.2 LayerNorm 6.81e+03 RMSNorm 3e+04
    """
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((n, width)), rng.standard_normal((width, width)) / math.sqrt(width)
    f = np.maximum(x @ w + bias * rng.standard_normal(width), 0)
    variants = {
        "不归一化": f,
        "BatchNorm": (f - f.mean(axis=0)) / f.std(axis=0),
        "LayerNorm": (f - f.mean(axis=1, keepdims=True)) / f.std(axis=1, keepdims=True),
        "RMSNorm": f / np.sqrt(np.mean(f**2, axis=1, keepdims=True)),
    }
    return {name: nonzero_condition(value) for name, value in variants.items()}


def input_standardization(n: int = 4096, d: int = 64) -> tuple[float, float]:
    """线性回归的 Hessian：特征尺度 1–100、均值 5。(原始 κ, 逐特征标准化后的 κ)。

    >>> [round(k, 1) for k in input_standardization()]
    [10293.1, 1.6]
    """
    x = np.random.default_rng(0).standard_normal((n, d)) * np.geomspace(1, 100, d) + 5
    return nonzero_condition(x), nonzero_condition((x - x.mean(axis=0)) / x.std(axis=0))


def correlated_features(rho: float) -> float:
    """两个相关系数 rho、已标准化的特征：κ = (1 + ρ)/(1 − ρ)，标准化不能再降。

    >>> [round(correlated_features(r)) for r in (0, 0.9, 0.99, 0.999)]
    [1, 19, 199, 1999]
    """
    if not 0 <= rho < 1:
        raise ValueError(f"rho 须在 [0, 1)，收到 {rho}")
    return (1 + rho) / (1 - rho)


# --8<-- [end:features]


# --8<-- [start:optimizers]
Gradient = Callable[[Matrix], Matrix]


def kronecker_problem(kappa: float, rotated: bool, n: int = 16) -> Gradient:
    """½tr(EᵀLER) 的梯度 LER：Hessian 是 R ⊗ L，条件数 kappa；rotated 时主轴方向随机，否则与坐标轴对齐。"""
    _kappa(kappa)
    rng = np.random.default_rng(0)
    factors = []
    for _ in range(2):
        diagonal = np.diag(rng.permutation(np.geomspace(1, kappa**-0.5, n)))
        q = np.linalg.qr(rng.standard_normal((n, n))).Q if rotated else np.eye(n)
        factors.append(q @ diagonal @ q.T)
    return lambda e: factors[0] @ e @ factors[1]


def elementwise_problem(kappa: float, n: int = 16) -> Gradient:
    """½ΣC·E² 的梯度：每个元素的曲率独立、随机排列，没有行列结构。"""
    _kappa(kappa)
    c = np.random.default_rng(1).permutation(np.geomspace(1, 1 / kappa, n * n)).reshape(n, n)
    return lambda e: c * e


def final_loss(gradient: Gradient, method: str, peak: float, steps: int = 200, n: int = 16) -> float:
    """从随机起点走 steps 步、学习率线性降到 0，损失 ÷ 初始损失；发散为 inf。二次函数的损失是 ½⟨E, ∇⟩。"""
    e = np.random.default_rng(1).standard_normal((n, n))
    start = float(np.sum(e * gradient(e)))
    m, v = np.zeros_like(e), np.zeros_like(e)
    for t in range(steps):
        g, eta = gradient(e), peak * (1 - t / steps)
        if method == "梯度下降":
            update = g
        elif method == "动量 0.9":
            update = m = 0.9 * m + g
        elif method == "Adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            update = m / (1 - 0.9 ** (t + 1)) / (np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-12)
        elif method == "Muon":
            m = 0.95 * m + g
            update = newton_schulz(0.95 * m + g)  # Nesterov 动量，5 步 Newton–Schulz
        else:
            raise ValueError(f"不认识的方法 {method!r}")
        e = e - eta * update
        if not np.abs(e).max() < 1e8:
            return math.inf
    return float(np.sum(e * gradient(e))) / start


def optimizer_table() -> list[tuple[str, dict[str, float]]]:
    """每种方法在 23 个峰值学习率里取最好的；200 步。κ 指整个 Hessian（256 个参数）。

    只报数量级：Muon 的 Newton–Schulz 系数使迭代对舍入敏感，第二位数字换台机器就会变。

    >>> for name, losses in optimizer_table():
    ...     print(*(f"{method} 1e{round(math.log10(loss))}" for method, loss in losses.items()), name, sep="  ")
    梯度下降 1e-4  动量 0.9 1e-10  Adam 1e-10  Muon 1e-6  κ = 100，主轴旋转
    梯度下降 1e-2  动量 0.9 1e-4  Adam 1e-10  Muon 1e-6  κ = 10⁴，主轴对齐坐标
    梯度下降 1e-2  动量 0.9 1e-4  Adam 1e-3  Muon 1e-6  κ = 10⁴，主轴旋转
    梯度下降 1e-3  动量 0.9 1e-4  Adam 1e-10  Muon 1e-4  κ = 10⁴，逐元素、无行列结构
    """
    problems = {
        "κ = 100，主轴旋转": kronecker_problem(100, True),
        "κ = 10⁴，主轴对齐坐标": kronecker_problem(1e4, False),
        "κ = 10⁴，主轴旋转": kronecker_problem(1e4, True),
        "κ = 10⁴，逐元素、无行列结构": elementwise_problem(1e4),
    }
    peaks = [10 ** (i / 4) for i in range(-16, 7)]
    methods = ("梯度下降", "动量 0.9", "Adam", "Muon")
    return [(name, {method: min(final_loss(g, method, p) for p in peaks) for method in methods}) for name, g in problems.items()]


# --8<-- [end:optimizers]


def figure_convergence() -> str:
    """误差随步数：κ = 100 与 1000，梯度下降与重球法。"""
    series = {}
    for kappa in (100, 1000):
        for name, momentum in (("梯度下降", False), ("重球", True)):
            history = errors(kappa, 300, momentum)
            series[f"{name}，κ = {kappa}"] = [
                (float(t), max(history[t - 1], 1e-8)) for t in range(1, 301) if t < 3 or history[t - 2] > 1e-8
            ]
    return lines(series, title="误差随步数", x_label="步", y_label="‖x‖ ÷ 起点", y_log=10, x_range=(0, 300))
