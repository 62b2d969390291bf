"""余弦相似度：稳定的写法与 eps 的位置、半精度陷阱、与点积和欧氏距离的关系、各向异性、对比学习的温度、top-k 检索（NumPy）。"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snippets.common.chart import lines

Array = NDArray[np.floating]


# --8<-- [start:define]
def cosine_similarity(a: Sequence[float], b: Sequence[float]) -> float:
    """cos = a·b / (‖a‖‖b‖)，在 [−1, 1] 内。先各除以自己的最大绝对值：余弦不变，平方不会上溢或下溢。

    零向量没有方向，余弦无定义，抛 ValueError，不悄悄返回 0。

    >>> round(cosine_similarity([1, 2, 3], [2, 4, 6.5]), 6), cosine_similarity([1, 0], [0, 3])
    (0.999283, 0.0)
    >>> cosine_similarity([1e200, 1e200], [1e-200, 0])                   # 直接平方会得到 inf 与 0
    0.7071067811865475
    >>> cosine_similarity([0, 0], [1, 1])
    Traceback (most recent call last):
    ...
    ValueError: 零向量没有方向，余弦无定义
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"两个向量须等长且非空，收到 {len(a)} 与 {len(b)}")
    tops = [max(map(abs, v)) for v in (a, b)]
    if not all(map(math.isfinite, [*a, *b])):
        raise ValueError("向量含 NaN 或 inf")
    if 0 in tops:
        raise ValueError("零向量没有方向，余弦无定义")
    x, y = ([component / top for component in v] for v, top in zip((a, b), tops, strict=True))
    value = math.fsum(p * q for p, q in zip(x, y, strict=True)) / math.sqrt(math.fsum(p * p for p in x) * math.fsum(q * q for q in y))
    return max(-1.0, min(1.0, value))  # 舍入会得到 1.0000000000000002，喂给 acos 就是 NaN


def cosine_matrix(queries: Array, documents: Array, eps: float = 1e-12) -> Array:
    """批量：(q, d) 与 (n, d) → (q, n)。各自归一化后一次矩阵乘；范数夹到至少 eps，零向量得 0。在 fp32 或更高精度里算。

    >>> cosine_matrix(np.array([[3.0, 4.0]]), np.array([[6.0, 8.0], [-3.0, -4.0], [0.0, 0.0]])).round(6).tolist()
    [[1.0, -1.0, 0.0]]
    >>> cosine_matrix(np.full((1, 4), 300, np.float16), np.full((1, 4), 1e-4, np.float16)).round(6).tolist()
    [[1.0]]
    """
    if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1]:
        raise ValueError(f"形状须为 (q, d) 与 (n, d)，收到 {queries.shape} 与 {documents.shape}")
    if not np.isfinite(queries).all() or not np.isfinite(documents).all():
        raise ValueError("向量含 NaN 或 inf：一个坏文档会让 argmax 落在它身上")
    unit = []
    for x in (queries, documents):
        x = x.astype(np.promote_types(x.dtype, np.float32))
        top = np.abs(x).max(axis=1, keepdims=True)
        x = x / np.where(top > 0, top, 1)  # 同上：先缩放再平方
        unit.append(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), eps))
    return np.clip(unit[0] @ unit[1].T, -1, 1)


# --8<-- [end:define]


# --8<-- [start:eps]
def eps_placements(norm: float, eps: float = 1e-8) -> list[float]:
    """两个平行、范数都是 norm 的向量，真值是 1；四种放 eps 的办法给出什么。

    依次：a·b/(‖a‖‖b‖ + eps)；a·b/max(‖a‖‖b‖, eps)；a·b/(max(‖a‖, eps)·max(‖b‖, eps))；先按最大绝对值缩放。

    >>> for norm in (1.0, 1e-4, 1e-5, 1e-9):
    ...     print(f"{norm:.0e}", *(f"{x:.2g}" for x in eps_placements(norm)))
    1e+00 1 1 1 1
    1e-04 0.5 1 1 1
    1e-05 0.0099 0.01 1 1
    1e-09 1e-10 1e-10 0.01 1
    """
    if norm <= 0 or eps <= 0:
        raise ValueError(f"norm、eps 必须为正，收到 {norm, eps}")
    dot = norm * norm
    return [dot / (dot + eps), dot / max(dot, eps), dot / max(norm, eps) ** 2, cosine_similarity([norm], [norm])]


