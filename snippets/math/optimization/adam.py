"""Adam 与 AdamW：逐元素实现、偏差修正、ε 的位置、解耦的权重衰减、不收敛的反例（只用标准库）。"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


# --8<-- [start:adam]
@dataclass
class Adam:
    """Adam（Kingma & Ba 2014，算法 1）与 AdamW（Loshchilov & Hutter 2017，算法 2），逐元素，单个参数向量。

    decoupled=True 是 AdamW：权重直接乘 (1 − lr·wd)，不进梯度；False 是把 wd·θ 加进梯度的 L2 正则。
    ε 加在**修正后**的 √v̂ 外面，与论文和 torch.optim 相同。

    >>> adam = Adam(lr=1e-3)
    >>> adam.step([1.0, 1.0], grads=[1e-3, -50.0])        # 第一步的大小≈lr，与梯度大小无关
    [0.9990000099999, 1.0009999999998]
    >>> adam.step([0.0], grads=[math.nan])
    Traceback (most recent call last):
    ...
    ValueError: 梯度里有 NaN 或 inf，先跳过这一步
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True
    steps: int = field(default=0, init=False)
    m: list[float] = field(default_factory=list, init=False)
    v: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not (self.lr > 0 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0 and self.weight_decay >= 0):
            raise ValueError("须有 lr > 0、0 ≤ beta1, beta2 < 1、eps > 0、weight_decay ≥ 0")

    def step(self, params: Sequence[float], grads: Sequence[float]) -> list[float]:
        """走一步，返回新参数。params、grads: (n,)。"""
        if not all(map(math.isfinite, grads)):
            raise ValueError("梯度里有 NaN 或 inf，先跳过这一步")
        if self.steps == 0:
            self.m, self.v = [0.0] * len(params), [0.0] * len(params)
        if not len(params) == len(grads) == len(self.m):
            raise ValueError(f"参数、梯度、状态的长度不同：{len(params)}、{len(grads)}、{len(self.m)}")
        self.steps += 1
        correction1, correction2 = 1 - self.beta1**self.steps, 1 - self.beta2**self.steps
        updated = []
        for i, (theta, g) in enumerate(zip(params, grads, strict=True)):
            if self.decoupled:
                theta *= 1 - self.lr * self.weight_decay
            else:
                g += self.weight_decay * theta
            self.m[i] = self.beta1 * self.m[i] + (1 - self.beta1) * g
            self.v[i] = self.beta2 * self.v[i] + (1 - self.beta2) * g * g
            m_hat, v_hat = self.m[i] / correction1, self.v[i] / correction2
            updated.append(theta - self.lr * m_hat / (math.sqrt(v_hat) + self.eps))
        return updated


# --8<-- [end:adam]


# --8<-- [start:bias]
def second_moment(grads: Sequence[float], beta2: float = 0.999) -> list[tuple[float, float]]:
    """每步之后 (未修正的 v, 修正后的 v̂)。梯度平方恒为 1 时，v̂ 应恒为 1。

    >>> history = second_moment([1.0] * 1000)
    >>> [round(history[t - 1][0], 4) for t in (1, 10, 100, 1000)]     # 1 − β₂ᵗ：第 1000 步才到 63%
    [0.001, 0.01, 0.0952, 0.6323]
    >>> max(abs(v_hat - 1) for _, v_hat in history) < 1e-12
    True
    """
    if not 0 <= beta2 < 1:
        raise ValueError(f"beta2 必须在 [0, 1) 内，收到 {beta2}")
    v, history = 0.0, []
    for t, g in enumerate(grads, 1):
        v = beta2 * v + (1 - beta2) * g * g
        history.append((v, v / (1 - beta2**t)))
    return history


def first_step_without_correction(beta1: float = 0.9, beta2: float = 0.999) -> float:
    """不做偏差修正时第一步的大小（单位 lr）：(1 − β₁)/√(1 − β₂)。

    >>> round(first_step_without_correction(), 3), round(first_step_without_correction(0.9, 0.95), 3)
    (3.162, 0.447)
    """
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(f"beta1、beta2 必须在 [0, 1) 内，收到 {beta1, beta2}")
    return (1 - beta1) / math.sqrt(1 - beta2)


def step_size_after_losing_t(t: int, beta1: float = 0.9, beta2: float = 0.999) -> float:
    """恢复时 m、v 还在而步数归零，其后第 t 步是正常步长的几倍：√(1 − β₂ᵗ) / (1 − β₁ᵗ)。

    >>> [round(step_size_after_losing_t(t), 2) for t in (1, 10, 100, 1000)]
    [0.32, 0.15, 0.31, 0.8]
    >>> [round(step_size_after_losing_t(t, beta2=0.95), 2) for t in (1, 3, 10, 50)]
    [2.24, 1.39, 0.97, 0.97]
    """
    if t < 1 or not (0 < beta1 < 1 and 0 < beta2 < 1):
        raise ValueError(f"须有 t ≥ 1、0 < beta1, beta2 < 1，收到 {t, beta1, beta2}")
    return math.sqrt(1 - beta2**t) / (1 - beta1**t)


