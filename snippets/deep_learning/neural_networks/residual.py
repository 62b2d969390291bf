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


def _check(x: Matrix, weights: list[Matrix]) -> None:
    """(1, h) 的 W 会让 x + F(x) 沿特征广播而不报错，所以先查形状。"""
    if x.ndim != 2 or any(w.shape != (len(x), len(x)) for w in weights):
        raise ValueError(f"x 须为 (h, b)、每个 W 须为 (h, h)，收到 {x.shape} 与 {[w.shape for w in weights]}")


# --8<-- [start:forward]
def forward(x: Matrix, weights: list[Matrix], *, skip: bool) -> list[Matrix]:
    """逐层 x ← F(x) 或 x ← x + F(x)，F(x) = tanh(Wx)。x: (h, b)；返回每层之后的 x（含输入）。"""
    _check(x, weights)
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

    >>> for gain in (0.5, 1.0, 1.5):
    ...     print(gain, [f"{first_over_last(50, skip=s, gain=gain):.1e}" for s in (False, True)])
    0.5 ['7.8e-16', '8.0e+00']
    1.0 ['8.9e-02', '3.7e+01']
    1.5 ['2.1e+01', '1.9e+02']
    """
    if not 0 < gain < math.inf:
        raise ValueError(f"gain 须为正且有限，收到 {gain}")
    weights = [gain * w for w in _weights(depth, h, seed)]
    x = np.random.default_rng(seed + 1).standard_normal((h, 32))
    states = forward(x, weights, skip=skip)
    norms = backward(states, weights, np.ones_like(x), skip=skip)
    if not 0 < norms[0] < math.inf or not 0 < norms[-1] < math.inf:
        raise ValueError(f"梯度下溢或上溢（首 {norms[0]}、末 {norms[-1]}），须减小 depth 或调整 gain")
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
def relu_placements(blocks: int = 20, h: int = 64, seed: int = 0) -> dict[str, tuple[float, float]]:
    """ReLU 放在三处：返回（最后的流里负数的比例，逐块看变小了的元素的比例）。

    相加之后（原始 ResNet）：流被截成非负，捷径不再是恒等；分支末尾：加的全是非负数，流只增不减；分支开头（pre-activation）：都没有。

    >>> for place, (negative, shrank) in relu_placements().items():
    ...     print(f"{place} 负数 {negative:.2f} 变小 {shrank:.2f}")
    相加之后 负数 0.00 变小 0.38
    分支末尾 负数 0.00 变小 0.00
    分支开头 负数 0.51 变小 0.50
    """
    steps = {
        "相加之后": lambda x, w: np.maximum(x + w @ x / 2, 0),
        "分支末尾": lambda x, w: x + np.maximum(w @ x, 0) / 2,
        "分支开头": lambda x, w: x + w @ np.maximum(x, 0) / 2,
    }
    weights, result = _weights(blocks, h, seed), {}
    for place, step in steps.items():
        x, shrank = np.random.default_rng(seed + 1).standard_normal((h, 32)), []
        for w in weights:
            shrank.append(np.mean(step(x, w) < x))
            x = step(x, w)
        result[place] = float(np.mean(x < 0)), float(np.mean(shrank))
    return result


# --8<-- [end:relu]
