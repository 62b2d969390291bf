"""计算器的输入检查：消息以字段名开头，页面据此把它放到那个输入框下面（只用标准库）。

与计算器一起编译成 JavaScript，所以只用两种语言含义相同的写法。
"""

import math


def whole(name: str, value: float, low: int, high: int) -> None:
    """value 须是 low 到 high 的整数；NaN 与无穷也在此挡下。

    >>> whole("layers", 32, 1, 1000)
    >>> whole("layers", 1.5, 1, 1000)
    Traceback (most recent call last):
    ...
    ValueError: layers: 须是 1 到 1000 的整数
    """
    if not low <= value <= high or math.floor(value) != value:
        raise ValueError(name + ": 须是 " + str(low) + " 到 " + str(high) + " 的整数")


def number(name: str, value: float, low: float, high: float) -> None:
    """value 须是 low 到 high 的数。

    >>> number("mfu", float("nan"), 0, 100)
    Traceback (most recent call last):
    ...
    ValueError: mfu: 须是 0 到 100 的数
    """
    if not low <= value <= high:
        raise ValueError(name + ": 须是 " + str(low) + " 到 " + str(high) + " 的数")


def divides(name: str, part: float, total: float, message: str) -> None:
    """part 须整除 total，否则抛出带着 message 的 ValueError。

    >>> divides("tp", 3, 32, "须整除头数")
    Traceback (most recent call last):
    ...
    ValueError: tp: 须整除头数
    """
    if math.floor(total / part) * part != total:
        raise ValueError(name + ": " + message)


def choice(name: str, value: str | int, allowed: list) -> None:
    """value 须是 allowed 之一。

    >>> choice("dtype", "fp7", ["bf16", "fp8"])
    Traceback (most recent call last):
    ...
    ValueError: dtype: 不是列出的选项之一
    """
    found = False
    for option in allowed:
        if option == value:
            found = True
    if not found:
        raise ValueError(name + ": 不是列出的选项之一")
