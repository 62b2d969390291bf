"""奇异值分解：由特征分解推出、Eckart–Young 的核对、PCA、随机化 SVD 的误差（NumPy）。"""

import numpy as np
from numpy.typing import NDArray

from snippets.common.chart import lines

Matrix = NDArray[np.floating]


def _matrix(a: Matrix) -> Matrix:
    a = np.asarray(a, dtype=np.float64)
    if a.ndim != 2 or 0 in a.shape:
        raise ValueError(f"须是非空的二维矩阵，收到形状 {a.shape}")
    if not np.isfinite(a).all():
        raise ValueError("矩阵含 NaN 或 inf")
    return a


# --8<-- [start:construct]
def svd_by_eigen(a: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """照推导构造瘦 SVD：AᵀA 的特征向量作 V，σ = √λ，u = Av/σ。返回 (U, σ, Vᵀ)，只含 σ > 0 的 r 列，r 为数值秩。

    a: (m, n)。只用来讲清推导；数值上请用 np.linalg.svd，理由见 gram_loses_small_values。

    >>> a = np.array([[3.0, 0.0], [4.0, 5.0]])
    >>> u, s, vt = svd_by_eigen(a)
    >>> np.round(s**2, 6).tolist(), bool(np.allclose((u * s) @ vt, a))       # AᵀA = [[25, 20], [20, 25]]
    ([45.0, 5.0], True)
    >>> [x.shape for x in svd_by_eigen(np.zeros((3, 2)))]                    # 零矩阵：秩 0
    [(3, 0), (0,), (0, 2)]
    """
    a = _matrix(a)
    values, vectors = np.linalg.eigh(a.T @ a)  # 升序
    sigma, v = np.sqrt(np.maximum(values[::-1], 0)), vectors[:, ::-1]
    keep = sigma > sigma[0] * 1e-7  # √λ 的舍入误差约 σ₁√u ≈ 1e-8 σ₁，再小的分不出真假
    u = a @ v[:, keep] / sigma[keep]
    return u, sigma[keep], v[:, keep].T


def gram_loses_small_values(delta: float = 1e-8) -> tuple[float, float]:
    """Läuchli 矩阵 [[1, 1], [δ, 0], [0, δ]] 的最小奇异值恰为 δ：返回 (直接 SVD, 经 AᵀA)。

    AᵀA 的对角是 1 + δ²，δ² 低于 fp64 的 2⁻⁵³ 就被舍掉：形成 AᵀA 把条件数平方了。

    >>> direct, via_gram = gram_loses_small_values()
    >>> f"{direct:.2e}", via_gram
    ('1.00e-08', 0.0)
    """
    if delta <= 0:
        raise ValueError(f"delta 必须为正，收到 {delta}")
    a = np.array([[1.0, 1.0], [delta, 0.0], [0.0, delta]])
    direct = np.linalg.svd(a, compute_uv=False)[-1]
    gram = a.T @ a  # 二阶对称阵，特征值有闭式
    via_gram = np.sqrt(max(gram[0, 0] - gram[0, 1], 0.0))
    return float(direct), float(via_gram)


# --8<-- [end:construct]


# --8<-- [start:truncate]
def truncated(a: Matrix, k: int) -> tuple[Matrix, Matrix, Matrix]:
    """秩 k 截断：U 的前 k 列、前 k 个 σ、Vᵀ 的前 k 行（即 V 的前 k 列）。NumPy 返回的就是 Vᵀ。

    >>> u, s, vt = truncated(np.arange(12.0).reshape(4, 3), 2)
    >>> u.shape, s.shape, vt.shape
    ((4, 2), (2,), (2, 3))
    >>> truncated(np.eye(3), 4)
    Traceback (most recent call last):
    ...
    ValueError: k 须在 0 与 3 之间，收到 4
    """
    a = _matrix(a)
    if not 0 <= k <= min(a.shape):
        raise ValueError(f"k 须在 0 与 {min(a.shape)} 之间，收到 {k}")
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    return u[:, :k], s[:k], vt[:k]


def eckart_young_check(a: Matrix, k: int) -> list[tuple[str, float, float]]:
    """截断误差与定理的右端：(范数, ‖A − A_k‖, 由尾部奇异值算的值)。

    >>> a = np.random.default_rng(0).standard_normal((60, 40))
    >>> for name, error, theorem in eckart_young_check(a, 10):
    ...     print(f"{name:9} {error:.6f} {theorem:.6f}")
    谱范数       9.408294 9.408294
    Frobenius 32.148313 32.148313
    """
    a = _matrix(a)
    u, s, vt = truncated(a, k)
    residual = a - (u * s) @ vt
    tail = np.append(np.linalg.svd(a, compute_uv=False), 0.0)[k:]
    return [
        ("谱范数", float(np.linalg.norm(residual, 2)), float(tail[0])),
        ("Frobenius", float(np.linalg.norm(residual)), float(np.linalg.norm(tail))),
    ]


def rows_of_v_are_not_singular_vectors(k: int = 2) -> tuple[float, float, float]:
    """反例：“取 V 的前 k 行”。同一矩阵投影到三个 k 维子空间的误差：(定理的最优, V 的前 k 列, V 的前 k 行)。

    >>> [round(x, 3) for x in rows_of_v_are_not_singular_vectors()]
    [2.061, 2.061, 3.113]
    """
    a = np.random.default_rng(0).standard_normal((6, 4))
    _, s, vt = np.linalg.svd(a, full_matrices=False)
    v = vt.T
    columns, rows = v[:, :k], v[:k].T  # 两者形状都是 (4, k)，所以用错也不报错
    errors = [float(np.linalg.norm(a - a @ basis @ basis.T)) for basis in (columns, rows)]
    return float(np.linalg.norm(s[k:])), *errors


# --8<-- [end:truncate]


# --8<-- [start:pca]
def pca(x: Matrix, k: int) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """PCA：减均值后做 SVD。x: (n, d)，每行一个样本；返回 (均值 (d,), 主方向 (k, d), 得分 (n, k), 方差占比 (k,))。

    新样本：z = (x − 均值) @ 主方向.T；均值必须用训练集的。

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((500, 3)) * [3.0, 1.0, 0.1] + [100.0, 0.0, 0.0]
    >>> mean, directions, scores, ratio = pca(x, 2)
    >>> np.round(np.abs(directions[0]), 2).tolist(), np.round(ratio, 3).tolist()
    ([1.0, 0.01, 0.0], [0.903, 0.096])
    """
    x = _matrix(x)
    if len(x) < 2:
        raise ValueError("PCA 至少要两个样本")
    mean = x.mean(axis=0)
    u, s, vt = truncated(x - mean, k)
    total = float(np.sum((x - mean) ** 2))
    return mean, vt, u * s, s**2 / total if total else np.zeros(k)


def uncentered_first_direction(offset: float = 10.0) -> tuple[float, float]:
    """反例：“SVD 就是 PCA，不用减均值”。返回第一主方向与真正方差最大方向的 |cos|：(减均值, 不减均值)。

    数据在第 0 维方差最大（标准差 3），均值在第 1 维上偏移 offset。

    >>> [round(x, 3) for x in uncentered_first_direction()]
    [0.999, 0.001]
    >>> [round(x, 3) for x in uncentered_first_direction(0.0)]      # 均值本来就是 0 时两者一致
    [0.999, 0.999]
    """
    x = np.random.default_rng(0).standard_normal((2000, 8)) * np.array([3.0] + [1.0] * 7)
    x = x - x.mean(axis=0)
    x[:, 1] += offset
    return float(abs(pca(x, 1)[1][0, 0])), float(abs(truncated(x, 1)[2][0, 0]))


# --8<-- [end:pca]


# --8<-- [start:randomized]
def range_basis(a: Matrix, width: int, power: int = 0, seed: int = 0) -> Matrix:
    """A 的值域的近似正交基 Q: (m, width)，由 A 乘 width 个高斯随机向量得到；A ≈ QQᵀA。

    power 是幂迭代次数 q：每次多乘一遍 Aᵀ 与 A，谱变成 σ^(2q+1)，尾巴被压低。
    每乘一次都重新正交化，否则小方向会被舍入淹没。

    >>> q = range_basis(np.diag([4.0, 2.0, 1.0]), 2, power=1)
    >>> bool(np.allclose(q.T @ q, np.eye(2)))
    True
    """
    a = _matrix(a)
    if not 1 <= width <= min(a.shape) or power < 0:
        raise ValueError(f"须有 1 ≤ width ≤ {min(a.shape)}、power ≥ 0，收到 {width, power}")
    omega = np.random.default_rng(seed).standard_normal((a.shape[1], width))
    q = np.linalg.qr(a @ omega).Q
    for _ in range(power):
        q = np.linalg.qr(a.T @ q).Q
        q = np.linalg.qr(a @ q).Q
    return q


def randomized_svd(a: Matrix, k: int, oversample: int = 10, power: int = 1, seed: int = 0) -> tuple[Matrix, Matrix, Matrix]:
    """随机化 SVD（Halko 2009）：用 k + oversample 个随机方向取 A 的值域，再对小矩阵 QᵀA 做 SVD，留前 k 个。

    >>> a = np.random.default_rng(1).standard_normal((300, 8)) @ np.random.default_rng(2).standard_normal((8, 200))
    >>> u, s, vt = randomized_svd(a, 8)                                # 秩恰为 8：一次就精确
    >>> float(np.linalg.norm(a - (u * s) @ vt) / np.linalg.norm(a)) < 1e-12
    True
    """
    a = _matrix(a)
    if not 1 <= k <= min(a.shape) or oversample < 0 or power < 0:
        raise ValueError(f"须有 1 ≤ k ≤ {min(a.shape)}、oversample ≥ 0、power ≥ 0，收到 {k, oversample, power}")
    q = range_basis(a, min(k + oversample, *a.shape), power, seed)
    u, s, vt = np.linalg.svd(q.T @ a, full_matrices=False)
    return (q @ u)[:, :k], s[:k], vt[:k]


def with_spectrum(sigma: Matrix, rows: int, seed: int = 0) -> Matrix:
    """给定奇异值、奇异向量随机的矩阵，形状 (rows, len(sigma))。

    >>> np.round(np.linalg.svd(with_spectrum(np.array([3.0, 2.0, 1.0]), 5), compute_uv=False), 6).tolist()
    [3.0, 2.0, 1.0]
    """
    sigma = np.asarray(sigma, dtype=np.float64)
    n = len(sigma)
    if rows < n or n == 0 or not (sigma >= 0).all() or not np.isfinite(sigma).all():
        raise ValueError(f"须有 rows ≥ len(sigma) ≥ 1、sigma ≥ 0，收到 {rows}、{n}")
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((size, n))).Q for size in (rows, n))
    return (u * sigma) @ v.T