def half_precision_norms() -> dict[str, tuple[float, float]]:
    """在 fp16 里直接平方再求和：(算出的范数, 真正的范数)，以及 eps = 1e-8 转成 fp16 的值。

    >>> for name, values in half_precision_norms().items():
    ...     print(name, *values)
    [300] × 4 inf 600.0
    [1e-4] × 4 0.0 0.0002
    eps = 1e-8 0.0 1e-08
    """
    result = {}
    with np.errstate(over="ignore"):
        for name, value in (("[300] × 4", 300.0), ("[1e-4] × 4", 1e-4)):
            x = np.full(4, value, np.float16)
            result[name] = (float(np.sqrt(np.sum(x * x))), 2 * value)
    result["eps = 1e-8"] = (float(np.float16(1e-8)), 1e-8)
    return result


# --8<-- [end:eps]


# --8<-- [start:gradient]
def cosine_gradient(a: Array, b: Array) -> Array:
    """∂cos/∂a = (b̂ − cos·â)/‖a‖。与 a 垂直；范数越小梯度越大。

    >>> a, b = np.array([3.0, 4.0]), np.array([1.0, 0.0])
    >>> cosine_gradient(a, b).round(4).tolist(), abs(round(float(cosine_gradient(a, b) @ a), 12))
    ([0.128, -0.096], 0.0)
    >>> float(np.linalg.norm(cosine_gradient(a / 100, b)) / np.linalg.norm(cosine_gradient(a, b))).__round__(6)
    100.0
    """
    norm_a, norm_b = np.linalg.norm(a), np.linalg.norm(b)
    if not (0 < norm_a < math.inf and 0 < norm_b < math.inf):
        raise ValueError("零向量处余弦不可微，向量也须有限")
    return (b / norm_b - (a @ b) / (norm_a * norm_b) * a / norm_a) / norm_a


# --8<-- [end:gradient]


# --8<-- [start:metrics]
def three_winners() -> dict[str, str]:
    """没归一化时，点积、余弦、欧氏距离可以各选各的第一名；查询是 (1, 0)。

    >>> three_winners()
    {'点积': 'A', '余弦': 'B', '欧氏': 'C'}
    """
    query = np.array([1.0, 0.0])
    documents = {"A": np.array([10.0, 10.0]), "B": np.array([0.5, 0.0]), "C": np.array([1.0, 0.3])}
    return {
        "点积": max(documents, key=lambda name: query @ documents[name]),
        "余弦": max(documents, key=lambda name: cosine_similarity(query.tolist(), documents[name].tolist())),
        "欧氏": min(documents, key=lambda name: np.linalg.norm(query - documents[name])),
    }


def inner_product_as_cosine(documents: Array) -> Array:
    """给每个文档添一维 √(M² − ‖d‖²)，M 为最大范数；查询添 0。此后余弦的次序就是点积的次序。

    >>> d = inner_product_as_cosine(np.array([[10.0, 10.0], [0.5, 0.0]]))
    >>> bool(np.allclose(np.linalg.norm(d, axis=1), 200**0.5)), int(np.argmax(cosine_matrix(np.array([[1.0, 0.0, 0.0]]), d)))
    (True, 0)
    """
    squared = np.sum(documents**2, axis=1)
    return np.column_stack([documents, np.sqrt(squared.max() - squared)])


def scaled_dot_is_not_cosine(scale: float = 4.0) -> dict[str, tuple[float, float]]:
    """反例：“注意力打分就是余弦相似度”。把 q 放大 scale 倍，最大注意力权重的变化：(原来, 放大后)。

    >>> {name: tuple(round(x, 3) for x in pair) for name, pair in scaled_dot_is_not_cosine().items()}
    {'qk/√d': (0.177, 0.53), '余弦 × 10': (0.22, 0.22)}
    """
    rng = np.random.default_rng(0)
    q, keys = rng.standard_normal((1, 64)), rng.standard_normal((16, 64))

    def largest_weight(scores: Array) -> float:
        weights = np.exp(scores - scores.max())
        return float(weights.max() / weights.sum())

    return {
        "qk/√d": tuple(largest_weight(f * q @ keys.T / math.sqrt(64)) for f in (1.0, scale)),
        "余弦 × 10": tuple(largest_weight(10 * cosine_matrix(f * q, keys)) for f in (1.0, scale)),
    }


# --8<-- [end:metrics]


# --8<-- [start:anisotropy]
def mean_cosine(x: Array) -> float:
    """所有不同行之间的平均余弦，O(nd)：(‖Σ x̂‖² − n)/(n(n − 1))。

    >>> mean_cosine(np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])).__round__(4)
    -0.3333
    """
    if len(x) < 2 or not np.linalg.norm(x, axis=1).all() or not np.isfinite(x).all():
        raise ValueError("至少两行，有限，且没有零向量")
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    total = unit.sum(axis=0)
    return float((total @ total - len(x)) / (len(x) * (len(x) - 1)))


