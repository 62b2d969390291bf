"""大模型里的低秩：参数账、误差随秩的变化、按激活加权的截断、LoRA、MLA 的吸收、Linformer（NumPy）。"""

import numpy as np
from numpy.typing import NDArray

from snippets.common.chart import lines
from snippets.math.linear_algebra.svd import truncated, with_spectrum

Matrix = NDArray[np.floating]


# --8<-- [start:count]
def break_even_rank(m: int, n: int) -> float:
    """两个因子 (m, r)、(r, n) 的参数 r(m + n) 等于 mn 时的秩；r 更大就不省参数，也不省乘加。

    >>> [round(break_even_rank(*shape), 1) for shape in ((4096, 4096), (4096, 14336))]
    [2048.0, 3185.8]
    """
    if m < 1 or n < 1:
        raise ValueError(f"m、n 必须 ≥ 1，收到 {m, n}")
    return m * n / (m + n)


def lora_parameters(shapes: list[tuple[int, int]], r: int, layers: int) -> int:
    """LoRA 的可训练参数：每个被改的 (输出, 输入) 矩阵加 r·(输出 + 输入) 个。

    >>> q = o = (4096, 4096); k = v = (1024, 4096)                      # Llama-3-8B，GQA 8 组
    >>> gate = up = (14336, 4096); down = (4096, 14336)
    >>> n = lora_parameters([q, k, v, o, gate, up, down], r=16, layers=32)
    >>> n, f"{n / 8_030_261_248:.2%}", f"16 B/参数：LoRA {n * 16 / 1e9:.2f} GB，全参 {8_030_261_248 * 16 / 1e9:.0f} GB"
    (41943040, '0.52%', '16 B/参数：LoRA 0.67 GB，全参 128 GB')
    >>> lora_parameters([(12288, 12288)] * 2, r=4, layers=96)            # GPT-3 175B，只改 q、v
    18874368
    """
    if r < 1 or layers < 1 or not shapes:
        raise ValueError(f"须有 r ≥ 1、layers ≥ 1、至少一个矩阵，收到 {r, layers, shapes}")
    return layers * sum(r * (out + inp) for out, inp in shapes)


def kv_elements_per_layer(heads: int, kv_heads: int, head_dim: int, latent: int, rope_dim: int) -> list[tuple[str, int]]:
    """每 token 每层的 KV cache 元素数：(MHA, GQA, MLA)。

    >>> for name, count in kv_elements_per_layer(heads=128, kv_heads=8, head_dim=128, latent=512, rope_dim=64):
    ...     print(f"{name} {count:6} {count / 576:5.1f}×")                # DeepSeek-V3 的尺寸；GQA 8 组是假想的对照
    MHA  32768  56.9×
    GQA   2048   3.6×
    MLA    576   1.0×
    """
    if min(heads, kv_heads, head_dim, latent) < 1 or rope_dim < 0 or heads % kv_heads:
        raise ValueError("尺寸须为正，且 heads 被 kv_heads 整除")
    return [("MHA", 2 * heads * head_dim), ("GQA", 2 * kv_heads * head_dim), ("MLA", latent + rope_dim)]


# --8<-- [end:count]


# --8<-- [start:error]
def relative_error(sigma: Matrix, r: int) -> float:
    """最优秩 r 近似的相对 Frobenius 误差，由奇异值直接算（Eckart–Young，推导见 Q002）。

    >>> relative_error(np.array([3.0, 4.0]), 1), relative_error(np.ones(4), 4)
    (0.6, 0.0)
    """
    sigma = np.sort(np.asarray(sigma, dtype=np.float64))[::-1]
    if not 0 <= r <= sigma.size or not sigma.any() or not np.isfinite(sigma).all() or sigma.min() < 0:
        raise ValueError(f"须有 0 ≤ r ≤ {sigma.size}，奇异值有限、非负、不全为 0，收到 {r}")
    energies = (sigma / sigma[0]) ** 2  # 先除以最大的，平方才不会上溢或全部下溢
    return float(np.sqrt(np.sum(energies[r:]) / np.sum(energies)))


