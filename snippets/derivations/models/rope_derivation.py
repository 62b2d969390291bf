"""RoPE 的旋转矩阵：由“只依赖位置差”推出正交同态、分块旋转、相对性、两种配对、波长、远程行为、反向（NumPy）。"""

import math

import numpy as np
from numpy.typing import NDArray

from snippets.deep_learning.attention.relative_positions import frequencies

Array = NDArray[np.float64]
EULER_GAMMA = 0.5772156649015329


def _theta(theta: Array | list[float]) -> Array:
    theta = np.asarray(theta, dtype=np.float64)
    if theta.ndim != 1 or not theta.size or not np.isfinite(theta).all():
        raise ValueError(f"theta 须是非空、有限的一维频率，收到形状 {theta.shape}")
    if np.abs(theta).max() > 2 * math.pi:
        raise ValueError("theta 的绝对值须不超过 2π：整数位置上再大的角与它模 2π 的余数无法区分")
    return theta


def _position(*positions: float) -> None:
    for m in positions:
        if isinstance(m, (bool, np.bool_)) or not abs(m) <= 2**40:
            raise ValueError(f"位置须是数，绝对值不超过 2^40（再大 float64 的角度不准），收到 {m}")


def _frequencies(d: int, base: float) -> Array:
    if not 1 < base < math.inf:
        raise ValueError(f"base 须大于 1 且有限，收到 {base}")
    return _theta(frequencies(d, base))


# --8<-- [start:matrix]
def rotation_matrix(position: float, theta: Array | list[float]) -> Array:
    """R_m：d × d 的分块对角矩阵，第 i 块把坐标 (2i, 2i+1) 逆时针转 m·θ_i 弧度；theta: (d/2,)。

    >>> rotation_matrix(1, [math.pi / 2]).round(12).tolist()               # 转 90°：(1, 0) → (0, 1)
    [[0.0, -1.0], [1.0, 0.0]]
    >>> theta = frequencies(128)
    >>> m, n = rotation_matrix(5000, theta), rotation_matrix(4321, theta)
    >>> bool(np.abs(m.T @ n - rotation_matrix(4321 - 5000, theta)).max() < 1e-11)      # R(m)ᵀR(n) = R(n − m)
    True
    >>> int(np.count_nonzero(m)), m.size                                     # 每行只有 2 个非零：不必真的做 d × d 的矩阵乘
    (256, 16384)
    """
    theta = _theta(theta)
    _position(position)
    d = 2 * theta.size
    out = np.zeros((d, d))
    even, odd = np.arange(0, d, 2), np.arange(1, d, 2)
    out[even, even] = out[odd, odd] = np.cos(position * theta)
    out[odd, even] = np.sin(position * theta)
    out[even, odd] = -out[odd, even]
    return out


def score(q: Array, k: Array, offset: float, theta: Array | list[float]) -> float:
    """闭式 Σ_i [(q·k)_i cos(offset·θ_i) + (q×k)_i sin(offset·θ_i)]，offset = m − n；q、k: (d,)。

    (q·k)_i = q₁k₁ + q₂k₂，(q×k)_i = q₁k₂ − q₂k₁，都只看第 i 对坐标。

    >>> q, k, theta = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, -1.0, 2.0, 0.0]), frequencies(4)
    >>> round(score(q, k, 4, theta), 6), round(float(rotation_matrix(104, theta) @ q @ (rotation_matrix(100, theta) @ k)), 6)
    (8.169356, 8.169356)
    """
    theta, q, k = _theta(theta), np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    _position(offset)
    if q.shape != (2 * theta.size,) or k.shape != q.shape or not max(np.abs(q).max(), np.abs(k).max()) < 1e150:
        raise ValueError(f"q、k 须是有限（绝对值小于 1e150）的 ({2 * theta.size},)，收到 {q.shape}、{k.shape}")
    (q1, q2), (k1, k2) = q.reshape(-1, 2).T, k.reshape(-1, 2).T
    return float(np.sum((q1 * k1 + q2 * k2) * np.cos(offset * theta) + (q1 * k2 - q2 * k1) * np.sin(offset * theta)))


# --8<-- [end:matrix]


# --8<-- [start:general]
def angles_of(step: Array) -> list[float]:
    """任意正交、行列式为 1 的 d × d 矩阵 A₁（d 偶）：它在某组标准正交基下转过的 d/2 个角，[0, π]，从小到大。

    A_m = A₁ᵐ 就是“只依赖位置差”的一般解；换基 P 可并入 W_Q、W_K，剩下的自由度只有这些角。

    >>> rng = np.random.default_rng(0)
    >>> basis, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    >>> hidden = basis @ rotation_matrix(1, [0.1, 0.7, 2.0]) @ basis.T           # 满的 6 × 6，看不出分块
    >>> [round(a, 6) for a in angles_of(hidden)]
    [0.1, 0.7, 2.0]
    """
    step = np.asarray(step, dtype=np.float64)
    if step.ndim != 2 or step.shape[0] != step.shape[1] or step.shape[0] % 2 or not step.size:
        raise ValueError(f"须是偶数阶的方阵，收到 {step.shape}")
    if not np.allclose(step @ step.T, np.eye(len(step)), atol=1e-8) or np.linalg.det(step) < 0:
        raise ValueError("须正交且行列式为 1")
    angles = np.sort(np.abs(np.angle(np.linalg.eigvals(step))))
    return angles[::2].tolist()  # 特征值成对共轭 e^{±iθ}，各取一个


