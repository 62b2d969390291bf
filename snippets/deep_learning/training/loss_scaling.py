"""动态损失缩放：fp16 训练的状态机，以及它救回多少梯度（只用标准库）。"""

import math
from random import Random

from snippets.deep_learning.training.number_formats import FP16, FP32, round_to


# --8<-- [start:scaler]
class LossScaler:
    """动态损失缩放。每步 update(overflow)：有 inf/NaN 就跳过这步并乘 backoff，连续 interval 步正常则乘 growth。

    默认值与 torch.amp.GradScaler 相同：65536、2、0.5、2000；乘了会超出 fp32 就不再长。缩到 2⁻¹²⁶ 以下报错：那不是缩放救得了的。

    >>> scaler = LossScaler(interval=2)
    >>> [scaler.update(overflow) for overflow in (True, True, False, False, False)]   # 这一步要不要更新参数
    [False, False, True, True, True]
    >>> scaler.scale                                                                  # 65536 → 32768 → 16384 → 32768
    32768.0
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000) -> None:
        self._check(scale)
        if not (growth > 1 and 0 < backoff < 1):
            raise ValueError(f"须 growth > 1、0 < backoff < 1，收到 {growth} 与 {backoff}")
        if interval < 1:
            raise ValueError(f"interval 必须为正整数，收到 {interval}")
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.good_steps = 0

    @staticmethod
    def _check(scale: float) -> None:
        if not FP32.min_normal <= scale <= FP32.max:
            raise ValueError(f"scale 必须在 fp32 的规格化范围内，收到 {scale}；一路缩到这里说明前向或反向本身是 inf/NaN")

    def update(self, overflow: bool) -> bool:
        """记下这一步的结果，调整 scale；返回 True 表示可以更新参数。"""
        if overflow:
            self._check(self.scale * self.backoff)
            self.scale *= self.backoff
            self.good_steps = 0
            return False
        self.good_steps += 1
        if self.good_steps == self.interval:
            if self.scale * self.growth <= FP32.max:
                self.scale *= self.growth
            self.good_steps = 0
        return True

    def state_dict(self) -> dict[str, float]:
        """断点续训必须存它：丢了就从 65536 重新找，前几步可能连续溢出而被跳过。"""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._check(state["scale"])
        self.scale, self.good_steps = state["scale"], int(state["good_steps"])


# --8<-- [end:scaler]


# --8<-- [start:window]
def representable(scale: float, median: float = 2.0**-24, spread: float = 4.0, size: int = 20_000) -> dict[str, float]:
    """梯度乘 scale 后存成 fp16：下溢为 0、落在次规格化（精度不足）、上溢的百分比。

    梯度是人造的：log₂|g| 服从均值 log₂ median、标准差 spread 的正态分布（种子 0）。

    >>> for k in (0, 8, 16, 24, 32):
    ...     print(f"2^{k}", representable(2.0**k))
    2^0 {'下溢': 40.0, '次规格化': 59.3, '上溢': 0.0}
    2^8 {'下溢': 1.0, '次规格化': 68.2, '上溢': 0.0}
    2^16 {'下溢': 0.0, '次规格化': 6.3, '上溢': 0.0}
    2^24 {'下溢': 0.0, '次规格化': 0.0, '上溢': 0.0}
    2^32 {'下溢': 0.0, '次规格化': 0.0, '上溢': 2.3}
    """
    if not (0 < scale < math.inf and 0 < median < math.inf and spread >= 0 and size > 0):
        raise ValueError(f"须 scale、median、size 为正，spread 非负，收到 {scale}、{median}、{size}、{spread}")
    random = Random(0)
    stored = [round_to(scale * median * 2.0 ** random.gauss(0, spread), FP16) for _ in range(size)]
    counts = {
        "下溢": sum(v == 0 for v in stored),
        "次规格化": sum(0 < v < FP16.min_normal for v in stored),
        "上溢": sum(v > FP16.max for v in stored),
    }
    return {name: round(100 * count / size, 1) for name, count in counts.items()}


# --8<-- [end:window]