def excess_error(sigma: Matrix, k: int, oversample: int, power: int, runs: int = 20) -> tuple[float, float]:
    """随机化 SVD 的误差 ÷ 最优误差，runs 个种子的平均：(谱范数, Frobenius)。1 就是达到 Eckart–Young。

    k = 20、400×200 的矩阵，三种谱：σ_i = 1/i（衰减快）、1/√i（慢）、恒为 1（平）。

    >>> i = np.arange(1, 201)
    >>> for name, sigma in (("1/i", 1 / i), ("1/√i", i**-0.5), ("平", np.ones(200))):
    ...     for p, q in ((0, 0), (10, 0), (10, 1), (10, 2)):
    ...         spectral, frobenius = excess_error(sigma, 20, p, q)
    ...         print(f"{name:4} p={p:<2} q={q}: {spectral:.2f} {frobenius:.3f}")
    1/i  p=0  q=0: 2.75 1.596
    1/i  p=10 q=0: 1.83 1.328
    1/i  p=10 q=1: 1.01 1.009
    1/i  p=10 q=2: 1.00 1.001
    1/√i p=0  q=0: 2.27 1.246
    1/√i p=10 q=0: 1.80 1.178
    1/√i p=10 q=1: 1.09 1.018
    1/√i p=10 q=2: 1.02 1.004
    平    p=0  q=0: 1.00 1.000
    平    p=10 q=0: 1.00 1.000
    平    p=10 q=1: 1.00 1.000
    平    p=10 q=2: 1.00 1.000
    """
    a = with_spectrum(sigma, 2 * len(sigma))
    tail = np.sort(sigma)[::-1][k:]
    ratios = []
    for seed in range(runs):
        u, s, vt = randomized_svd(a, k, oversample, power, seed + 1)
        residual = a - (u * s) @ vt
        ratios.append((np.linalg.norm(residual, 2) / tail[0], np.linalg.norm(residual) / np.linalg.norm(tail)))
    spectral, frobenius = np.mean(ratios, axis=0)
    return float(spectral), float(frobenius)