def standardize(x: Array, reference: Array) -> Array:
    """逐维减均值、除标准差；统计量取自参考语料，查询与文档要用同一套。"""
    return (x - reference.mean(axis=0)) / np.maximum(reference.std(axis=0), 1e-12)


def rogue_dimension(offset: float, spread: float, d: int = 768, n: int = 500) -> list[tuple[str, float, float]]:
    """一个“流氓维度”（均值 offset、标准差 spread，与内容无关）的影响：(处理, 随机两文档的平均余弦, top-1 命中率)。

    文档各维独立标准高斯；查询是对应文档加同样大小的噪声，d 维。

    >>> for offset, spread in ((0, 1), (83, 1), (83, 20), (0, 80)):
    ...     for name, mean, accuracy in rogue_dimension(offset, spread):
    ...         print(f"{offset:2} ± {spread:2} {mean:7.3f} {accuracy:6.1%} {name}")
     0 ±  1   0.000 100.0% 原始
     0 ±  1  -0.002 100.0% 减均值
     0 ±  1  -0.002 100.0% 标准化
    83 ±  1   0.900 100.0% 原始
    83 ±  1  -0.002 100.0% 减均值
    83 ±  1  -0.002 100.0% 标准化
    83 ± 20   0.888  98.6% 原始
    83 ± 20  -0.002  77.8% 减均值
    83 ± 20  -0.002 100.0% 标准化
     0 ± 80   0.004  44.0% 原始
     0 ± 80  -0.002  44.6% 减均值
     0 ± 80  -0.002 100.0% 标准化
    """
    rng = np.random.default_rng(0)
    documents = rng.standard_normal((n, d))
    queries = documents + rng.standard_normal((n, d))
    for x in (documents, queries):
        x[:, 0] = offset + spread * rng.standard_normal(n)
    rows = []
    mean = documents.mean(axis=0)
    for name, process in (("原始", lambda x: x), ("减均值", lambda x: x - mean), ("标准化", lambda x: standardize(x, documents))):
        scores = cosine_matrix(process(queries), process(documents))
        rows.append((name, mean_cosine(process(documents)), float(np.mean(scores.argmax(axis=1) == np.arange(n)))))
    return rows


# --8<-- [end:anisotropy]


# --8<-- [start:temperature]
def negative_weights(similarities: Sequence[float], temperature: float) -> list[float]:
    """InfoNCE 推开各负样本的力度之比：exp(s/τ) 归一化（∂L/∂s_j = p_j/τ）。

    >>> negatives = [0.7, 0.5] + [0.0] * 998                            # 一个难负样本、一个中等、其余随机
    >>> for tau in (1.0, 0.2, 0.07, 0.01):
    ...     w = negative_weights(negatives, tau)
    ...     print(f"τ = {tau:<4} 最难 {w[0]:6.1%}  第二 {w[1]:6.1%}  其余合计 {sum(w[2:]):6.1%}")
    τ = 1.0  最难   0.2%  第二   0.2%  其余合计  99.6%
    τ = 0.2  最难   3.2%  第二   1.2%  其余合计  95.7%
    τ = 0.07 最难  90.7%  第二   5.2%  其余合计   4.1%
    τ = 0.01 最难 100.0%  第二   0.0%  其余合计   0.0%
    """
    if not temperature > 0 or not similarities or not all(map(math.isfinite, similarities)):
        raise ValueError(f"须有 temperature > 0 且至少一个负样本、相似度有限，收到 {temperature}")
    top = max(similarities)
    weights = [math.exp((s - top) / temperature) for s in similarities]
    return [w / math.fsum(weights) for w in weights]


def infonce_floor(n: int, temperature: float) -> float:
    """batch 为 n、相似度是余弦时，InfoNCE 平均损失的下界 ln(1 + (n − 1)·exp(−n/((n − 1)τ)))。

    正样本余弦最多 1，负样本的平均余弦低不过 −1/(n − 1)（正单纯形）；维数 ≥ n − 1 才取得到。

    >>> for tau in (1.0, 0.2, 0.07, 0.01):
    ...     print(f"τ = {tau:<4} 初始约 {math.log(32768):.2f}，下界 {infonce_floor(32768, tau):.4f}")
    τ = 1.0  初始约 10.40，下界 9.3972
    τ = 0.2  初始约 10.40，下界 5.4015
    τ = 0.07 初始约 10.40，下界 0.0203
    τ = 0.01 初始约 10.40，下界 0.0000
    """
    if n < 2 or not temperature > 0:
        raise ValueError(f"须有 n ≥ 2、temperature > 0，收到 {n, temperature}")
    return math.log1p((n - 1) * math.exp(-n / ((n - 1) * temperature)))


