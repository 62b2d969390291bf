"""LayerNorm 与 RMSNorm 的反向：闭式、恒等式与 ε、雅可比的谱、分块的核、账目、反例（NumPy）。"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def _check(x: Array, eps: float) -> None:
    if x.ndim < 1 or not x.size or not np.issubdtype(x.dtype, np.floating) or not np.isfinite(x).all():
        raise ValueError(f"x 须是非空、有限的浮点数组，收到 {x.dtype}、形状 {x.shape}")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps 须非负且有限，收到 {eps}")


# --8<-- [start:backward]
def normalize(x: Array, eps: float = 1e-5, *, centre: bool = True) -> tuple[Array, Array]:
    """前向存下的两样：x̂ (…, h) 与 1/s (…, 1)，s = √(均方 + ε)。centre=True 先减均值（LayerNorm），否则是 RMSNorm。

    >>> x_hat, inverse = normalize(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> x_hat.round(4).tolist(), inverse.round(4).tolist()
    ([-1.3416, -0.4472, 0.4472, 1.3416], [0.8944])
    """
    _check(x, eps)
    offset = x - x.mean(axis=-1, keepdims=True) if centre else x
    square = np.mean(offset**2, axis=-1, keepdims=True) + eps
    if not square.all():
        raise ValueError("有一行的均方与 ε 都是 0：1/s 是无穷")
    return offset / np.sqrt(square), 1 / np.sqrt(square)


def backward(dy: Array, x_hat: Array, inverse: Array, gain: Array, *, centre: bool = True) -> tuple[Array, Array, Array]:
    """y = γ⊙x̂ + β 的 (dx, dγ, dβ)。dy、x_hat: (…, h)，inverse: (…, 1)，gain: (h,)。RMSNorm 没有 β，忽略 dβ。

    g = γ⊙dy，dx = (1/s)(g − mean(g) − x̂·mean(g⊙x̂))；RMSNorm 去掉 mean(g)。dγ、dβ 对除最后一维外的全部维求和。

    >>> x_hat, inverse = normalize(np.array([[1.0, 2.0, 3.0, 4.0]]))
    >>> for centre in (True, False):
    ...     kept = normalize(np.array([[1.0, 2.0, 3.0, 4.0]]), centre=centre)
    ...     print(backward(np.array([[1.0, 0.0, 0.0, 0.0]]), *kept, np.ones(4), centre=centre)[0].round(4).tolist())
    [[0.2683, -0.3578, -0.0894, 0.1789]]
    [[0.353, -0.0243, -0.0365, -0.0487]]
    """
    if dy.shape != x_hat.shape or gain.shape != dy.shape[-1:] or inverse.shape != (*dy.shape[:-1], 1):
        raise ValueError(f"形状不合：dy {dy.shape}、x̂ {x_hat.shape}、1/s {inverse.shape}、γ {gain.shape}")
    g = gain * dy
    along = np.mean(g * x_hat, axis=-1, keepdims=True)
    shift = np.mean(g, axis=-1, keepdims=True) if centre else 0.0
    others = tuple(range(dy.ndim - 1))
    return inverse * (g - shift - x_hat * along), np.sum(dy * x_hat, axis=others), np.sum(dy, axis=others)


# --8<-- [end:backward]


# --8<-- [start:check]
def difference_error(step: float, *, centre: bool = True, seed: int = 0) -> float:
    """L = ⟨R, γ⊙x̂(x) + β⟩ 对 x、γ、β 沿一个随机方向的中心差分，与闭式的相对差。x: (3, 5, 16)。

    >>> for step in (1e-1, 1e-2, 1e-3):                                          # 缩 10 倍，误差缩约 100 倍
    ...     print(step, *(f"{difference_error(step, centre=c):.0e}" for c in (True, False)))
    0.1 3e-02 2e-02
    0.01 3e-04 2e-04
    0.001 3e-06 2e-06
    """
    if not 0 < step < math.inf:
        raise ValueError(f"step 须为正且有限，收到 {step}")
    rng = np.random.default_rng(seed)
    shapes = (3, 5, 16), (16,), (16,)
    point, direction = ([rng.standard_normal(n) for n in shapes] for _ in range(2))
    upstream = rng.standard_normal(shapes[0])

    def loss(t: float) -> float:
        x, gain, bias = (a + t * u for a, u in zip(point, direction, strict=True))
        return float(np.sum(upstream * (gain * normalize(x, centre=centre)[0] + bias)))

    grads = backward(upstream, *normalize(point[0], centre=centre), point[1], centre=centre)
    exact = float(sum(np.sum(g * u) for g, u in zip(grads, direction, strict=True)))
    return abs((loss(step) - loss(-step)) / (2 * step) - exact) / abs(exact)


# --8<-- [end:check]


# --8<-- [start:identities]
def inner_products(sigma: float, eps: float, h: int = 4096, seed: int = 0) -> tuple[float, float]:
    """x 的标准差恰为 sigma 的一行，随机的 g：（Σdx，(x − μ)·dx ÷ Σ(g⊙x̂)）。前者恒 0，后者恰是 ε/(σ² + ε)。

    >>> for sigma in (1.0, 0.1, 0.00316227766, 1e-4):
    ...     total, ratio = inner_products(sigma, 1e-5)
    ...     print(sigma, abs(total) < 1e-9, f"{ratio:.1e}")
    1.0 True 1.0e-05
    0.1 True 1.0e-03
    0.00316227766 True 5.0e-01
    0.0001 True 1.0e+00
    """
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma 须为正且有限，收到 {sigma}")
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal((2, h))
    x = sigma * (x - x.mean()) / x.std()
    x_hat, inverse = normalize(x, eps)
    dx = backward(g, x_hat, inverse, np.ones(h))[0]
    return float(dx.sum()), float(x @ dx / (g @ x_hat))


def spectrum(x: Array, eps: float, *, centre: bool = True) -> list[float]:
    """雅可比 J = (1/s)(I − 11ᵀ/h − x̂x̂ᵀ/h) 的特征值乘 s，从小到大（RMSNorm 没有 11ᵀ 一项）。x: (h,)。

    >>> x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> [round(v, 6) + 0.0 for v in spectrum(x, 0.0)], [round(v, 6) + 0.0 for v in spectrum(x, 0.0, centre=False)]
    ([0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0, 1.0])
    >>> [round(v, 6) + 0.0 for v in spectrum(np.array([3.0, 5.0]), 0.0)]          # h = 2：x̂ 恒为 (−1, 1)，没有梯度
    [0.0, 0.0]
    """
    if x.ndim != 1:
        raise ValueError(f"x 须是一行 (h,)，收到 {x.shape}")
    h, x_hat = len(x), normalize(x, eps, centre=centre)[0]
    matrix = np.eye(h) - np.outer(x_hat, x_hat) / h - (np.ones((h, h)) / h if centre else 0)
    return np.linalg.eigvalsh(matrix).tolist()


def amplification(sigma: float, eps: float, *, outside: bool = False) -> float:
    """‖dx‖ 最大是 ‖g‖ 的几倍：1/√(σ² + ε)；outside=True 是 ε 加在根号外的 1/(σ + ε)。σ → 0 时停在 1/√ε 或 1/ε。

    >>> [round(amplification(s, 1e-5), 1) for s in (10.0, 1.0, 0.1, 0.01, 0.0)]
    [0.1, 1.0, 10.0, 95.3, 316.2]
    >>> [round(amplification(0.0, 1e-6, outside=o)) for o in (False, True)]
    [1000, 1000000]
    """
    if not 0 <= sigma < math.inf or not 0 <= eps < math.inf or sigma == eps == 0:
        raise ValueError(f"sigma、eps 须非负、有限且不同时为 0，收到 {sigma}、{eps}")
    return 1 / (sigma + eps if outside else math.sqrt(sigma**2 + eps))


# --8<-- [end:identities]


# --8<-- [start:kernel]
def blocked_backward(dy: Array, x: Array, gain: Array, mean: Array, inverse: Array, block: int, rows: int) -> tuple[Array, Array, Array]:
    """核的写法：只存 x、μ、1/s。每行扫一遍得两个和，再写 dx；dγ、dβ 每 rows 行攒一个部分和，最后再加起来。

    dy、x: (N, h)，mean、inverse: (N,)。返回 (dx, dγ, dβ)，与 backward 相同。

    >>> rng = np.random.default_rng(0)
    >>> x, dy, gain = rng.standard_normal((6, 8)), rng.standard_normal((6, 8)), rng.standard_normal(8)
    >>> x_hat, inverse = normalize(x)
    >>> blocked = blocked_backward(dy, x, gain, x.mean(axis=1), inverse[:, 0], block=3, rows=4)
    >>> all(np.allclose(a, b) for a, b in zip(blocked, backward(dy, x_hat, inverse, gain), strict=True))
    True
    """
    if dy.ndim != 2 or dy.shape != x.shape or not mean.shape == inverse.shape == dy.shape[:1] or min(block, rows) < 1:
        raise ValueError(f"须有 dy、x (N, h)、mean、inverse (N,)，块为正，收到 {dy.shape}、{x.shape}、{block}、{rows}")
    n, h = x.shape
    dx, partial = np.empty_like(x), np.zeros((2, -(-n // rows), h))
    for i in range(n):
        total = along = 0.0
        for j in range(0, h, block):  # 第一遍：x、dy 读进来，两个和一起求
            part = slice(j, j + block)
            x_hat = (x[i, part] - mean[i]) * inverse[i]
            g = gain[part] * dy[i, part]
            total += g.sum()
            along += (g * x_hat).sum()
            partial[0, i // rows, part] += dy[i, part] * x_hat
            partial[1, i // rows, part] += dy[i, part]
        for j in range(0, h, block):  # 第二遍：一行放得进片上就不必再读显存
            part = slice(j, j + block)
            x_hat = (x[i, part] - mean[i]) * inverse[i]
            dx[i, part] = inverse[i] * (gain[part] * dy[i, part] - total / h - x_hat * along / h)
    return dx, partial[0].sum(axis=0), partial[1].sum(axis=0)


def bill(tokens: int, h: int, norms: int, bandwidth: float = 3.35e12) -> dict[str, float]:
    """bf16 的 RMSNorm：一个、全部要存的 x（MB、GB），统计量 1/s（fp32，KB），反向读 x、dy 写 dx 的 MB 与下限 µs。

    >>> bill(8192, 4096, 65)                                                     # Llama-3-8B：32 层各两个，最后一个
    {'存 x MB': 67.1, '65 个 GB': 4.36, '统计量 KB': 32.8, '反向读写 MB': 201.3, '下限 µs': 60.1}
    """
    if min(tokens, h, norms) < 1 or not 0 < bandwidth < math.inf:
        raise ValueError(f"须为正，收到 {tokens}、{h}、{norms}、{bandwidth}")
    one = 2 * tokens * h
    return {
        "存 x MB": round(one / 1e6, 1),
        f"{norms} 个 GB": round(norms * one / 1e9, 2),
        "统计量 KB": round(4 * tokens / 1e3, 1),
        "反向读写 MB": round(3 * one / 1e6, 1),
        "下限 µs": round(3 * one / bandwidth * 1e6, 1),
    }


# --8<-- [end:kernel]


# --8<-- [start:wrong]
def statistics_as_constants(dy: Array, inverse: Array, gain: Array) -> Array:
    """反例：“μ、σ 是统计量，当常数，dx = γ⊙dy/s”。漏了两项，Σdx 不再是 0。

    >>> statistics_as_constants(np.ones(4), np.array([0.8944]), np.ones(4)).sum().round(4).item()      # 整行 +1：输出不变，应是 0
    3.5776
    """
    return inverse * gain * dy


def unbiased_variance_backward(dy: Array, x: Array) -> Array:
    """前向用无偏方差（除 h − 1）时正确的 dx：x̂ 的那一项要除 h − 1 而不是 h。ε = 0、γ = 1，x、dy: (h,)。

    >>> x, dy = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 0.0, 0.0, 0.0])
    >>> unbiased_variance_backward(dy, x).round(4).tolist()
    [0.2324, -0.3098, -0.0775, 0.1549]
    """
    _check(x, 0.0)
    h = len(x)
    if h < 2:
        raise ValueError("无偏方差须 h ≥ 2：h = 1 时除以 0")
    s = math.sqrt(np.sum((x - x.mean()) ** 2) / (h - 1))
    if not s:
        raise ValueError("方差须不为 0")
    x_hat = (x - x.mean()) / s
    return (dy - dy.mean() - x_hat * np.sum(dy * x_hat) / (h - 1)) / s


def variance_by_moments(offset: float) -> tuple[float, float]:
    """反例：“一遍算出 E[x²] − μ² 最省”。fp32，(0, 1, 2, 3) + offset：（那样算的方差, 先减均值算的）；真值 1.25。

    >>> for offset in (0.0, 1000.0, 10_000.0, 100_000.0):
    ...     print(offset, *variance_by_moments(offset))
    0.0 1.25 1.25
    1000.0 1.25 1.25
    10000.0 0.0 1.25
    100000.0 0.0 1.25
    """
    if not math.isfinite(offset):
        raise ValueError(f"offset 须有限，收到 {offset}")
    x = [np.float32(offset + k) for k in range(4)]
    total = square = np.float32(0)
    for v in x:
        total, square = total + v, square + v * v
    mean = total / np.float32(4)
    centred = np.float32(0)
    for v in x:
        centred += (v - mean) * (v - mean)
    return float(square / np.float32(4) - mean * mean), float(centred / np.float32(4))


# --8<-- [end:wrong]
