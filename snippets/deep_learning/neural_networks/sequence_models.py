"""RNN、LSTM、注意力、线性递归：每层的计算、必须依次的步数、路径长度、解码的状态（只用标准库）。"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from snippets.common.chart import binary, lines


# --8<-- [start:table]
@dataclass(frozen=True)
class Layer:
    """一层：train_flops(s, h) 前向总 FLOPs，steps(s) 训练时必须依次的步数，path(s) 最远两个位置之间经过几步，

    state(s, h) 解码到第 s 个 token 要带着的数的个数，decode_flops(s, h) 再解码一个 token 的 FLOPs。乘加记 2。
    """

    train_flops: Callable[[int, int], int]
    steps: Callable[[int], int]
    path: Callable[[int], int]
    state: Callable[[int, int], int]
    decode_flops: Callable[[int, int], int]


# 各层都含自己的输入、输出投影；注意力按 MHA、不因因果减半；线性递归按每头 128 维的矩阵状态
HEAD = 128
LAYERS = {
    "RNN": Layer(lambda s, h: 4 * s * h * h, lambda s: s, lambda s: s - 1, lambda s, h: h, lambda s, h: 4 * h * h),
    "LSTM": Layer(lambda s, h: 16 * s * h * h, lambda s: s, lambda s: s - 1, lambda s, h: 2 * h, lambda s, h: 16 * h * h),
    "注意力": Layer(
        lambda s, h: 8 * s * h * h + 4 * s * s * h,
        lambda s: 1,
        lambda s: min(1, s - 1),
        lambda s, h: 2 * s * h,
        lambda s, h: 8 * h * h + 4 * s * h,
    ),
    "线性递归": Layer(
        lambda s, h: 8 * s * h * h + 4 * s * h * HEAD,
        lambda s: max(1, (s - 1).bit_length()),
        lambda s: s - 1,
        lambda s, h: h * HEAD,
        lambda s, h: 8 * h * h + 4 * h * HEAD,
    ),
}


def comparison(s: int = 8192, h: int = 4096) -> list[str]:
    """四种层在同样的 s、h 下。

    >>> print(*comparison(), sep="\\n")
    RNN：前向  0.55 TFLOP  依次 8192 步  路径 8191  状态   0.00 M 个  再解一个   67 MFLOP
    LSTM：前向  2.20 TFLOP  依次 8192 步  路径 8191  状态   0.01 M 个  再解一个  268 MFLOP
    注意力：前向  2.20 TFLOP  依次    1 步  路径    1  状态  67.11 M 个  再解一个  268 MFLOP
    线性递归：前向  1.12 TFLOP  依次   13 步  路径 8191  状态   0.52 M 个  再解一个  136 MFLOP
    """
    if s < 1 or h < HEAD or h % HEAD:
        raise ValueError(f"须 s ≥ 1、h 是 {HEAD} 的正整数倍，收到 {s}、{h}")
    return [
        f"{name}：前向 {layer.train_flops(s, h) / 1e12:5.2f} TFLOP  依次 {layer.steps(s):4} 步  路径 {layer.path(s):4}"
        f"  状态 {layer.state(s, h) / 1e6:6.2f} M 个  再解一个 {layer.decode_flops(s, h) / 1e6:4.0f} MFLOP"
        for name, layer in LAYERS.items()
    ]


# --8<-- [end:table]


def _check(decay: Sequence[float], inputs: Sequence[float]) -> None:
    if len(decay) != len(inputs):
        raise ValueError(f"系数与输入须一样长，收到 {len(decay)}、{len(inputs)}")
    if not all(map(math.isfinite, (*decay, *inputs))):
        raise ValueError("系数与输入须是有限的数")


# --8<-- [start:scan]
def sequential_scan(decay: Sequence[float], inputs: Sequence[float]) -> list[float]:
    """逐步的线性递归 c_t = a_t·c_{t−1} + b_t，c_{−1} = 0。"""
    _check(decay, inputs)
    out, c = [], 0.0
    for a, b in zip(decay, inputs, strict=True):
        c = a * c + b
        out.append(c)
    return out


def parallel_scan(decay: Sequence[float], inputs: Sequence[float]) -> tuple[list[float], int]:
    """同一个递归用结合律算：(a₁, b₁)∘(a₂, b₂) = (a₁a₂, a₂b₁ + b₂)。返回（结果，依次的轮数 ⌈log₂ s⌉）。

    门里没有 h_{t−1} 才行：LSTM 的 a_t 要等上一步的输出，写不成这样。

    >>> decay, inputs = [0.5, 0.9, 0.0, 1.0, 0.25], [1.0, 2.0, 3.0, 4.0, 5.0]
    >>> parallel_scan(decay, inputs)
    ([1.0, 2.9, 3.0, 7.0, 6.75], 3)
    >>> sequential_scan(decay, inputs)
    [1.0, 2.9, 3.0, 7.0, 6.75]
    """
    _check(decay, inputs)
    pairs = list(zip(decay, inputs, strict=True))
    rounds, reach = 0, 1
    while reach < len(pairs):
        pairs = [
            (pairs[i - reach][0] * a, a * pairs[i - reach][1] + b) if i >= reach else (a, b) for i, (a, b) in enumerate(pairs)
        ]  # 一轮之内各位置互不依赖
        rounds, reach = rounds + 1, 2 * reach
    if not all(math.isfinite(v) for pair in pairs for v in pair):
        raise ValueError("系数的连乘或结果上溢，须先缩小系数")
    return [b for _, b in pairs], rounds


# --8<-- [end:scan]


# --8<-- [start:hybrid]
def hybrid_cache(layers: int, every: int, per_layer_bytes: float) -> float:
    """每 every 层里有一层是全局注意力、其余是定长状态时，每 token 的 KV 字节（定长状态不随长度长，不计）。

    Llama-3-8B 的形状：每层每 token 2·8·128·2 = 4096 字节

    >>> [hybrid_cache(32, every, 4096) / 1024 for every in (1, 4, 8)]          # 全注意力、3:1、7:1，KiB
    [128.0, 32.0, 16.0]
    """
    if layers < 1 or every < 1 or layers % every or not 0 < per_layer_bytes < math.inf:
        raise ValueError(f"层数须是 every 的整数倍、字节须为正且有限，收到 {layers}、{every}、{per_layer_bytes}")
    return layers // every * per_layer_bytes


# --8<-- [end:hybrid]


def figure_state() -> str:
    """解码状态随长度：LSTM、线性递归不变，注意力线性增长（h = 4096，一层）。"""
    lengths = [2**k for k in range(8, 18)]
    return lines(
        {name: [(s, layer.state(s, 4096)) for s in lengths] for name, layer in LAYERS.items() if name != "RNN"},
        title="一层的解码状态（h = 4096）",
        x_label="已读的 token 数",
        y_label="数的个数",
        x_log=2,
        y_log=10,
        x_fmt=binary,
    )
