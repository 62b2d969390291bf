"""为大模型选优化器的账：Llama-3-8B 上各种状态的字节、更新一步的访存、低位状态的坑（只用标准库）。"""

import math
from collections.abc import Callable
from random import Random

from snippets.common.chart import bars
from snippets.deep_learning.training.number_formats import E5M2, quantize

# --8<-- [start:shapes]
# (个数, 行, 列, 是不是隐藏矩阵)：Llama-3-8B 的全部参数
LLAMA3_8B = (
    (64, 4096, 4096, True),  # W_Q、W_O
    (64, 1024, 4096, True),  # W_K、W_V（8 个 KV 头）
    (64, 14336, 4096, True),  # gate、up
    (32, 4096, 14336, True),  # down
    (2, 128_256, 4096, False),  # embedding 与输出头
    (65, 1, 4096, False),  # RMSNorm 的增益
)


def parameters() -> int:
    """Llama-3-8B 的参数量。

    >>> parameters()
    8030261248
    """
    return sum(count * rows * cols for count, rows, cols, _ in LLAMA3_8B)


# 每个矩阵的优化器状态字节数；Muon 只管隐藏矩阵，其余仍用 AdamW
STATES: dict[str, Callable[[int, int, bool], float]] = {
    "AdamW，fp32": lambda r, c, hidden: 8 * r * c,
    "AdamW，矩用 bf16": lambda r, c, hidden: 4 * r * c,
    "AdamW，8 位分块": lambda r, c, hidden: 2 * r * c * (1 + 4 / 256),  # 每 256 个一个 fp32 因子
    "Lion，fp32": lambda r, c, hidden: 4 * r * c,
    "Muon，fp32": lambda r, c, hidden: (4 if hidden else 8) * r * c,
    "Adafactor，无动量": lambda r, c, hidden: 4 * (r + c) if r > 1 else 4 * r * c,
    # 动量，加左右两个统计量与各自的逆根；不分块
    "Shampoo，fp32": lambda r, c, hidden: 4 * r * c + (8 * (r * r + c * c) if hidden else 4 * r * c),
}


def state_table() -> list[tuple[str, float, float]]:
    """(优化器, 字节/参数, GB)，不含 fp32 主权重；GB = 10⁹ 字节。

    >>> for name, per_parameter, gb in state_table():
    ...     print(f"{per_parameter:7.3f} B/参数  {gb:7.2f} GB  {name}")
      8.000 B/参数    64.24 GB  AdamW，fp32
      4.000 B/参数    32.12 GB  AdamW，矩用 bf16
      2.031 B/参数    16.31 GB  AdamW，8 位分块
      4.000 B/参数    32.12 GB  Lion，fp32
      4.523 B/参数    36.32 GB  Muon，fp32
      0.002 B/参数     0.01 GB  Adafactor，无动量
     29.060 B/参数   233.36 GB  Shampoo，fp32
    """
    rows = []
    for name, size in STATES.items():
        total = sum(count * size(rows, cols, hidden) for count, rows, cols, hidden in LLAMA3_8B)
        rows.append((name, total / parameters(), total / 1e9))
    return rows


# --8<-- [end:shapes]


# --8<-- [start:traffic]
def update_milliseconds(per_parameter: float = 30.0, shards: int = 1, tb_per_s: float = 3.35) -> float:
    """8B 模型更新一步的访存时间下限（毫秒），tb_per_s 是 HBM 带宽，默认 H100 的规格。

    AdamW（bf16 梯度、fp32 主权重与矩）每参数读 2 + 4 + 4 + 4、写 4 + 4 + 4、再写 bf16 权重 2，共 28 字节；梯度为 fp32 时 30。

    >>> round(update_milliseconds(28), 1), round(update_milliseconds(28, shards=64), 2)
    (67.1, 1.05)
    """
    if not (0 < per_parameter < math.inf and 0 < tb_per_s < math.inf) or shards < 1 or shards != int(shards):
        raise ValueError(f"字节、带宽须为正的有限数，分片数须为正整数，收到 {per_parameter}、{tb_per_s}、{shards}")
    return parameters() * per_parameter / shards / (tb_per_s * 1e12) * 1e3


# --8<-- [end:traffic]


# --8<-- [start:lowbit]
def worst_update(scheme: str, size: int = 4096) -> float:
    """Adam 的二阶矩 v 用低位存，更新 m/(√v + ε) 最大被放大多少倍（ε = 1e-8，种子 0）。

    v 在一个块里跨 6 个数量级（人造：log₁₀ v 在 −12 到 −6 之间均匀），m 取 √v，所以正确的更新都是 1。
    scheme："int8" 线性量化（最大值的 1/255 为一格）；"e5m2" 浮点码；都每 256 个一个因子。

    >>> for scheme in ("fp32", "int8", "e5m2"):
    ...     print(scheme, f"{worst_update(scheme):.3g}")
    fp32 1
    int8 4.42e+03
    e5m2 1.06
    """
    if size < 1:
        raise ValueError(f"size 须为正，收到 {size}")
    random = Random(0)
    v = [10 ** random.uniform(-12, -6) for _ in range(size)]
    if scheme == "fp32":
        stored = v
    elif scheme == "int8":
        stored = []
        for start in range(0, size, 256):
            block = v[start : start + 256]
            unit = max(block) / 255
            stored += [round(x / unit) * unit for x in block]
    elif scheme == "e5m2":
        stored = quantize(v, E5M2, block=256, scale="fp32")
    else:
        raise ValueError(f"scheme 须为 fp32、int8 或 e5m2，收到 {scheme!r}")
    exact = [math.sqrt(x) / (math.sqrt(x) + 1e-8) for x in v]
    got = [math.sqrt(x) / (math.sqrt(max(s, 0.0)) + 1e-8) for x, s in zip(v, stored, strict=True)]
    return max(g / e for g, e in zip(got, exact, strict=True))


# --8<-- [end:lowbit]


def figure_states() -> str:
    """Llama-3-8B：各优化器的状态（GB），另加 4 字节主权重与 4 字节的权重和梯度。"""
    rows = state_table()
    psi = parameters() / 1e9
    return bars(
        [name for name, _, _ in rows],
        {
            "bf16 权重与梯度": [4 * psi] * len(rows),
            "fp32 主权重": [4 * psi] * len(rows),
            "优化器状态": [gb for _, _, gb in rows],
        },
        title="Llama-3-8B 的模型状态，不切分",
        unit="GB",
    )
