"""初始化：公式、方差怎样逐层传播、残差缩放、μP 的宽度检查（NumPy）。"""

import math

import numpy as np
from numpy.typing import NDArray


# --8<-- [start:formulas]
def xavier_std(fan_in: int, fan_out: int) -> float:
    """Glorot 2010 式 12：√(2 / (n_in + n_out))，前向与反向的方差折中。

    >>> round(xavier_std(500, 2000), 5)
    0.02828
    """
    _positive(fan_in=fan_in, fan_out=fan_out)
    return math.sqrt(2 / (fan_in + fan_out))


def kaiming_std(fan_in: int) -> float:
    """He 2015：√(2 / n_in)，补偿 relu 减半的方差。"""
    _positive(fan_in=fan_in)
    return math.sqrt(2 / fan_in)


def published() -> list[str]:
    """公开的标准差与 1/√h 之比：GPT-2 的 0.02、DeepSeek-V3 的 0.006。

    >>> print(*published(), sep="\\n")
    GPT-2 small      h =   768  std 0.0200  1/√h 0.0361  比 0.55
    GPT-2 XL         h =  1600  std 0.0200  1/√h 0.0250  比 0.80
    h 4096 仍用 0.02 h =  4096  std 0.0200  1/√h 0.0156  比 1.28
    DeepSeek-V3      h =  7168  std 0.0060  1/√h 0.0118  比 0.51
    """
    rows = (("GPT-2 small", 768, 0.02), ("GPT-2 XL", 1600, 0.02), ("h 4096 仍用 0.02", 4096, 0.02), ("DeepSeek-V3", 7168, 0.006))
    return [
        f"{name:<{16 - 2 * (not name.isascii())}} h = {h:>5}  std {std:.4f}  1/√h {h**-0.5:.4f}  比 {std * h**0.5:.2f}"
        for name, h, std in rows
    ]


# --8<-- [end:formulas]


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} 必须为正的有限数，收到 {value}")
        if name in ("depth", "h", "blocks", "width", "steps") and value != int(value):
            raise ValueError(f"{name} 必须为整数，收到 {value}")


# --8<-- [start:depth]
def plain_rms(gain: float, depth: int = 50, h: int = 256, *, seed: int = 0) -> float:
    """depth 层 x ← relu(Wx)，W 的标准差 gain/√h，输入均方根 1，返回最后一层的均方根。

    均方的期望是 (gain²/2)^depth，所以均方根约 (gain²/2)^(depth/2)：3e-8、1、3e7；有限宽度上有几倍的随机起伏。

    >>> [f"{plain_rms(gain):.0e}" for gain in (1.0, math.sqrt(2), 2.0)]          # 1/√h、Kaiming、再大一点
    ['1e-08', '4e-01', '1e+07']
    """
    _positive(gain=gain, depth=depth, h=h)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((h, 64))
    for _ in range(depth):
        x = np.maximum(gain / math.sqrt(h) * rng.standard_normal((h, h)) @ x, 0)
    return float(np.sqrt(np.mean(x**2)))


def residual_rms(blocks: int, *, scaled: bool, h: int = 256, seed: int = 0) -> float:
    """残差流 x ← x + c·F(norm(x))，F 的输出均方根约为 1，共 blocks 个子层；返回最后残差流的均方根（开头是 1）。

    scaled：c = 1/√blocks（GPT-2 的 1/√N，N 是残差层数，即 2L），否则 c = 1。

    >>> for layers in (12, 48, 96):
    ...     print(layers, *(round(residual_rms(2 * layers, scaled=s), 1) for s in (False, True)))
    12 4.9 1.4
    48 9.7 1.4
    96 14.0 1.4
    """
    _positive(blocks=blocks, h=h)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((h, 64))
    scale = 1 / math.sqrt(blocks) if scaled else 1.0
    for _ in range(blocks):
        normed = x / np.sqrt(np.mean(x**2, axis=0))
        x = x + scale / math.sqrt(h) * rng.standard_normal((h, h)) @ normed
    return float(np.sqrt(np.mean(x**2)))


# --8<-- [end:depth]


# --8<-- [start:mup]
def adam_step_change(width: int, *, mup: bool, steps: int = 1, lr: float = 0.01, seed: int = 0) -> float:
    """三层网络 tanh(W₂ tanh(W₁x))→W₃，Adam 走 steps 步，同一输入的输出变了多少（均方根）。x: (32, 16)，输出 1 维。

    两种参数化的初始化方差相同的部分：W₁ ~ 1/√16，W₂ ~ 1/√n。差别（Yang 2022 表 3）：

    - 标准：W₃ ~ 1/√n，三层同一个学习率；
    - μP：W₃ ~ 1/n，W₂、W₃ 的学习率乘 64/n（以宽 64 为基准）。

    >>> for width in (64, 256, 1024):
    ...     print(width, *(round(adam_step_change(width, mup=m), 2) for m in (False, True)))
    64 0.68 0.12
    256 4.01 0.13
    1024 16.67 0.13
    """
    _positive(width=width, steps=steps, lr=lr)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((32, 16))
    y = np.sign(x[:, :1])
    out_std = 1 / width if mup else 1 / math.sqrt(width)
    weights = [
        rng.standard_normal((16, width)) / 4,
        rng.standard_normal((width, width)) / math.sqrt(width),
        rng.standard_normal((width, 1)) * out_std,
    ]
    rates = [lr, lr * 64 / width, lr * 64 / width] if mup else [lr] * 3
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    start = _forward(weights, x)[-1]
    for step in range(1, steps + 1):
        for i, grad in enumerate(_gradients(weights, x, y)):
            m, v = (0.9 * moments[i][0] + 0.1 * grad, 0.999 * moments[i][1] + 0.001 * grad**2)
            moments[i] = (m, v)
            weights[i] = weights[i] - rates[i] * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-12)
    return float(np.sqrt(np.mean((_forward(weights, x)[-1] - start) ** 2)))


# --8<-- [end:mup]


def _forward(weights: list[NDArray], x: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    hidden1 = np.tanh(x @ weights[0])
    hidden2 = np.tanh(hidden1 @ weights[1])
    return hidden1, hidden2, hidden2 @ weights[2]


def _gradients(weights: list[NDArray], x: NDArray, y: NDArray) -> list[NDArray]:
    """均方误差的梯度，手写反向。"""
    hidden1, hidden2, out = _forward(weights, x)
    d_out = 2 * (out - y) / len(x)
    d2 = d_out @ weights[2].T * (1 - hidden2**2)
    d1 = d2 @ weights[1].T * (1 - hidden1**2)
    return [x.T @ d1, hidden1.T @ d2, hidden2.T @ d_out]
