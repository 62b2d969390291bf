"""LSTM 单元、它的参数量，与梯度沿细胞状态怎样保住（NumPy）。"""

import numpy as np
from numpy.typing import NDArray


def _sigmoid(x: NDArray) -> NDArray:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


# --8<-- [start:cell]
def lstm_cell(x: NDArray, h: NDArray, c: NDArray, w_x: NDArray, w_h: NDArray, bias: NDArray) -> tuple[NDArray, NDArray]:
    """一步 LSTM。x: (b, n)，h、c: (b, d)，w_x: (4d, n)，w_h: (4d, d)，bias: (4d,)，门的次序 i、f、g、o（与 PyTorch 相同）。

    c' = f ⊙ c + i ⊙ g，h' = o ⊙ tanh(c')；i、f、o 是 sigmoid，g 是 tanh。
    """
    arrays = (x, h, c, w_x, w_h, bias)
    if x.ndim != 2 or h.ndim != 2 or len(x) != len(h):
        raise ValueError(f"形状对不上：x 须为 (b, n)，h 须为 (b, d)，收到 {x.shape}、{h.shape}")
    d = h.shape[1]
    if w_x.shape != (4 * d, x.shape[1]) or w_h.shape != (4 * d, d) or bias.shape != (4 * d,) or c.shape != h.shape:
        raise ValueError(f"形状对不上：x {x.shape}、h {h.shape}、c {c.shape}、w_x {w_x.shape}、w_h {w_h.shape}、bias {bias.shape}")
    if not all(np.isfinite(a).all() for a in arrays):
        raise ValueError("输入或权重含 NaN 或无穷")
    i, f, g, o = np.split(x @ w_x.T + h @ w_h.T + bias, 4, axis=1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c), c


def parameters(n: int, d: int, *, biases: int = 2) -> int:
    """一层的参数量：4 个门，每个 d×(n + d)，另有偏置（PyTorch 有两份，等价于一份）。

    >>> parameters(1024, 1024), parameters(1024, 1024, biases=1)
    (8396800, 8392704)
    """
    if min(n, d) < 1 or biases not in (0, 1, 2):
        raise ValueError(f"须 n、d ≥ 1，biases 为 0、1、2，收到 {n}、{d}、{biases}")
    return 4 * d * (n + d + biases)


# --8<-- [end:cell]


# --8<-- [start:memory]
def remembered(steps: int, forget_bias: float) -> float:
    """细胞状态这条路上的梯度 ∂c_T/∂c_0 = ∏ f_t；门的预激活只有偏置时是 σ(bias)^T。

    >>> [f"{remembered(100, bias):.2g}" for bias in (0.0, 1.0, 5.0)]
    ['7.9e-31', '2.5e-14', '0.51']
    """
    if steps < 0 or not np.isfinite(forget_bias):
        raise ValueError(f"steps 不能为负，forget_bias 须有限，收到 {steps}、{forget_bias}")
    return float(_sigmoid(np.array(forget_bias)) ** steps)


def state_numbers(tokens: int, d: int = 4096, layers: int = 32, kv_heads: int = 8, head: int = 128) -> tuple[int, int]:
    """读完 tokens 个 token 之后要记住多少个数：LSTM（每层 h 与 c）对 Transformer 的 KV cache。

    >>> state_numbers(1), state_numbers(8192)
    ((262144, 65536), (262144, 536870912))
    """
    if min(tokens, d, layers, kv_heads, head) < 1:
        raise ValueError(f"各项必须为正，收到 {tokens}、{d}、{layers}、{kv_heads}、{head}")
    return 2 * d * layers, 2 * layers * kv_heads * head * tokens


# --8<-- [end:memory]
