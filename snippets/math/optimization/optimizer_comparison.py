"""SGD、Momentum、Adam 的可比之处：状态字节、病态二次函数、坐标旋转、长尾类别（只用标准库）。"""

import math
from collections.abc import Callable

from snippets.math.optimization.adam import Adam

Vector = list[float]
Step = Callable[[Vector, Vector], Vector]


# --8<-- [start:methods]
def sgd(lr: float) -> Step:
    """θ ← θ − lr·g。无状态。"""
    return lambda params, grads: [p - lr * g for p, g in zip(params, grads, strict=True)]


def momentum(lr: float, beta: float = 0.9) -> Step:
    """PyTorch 的写法：u ← β·u + g，θ ← θ − lr·u。g 恒定时步长趋于 lr·g/(1 − β)，比同 lr 的 SGD 大 10 倍。

    >>> step, x = momentum(lr=0.1), [0.0]
    >>> for _ in range(200):
    ...     before, x = x, step(x, [1.0])
    >>> round(before[0] - x[0], 6)
    1.0
    """
    velocity: Vector = []

    def step(params: Vector, grads: Vector) -> Vector:
        if not velocity:
            velocity.extend([0.0] * len(params))
        velocity[:] = [beta * u + g for u, g in zip(velocity, grads, strict=True)]
        return [p - lr * u for p, u in zip(params, velocity, strict=True)]

    return step


def adam(lr: float) -> Step:
    """β = (0.9, 0.999) 的 Adam，见 q011 的实现。"""
    return Adam(lr=lr).step


METHODS: dict[str, Callable[[float], Step]] = {"SGD": sgd, "Momentum": momentum, "Adam": adam}


def state_gigabytes(psi: float) -> dict[str, float]:
    """fp32 优化器状态（GB = 10⁹ 字节）：每参数 0、1、2 个数。

    >>> state_gigabytes(8.03e9)                       # Llama-3-8B
    {'SGD': 0.0, 'Momentum': 32.12, 'Adam': 64.24}
    """
    if not psi > 0:
        raise ValueError(f"psi 必须为正，收到 {psi}")
    return {name: round(values * 4 * psi / 1e9, 2) for name, values in (("SGD", 0), ("Momentum", 1), ("Adam", 2))}


# --8<-- [end:methods]


# --8<-- [start:quadratic]
def loss_ratio(method: str, lr: float, kappa: float, angle: float = 0.0, steps: int = 100) -> float:
    """条件数 kappa 的二维二次函数（主轴转过 angle 弧度），走 steps 步后损失 ÷ 初始损失；发散为 inf。"""
    if method not in METHODS:
        raise ValueError(f"method 须为 {'、'.join(METHODS)}，收到 {method!r}")
    if not 1 <= kappa < math.inf or steps < 1 or not lr > 0:
        raise ValueError(f"须有 kappa ≥ 1、steps ≥ 1、lr > 0，收到 {kappa, steps, lr}")
    c, s = math.cos(angle), math.sin(angle)

    def loss_and_grad(x: Vector) -> tuple[float, Vector]:
        u, v = c * x[0] + s * x[1], c * x[1] - s * x[0]  # 主轴坐标
        gu, gv = kappa * u, v
        return 0.5 * (kappa * u * u + v * v), [c * gu - s * gv, s * gu + c * gv]

    step, x = METHODS[method](lr), [c - s, s + c]  # 主轴坐标里的起点总是 (1, 1)
    start, _ = loss_and_grad(x)
    for _ in range(steps):
        x = step(x, loss_and_grad(x)[1])
        if max(map(abs, x)) > 1e9:
            return math.inf
    return loss_and_grad(x)[0] / start


def best_loss_ratio(method: str, kappa: float, angle: float = 0.0, steps: int = 100) -> float:
    """在 10^(−5) 到 10 之间每个数量级取 10 个学习率，返回最好的损失比：每种方法都调过学习率再比。

    >>> for kappa in (10, 1000):
    ...     print(kappa, {name: f"{best_loss_ratio(name, kappa):.0e}" for name in METHODS})
    10 {'SGD': '9e-17', 'Momentum': '2e-06', 'Adam': '4e-07'}
    1000 {'SGD': '7e-04', 'Momentum': '1e-06', 'Adam': '4e-07'}
    >>> f"{best_loss_ratio('Adam', 1000, angle=math.pi / 4):.0e}"      # 同一个函数转 45°：Adam 的优势没了
    '3e-04'
    """
    return min(loss_ratio(method, 10 ** (exponent / 10), kappa, angle, steps) for exponent in range(-50, 11))


# --8<-- [end:quadratic]


# --8<-- [start:tail]
def class_losses(method: str, lr: float, frequencies: tuple[float, ...], steps: int = 100) -> list[float]:
    """线性 softmax 分类，每类自己的 one-hot 输入：走 steps 步全批梯度后各类的损失。

    logits = W·x，x 是第 c 类的 one-hot，所以第 c 类只用 W 的第 c 列；由对称性，一列里只有两个不同的数：
    正确类的 logit 与其余的 logit。它们的梯度都正比于该类的频率 π_c——SGD 因此在低频类上慢 π_c 倍。
    """
    n = len(frequencies)
    if n < 2 or not abs(math.fsum(frequencies) - 1) <= 1e-9 or min(frequencies) <= 0:
        raise ValueError(f"frequencies 须为至少两个正数且和为 1，收到 {frequencies}")
    step, params = METHODS[method](lr), [0.0] * (2 * n)  # 依次是 (正确, 其余) × n 类
    for _ in range(steps):
        grads = []
        for c, frequency in enumerate(frequencies):
            miss = (n - 1) / (n - 1 + math.exp(min(700.0, params[2 * c] - params[2 * c + 1])))  # 1 − p_正确
            grads += [-frequency * miss, frequency * miss / (n - 1)]
        params = step(params, grads)
    return [math.log1p((n - 1) * math.exp(params[2 * c + 1] - params[2 * c])) for c in range(n)]


def zipf(n: int) -> tuple[float, ...]:
    """第 r 类的频率正比于 1/r。"""
    total = math.fsum(1 / r for r in range(1, n + 1))
    return tuple(1 / r / total for r in range(1, n + 1))


def rare_class_loss(method: str, n: int = 100, target: float = 0.2) -> float:
    """把学习率调到“100 步后最高频类的损失恰为 target”，返回此时最低频类的损失。不学时是 ln n。

    这样比，是因为这个可分问题本身不限制学习率；真实网络里学习率受高频方向与共享参数的稳定性限制。

    >>> round(math.log(100), 2), {name: round(rare_class_loss(name), 2) for name in METHODS}
    (4.61, {'SGD': 4.5, 'Momentum': 4.52, 'Adam': 0.2})
    """
    if not 0 < target < math.log(n):
        raise ValueError(f"target 必须在 (0, ln n) 内，收到 {target}")
    frequencies = zipf(n)
    low, high = 1e-4, 1e3
    for _ in range(30):
        middle = math.sqrt(low * high)
        if class_losses(method, middle, frequencies)[0] > target:
            low = middle
        else:
            high = middle
    return class_losses(method, high, frequencies)[-1]


# --8<-- [end:tail]