def spectra(n: int = 512) -> dict[str, Matrix]:
    """三种 n×n 的谱：σ_i = 1/i、σ_i = 1/√i、独立高斯元素（随机初始化的权重就是这种）。"""
    i = np.arange(1, n + 1)
    gaussian = np.linalg.svd(np.random.default_rng(0).standard_normal((n, n)), compute_uv=False)
    return {"1/i": 1 / i, "1/√i": i**-0.5, "高斯": gaussian}


def compression_table(n: int = 512) -> list[tuple[float, dict[str, float]]]:
    """保留的参数比例 → 各谱的相对误差。方阵的比例是 2r/n：秩砍一半，参数一个不省。

    >>> for kept, errors in compression_table():
    ...     print(f"{kept:7.2%}", *(f"{name} {error:.3f}" for name, error in errors.items()))
      6.25% 1/i 0.189 1/√i 0.710 高斯 0.942
     25.00% 1/i 0.091 1/√i 0.551 高斯 0.790
     50.00% 1/i 0.060 1/√i 0.450 高斯 0.614
    100.00% 1/i 0.034 1/√i 0.319 高斯 0.326
    """
    return [(2 * r / n, {name: relative_error(s, r) for name, s in spectra(n).items()}) for r in (n // 32, n // 8, n // 4, n // 2)]


def quantize(w: Matrix, bits: int, group: int = 128) -> Matrix:
    """按组对称量化再反量化（absmax，四舍五入）；元素数须是 group 的倍数。

    >>> quantize(np.array([[0.0, 1.0, 6.6, -7.0]]), bits=4, group=4).tolist()
    [[0.0, 1.0, 7.0, -7.0]]
    """
    if bits < 2 or w.size % group:
        raise ValueError(f"须有 bits ≥ 2、元素数 {w.size} 是 group = {group} 的倍数")
    rows = w.reshape(-1, group)
    scale = np.abs(rows).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    scale[scale == 0] = 1.0
    return (np.round(rows / scale) * scale).reshape(w.shape)


def quarter_size(n: int = 512) -> tuple[float, float]:
    """同样压到 bf16 的约 1/4，高斯权重的相对误差：(截断到秩 n/8, int4、每 128 个一组)。

    int4 连同每组一个 16 位缩放是 4.125 位/参数，即 25.8%。

    >>> [round(x, 3) for x in quarter_size()]
    [0.79, 0.118]
    """
    w = np.random.default_rng(0).standard_normal((n, n))
    low_rank = relative_error(np.linalg.svd(w, compute_uv=False), n // 8)
    return low_rank, float(np.linalg.norm(w - quantize(w, 4)) / np.linalg.norm(w))


# --8<-- [end:error]


# --8<-- [start:whiten]
def whitened_truncation(w: Matrix, x: Matrix, r: int) -> Matrix:
    """使输出误差 ‖X(W − W')ᵀ‖_F 最小的秩 r 的 W'：令 XᵀX/b = CCᵀ，截断 WC，再右乘 C⁻¹。

    w: (m, n)；x: (b, n)，b ≥ n 且列满秩，否则 Cholesky 失败。

    >>> rng = np.random.default_rng(0)
    >>> w = rng.standard_normal((128, 128))                              # 权重谱平
    >>> x = rng.standard_normal((1024, 128)) * np.geomspace(10, 0.1, 128)  # 激活各通道的尺度差 100 倍
    >>> def output_error(approx): return float(np.linalg.norm(x @ (w - approx).T) / np.linalg.norm(x @ w.T))
    >>> for r in (8, 16, 32):
    ...     u, s, vt = truncated(w, r)
    ...     print(r, f"{output_error((u * s) @ vt):.3f} {output_error(whitened_truncation(w, x, r)):.3f}")
    8 0.869 0.692
    16 0.776 0.491
    32 0.610 0.247
    """
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1]:
        raise ValueError(f"w (m, n) 与 x (b, n) 的形状不合：{w.shape}、{x.shape}")
    try:
        c = np.linalg.cholesky(x.T @ x / len(x))
    except np.linalg.LinAlgError as error:
        raise ValueError("XᵀX 不正定：样本太少或激活共线，先加阻尼") from error
    u, s, vt = truncated(w @ c, r)
    return np.linalg.solve(c.T, ((u * s) @ vt).T).T


# --8<-- [end:whiten]


# --8<-- [start:lora]
def lora_forward(x: Matrix, w0: Matrix, a: Matrix, b: Matrix, alpha: float) -> Matrix:
    """y = x·W₀ᵀ + (α/r)·(x·Aᵀ)·Bᵀ。x: (t, n)；w0: (m, n)；a: (r, n)；b: (m, r)。

    >>> rng = np.random.default_rng(0)
    >>> x, w0, a = rng.standard_normal((5, 6)), rng.standard_normal((4, 6)), rng.standard_normal((2, 6))
    >>> bool((lora_forward(x, w0, a, np.zeros((4, 2)), alpha=16) == x @ w0.T).all())     # B = 0：起点就是原模型
    True
    """
    r = a.shape[0]
    if b.shape != (w0.shape[0], r) or a.shape[1] != w0.shape[1]:
        raise ValueError(f"形状不合：w0 {w0.shape}、a {a.shape}、b {b.shape}")
    return x @ w0.T + alpha / r * (x @ a.T) @ b.T


def lora_gradients(x: Matrix, dy: Matrix, a: Matrix, b: Matrix, alpha: float) -> tuple[Matrix, Matrix]:
    """(dA, dB)。dy: (t, m)。令 G = dyᵀx，则 dA = (α/r)BᵀG、dB = (α/r)GAᵀ。

    B = 0 时 dA = 0、dB ≠ 0，下一步 A 才动；两个都初始化为 0 则永远不动：

    >>> rng = np.random.default_rng(0)
    >>> x, dy, a = rng.standard_normal((5, 6)), rng.standard_normal((5, 4)), rng.standard_normal((2, 6))
    >>> [bool(g.any()) for g in lora_gradients(x, dy, a, np.zeros((4, 2)), 16)]
    [False, True]
    >>> [bool(g.any()) for g in lora_gradients(x, dy, 0 * a, np.zeros((4, 2)), 16)]
    [False, False]
    """
    scale, g = alpha / a.shape[0], dy.T @ x
    return scale * b.T @ g, scale * g @ a.T


def lora_limit(sigma: Matrix, r: int, steps: int = 2000, lr: float = 0.05) -> tuple[float, float, int]:
    """用 LoRA 去拟合一个给定的更新 ΔW*（谱为 sigma，输入各向同性）：(训练后的相对误差, Eckart–Young 下限, ΔW 的秩)。

    ΔW = BA 的秩不超过 r，所以再训也到不了下限以下；谱平的 ΔW* 不是 LoRA 能学的。

    >>> i = np.arange(1, 33)
    >>> for name, sigma in (("1/i", 1 / i), ("平", np.ones(32))):
    ...     error, limit, rank = lora_limit(sigma, 4)
    ...     print(name, f"{error:.3f} {limit:.3f}", rank)
    1/i 0.344 0.344 4
    平 0.935 0.935 4
    """
    target = with_spectrum(np.asarray(sigma, dtype=np.float64), len(sigma))
    m, n = target.shape
    a, b = np.random.default_rng(1).standard_normal((r, n)) / np.sqrt(n), np.zeros((m, r))
    eye = np.eye(n)  # 各向同性的输入：损失就是 ½‖ΔW − ΔW*‖²
    for _ in range(steps):
        dy = lora_forward(eye, np.zeros((m, n)), a, b, alpha=r) - target.T
        da, db = lora_gradients(eye, dy, a, b, alpha=r)
        a, b = a - lr * da, b - lr * db
    error = float(np.linalg.norm(b @ a - target) / np.linalg.norm(target))
    return error, relative_error(sigma, r), int(np.linalg.matrix_rank(b @ a, tol=1e-6))


# --8<-- [end:lora]


# --8<-- [start:mla]
def mla_scores(q: Matrix, latent: Matrix, w_uk: Matrix, absorb: bool) -> Matrix:
    """MLA 的内容打分（不含 RoPE 部分）：q: (a, d)，latent: (t, c)，w_uk: (a, d, c)；返回 (a, t)，未除 √d。

    absorb=False 先把每个 token 展开成 a 个头的 K；absorb=True 先算 qᵀW_UK，直接与缓存的 latent 点乘，K 从不出现。

    >>> rng = np.random.default_rng(0)
    >>> q, latent, w_uk = rng.standard_normal((8, 16)), rng.standard_normal((100, 32)), rng.standard_normal((8, 16, 32))
    >>> bool(np.allclose(mla_scores(q, latent, w_uk, True), mla_scores(q, latent, w_uk, False)))
    True
    >>> keys = np.einsum("adc,tc->tad", w_uk, latent).reshape(100, 128)          # 8 个头的 K 拼起来 128 维
    >>> int(np.linalg.matrix_rank(keys))                                        # 秩只有 latent 的 32
    32
    """
    if q.ndim != 2 or w_uk.shape != (*q.shape, latent.shape[-1]):
        raise ValueError(f"形状不合：q {q.shape}、latent {latent.shape}、w_uk {w_uk.shape}")
    if absorb:
        return np.einsum("ad,adc->ac", q, w_uk) @ latent.T
    keys = np.einsum("adc,tc->atd", w_uk, latent)
    return np.einsum("ad,atd->at", q, keys)


# --8<-- [end:mla]


# --8<-- [start:linformer]
def low_rank_weights_keep_scores_square(s: int = 64, h: int = 32, k: int = 8) -> dict[str, tuple[int, ...]]:
    """反例：“分解 QKV 投影矩阵降低注意力复杂度，如 Linformer”。返回打分矩阵的形状。

    W_Q 分解成秩 4，打分仍是 s×s；Linformer 用 E: (k, s) 沿序列把 K 压成 k 行，打分才是 s×k。

    >>> low_rank_weights_keep_scores_square()
    {'W_Q 秩 4': (64, 64), 'Linformer k = 8': (64, 8)}
    """
    rng = np.random.default_rng(0)
    x, w_k, e = rng.standard_normal((s, h)), rng.standard_normal((h, h)), rng.standard_normal((k, s))
    w_q = rng.standard_normal((h, 4)) @ rng.standard_normal((4, h))
    return {"W_Q 秩 4": (x @ w_q @ (x @ w_k).T).shape, f"Linformer k = {k}": (x @ w_q @ (e @ x @ w_k).T).shape}


def softmax_restores_rank(s: int = 64, head_dim: int = 8) -> tuple[int, int]:
    """(打分矩阵的秩, softmax 之后的秩)：打分的秩本来就不超过 head_dim，逐行 softmax 之后变成满秩。

    >>> softmax_restores_rank()
    (8, 64)
    """
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((s, head_dim)) @ rng.standard_normal((head_dim, s))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return int(np.linalg.matrix_rank(scores)), int(np.linalg.matrix_rank(weights))


# --8<-- [end:linformer]


def figure_rank_error() -> str:
    """相对误差随保留参数比例的变化，三种谱。"""
    n = 512
    series = {
        name: [(200 * r / n, relative_error(sigma, r)) for r in (4, 8, 16, 32, 64, 96, 128, 192, 256)] for name, sigma in spectra(n).items()
    }
    return lines(
        series,
        title="最优低秩近似的相对误差（512×512）",
        x_label="保留的参数，%",
        y_label="相对 Frobenius 误差",
        x_range=(0, 100),
        y_range=(0, 1),
        points={"int4（高斯）": (25.8, quarter_size(n)[1])},
        markers=True,
    )