# --8<-- [end:temperature]


# --8<-- [start:search]
def top_k(queries: Array, documents: Array, k: int, chunk: int = 65_536) -> tuple[NDArray[np.intp], Array]:
    """精确 top-k：分块算余弦，只留目前最好的 k 个。返回 (下标 (q, k), 余弦 (q, k))，从大到小；并列取下标小的。

    >>> ids, scores = top_k(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [2.0, 0.0], [5.0, 0.0], [1.0, 1.0]]), k=3, chunk=2)
    >>> ids.tolist(), scores.round(4).tolist()
    ([[1, 2, 3]], [[1.0, 1.0, 0.7071]])
    """
    if not 1 <= k <= len(documents) or chunk < 1:
        raise ValueError(f"须有 1 ≤ k ≤ {len(documents)}、chunk ≥ 1，收到 {k, chunk}")
    best_ids = np.empty((len(queries), 0), dtype=np.intp)
    best = np.empty((len(queries), 0))
    for start in range(0, len(documents), chunk):
        scores = cosine_matrix(queries, documents[start : start + chunk])
        ids = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        best_ids, best = np.concatenate([best_ids, ids], axis=1), np.concatenate([best, scores], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]  # 旧的在前，稳定排序使并列时下标小的胜出
        best_ids, best = np.take_along_axis(best_ids, order, axis=1), np.take_along_axis(best, order, axis=1)
    return best_ids, best


def scan_milliseconds(n: int, d: int, queries: int, element_bytes: int = 2, tb_s: float = 3.35, tflops: float = 989) -> tuple[float, str]:
    """在一张 H100 SXM 上精确扫一遍的下限（roofline）：(毫秒, 受限于什么)。不含选 top-k。

    >>> [scan_milliseconds(10_000_000, 1024, q) for q in (1, 32, 1024)]     # 1000 万条、1024 维、16 位：20.48 GB
    [(6.1, '带宽'), (6.1, '带宽'), (21.2, '算力')]
    """
    if min(n, d, queries) < 1:
        raise ValueError("n、d、queries 必须 ≥ 1")
    memory, compute = n * d * element_bytes / (tb_s * 1e12), 2 * n * d * queries / (tflops * 1e12)
    return round(max(memory, compute) * 1e3, 1), "带宽" if memory >= compute else "算力"


def storage_error(d: int = 1024, n: int = 200) -> dict[str, float]:
    """单位向量存成低精度后，余弦误差的标准差；最后一项是随机两向量余弦本身的标准差。int8 按向量 absmax 缩放。

    >>> for name, value in storage_error().items():
    ...     print(f"{value:.0e} {name}")
    9e-06 fp16
    3e-04 int8
    3e-02 随机余弦
    """
    rng = np.random.default_rng(0)
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (rng.standard_normal((n, d)), rng.standard_normal((n, d))))
    exact = x @ y.T

    def int8(v: Array) -> Array:
        scale = np.abs(v).max(axis=1, keepdims=True) / 127
        return np.round(v / scale) * scale

    stored = {"fp16": [v.astype(np.float16).astype(float) for v in (x, y)], "int8": [int8(v) for v in (x, y)]}
    return {name: float(np.std(a @ b.T - exact)) for name, (a, b) in stored.items()} | {"随机余弦": float(np.std(exact))}


# --8<-- [end:search]


def figure_temperature() -> str:
    """最难负样本拿到的推力份额随温度变化：负样本是一个 0.7、一个 0.5、998 个 0。"""
    negatives = [0.7, 0.5] + [0.0] * 998
    grid = [10 ** (i / 20 - 2) for i in range(41)]
    weights = {tau: negative_weights(negatives, tau) for tau in grid}
    series = {
        "最难（余弦 0.7）": [(tau, w[0]) for tau, w in weights.items()],
        "第二（0.5）": [(tau, w[1]) for tau, w in weights.items()],
        "其余 998 个（0）": [(tau, math.fsum(w[2:])) for tau, w in weights.items()],
    }
    return lines(series, title="推力分给谁", x_label="温度 τ", y_label="占比", x_log=10, y_range=(0, 1), x_refs={"0.07": 0.07})