def with_decay(q: Array, k: Array, m: float, n: float, theta: Array | list[float], zeta: float) -> float:
    """q 与 k 用**不同**的映射时不必正交：q 乘 ζᵐR_m，k 乘 ζ⁻ⁿR_n，分数仍只依赖 m − n，多一个 ζ^(m−n)。

    >>> q, k, theta = np.ones(4), np.ones(4), frequencies(4)
    >>> [round(with_decay(q, k, m, m - 8, theta, 0.99) / score(q, k, 8, theta), 6) for m in (10, 500)]     # 0.99⁸
    [0.922745, 0.922745]
    """
    if not 0 < zeta <= 1:
        raise ValueError(f"zeta 须在 (0, 1] 内，收到 {zeta}")
    _position(m, n)
    if max(abs(m), abs(n)) * -math.log(zeta) > 300:
        raise ValueError(f"ζ^m 或 ζ^(−n) 快要溢出，须先把位置的原点移近，收到 {m}、{n}")
    score(q, k, 0, theta)  # 形状与有限性
    left, right = zeta**m * rotation_matrix(m, theta) @ q, zeta**-n * rotation_matrix(n, theta) @ k
    return float(left @ right)


# --8<-- [end:general]


# --8<-- [start:wavelength]
def wavelengths(d: int, base: float) -> tuple[float, float, float, float]:
    """（最短波长，最长波长，相邻两对的波长之比，每倍频程的对数），波长以 token 计：λ_i = 2π·base^(2i/d)。

    >>> [tuple(round(x, 3) for x in wavelengths(128, base)) for base in (1e4, 5e5)]
    [(6.283, 54410.143, 1.155, 4.816), (6.283, 2559195.517, 1.228, 3.381)]
    """
    theta = _frequencies(d, base).tolist()
    return 2 * math.pi / theta[0], 2 * math.pi / theta[-1], base ** (2 / d), d / 2 * math.log(2) / math.log(base)


def coherence(offset: float, d: int, base: float) -> tuple[float, float]:
    """q = k 全为 1 时的分数 ÷ d：（求和 (2/d)Σcos(offset·θ_i)，近似 (ln(base/offset) − γ)/ln base，1 ≪ offset ≪ base）。

    >>> for offset in (1, 10, 100, 1000):
    ...     print(offset, [tuple(round(x, 2) for x in coherence(offset, 128, base)) for base in (1e4, 5e5)])
    1 [(0.97, 0.94), (0.98, 0.96)]
    10 [(0.67, 0.69), (0.76, 0.78)]
    100 [(0.48, 0.44), (0.61, 0.61)]
    1000 [(0.16, 0.19), (0.49, 0.43)]
    """
    _position(offset)
    theta = _frequencies(d, base)
    if not 0 < offset < base:
        raise ValueError(f"offset 须在 (0, base) 内，收到 {offset}")
    return 2 / d * math.fsum(math.cos(offset * t) for t in theta), (math.log(base / offset) - EULER_GAMMA) / math.log(base)


def far_peak(peak: int, d: int = 128, base: float = 10_000.0) -> list[float]:
    """反例：“RoPE 的分数必随距离衰减”。令 q 的第 i 对相对 k 转 −peak·θ_i，返回距离 0、peak、2·peak 处的分数 ÷ |q||k|。

    >>> [round(x, 3) for x in far_peak(1000)]
    [0.159, 1.0, 0.159]
    """
    _position(peak)
    theta = _frequencies(d, base)
    k = np.tile([1.0, 0.0], d // 2)
    q = rotation_matrix(-peak, theta) @ k
    return [score(q, k, offset, theta) / (d // 2) for offset in (0, peak, 2 * peak)]


# --8<-- [end:wavelength]


# --8<-- [start:backward]
def backward(dy: Array, position: float, theta: Array | list[float]) -> Array:
    """y = R_m x 的反向：dx = R_mᵀ dy = R_(−m) dy。不需要 x，范数不变。dy: (d,)。

    >>> dy = np.array([3.0, 4.0])
    >>> dx = backward(dy, 7, [0.3])
    >>> dx.round(4).tolist(), round(float(np.hypot(*dx)), 12)
    ([1.9383, -4.609], 5.0)
    """
    dy = np.asarray(dy, dtype=np.float64)
    if dy.shape != (2 * _theta(theta).size,) or not np.isfinite(dy).all():
        raise ValueError(f"dy 须是有限的 ({2 * _theta(theta).size},)，收到 {dy.shape}")
    return rotation_matrix(-position, theta) @ dy


def attention_output(start: int, rotate_values: bool, rotate_back: bool = False) -> Array:
    """4 个 token 从位置 start 起，最后一个查询的输出；q、k 总旋转，v 按 rotate_values，输出再按 rotate_back 转回 −m。

    >>> same = lambda **options: bool(np.allclose(attention_output(0, **options), attention_output(50, **options)))
    >>> same(rotate_values=False), same(rotate_values=True), same(rotate_values=True, rotate_back=True)
    (True, False, True)
    """
    _position(start)
    rng, theta = np.random.default_rng(0), frequencies(8)
    q, k, v = rng.standard_normal(8), rng.standard_normal((4, 8)), rng.standard_normal((4, 8))
    last = start + 3
    scores = np.array([score(q, k[j], last - (start + j), theta) for j in range(4)]) / math.sqrt(8)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    if rotate_values:
        v = np.stack([rotation_matrix(start + j, theta) @ v[j] for j in range(4)])
    out = weights @ v
    return rotation_matrix(-last, theta) @ out if rotate_back else out


# --8<-- [end:backward]
