"""LayerNorm、RMSNorm、BatchNorm：公式、ε 的位置、对什么不变（NumPy）。"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def _check(x: Array, eps: float) -> None:
    if x.ndim < 1 or x.shape[-1] == 0:
        raise ValueError(f"最后一维不能为空，收到形状 {x.shape}")
    if not eps >= 0:
        raise ValueError(f"eps 不能为负，收到 {eps}")


# --8<-- [start:norms]
def layer_norm(x: Array, gain: Array | float = 1.0, bias: Array | float = 0.0, eps: float = 1e-5) -> Array:
    """逐 token：(x − 均值)/√(有偏方差 + ε)·γ + β。x: (…, h)；统计量在 fp32 以上算，输出转回原类型。

    >>> layer_norm(np.array([1.0, 2.0, 3.0, 4.0])).round(4).tolist()
    [-1.3416, -0.4472, 0.4472, 1.3416]
    >>> layer_norm(np.full(4, 7.0)).tolist()                         # 全相等：方差 0，靠 ε 得 0 而不是 NaN
    [0.0, 0.0, 0.0, 0.0]
    """
    _check(x, eps)
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    centred = wide - wide.mean(axis=-1, keepdims=True)
    return (centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * gain + bias).astype(x.dtype)


def rms_norm(x: Array, gain: Array | float = 1.0, eps: float = 1e-5) -> Array:
    """逐 token：x/√(平方的均值 + ε)·γ。不减均值、没有偏置；ε 在根号里面。

    >>> rms_norm(np.array([1.0, 2.0, 3.0, 4.0])).round(4).tolist()
    [0.3651, 0.7303, 1.0954, 1.4606]
    >>> rms_norm(np.array([60000.0, 60000.0], np.float16)).tolist()  # fp16 里直接平方会上溢
    [1.0, 1.0]
    """
    _check(x, eps)
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    return (wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps) * gain).astype(x.dtype)


def batch_norm(x: Array, eps: float = 1e-5) -> Array:
    """逐特征、跨样本（训练时）：x: (n, h)。一个样本的输出依赖同批的其他样本。

    >>> batch_norm(np.array([[1.0, 10.0], [3.0, 10.0]])).round(4).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    _check(x, eps)
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + eps)


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
