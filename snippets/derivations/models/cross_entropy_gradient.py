"""softmax 交叉熵的梯度：雅可比、软目标、温度、z-loss、按 token 平均、二阶导、穿过输出层、半精度（只用标准库）。"""

import math
from collections.abc import Callable, Sequence

from snippets.deep_learning.regularization.label_smoothing import smooth
from snippets.math.probability.cross_entropy import logsumexp, to_bf16, to_fp16, vocabulary_parallel_loss

Row = Sequence[float]
Matrix = list[list[float]]


def softmax(z: Row) -> list[float]:
    """softmax(z)，−inf 的类概率为 0；空、NaN、+inf、全 −inf 抛 ValueError。"""
    total = logsumexp(z)
    if total == -math.inf:
        raise ValueError("logits 不能全是 −inf")
    return [math.exp(v - total) for v in z]


# --8<-- [start:jacobian]
def softmax_jacobian(z: Row) -> Matrix:
    """J[j][k] = ∂q_j/∂z_k = q_j(1[j=k] − q_k)，(V, V)，对称；每行、每列的和都是 0。

    >>> for row in softmax_jacobian([2.0, 1.0, 0.0]):
    ...     print([round(v, 4) for v in row])
    [0.2227, -0.1628, -0.0599]
    [-0.1628, 0.1848, -0.022]
    [-0.0599, -0.022, 0.0819]
    """
    q = softmax(z)
    return [[a * ((j == k) - b) for k, b in enumerate(q)] for j, a in enumerate(q)]


def by_chain_rule(z: Row, y: int) -> list[float]:
    """照推导走一遍：∂ℓ/∂q 只有第 y 个是 −1/q_y，再乘雅可比。q_y 下溢成 0 时除不了，所以没人这样实现。

    >>> [round(g, 4) for g in by_chain_rule([2.0, 1.0, 0.0], 1)]
    [0.6652, -0.7553, 0.09]
    """
    if y not in range(len(z)):
        raise ValueError(f"类别须是 0 到 {len(z) - 1} 的整数，收到 {y}")
    q = softmax(z)
    if q[y] == 0:
        raise ValueError("q_y 下溢成 0，须用合并后的 q − p")
    return [-1 / q[y] * v for v in softmax_jacobian(z)[y]]


# --8<-- [end:jacobian]


# --8<-- [start:gradient]
def loss_and_gradient(z: Row, p: Row, temperature: float = 1.0, z_coefficient: float = 0.0) -> tuple[float, list[float]]:
    """ℓ = S·ln Z − Σ p_k z_k/T + c·ln²Z，ln Z = logsumexp(z/T)，S = Σp；梯度 (1/T)[(S + 2c ln Z) q − p]。

    z: (V,)，p: (V,) 任意有限的权重：one-hot、软标签（S = 1），乘了类别权重或优势值的（S 是那个数，可为负）。
    z_k 为 −inf（屏蔽的类）时 p_k 须为 0。损失单位 nat，梯度单位 nat/logit。

    >>> loss, grad = loss_and_gradient([2.0, 1.0, 0.0], [0.0, 1.0, 0.0])
    >>> round(loss, 4), [round(g, 4) for g in grad]                              # q − p
    (1.4076, [0.6652, -0.7553, 0.09])
    >>> [round(g, 4) for g in loss_and_gradient([2.0, 1.0, 0.0], smooth(1, 3, 0.1))[1]]     # 标签平滑 ε = 0.1
    [0.6319, -0.6886, 0.0567]
    >>> loss_and_gradient([1000.0, 0.0, -math.inf], [0.0, 1.0, 0.0])              # 错得离谱也不溢出
    (1000.0, [1.0, -1.0, 0.0])
    """
    if len(z) != len(p) or not all(map(math.isfinite, p)):
        raise ValueError(f"p 须有限且与 z 等长，收到长度 {len(z)} 与 {len(p)}")
    if not 0 < temperature < math.inf or not 0 <= z_coefficient < math.inf:
        raise ValueError(f"温度须为正且有限、z_coefficient 须非负且有限，收到 {temperature}、{z_coefficient}")
    if any(w != 0 and v == -math.inf for v, w in zip(z, p, strict=True)):
        raise ValueError("屏蔽成 −inf 的类，目标须为 0")
    scaled = [v / temperature for v in z]
    q, log_z, mass = softmax(scaled), logsumexp(scaled), math.fsum(p)
    picked = math.fsum(w * v for v, w in zip(scaled, p, strict=True) if w != 0)
    pull = mass + 2 * z_coefficient * log_z
    return mass * log_z - picked + z_coefficient * log_z**2, [(pull * a - w) / temperature for a, w in zip(q, p, strict=True)]


