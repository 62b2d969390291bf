"""手写 Adam 与 AdamW：就地更新一组数组，状态能存能取（NumPy）。"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


# --8<-- [start:adam]
class Adam:
    """params 就地更新；decoupled=True 是 AdamW，否则把 weight_decay·θ 加进梯度（L2）。与 torch.optim 的定义一致。

    >>> theta = np.array([1.0, -2.0])
    >>> optimizer = Adam([theta], lr=0.1)
    >>> optimizer.step([np.array([1e-3, -5e4])])               # 第一步的大小是 lr，与梯度的尺度无关
    >>> theta.round(6).tolist()
    [0.900001, -1.9]
    >>> Adam([theta], lr=-1)
    Traceback (most recent call last):
    ValueError: 要求 lr、eps、weight_decay 非负有限，0 ≤ β < 1，收到 -1、1e-08、0.0、(0.9, 0.999)
    """

    def __init__(
        self,
        params: Sequence[Array],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
    ) -> None:
        if not all(0 <= x < np.inf for x in (lr, eps, weight_decay)) or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"要求 lr、eps、weight_decay 非负有限，0 ≤ β < 1，收到 {lr}、{eps}、{weight_decay}、{betas}")
        if any(p.dtype not in (np.float32, np.float64) for p in params):
            raise ValueError("参数须是 float32 或 float64：半精度要先有 fp32 主权重，见 Q129")
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.weight_decay, self.decoupled, self.t = weight_decay, decoupled, 0
        self.m = [np.zeros_like(p) for p in params]
        self.v = [np.zeros_like(p) for p in params]

    def step(self, grads: Sequence[Array]) -> None:
        """grads 与 params 逐个同形状。有非有限值时抛 ValueError，参数与状态都不变。"""
        if [g.shape for g in grads] != [p.shape for p in self.params]:
            raise ValueError(f"梯度的形状须与参数相同：{[p.shape for p in self.params]}，收到 {[g.shape for g in grads]}")
        if not all(np.isfinite(g).all() for g in grads):
            raise ValueError("梯度里有 NaN 或 inf，跳过这一步")
        beta1, beta2 = self.betas
        # --8<-- [start:blank-clock]
        # 步数是整个优化器一个，每调用一次加 1；偏差修正的分母
        self.t += 1
        correction1, correction2 = 1 - beta1**self.t, 1 - beta2**self.t
        # --8<-- [end:blank-clock]
        for p, g, m, v in zip(self.params, grads, self.m, self.v, strict=True):
            # --8<-- [start:blank-decay]
            # 权重衰减：解耦时直接缩小 p；否则加进梯度（不要改调用者的 g）
            if self.decoupled:
                p *= 1 - self.lr * self.weight_decay
            else:
                g = g + self.weight_decay * p
            # --8<-- [end:blank-decay]
            # --8<-- [start:blank-moments]
            # 就地更新一阶、二阶矩
            m *= beta1
            m += (1 - beta1) * g
            v *= beta2
            v += (1 - beta2) * g * g
            # --8<-- [end:blank-moments]
            # --8<-- [start:blank-update]
            # p 减去 lr · m̂ / (√v̂ + eps)，就地
            p -= self.lr * (m / correction1) / (np.sqrt(v / correction2) + self.eps)
            # --8<-- [end:blank-update]

    def state(self) -> dict:
        """能恢复训练的全部状态：步数与两个矩的副本。"""
        return {"t": self.t, "m": [m.copy() for m in self.m], "v": [v.copy() for v in self.v]}

    def restore(self, state: dict) -> None:
        """装回 state() 给的状态，形状须相符。"""
        if [m.shape for m in state["m"]] != [p.shape for p in self.params]:
            raise ValueError("状态的形状与参数不符")
        self.t = state["t"]
        self.m, self.v = ([x.copy() for x in state[name]] for name in ("m", "v"))


# --8<-- [end:adam]


# --8<-- [start:cost]
def step_cost(parameters: float, tb_per_s: float = 3.35) -> dict[str, float]:
    """全 fp32、融合成一个核的一步：常驻的 m、v（GB），读写（GB：读 p、g、m、v，写 p、m、v），带宽下限（毫秒，H100 的 3.35 TB/s）。

    >>> step_cost(8.03e9)                                           # Llama-3-8B
    {'m 与 v': 64.2, '读写': 224.8, '毫秒': 67.1}
    """
    if not 0 < parameters < np.inf or not 0 < tb_per_s < np.inf:
        raise ValueError(f"参数量与带宽须为正，收到 {parameters}、{tb_per_s}")
    moved = 7 * 4 * parameters
    return {"m 与 v": round(8 * parameters / 1e9, 1), "读写": round(moved / 1e9, 1), "毫秒": round(moved / tb_per_s / 1e9, 1)}


# --8<-- [end:cost]


# --8<-- [start:wrong]
def half_precision_step(grad: float, eps: float = 1e-8) -> float:
    """反例：第一步的更新量 m̂/(√v̂ + eps) 全用 fp16 算，应是 ±1。

    梯度平方在 2.4e−4 以下（平方不到 6e−8 的一半）变成 0，eps 1e−8 也变成 0：除以 0。

    >>> half_precision_step(1e-2), half_precision_step(1e-4)
    (1.0, inf)
    """
    if not np.isfinite(grad) or grad <= 0:
        raise ValueError(f"grad 须为正，收到 {grad}")
    g = np.float16(grad)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        return round(float(g / (np.sqrt(g * g) + np.float16(eps))), 2)


# --8<-- [end:wrong]