def step_bound(beta1: float = 0.9, beta2: float = 0.999) -> tuple[float, float]:
    """|m/√v| 的（单次尖峰, 真正的上确界），单位 lr，t → ∞。要求 β₁² < β₂。

    长期为零后来一个梯度：(1 − β₁)/√(1 − β₂)。由 Cauchy–Schwarz，任意梯度序列的上确界再除以 √(1 − β₁²/β₂)，
    在梯度每步放大 β₂/β₁ 倍时取到。

    >>> [tuple(round(x, 3) for x in step_bound(0.9, beta2)) for beta2 in (0.999, 0.95)]
    [(3.162, 7.27), (0.447, 1.165)]
    """
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and beta1**2 < beta2):
        raise ValueError(f"须有 0 ≤ beta1, beta2 < 1 且 beta1² < beta2，收到 {beta1, beta2}")
    spike = (1 - beta1) / math.sqrt(1 - beta2)
    return spike, spike / math.sqrt(1 - beta1**2 / beta2)


# --8<-- [end:bias]


# --8<-- [start:epsilon]
def epsilon_outside_or_hat(g: float, eps: float = 1e-8, beta1: float = 0.9, beta2: float = 0.999) -> tuple[float, float]:
    """第一步的步长（单位 lr）：ε 加在 √v̂ 外（论文算法 1、torch）与加在未修正的 √v 外（ε̂ 写法）。

    >>> [round(x, 4) for x in epsilon_outside_or_hat(1.0)]            # 梯度远大于 ε：一样
    [1.0, 1.0]
    >>> [round(x, 4) for x in epsilon_outside_or_hat(1e-8)]           # 梯度与 ε 同量级：差 16 倍
    [0.5, 0.0307]
    """
    if not g > 0:
        raise ValueError(f"g 必须为正，收到 {g}")
    m, v = (1 - beta1) * g, (1 - beta2) * g * g
    c1, c2 = 1 - beta1, 1 - beta2
    return m / c1 / (math.sqrt(v / c2) + eps), math.sqrt(c2) / c1 * m / (math.sqrt(v) + eps)


# --8<-- [end:epsilon]


# --8<-- [start:decay]
def decay_of_two_parameters(decoupled: bool, steps: int = 5_000) -> tuple[float, float]:
    """反例：“Adam 里加 L2 就是权重衰减”。两个参数从 1 出发，梯度是 ±1 与 ±100 交替、均值为 0，lr = wd = 0.01。

    返回末值。解耦时两者同样衰减；L2 写法里衰减项也被 √v̂ 除，梯度大的参数几乎不衰减。

    >>> [round(x, 3) for x in decay_of_two_parameters(decoupled=True)]
    [0.617, 0.617]
    >>> [round(x, 3) for x in decay_of_two_parameters(decoupled=False)]
    [0.617, 1.013]
    """
    if steps < 1:
        raise ValueError(f"steps 必须 ≥ 1，收到 {steps}")
    adam = Adam(lr=0.01, weight_decay=0.01, decoupled=decoupled)
    params = [1.0, 1.0]
    for t in range(steps):
        sign = 1 if t % 2 else -1
        params = adam.step(params, [sign * 1.0, sign * 100.0])
    return params[0], params[1]


# --8<-- [end:decay]


# --8<-- [start:reddi]
def diverges_on_a_convex_problem(steps: int = 30_000, c: float = 4.0) -> float:
    """反例：“Adam 在凸问题上一定收敛到最优”。Reddi 2018 §3 的在线问题，x ∈ [−1, 1]，返回末值。

    每三步一次损失 c·x，其余两次 −x，平均斜率 (c − 2)/3 > 0，最优在 −1。β₁ = 0、β₂ = 1/(1+c²)、lr = α/√t：
    大梯度把 v 撑大、只走一小步，两个小梯度反而把它推到 +1。

    >>> diverges_on_a_convex_problem()
    1.0
    """
    if c <= 2 or steps < 3:
        raise ValueError(f"须有 c > 2、steps ≥ 3，收到 {c, steps}")
    beta2, x, v = 1 / (1 + c * c), 0.0, 0.0
    for t in range(1, steps + 1):
        g = c if t % 3 == 1 else -1.0
        v = beta2 * v + (1 - beta2) * g * g
        x = min(1.0, max(-1.0, x - 0.1 / math.sqrt(t) * g / math.sqrt(v)))
    return round(x, 3)


# --8<-- [end:reddi]


# --8<-- [start:memory]
def optimizer_bytes(psi: float) -> list[tuple[str, float, float]]:
    """优化器状态与训练总状态（GB = 10⁹ 字节）：每行 (清单, 每参数字节, GB)，不含激活。

    >>> for name, per_parameter, gb in optimizer_bytes(8.03e9):       # Llama-3-8B
    ...     print(f"{per_parameter:4.0f} B/参数 {gb:7.2f} GB  {name}")
       8 B/参数   64.24 GB  Adam 的 m、v（fp32）
      12 B/参数   96.36 GB  加 fp32 主权重
      16 B/参数  128.48 GB  再加 bf16 权重与 bf16 梯度
       2 B/参数   16.06 GB  8 位 Adam 的 m、v（不计分块缩放）
    """
    if psi <= 0:
        raise ValueError(f"psi 必须为正，收到 {psi}")
    rows = [
        ("Adam 的 m、v（fp32）", 8.0),
        ("加 fp32 主权重", 12.0),
        ("再加 bf16 权重与 bf16 梯度", 16.0),
        ("8 位 Adam 的 m、v（不计分块缩放）", 2.0),
    ]
    return [(name, size, size * psi / 1e9) for name, size in rows]


# --8<-- [end:memory]