# --8<-- [end:randomized]


# --8<-- [start:rank]
def randomized_flops(m: int, n: int, k: int, oversample: int = 10, power: int = 2) -> float:
    """随机化 SVD 里与 A 相乘的 FLOPs：2q + 2 次，每次 2mn(k + p)；QR 与小 SVD 低一阶，不计。

    >>> f"{randomized_flops(4096, 14336, 64):.1e}"                           # Llama-3-8B 的 gate 投影，q = 2
    '5.2e+10'
    >>> f"{4096 * 14336 * 4096:.1e}"                                         # 完整 SVD 是它的常数倍：mn·min(m, n)
    '2.4e+11'
    """
    if min(m, n, k) < 1 or oversample < 0 or power < 0:
        raise ValueError(f"须有 m、n、k ≥ 1，oversample、power ≥ 0，收到 {m, n, k, oversample, power}")
    return (2 * power + 2) * 2 * m * n * (k + oversample)


def rank_for_energy(sigma: Matrix, energy: float) -> int:
    """保住 energy 比例的平方和（Frobenius 能量）所需的最小秩。

    >>> i = np.arange(1, 4097)
    >>> [rank_for_energy(s, 0.9) for s in (1 / i, i**-0.5, np.ones(4096))]     # 同样要 90%：谱决定一切
    [6, 1683, 3687]
    """
    sigma = np.sort(np.asarray(sigma, dtype=np.float64))[::-1]
    if not 0 < energy <= 1 or not sigma.any() or not np.isfinite(sigma).all() or sigma.min() < 0:
        raise ValueError(f"须有 0 < energy ≤ 1，奇异值有限、非负、不全为 0，收到 energy = {energy}")
    energies = (sigma / sigma[0]) ** 2  # 先除以最大的，平方才不会上溢或全部下溢
    share = np.cumsum(energies) / np.sum(energies)
    return int(np.searchsorted(share, energy - 1e-12)) + 1


# --8<-- [end:rank]


def figure_oversampling() -> str:
    """随机化 SVD 的谱范数误差 ÷ 最优误差，随过采样 p 与幂迭代 q 变化（σ_i = 1/i，k = 20）。"""
    sigma = 1 / np.arange(1, 201)
    series = {f"q = {q}": [(float(p), excess_error(sigma, 20, p, q, runs=10)[0]) for p in (0, 2, 5, 10, 20, 40)] for q in (0, 1, 2)}
    return lines(
        series,
        title="随机化 SVD 的误差 ÷ 最优误差",
        x_label="过采样 p",
        y_label="谱范数误差 ÷ σₖ₊₁",
        y_range=(1, 3),
        markers=True,
        y_refs={"最优": 1.0},
    )
