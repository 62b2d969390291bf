"""卷积：等变与不变、感受野、参数与计算量（只用标准库）。"""

import math
from collections.abc import Sequence

Image = list[list[float]]


# --8<-- [start:conv]
def conv(image: Image, kernel: Image, stride: int = 1) -> Image:
    """单通道互相关（深度学习里的“卷积”），四周循环补齐，使平移没有边界效应。image: (H, W)，输出 (⌈H/stride⌉, ⌈W/stride⌉)。

    >>> conv([[1, 2], [3, 4]], [[1]], stride=2), conv([[0, 1, 0, 0]], [[1, 2, 3]])
    ([[1]], [[3, 2, 1, 0]])
    """
    if type(stride) is not int or stride < 1:
        raise ValueError(f"stride 必须为正整数，收到 {stride}")
    for name, grid in (("image", image), ("kernel", kernel)):
        if not grid or not grid[0] or any(len(row) != len(grid[0]) for row in grid):
            raise ValueError(f"{name} 不能为空，各行须等长")
        if not all(math.isfinite(x) for row in grid for x in row):
            raise ValueError(f"{name} 里有非有限数")
    if len(kernel) > len(image) or len(kernel[0]) > len(image[0]):
        raise ValueError("kernel 比 image 大，循环补齐会重复计数")
    rows, cols, up, left = len(image), len(image[0]), len(kernel) // 2, len(kernel[0]) // 2
    return [
        [
            sum(
                weight * image[(r + i - up) % rows][(c + j - left) % cols] for i, line in enumerate(kernel) for j, weight in enumerate(line)
            )
            for c in range(0, cols, stride)
        ]
        for r in range(0, rows, stride)
    ]


def shift(image: Image, by: int = 1) -> Image:
    """循环右移 by 列（负数左移）。"""
    if type(by) is not int:
        raise ValueError(f"by 须为整数，收到 {by}")
    return [[row[(c - by) % len(row)] for c in range(len(row))] for row in image]


# --8<-- [end:conv]


# --8<-- [start:equivariance]
def equivariance() -> dict[str, bool]:
    """平移输入一格之后：步长 1 的卷积输出恰好也移一格；步长 2 的输出怎么平移都对不上；全局平均不变。

    >>> equivariance()
    {'步长 1：输出跟着移': True, '步长 1：输出不变': False, '步长 2：某个平移能对上': False, '全局平均：不变': True}
    """
    image = [[float((3 * r * r + 5 * c * c + r * c) % 17) for c in range(8)] for r in range(8)]
    kernel = [[1.0, 2.0, -1.0], [0.0, 3.0, 1.0], [2.0, -2.0, 1.0]]
    plain, moved = conv(image, kernel), conv(shift(image), kernel)
    strided, strided_moved = conv(image, kernel, 2), conv(shift(image), kernel, 2)
    return {
        "步长 1：输出跟着移": moved == shift(plain),
        "步长 1：输出不变": moved == plain,
        "步长 2：某个平移能对上": any(strided_moved == shift(strided, by) for by in range(4)),
        "全局平均：不变": sum(map(sum, moved)) == sum(map(sum, plain)),
    }


# --8<-- [end:equivariance]


# --8<-- [start:counts]
def receptive_field(layers: Sequence[tuple[int, int]]) -> int:
    """逐层 (核宽, 步长)，返回最后一个输出看到输入的宽度：r ← r + (k − 1)·(之前步长之积)。

    >>> receptive_field([(3, 1)] * 2), receptive_field([(3, 1)] * 3), receptive_field([(7, 2), (3, 2), (3, 1)])
    (5, 7, 19)
    """
    width, jump = 1, 1
    for kernel, stride in layers:
        if any(type(n) is not int or n < 1 for n in (kernel, stride)):
            raise ValueError(f"核宽与步长须为正整数，收到 {kernel}、{stride}")
        width += (kernel - 1) * jump
        jump *= stride
    return width


def resnet50_parameters(classes: int = 1000) -> int:
    """ResNet-50：7×7 起步，四组瓶颈块 (3, 4, 6, 3)，每个卷积后有 BatchNorm（两个参数/通道），最后全连接。

    >>> resnet50_parameters()
    25557032
    """
    if type(classes) is not int or classes < 1:
        raise ValueError(f"类别数须为正整数，收到 {classes}")

    def conv_bn(fan_in: int, fan_out: int, k: int) -> int:
        return fan_in * fan_out * k * k + 2 * fan_out

    total, width = conv_bn(3, 64, 7), 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            total += conv_bn(width, inner, 1) + conv_bn(inner, inner, 3) + conv_bn(inner, 4 * inner, 1)
            if block == 0:
                total += conv_bn(width, 4 * inner, 1)  # 形状变了，残差要投影
            width = 4 * inner
    return total + width * classes + classes


def per_pixel(c_in: int, c_out: int, k: int, *, separable: bool = False) -> int:
    """一个卷积的权重数（不含偏置），也是每个输出像素的乘加数；separable 时先逐通道 k×k、再 1×1。

    >>> bottleneck = per_pixel(256, 64, 1) + per_pixel(64, 64, 3) + per_pixel(64, 256, 1)
    >>> bottleneck, round(2 * per_pixel(256, 256, 3) / bottleneck, 1)                      # 对比两个 3×3×256
    (69632, 16.9)
    >>> ratio = per_pixel(256, 256, 3, separable=True) / per_pixel(256, 256, 3)
    >>> round(ratio, 3), round(1 / 256 + 1 / 9, 3)
    (0.115, 0.115)
    """
    if any(type(n) is not int or n < 1 for n in (c_in, c_out, k)):
        raise ValueError(f"通道数与核宽须为正整数，收到 {c_in}、{c_out}、{k}")
    return c_in * k * k + c_in * c_out if separable else c_in * c_out * k * k


# --8<-- [end:counts]
