"""残差连接：深网络里的梯度、去掉一块会怎样、路径的长度分布（NumPy）。"""

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating]


def _weights(depth: int, h: int, seed: int) -> list[Matrix]:
    if depth < 1 or h < 1:
        raise ValueError(f"depth、h 须为正，收到 {depth}、{h}")
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((h, h)) / math.sqrt(h) for _ in range(depth)]


# --8<-- [start:forward]
def forward(x: Matrix, weights: list[Matrix], *, skip: bool) -> list[Matrix]:
    """逐层 x ← F(x) 或 x ← x + F(x)，F(x) = tanh(Wx)。x: (h, b)；返回每层之后的 x（含输入）。"""
    states = [x]
    for w in weights:
        branch = np.tanh(w @ states[-1])
        states.append(states[-1] + branch if skip else branch)
    return states


def backward(states: list[Matrix], weights: list[Matrix], grad: Matrix, *, skip: bool) -> list[float]:
    """从输出的梯度往回传，返回每层**输入**处梯度的范数，从第一层到最后一层。"""
    norms = []
    for x, w in zip(reversed(states[:-1]), reversed(weights), strict=True):
        through = w.T @ (grad * (1 - np.tanh(w @ x) ** 2))
        grad = grad + through if skip else through
        norms.append(float(np.linalg.norm(grad)))
    return norms[::-1]


# --8<-- [end:forward]


# --8<-- [start:measure]
def first_over_last(depth: int, *, skip: bool, h: int = 64, gain: float = 1.0, seed: int = 0) -> float:
    """首层与末层输入处的梯度范数之比；gain 乘在每个 W 上。

    >>> for gain in (0.5, 1.0):
    ...     print(gain, [f"{first_over_last(50, skip=s, gain=gain):.0e}" for s in (False, True)])
    0.5 ['8e-16', '8e+00']
    1.0 ['9e-02', '4e+01']
    """
    weights = [gain * w for w in _weights(depth, h, seed)]
    x = np.random.default_rng(seed + 1).standard_normal((h, 32))
    states = forward(x, weights, skip=skip)
    norms = backward(states, weights, np.ones_like(x), skip=skip)
    return norms[0] / norms[-1]


def after_deleting(layer: int, *, skip: bool, depth: int = 20, h: int = 64, seed: int = 0) -> float:
    """随机初始化的网络，删掉第 layer 层（从 0 数），输出变了多少（差的范数除以原输出的范数）。

    >>> [round(after_deleting(10, skip=s), 2) for s in (False, True)]
    [1.85, 0.41]
    """
    weights = _weights(depth, h, seed)
    if not 0 <= layer < depth:
        raise ValueError(f"layer 须在 0 到 {depth - 1} 之间，收到 {layer}")
    x = np.random.default_rng(seed + 1).standard_normal((h, 32))
    whole = forward(x, weights, skip=skip)[-1]
    without = forward(x, weights[:layer] + weights[layer + 1 :], skip=skip)[-1]
    return float(np.linalg.norm(without - whole) / np.linalg.norm(whole))


# --8<-- [end:measure]


# --8<-- [start:paths]
def path_lengths(depth: int) -> list[float]:
    """depth 个残差块展开成 2^depth 条路径，长度服从二项分布：返回长 0…depth 的路径所占比例（Veit 2016）。

    >>> shares = path_lengths(54)
    >>> shares.index(max(shares)), round(math.fsum(shares[19:36]), 3)          # 一半的块最常见；19 到 35 块占绝大多数
    (27, 0.98)
    """
    if depth < 0:
        raise ValueError(f"depth 不能为负，收到 {depth}")
    return [math.comb(depth, k) / 2**depth for k in range(depth + 1)]


# --8<-- [end:paths]


# --8<-- [start:relu]
def stream_after_relu_add(blocks: int = 20, h: int = 64, seed: int = 0) -> tuple[float, float]:
    """反例：把 ReLU 放在相加之后（原始 ResNet 的写法）。返回残差流里负数的比例：(相加后 ReLU, 分支内 ReLU、相加后不动)。

    前者的流永远非负，只增不减；所以后来改成归一化与激活都在分支里（pre-activation）。

    >>> stream_after_relu_add()
    (0.0, 0.5)
    """
    rng = np.random.default_rng(seed)
    after = inside = rng.standard_normal((h, 32))
    for w in _weights(blocks, h, seed):
        after = np.maximum(after + w @ after / 2, 0)
        inside = inside + w @ np.maximum(inside, 0) / 2
    return float(np.mean(after < 0)), round(float(np.mean(inside < 0)), 1)


# --8<-- [end:relu]
