"""二阶与矩阵预条件：Newton、K-FAC、Shampoo、SOAP 的代价，Muon 的 Newton–Schulz，QK-clip（NumPy）。"""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]
MUON_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan 2024；torch.optim.Muon 的默认值


def _finite(*matrices: Matrix) -> None:
    if not all(np.isfinite(matrix).all() for matrix in matrices):
        raise ValueError("矩阵里有 NaN 或 inf，先跳过这一步")


# --8<-- [start:cost]
def state_per_parameter(m: int, n: int) -> list[tuple[str, float]]:
    """一个 m×n 权重的优化器状态：每参数存几个数（不含权重与梯度）。

    Hessian 与它的逆各 (mn)²；Shampoo 存左右两个统计量 m²+n²，再存它们的逆根；K-FAC 同阶。

    >>> for name, values in state_per_parameter(4096, 14336):              # Llama-3-8B 的 gate 投影
    ...     print(f"{values:14,.2f}  {name}")
     58,720,256.00  完整 Hessian
              2.00  AdamW（m、v）
              3.79  K-FAC / Shampoo 的统计量
              7.57  Shampoo 连同逆根
              9.57  SOAP（统计量、特征向量、旋转坐标里的 Adam）
              1.00  Muon（动量）
    """
    if m < 1 or n < 1:
        raise ValueError(f"m、n 必须 ≥ 1，收到 {m, n}")
    factors = (m * m + n * n) / (m * n)
    return [
        ("完整 Hessian", float(m * n)),
        ("AdamW（m、v）", 2.0),
        ("K-FAC / Shampoo 的统计量", factors),
        ("Shampoo 连同逆根", 2 * factors),
        ("SOAP（统计量、特征向量、旋转坐标里的 Adam）", 2 * factors + 2),
        ("Muon（动量）", 1.0),
    ]


def shampoo_floats_per_parameter(m: int, n: int) -> float:
    """反例：“175B 模型上 Shampoo 只要 1.8 倍显存”。不分块时单是统计量每参数就有这么多个数。

    >>> shampoo_floats_per_parameter(12288, 49152), shampoo_floats_per_parameter(12288, 12288)
    (4.25, 2.0)
    """
    return dict(state_per_parameter(m, n))["K-FAC / Shampoo 的统计量"]


def newton_schulz_overhead(d_model: int, batch_tokens: int, steps: int = 5) -> float:
    """Muon 的正交化 FLOPs ÷ 一步训练的 FLOPs（d×d 方阵，每步 6·d²·tokens）。

    每次迭代三个矩阵乘 2d³，共 6d³；比值 = steps · d / tokens。

    >>> f"{newton_schulz_overhead(4096, 4_000_000):.2%}", f"{newton_schulz_overhead(16384, 16_000_000):.2%}"
    ('0.51%', '0.51%')
    """
    if d_model < 1 or batch_tokens < 1 or steps < 1:
        raise ValueError("d_model、batch_tokens、steps 都必须 ≥ 1")
    return steps * 6 * d_model**3 / (6 * d_model**2 * batch_tokens)


# --8<-- [end:cost]


# --8<-- [start:newton]
def newton_step(gradient: Matrix, hessian: Matrix, damping: float = 0.0) -> Matrix:
    """−(H + damping·I)⁻¹ g。二次函数上 damping = 0 时一步到最小点，与条件数无关。

    >>> h = np.diag([1000.0, 1.0])
    >>> x = np.array([1.0, 1.0])
    >>> x + newton_step(h @ x, h)
    array([0., 0.])
    >>> saddle = np.diag([1.0, -1.0])                     # 鞍点：负曲率方向上，Newton 步指向鞍点而不是离开它
    >>> x + newton_step(saddle @ x, saddle)
    array([0., 0.])
    """
    if hessian.shape != (gradient.size, gradient.size):
        raise ValueError(f"Hessian 的形状 {hessian.shape} 与梯度 {gradient.shape} 不合")
    _finite(gradient, hessian)
    try:
        return -np.linalg.solve(hessian + damping * np.eye(gradient.size), gradient)
    except np.linalg.LinAlgError as error:
        raise ValueError("H + damping·I 是奇异的，加大 damping") from error


def kfac_step(gradient: Matrix, inputs: Matrix, output_grads: Matrix, damping: float) -> Matrix:
    """K-FAC：线性层 y = W·x 的 Fisher 近似为 A ⊗ S，步长 −S⁻¹·G·A⁻¹（Martens & Grosse 2015）。

    gradient: (o, i)；inputs: (b, i)；output_grads: (b, o)。阻尼加在两个因子上。

    >>> rng = np.random.default_rng(0)
    >>> x, dy = rng.standard_normal((64, 3)), rng.standard_normal((64, 2))
    >>> kfac_step(dy.T @ x / 64, x, dy, damping=1e-3).shape
    (2, 3)
    """
    if damping <= 0:
        raise ValueError(f"damping 必须为正，收到 {damping}")
    if len(inputs) == 0 or len(inputs) != len(output_grads):
        raise ValueError(f"inputs 与 output_grads 须是同样多的样本，且不为空，收到 {len(inputs)} 与 {len(output_grads)}")
    _finite(gradient, inputs, output_grads)
    b = len(inputs)
    a = inputs.T @ inputs / b + damping * np.eye(inputs.shape[1])
    s = output_grads.T @ output_grads / b + damping * np.eye(output_grads.shape[1])
    return -np.linalg.solve(s, gradient) @ np.linalg.inv(a)


# --8<-- [end:newton]


