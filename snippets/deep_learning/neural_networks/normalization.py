"""LayerNorm、RMSNorm、BatchNorm：公式、ε 的位置、对什么不变（NumPy）。"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def _wide(x: Array, eps: float, *affine: Array | float) -> Array:
    """查输入，升到 fp32 以上。整数会在转回时被截断、增益形状不对会悄悄广播，所以都拒绝。"""
    if not np.issubdtype(np.asarray(x).dtype, np.floating):
        raise ValueError(f"x 须为浮点数组，收到 {np.asarray(x).dtype}")
    if x.ndim < 1 or x.shape[-1] == 0:
        raise ValueError(f"最后一维不能为空，收到形状 {x.shape}")
    if not 0 <= eps < np.inf:
        raise ValueError(f"eps 不能为负或无穷，收到 {eps}")
    if any(np.shape(value) not in ((), x.shape[-1:]) for value in affine):
        raise ValueError(f"增益与偏置须为标量或形状 {x.shape[-1:]}，收到 {[np.shape(value) for value in affine]}")
    if not np.isfinite(x).all():
        raise ValueError("x 须为有限的数，收到 NaN 或无穷")
    return x.astype(np.promote_types(x.dtype, np.float32))


def _root(mean_square: Array, eps: float) -> Array:
    """√(平方的均值 + ε)；上溢或恰为 0 时说清楚，而不是返回 0 或 NaN。"""
    root = np.sqrt(mean_square + eps)
    if not (np.isfinite(root) & (root > 0)).all():
        raise ValueError("平方的均值须有限，且不能与 eps 同时为 0")
    return root


def _narrow(y: Array, x: Array) -> Array:
    with np.errstate(over="ignore"):
        out = y.astype(x.dtype)
    if not np.isfinite(out).all():
        raise ValueError(f"输出超出 {x.dtype} 的范围，须减小增益或偏置")
    return out


# --8<-- [start:norms]
def layer_norm(x: Array, gain: Array | float = 1.0, bias: Array | float = 0.0, eps: float = 1e-5) -> Array:
    """逐 token：(x − 均值)/√(有偏方差 + ε)·γ + β。x: (…, h)；统计量在 fp32 以上算，输出转回原类型。

    >>> layer_norm(np.array([1.0, 2.0, 3.0, 4.0])).round(4).tolist()
    [-1.3416, -0.4472, 0.4472, 1.3416]
    >>> layer_norm(np.full(4, 7.0)).tolist()                         # 全相等：方差 0，靠 ε 得 0 而不是 NaN
    [0.0, 0.0, 0.0, 0.0]
    """
    wide = _wide(x, eps, gain, bias)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        variance = np.mean(centred**2, axis=-1, keepdims=True)
    return _narrow(centred / _root(variance, eps) * gain + bias, x)


def rms_norm(x: Array, gain: Array | float = 1.0, eps: float = 1e-5) -> Array:
    """逐 token：x/√(平方的均值 + ε)·γ。不减均值、没有偏置；ε 在根号里面。

    >>> rms_norm(np.array([1.0, 2.0, 3.0, 4.0])).round(4).tolist()
    [0.3651, 0.7303, 1.0954, 1.4606]
    >>> rms_norm(np.array([60000.0, 60000.0], np.float16)).tolist()  # fp16 里直接平方会上溢
    [1.0, 1.0]
    """
    wide = _wide(x, eps, gain)
    with np.errstate(over="ignore"):
        mean_square = np.mean(wide**2, axis=-1, keepdims=True)
    return _narrow(wide / _root(mean_square, eps) * gain, x)


def batch_norm(x: Array, eps: float = 1e-5) -> Array:
    """逐特征、跨样本（训练时）：x: (n, h)。一个样本的输出依赖同批的其他样本。

    >>> batch_norm(np.array([[1.0, 10.0], [3.0, 10.0]])).round(4).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    wide = _wide(x, eps)
    if wide.ndim != 2 or len(wide) < 2:
        raise ValueError(f"x 须为 (n, h) 且 n ≥ 2，收到形状 {x.shape}")
    with np.errstate(over="ignore"):
        variance = wide.var(axis=0)
    return _narrow((wide - wide.mean(axis=0)) / _root(variance, eps), x)


# --8<-- [end:norms]


# --8<-- [start:invariance]
def invariances(h: int = 64) -> dict[str, tuple[bool, bool, bool]]:
    """对输入整体放大、整体平移、同批换掉别的样本，输出变不变：(放大, 平移, 换同批)，True 是不变。

    >>> for name, row in invariances().items():
    ...     print(name, row)
    LayerNorm (True, True, True)
    RMSNorm (True, False, True)
    BatchNorm (True, True, False)
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, h))
    other = np.concatenate([x[:1], rng.standard_normal((7, h))])
    norms = {
        "LayerNorm": lambda v: layer_norm(v, eps=0.0),
        "RMSNorm": lambda v: rms_norm(v, eps=0.0),
        "BatchNorm": lambda v: batch_norm(v, eps=0.0),
    }
    return {
        name: tuple(bool(np.allclose(norm(changed)[0], norm(x)[0])) for changed in (3 * x, x + 5, other)) for name, norm in norms.items()
    }


# --8<-- [end:invariance]