def finite_difference(f: Callable[[list[float]], float], x: Row, step: float = 1e-5) -> list[float]:
    """中心差分 (f(x + h·e_k) − f(x − h·e_k))/2h，逐个分量；截断误差 O(h²)，舍入误差约 1e-16·|f|/h。

    >>> z, p = [2.0, 1.0, 0.0], [0.0, 1.0, 0.0]
    >>> exact = loss_and_gradient(z, p)[1]
    >>> for h in (1.0, 0.1, 0.01):                                               # h 缩到 1/10，误差缩到约 1/100
    ...     numeric = finite_difference(lambda v: loss_and_gradient(v, p)[0], z, h)
    ...     print(h, f"{max(abs(a - b) for a, b in zip(numeric, exact, strict=True)):.1e}")
    1.0 1.5e-02
    0.1 1.6e-04
    0.01 1.6e-06
    """
    if not 0 < step < math.inf:
        raise ValueError(f"step 须为正且有限，收到 {step}")
    out = []
    for k in range(len(x)):
        up, down = list(x), list(x)
        up[k] += step
        down[k] -= step
        out.append((f(up) - f(down)) / (2 * step))
    return out


# --8<-- [end:gradient]


# --8<-- [start:temperature]
def distillation_gradient(student: Row, teacher: Row, temperature: float) -> list[float]:
    """T²·∂/∂z 的蒸馏损失：目标是 softmax(v/T)。T 大时趋于（各自中心化的 z − v）/V，与 T 无关（Hinton 2015，§2.1，式 2 至 4）。

    >>> for t in (1.0, 10.0, 100.0):
    ...     print(t, [round(g, 4) for g in distillation_gradient([3.0, 0.0, -3.0], [1.0, 2.0, -3.0], t)])
    1.0 [0.6827, -0.6802, -0.0025]
    10.0 [0.7646, -0.7464, -0.0182]
    100.0 [0.6777, -0.6755, -0.0022]
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"温度须为正且有限，收到 {temperature}")
    target = softmax([v / temperature for v in teacher])
    return [temperature**2 * g for g in loss_and_gradient(student, target, temperature)[1]]


def inverse_temperature_gradient(z: Row, p: Row, scale: float) -> float:
    """τ = 1/T 可学时（CLIP 的 logit 尺度），∂ℓ/∂τ = Σ(q_k − p_k) z_k = E_q z − E_p z；Σp = 1，z 须有限。

    >>> round(inverse_temperature_gradient([2.0, 1.0, 0.0], [1.0, 0.0, 0.0], 1.0), 4)      # 判对了：还想把尺度调大
    -0.4248
    """
    if not all(map(math.isfinite, (*z, scale))):
        raise ValueError("z 与 scale 须有限")
    gradient = loss_and_gradient([scale * v for v in z], p)[1]
    return math.fsum(g * v for g, v in zip(gradient, z, strict=True))


# --8<-- [end:temperature]


# --8<-- [start:mean]
def mean_loss(logits: Sequence[Row], labels: Sequence[int], ignore_index: int = -100, epsilon: float = 0.0) -> tuple[float, Matrix]:
    """有效 token 的平均损失与对 logits 的梯度：有效行 (q − p)/M，忽略的行恰为 0，M 是有效 token 数。logits: (N, V)。

    >>> loss, grad = mean_loss([[2.0, 1.0, 0.0]] * 3, [1, -100, 0])
    >>> round(loss, 4), [[round(g, 4) for g in row] for row in grad]             # 分母是 2，不是 3
    (0.9076, [[0.3326, -0.3776, 0.045], [0.0, 0.0, 0.0], [-0.1674, 0.1224, 0.045]])
    """
    if not logits or len(logits) != len(labels):
        raise ValueError(f"logits 与 labels 须等长且非空，收到 {len(logits)} 与 {len(labels)}")
    count = sum(y != ignore_index for y in labels)
    if not count:
        raise ValueError("没有有效 token：平均是 0/0，须跳过或按全局 token 数归一")
    losses, rows = [], []
    for z, y in zip(logits, labels, strict=True):
        if y == ignore_index:
            rows.append([0.0] * len(z))
            continue
        if isinstance(y, bool) or y not in range(len(z)):
            raise ValueError(f"标签须是 0 到 {len(z) - 1} 的整数，收到 {y}")
        loss, gradient = loss_and_gradient(z, smooth(y, len(z), epsilon))
        losses.append(loss)
        rows.append([g / count for g in gradient])
    return math.fsum(losses) / count, rows


# --8<-- [end:mean]


# --8<-- [start:hessian]
def hessian(z: Row, z_coefficient: float = 0.0) -> Matrix:
    """∂²ℓ/∂z²，(V, V)，目标 Σp = 1：(1 + 2c ln Z)(diag(q) − qqᵀ) + 2c·qqᵀ。与标签无关。

    >>> hessian([2.0, 1.0, 0.0]) == softmax_jacobian([2.0, 1.0, 0.0])
    True
    >>> round(curvature(hessian([2.0, 1.0, 0.0]), [1.0, 0.0, -1.0]), 4)          # 等于 Var_q(v)
    0.4244
    >>> round(curvature(hessian([5.0, 5.0]), [0.5**0.5, -(0.5**0.5)]), 6)        # 单位方向上最大就是 1/2
    0.5
    """
    if not 0 <= z_coefficient < math.inf:
        raise ValueError(f"z_coefficient 须非负且有限，收到 {z_coefficient}")
    push = 2 * z_coefficient
    scale, q = 1 + push * logsumexp(z), softmax(z)
    return [[scale * v + push * q[j] * q[k] for k, v in enumerate(row)] for j, row in enumerate(softmax_jacobian(z))]


def curvature(matrix: Sequence[Row], v: Row) -> float:
    """二次型 vᵀHv；H = diag(q) − qqᵀ 时等于 Var_q(v)，所以不小于 0。"""
    return math.fsum(a * m * b for a, row in zip(v, matrix, strict=True) for m, b in zip(row, v, strict=True))


def fisher(z: Row) -> Matrix:
    """E_{y∼q}[(q − e_y)(q − e_y)ᵀ]：梯度的二阶矩，标签从模型自己采。等于 hessian(z)。

    >>> [round(v, 4) for v in fisher([2.0, 1.0, 0.0])[0]]
    [0.2227, -0.1628, -0.0599]
    """
    q = softmax(z)
    total = [[0.0] * len(q) for _ in q]
    for y, weight in enumerate(q):
        g = [a - (k == y) for k, a in enumerate(q)]
        total = [[t + weight * a * b for t, b in zip(row, g, strict=True)] for row, a in zip(total, g, strict=True)]
    return total


# --8<-- [end:hessian]


# --8<-- [start:linear]
def matmul(a: Sequence[Row], b: Sequence[Row]) -> Matrix:
    """(m, k)·(k, n) → (m, n)。"""
    return [[math.fsum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def linear_cross_entropy(x: Sequence[Row], w: Sequence[Row], labels: Sequence[int], chunk: int) -> tuple[float, Matrix, Matrix]:
    """Z = XWᵀ 上的平均损失，返回 (损失, dX, dW)；每次只有 chunk 行 logits。x: (N, h)，w: (V, h)，V ≥ 2。

    G = (Q − P)/N，dX = GW，dW = GᵀX；损失对 token 可加，所以 dX 逐块写出、dW 逐块累加。

    >>> x, w = [[1.0, 0.0], [0.5, -1.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]
    >>> loss, dx, dw = linear_cross_entropy(x, w, [0, 2, 1], chunk=2)
    >>> round(loss, 4), [[round(v, 4) for v in row] for row in dw]
    (0.4498, [[-0.0366, -0.0717], [0.0983, -0.1222], [-0.0617, 0.194]])
    """
    n = len(x)
    if not n or len(labels) != n or chunk < 1 or not w or any(len(row) != len(w[0]) for row in (*x, *w)):
        raise ValueError("须有 x (N, h)、w (V, h)、labels (N,)，N、V、chunk 至少 1")
    total, dx, dw = 0.0, [], [[0.0] * len(w[0]) for _ in w]
    for i in range(0, n, chunk):
        part = x[i : i + chunk]
        loss, gradient = mean_loss(matmul(part, list(zip(*w, strict=True))), labels[i : i + chunk], ignore_index=-1)
        share = len(part) / n  # 块内平均改成全体平均
        g = [[v * share for v in row] for row in gradient]
        total += loss * share
        dx += matmul(g, w)
        dw = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(dw, matmul(list(zip(*g, strict=True)), part), strict=True)]
    return total, dx, dw


def vocabulary_parallel_dx(x: Row, shards: Sequence[Sequence[Row]], y: int) -> tuple[float, Matrix, list[float]]:
    """一个 token，W 按词表切成 shards（各 (V/t, h)）：返回 (损失, 各卡的 G_r W_r, 它们的和 dX)。dW_r = G_rᵀx 不用通信。

    >>> w = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [2.0, 0.0]]
    >>> loss, partial, dx = vocabulary_parallel_dx([0.5, -1.0], [w[:2], w[2:]], y=2)
    >>> [[round(v, 4) for v in row] for row in partial], [round(v, 4) for v in dx]        # 每卡只是部分和，要 all-reduce
    ([[0.2583, 0.0576], [1.5934, 0.7417]], [1.8516, 0.7994])
    """
    logits = [[math.fsum(a * b for a, b in zip(row, x, strict=True)) for row in shard] for shard in shards]
    loss, gradient = vocabulary_parallel_loss(logits, y)
    partial = [matmul([g], shard)[0] for g, shard in zip(gradient, shards, strict=True)]
    return loss, partial, [math.fsum(column) for column in zip(*partial, strict=True)]


def output_layer(tokens: int, h: int, vocabulary: int) -> dict[str, float]:
    """输出层连损失：前向、反向的 TFLOP（乘加记 2），一份 fp32 的 G 多少 GB，词表并行时 all-reduce 的 bf16 dX 多少 MB。

    >>> output_layer(8192, 4096, 128_256)                                        # Llama-3-8B，一条 8192
    {'前向 TFLOP': 8.61, '反向 TFLOP': 17.21, 'G 的 GB': 4.2, 'dX 的 MB': 67.1}
    """
    if min(tokens, h, vocabulary) < 1:
        raise ValueError(f"tokens、h、vocabulary 须为正，收到 {tokens}、{h}、{vocabulary}")
    forward = 2 * tokens * h * vocabulary / 1e12
    return {
        "前向 TFLOP": round(forward, 2),
        "反向 TFLOP": round(2 * forward, 2),
        "G 的 GB": round(4 * tokens * vocabulary / 1e9, 2),
        "dX 的 MB": round(2 * tokens * h / 1e6, 1),
    }


# --8<-- [end:linear]


# --8<-- [start:half]
def stored_in_fp16(tokens: int, vocabulary: int, loss_scale: float = 1.0) -> tuple[float, float]:
    """第 0 步（q 均匀）、按 tokens 平均：把（错误类, 正确类）的梯度乘 loss_scale 存成 fp16 再除回来，与真值的比。

    >>> [round(r, 4) for r in stored_in_fp16(8192, 128_256)]                     # 真值 9.5e-10：错误类全舍成 0
    [0.0, 1.0]
    >>> [round(r, 4) for r in stored_in_fp16(8192, 128_256, 65536.0)]            # 损失放大 2^16
    [0.9995, 1.0]
    """
    if tokens < 1 or vocabulary < 2 or not 0 < loss_scale < math.inf:
        raise ValueError(f"须 tokens ≥ 1、vocabulary ≥ 2、loss_scale 为正且有限，收到 {tokens}、{vocabulary}、{loss_scale}")
    true = 1 / vocabulary / tokens, (1 / vocabulary - 1) / tokens
    wrong, right = (to_fp16(g * loss_scale) / loss_scale / g for g in true)
    return wrong, right


def rounded_before_subtracting(q: float) -> tuple[float, float]:
    """正确类的 q − 1：（q 先存成 bf16 再减, 减完再存 bf16）。1 以下 bf16 的间隔是 2^−8，q 超过 1 − 2^−9 就舍成 1。

    >>> [tuple(round(g, 4) for g in rounded_before_subtracting(q)) for q in (0.99, 0.999)]
    [(-0.0117, -0.01), (0.0, -0.001)]
    """
    if not 0 <= q <= 1:
        raise ValueError(f"q 须在 [0, 1] 内，收到 {q}")
    return to_bf16(q) - 1, to_bf16(q - 1)


# --8<-- [end:half]


# --8<-- [start:wrong]
def diagonal_only(z: Row, y: int) -> list[float]:
    """反例：“softmax 的导数是 q(1 − q)”。只留对角，正确类碰巧对，其余的类一点梯度都没有。

    >>> [round(g, 4) + 0.0 for g in diagonal_only([2.0, 1.0, 0.0], 1)]            # 应是 [0.6652, -0.7553, 0.09]
    [0.0, -0.7553, 0.0]
    """
    q = softmax(z)
    return [-(k == y) / q[y] * q[k] * (1 - q[k]) for k in range(len(q))]


def temperature_is_not_a_factor() -> tuple[float, float, float]:
    """反例：“温度只是把梯度除以 T”。logits (4, 0, 0)，第 0 类正确：（T = 1 的梯度, 它的 1/4, T = 4 真正的梯度）。

    >>> [round(g, 3) for g in temperature_is_not_a_factor()]                     # q 变软，残差从 0.035 变成 0.424
    [-0.035, -0.009, -0.106]
    """
    one, four = (loss_and_gradient([4.0, 0.0, 0.0], [1.0, 0.0, 0.0], t)[1][0] for t in (1.0, 4.0))
    return one, one / 4, four


def mask_then_mean(losses: Row, mask: Row) -> tuple[float, float]:
    """反例：“损失乘 mask 再 .mean() 就行”。（那样得到的, 除以有效 token 数的）；梯度同样只有 M/N 倍。

    >>> mask_then_mean([2.0] * 8, [1, 1, 0, 0, 0, 0, 0, 0])                      # 一条短样本 padding 到 8
    (0.5, 2.0)
    """
    if len(losses) != len(mask) or not any(mask) or any(m not in (0, 1) for m in mask):
        raise ValueError("mask 须与 losses 等长，只含 0 与 1，且至少一个 1")
    total = math.fsum(loss for loss, m in zip(losses, mask, strict=True) if m)
    return total / len(losses), total / math.fsum(mask)


# --8<-- [end:wrong]