# --8<-- [start:shampoo]
def inverse_root(matrix: Matrix, power: int) -> Matrix:
    """对称半正定矩阵的 −1/power 次方，按特征分解；零特征值对应的方向置 0。

    >>> np.round(inverse_root(np.diag([16.0, 81.0]), 4), 4)
    array([[0.5   , 0.    ],
           [0.    , 0.3333]])
    """
    _finite(matrix)
    if power < 1 or not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-9 * np.abs(matrix).max(initial=0.0)):
        raise ValueError(f"须是对称矩阵且 power ≥ 1，收到 power={power}")
    values, vectors = np.linalg.eigh(matrix)
    if values.min(initial=0.0) < -1e-8 * np.abs(values).max(initial=0.0):
        raise ValueError(f"须半正定，最小特征值是 {values.min()}")
    keep = values > values.max(initial=0.0) * 1e-12
    return (vectors[:, keep] * values[keep] ** (-1 / power)) @ vectors[:, keep].T


def shampoo_direction(gradients: list[Matrix]) -> Matrix:
    """Shampoo：L = ΣGGᵀ、R = ΣGᵀG，方向 L^(−1/4)·G·R^(−1/4)（Gupta 2018，算法 1，不含 ε）。

    只有一个梯度时恰好是 U·Vᵀ——Muon 要近似的东西：

    >>> g = np.random.default_rng(0).standard_normal((4, 6))
    >>> u, _, vt = np.linalg.svd(g, full_matrices=False)
    >>> bool(np.allclose(shampoo_direction([g]), u @ vt))
    True
    """
    if not gradients or len({g.shape for g in gradients}) != 1:
        raise ValueError("须有至少一个梯度，且形状相同")
    left = sum(g @ g.T for g in gradients)
    right = sum(g.T @ g for g in gradients)
    return inverse_root(left, 4) @ gradients[-1] @ inverse_root(right, 4)


# --8<-- [end:shampoo]


# --8<-- [start:muon]
def newton_schulz(g: Matrix, steps: int = 5, coefficients: tuple[float, float, float] = MUON_COEFFICIENTS) -> Matrix:
    """Newton–Schulz 迭代 X ← aX + b(XXᵀ)X + c(XXᵀ)²X，把奇异值推到 1 附近，奇异向量不变。

    先除以 Frobenius 范数使奇异值 ≤ 1。默认系数为求快而不收敛到 1，5 步后大多落在 0.7–1.2；归一化后小于约 0.003 的推不到。

    >>> g = np.random.default_rng(0).standard_normal((256, 512))
    >>> s = np.linalg.svd(newton_schulz(g), compute_uv=False)
    >>> round(float(s.min()), 2), round(float(s.max()), 2)
    (0.68, 1.13)
    >>> bool(newton_schulz(np.zeros((2, 3))).any())          # 零梯度给零更新，不是 NaN
    False
    """
    if g.ndim != 2 or steps < 1:
        raise ValueError(f"须是二维矩阵且 steps ≥ 1，收到 {g.ndim} 维、{steps} 步")
    _finite(g)
    a, b, c = coefficients
    x = (g.T if g.shape[0] > g.shape[1] else g).astype(np.promote_types(g.dtype, np.float32))
    x = x / max(float(np.abs(x).max(initial=0.0)), 1e-30)  # 先缩放再取范数，半精度或极大的值也不溢出
    x = x / max(float(np.linalg.norm(x)), 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def muon_update(momentum: Matrix, lr: float) -> Matrix:
    """Muon 的更新量 −lr·0.2·√max(m, n)·NS(momentum)：把 RMS 对齐到 AdamW 常见的约 0.2（Moonlight，Liu 2025）。

    正交矩阵 UVᵀ 的 RMS 是 1/√max(m, n)，所以乘上 √max(m, n) 之后 RMS 与形状无关。

    >>> rms = lambda x: float(np.sqrt(np.mean(x * x)))
    >>> rng = np.random.default_rng(0)
    >>> [round(rms(muon_update(rng.standard_normal(shape), lr=1.0)), 2) for shape in ((64, 64), (64, 512), (512, 64))]
    [0.18, 0.16, 0.16]
    """
    return -lr * 0.2 * np.sqrt(max(momentum.shape)) * newton_schulz(momentum)


def qk_clip(w_q: Matrix, w_k: Matrix, x: Matrix, tau: float) -> tuple[Matrix, Matrix, float]:
    """QK-clip（Kimi K2）：某个头的最大 logit 超过 tau 时，把 W_q、W_k 各乘 √(tau/最大 logit)。返回 (W_q, W_k, 原最大 logit)。

    x: (s, h)；w_q、w_k: (h, d)。在优化器更新之后改权重，不改前向。

    >>> rng = np.random.default_rng(0)
    >>> x, w_q, w_k = rng.standard_normal((32, 64)), 3 * rng.standard_normal((64, 16)), 3 * rng.standard_normal((64, 16))
    >>> w_q2, w_k2, before = qk_clip(w_q, w_k, x, tau=100.0)
    >>> before > 1000, round(qk_clip(w_q2, w_k2, x, tau=100.0)[2], 6)
    (True, 100.0)
    """
    if not 0 < tau < np.inf:
        raise ValueError(f"tau 必须为正且有限，收到 {tau}")
    _finite(w_q, w_k, x)
    with np.errstate(over="ignore", invalid="ignore"):
        logits = (x @ w_q) @ (x @ w_k).T / np.sqrt(w_q.shape[1])
    if not np.isfinite(logits).all():
        raise ValueError("logits 溢出：权重或激活已经太大，先用更高的精度算")
    largest = float(logits.max())
    scale = np.sqrt(min(1.0, tau / largest)) if largest > 0 else 1.0
    return w_q * scale, w_k * scale, largest


# --8<-- [end:muon]
