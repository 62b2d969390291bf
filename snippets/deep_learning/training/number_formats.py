"""训练用的浮点格式：范围、精度、舍入，以及带缩放的分块量化（只用标准库）。"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


# --8<-- [start:formats]
@dataclass(frozen=True)
class Format:
    """一种二进制浮点格式：1 位符号、exp_bits 位指数、man_bits 位尾数。

    specials 说明指数全 1 的编码怎么用：ieee 留给 inf 与 NaN；fn 只留一个 NaN（OCP E4M3）；none 全是数（E2M1）。
    """

    exp_bits: int
    man_bits: int
    specials: str = "ieee"

    @property
    def min_exponent(self) -> int:
        """最小规格化数的指数，1 − bias，bias = 2^(exp_bits − 1) − 1。"""
        return 2 - 2 ** (self.exp_bits - 1)

    @property
    def max_exponent(self) -> int:
        bias = 2 ** (self.exp_bits - 1) - 1
        return bias if self.specials == "ieee" else bias + 1

    @property
    def max(self) -> float:
        """最大的有限数；fn 的最大尾数让给了 NaN，所以少一格。"""
        top = 2 - 2.0**-self.man_bits - (2.0**-self.man_bits if self.specials == "fn" else 0)
        return top * 2.0**self.max_exponent

    @property
    def min_normal(self) -> float:
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        return 2.0 ** (self.min_exponent - self.man_bits)

    @property
    def eps(self) -> float:
        """1 与下一个数的间隔；相对舍入误差不超过它的一半。"""
        return 2.0**-self.man_bits


FP32, TF32, BF16, FP16 = Format(8, 23), Format(8, 10), Format(8, 7), Format(5, 10)
E4M3, E5M2, E2M1 = Format(4, 3, "fn"), Format(5, 2), Format(2, 1, "none")


def range_table() -> list[str]:
    """各格式的最大值、最小规格化数、最小次规格化数、eps。

    >>> print(*range_table(), sep="\\n")
    fp32 最大 3.40e+38  最小规格化 1.18e-38  最小次规格化 1.40e-45  eps 1.19e-07
    tf32 最大 3.40e+38  最小规格化 1.18e-38  最小次规格化 1.15e-41  eps 9.77e-04
    bf16 最大 3.39e+38  最小规格化 1.18e-38  最小次规格化 9.18e-41  eps 7.81e-03
    fp16 最大 6.55e+04  最小规格化 6.10e-05  最小次规格化 5.96e-08  eps 9.77e-04
    e5m2 最大 5.73e+04  最小规格化 6.10e-05  最小次规格化 1.53e-05  eps 2.50e-01
    e4m3 最大 4.48e+02  最小规格化 1.56e-02  最小次规格化 1.95e-03  eps 1.25e-01
    e2m1 最大 6.00e+00  最小规格化 1.00e+00  最小次规格化 5.00e-01  eps 5.00e-01
    """
    named = {"fp32": FP32, "tf32": TF32, "bf16": BF16, "fp16": FP16, "e5m2": E5M2, "e4m3": E4M3, "e2m1": E2M1}
    return [
        f"{name} 最大 {f.max:.2e}  最小规格化 {f.min_normal:.2e}  最小次规格化 {f.min_subnormal:.2e}  eps {f.eps:.2e}"
        for name, f in named.items()
    ]


# --8<-- [end:formats]


# --8<-- [start:round]
def round_to(x: float, fmt: Format, *, saturate: bool = False) -> float:
    """把 x 舍入到 fmt（就近，平局取偶）。超出范围：saturate 则取最大数，否则 ieee 得 inf，fn 得 NaN；none 总是饱和。

    >>> round_to(256 + 1, BF16), round_to(2048 + 1, FP16)              # 加 1 被吞掉
    (256.0, 2048.0)
    >>> round_to(2.0**-25, FP16), round_to(1.01 * 2.0**-25, FP16)      # 下溢的分界是 2⁻²⁵，不是 2⁻²⁴
    (0.0, 5.960464477539063e-08)
    >>> round_to(70000.0, FP16), round_to(500.0, E4M3), round_to(500.0, E4M3, saturate=True)
    (inf, nan, 448.0)
    """
    if math.isnan(x) and fmt.specials == "none":
        raise ValueError("这种格式没有 NaN 的编码")
    if math.isnan(x) or x == 0:
        return x
    if abs(x) < 2.0 ** (fmt.max_exponent + 1):
        exponent = max(math.frexp(x)[1] - 1, fmt.min_exponent) - fmt.man_bits  # 这一段里相邻两数的间隔是 2^exponent
        x = math.ldexp(round(math.ldexp(x, -exponent)), exponent) or math.copysign(0.0, x)
    if abs(x) <= fmt.max:
        return x
    if saturate or fmt.specials == "none":
        return math.copysign(fmt.max, x)
    return math.copysign(math.inf, x) if fmt.specials == "ieee" else math.nan


# --8<-- [end:round]


# --8<-- [start:stall]
def train_weight(weight: float, update: float, steps: int, fmt: Format) -> float:
    """权重只以 fmt 存放，连续 steps 步各减去 update，返回最后的值。

    Llama-3-8B 的峰值学习率是 3e-4；Adam 每步的改动与学习率同量级。0.02 附近 bf16 的间隔是 1.2e-4，
    所以改动小于 6.1e-5（例如衰减到峰值的十分之一，3e-5）时，权重一步也不动：

    >>> stored = round_to(0.02, BF16)
    >>> stored, train_weight(stored, 3e-5, 1000, BF16)
    (0.02001953125, 0.02001953125)
    >>> round(train_weight(stored, 3e-5, 1000, FP32), 4)               # fp32 主权重：该走 0.03
    -0.01
    """
    for _ in range(steps):
        weight = round_to(weight - update, fmt)
    return weight


# --8<-- [end:stall]


# --8<-- [start:blocks]
def quantize(values: Sequence[float], fmt: Format, *, block: int, scale: str) -> list[float]:
    """每 block 个数共用一个缩放因子，量化到 fmt 再还原。

    scale："fp32" 用 amax / fmt.max；"e8m0" 用 2 的幂（OCP MX 1.0：⌊log₂ amax⌋ − fmt.max_exponent，超出的饱和）；
    "e4m3" 是 NVFP4 的两级缩放：块因子存 e4m3，另有整个张量一个 fp32 因子。

    >>> quantize([0.1, 6.0, -600.0, 0.0], E2M1, block=2, scale="fp32")
    [0.0, 6.0, -600.0, 0.0]
    >>> quantize([], E4M3, block=32, scale="e8m0")
    []
    """
    if block < 1:
        raise ValueError(f"block 必须为正整数，收到 {block}")
    if scale not in ("fp32", "e8m0", "e4m3"):
        raise ValueError(f"scale 必须是 fp32、e8m0 或 e4m3，收到 {scale!r}")
    if not all(abs(v) <= FP32.max for v in values):
        raise ValueError("values 必须全是 fp32 范围内的有限数")
    tensor_scale = max(map(abs, values), default=0.0) / (E4M3.max * fmt.max)
    out = []
    for start in range(0, len(values), block):
        chunk = values[start : start + block]
        amax = max(map(abs, chunk))
        if amax < 1e-30:  # 全零，或小到 fp32 的缩放因子放不下
            factor = 0.0
        elif scale == "fp32":
            factor = amax / fmt.max
        elif scale == "e8m0":
            factor = 2.0 ** (math.frexp(amax)[1] - 1 - fmt.max_exponent)
        else:
            factor = round_to(amax / fmt.max / tensor_scale, E4M3, saturate=True) * tensor_scale
        out += [round_to(v / factor, fmt, saturate=True) * factor if factor else 0.0 for v in chunk]
    return out


# --8<-- [end:blocks]


def relative_rms(values: Sequence[float], approximations: Sequence[float]) -> float:
    """误差的均方根除以原值的均方根。

    >>> round(relative_rms([3.0, 4.0], [3.0, 4.5]), 3)
    0.1
    """
    if len(values) != len(approximations):
        raise ValueError(f"两个序列须等长，收到 {len(values)} 与 {len(approximations)}")
    power = math.fsum(v * v for v in values)
    if power == 0:
        raise ValueError("原值全为零，相对误差没有定义")
    return math.sqrt(math.fsum((a - v) ** 2 for v, a in zip(values, approximations, strict=True)) / power)


# --8<-- [start:containers]
def block_table() -> list[str]:
    """分块格式的账：每数多少位（元素加分摊的因子）、一块之内最大比最小的非零数、各块的因子之间最大比最小。

    >>> print(*block_table(), sep="\\n")
    mxfp8 每数 8.25 位  块内 2.3e+05 倍  块间 2.9e+76 倍
    mxfp4 每数 4.25 位  块内 1.2e+01 倍  块间 2.9e+76 倍
    nvfp4 每数 4.50 位  块内 1.2e+01 倍  块间 2.3e+05 倍
    """
    e8m0, e4m3 = 2.0**127 / 2.0**-127, E4M3.max / E4M3.min_subnormal  # 两种因子（都是 8 位）能差多少倍
    kinds = {"mxfp8": (E4M3, 8, 32, e8m0), "mxfp4": (E2M1, 4, 32, e8m0), "nvfp4": (E2M1, 4, 16, e4m3)}
    return [
        f"{name} 每数 {bits + 8 / block:.2f} 位  块内 {fmt.max / fmt.min_subnormal:.1e} 倍  块间 {between:.1e} 倍"
        for name, (fmt, bits, block, between) in kinds.items()
    ]


# --8<-- [end:containers]


# --8<-- [start:errors]
def block_errors(outlier: float = 0.0, size: int = 4096) -> dict[str, float]:
    """标准正态样本（种子 0）量化后的相对均方根误差，单位 %；outlier 非零时把第一个样本换成它，误差只在其余样本上算。

    >>> for outlier in (0, 100, 1e5):
    ...     print(f"{outlier:g}", block_errors(outlier))
    0 {'bf16': 0.16, 'e4m3 整个张量': 2.65, 'mxfp8': 2.77, 'e2m1 整个张量': 11.59, 'mxfp4': 11.2, 'nvfp4': 9.74}
    100 {'bf16': 0.16, 'e4m3 整个张量': 2.64, 'mxfp8': 2.77, 'e2m1 整个张量': 100.0, 'mxfp4': 14.98, 'nvfp4': 10.97}
    100000 {'bf16': 0.16, 'e4m3 整个张量': 12.51, 'mxfp8': 3.0, 'e2m1 整个张量': 100.0, 'mxfp4': 14.98, 'nvfp4': 11.24}
    """
    random = Random(0)
    values = [random.gauss(0, 1) for _ in range(size)]
    if outlier:
        values[0] = outlier
    schemes = {
        "bf16": [round_to(v, BF16) for v in values],
        "e4m3 整个张量": quantize(values, E4M3, block=size, scale="fp32"),
        "mxfp8": quantize(values, E4M3, block=32, scale="e8m0"),
        "e2m1 整个张量": quantize(values, E2M1, block=size, scale="fp32"),
        "mxfp4": quantize(values, E2M1, block=32, scale="e8m0"),
        "nvfp4": quantize(values, E2M1, block=16, scale="e4m3"),
    }
    return {name: round(100 * relative_rms(values[1:], got[1:]), 2) for name, got in schemes.items()}


def fp4_steps(outlier: float = 0.0, size: int = 4096) -> dict[str, float]:
    """从 MXFP4 走到 NVFP4：块长与因子的精度分开改，各降多少误差（%，样本与 block_errors 相同）。

    >>> fp4_steps()                                                # 没有离群值：只减小块反而略差，改因子才有用
    {'块 32，2 的幂': 11.2, '块 16，2 的幂': 11.6, '块 32，E4M3': 10.27, '块 16，E4M3': 9.74}
    >>> fp4_steps(100)                                             # 离群值大：两样都有用，减小块的一份大些
    {'块 32，2 的幂': 14.98, '块 16，2 的幂': 12.67, '块 32，E4M3': 14.32, '块 16，E4M3': 10.97}
    """
    random = Random(0)
    values = [random.gauss(0, 1) for _ in range(size)]
    if outlier:
        values[0] = outlier
    errors = {}
    for name, scale in (("2 的幂", "e8m0"), ("E4M3", "e4m3")):
        for block in (32, 16):
            got = quantize(values, E2M1, block=block, scale=scale)
            errors[f"块 {block}，{name}"] = round(100 * relative_rms(values[1:], got[1:]), 2)
    return errors


# --8<-- [end:errors]
