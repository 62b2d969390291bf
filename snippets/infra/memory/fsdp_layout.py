"""FSDP 把一个 unit 的参数切到 n 个 rank 的两种排法：FSDP1 拼成一条再切，FSDP2 每个参数沿第 0 维切（只用标准库）。"""

import math
from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, ...]]


def _check(shapes: Shapes, n: int) -> None:
    if n < 1:
        raise ValueError(f"rank 数须为正，收到 {n}")
    if not shapes or any(not shape or min(shape) < 1 for shape in shapes.values()):
        raise ValueError("至少要有一个参数，每个参数至少一维、各维为正")


# --8<-- [start:flat]
def flat_layout(shapes: Shapes, n: int) -> list[dict[str, tuple[int, int]]]:
    """FSDP1 的 FlatParameter：依次展平、拼接、补零到 n 的倍数、切 n 段。返回每个 rank 拿到的 {参数: 展平后的区间 [起, 止)}。

    边界落在哪里与参数的形状无关：一行可以被切开，一个 rank 也可能完全没有某个参数。

    >>> for held in flat_layout({"w": (3, 4), "b": (3,)}, 4):
    ...     print(held)
    {'w': (0, 4)}
    {'w': (4, 8)}
    {'w': (8, 12)}
    {'b': (0, 3)}
    """
    _check(shapes, n)
    size = -(-sum(map(math.prod, shapes.values())) // n)
    ranks: list[dict[str, tuple[int, int]]] = [{} for _ in range(n)]
    start = 0
    for name, shape in shapes.items():
        numel = math.prod(shape)
        for rank in range(n):
            low, high = max(start, rank * size), min(start + numel, (rank + 1) * size)
            if low < high:
                ranks[rank][name] = (low - start, high - start)
        start += numel
    return ranks


# --8<-- [end:flat]


# --8<-- [start:dim0]
def dim0_rows(rows: int, n: int) -> list[int]:
    """FSDP2 每个 rank 拿到的行数：与 torch.chunk 相同，每块 ⌈rows/n⌉ 行，尾部的 rank 可能更少或一行也没有。

    >>> dim0_rows(10, 4), dim0_rows(5, 4), dim0_rows(3, 4)
    ([3, 3, 3, 1], [2, 2, 1, 0], [1, 1, 1, 0])
    """
    if rows < 1 or n < 1:
        raise ValueError(f"行数与 rank 数须为正，收到 {rows}、{n}")
    chunk = -(-rows // n)
    return [max(0, min(chunk, rows - rank * chunk)) for rank in range(n)]


def padding_waste(shapes: Shapes, n: int) -> tuple[float, float]:
    """两种排法在 all-gather 里多传的比例：（整条只补一次，每个参数各补）。

    >>> waste = lambda shapes, n: tuple(round(100 * w, 2) for w in padding_waste(shapes, n))
    >>> waste(llama_layer(4096, 8, 128, 14336), 512)                # 每一维都是 512 的倍数
    (0.0, 0.0)
    >>> waste(llama_layer(4096, 8, 128, 14336), 96)                 # 96 不整除：4096 → 43 行 × 96 = 4128
    (0.0, 0.69)
    >>> waste({"norm": (32,), "router": (32, 4096)}, 96)            # 行数比 rank 还少：三分之二的 rank 传的全是零
    (0.02, 200.0)
    """
    _check(shapes, n)
    total = sum(map(math.prod, shapes.values()))
    flat = -(-total // n) * n
    dim0 = sum(-(-shape[0] // n) * n * math.prod(shape[1:]) for shape in shapes.values())
    return flat / total - 1, dim0 / total - 1


# --8<-- [end:dim0]


def llama_layer(h: int, kv: int, d: int, f: int) -> dict[str, tuple[int, ...]]:
    """一层 Llama 的参数形状（输出维在前，与 nn.Linear 相同）。

    >>> sum(map(math.prod, llama_layer(4096, 8, 128, 14336).values()))
    218112000
    """
    return {
        "norm1": (h,),
        "wq": (h, h),
        "wk": (kv * d, h),
        "wv": (kv * d, h),
        "wo": (h, h),
        "norm2": (h,),
        "gate": (f, h),
        "up": (f, h),
        "down": (h, f),
    }


# --8<-- [start:interleave]
def gathered_order(shapes: Shapes, n: int) -> list[tuple[int, str]]:
    """FSDP2 一次 all-gather 之后，缓冲里依次是 (rank, 参数) 的块：同一个参数的 n 块不相邻，要再拷贝一次才连续。

    >>> gathered_order({"w": (4, 2), "b": (4,)}, 2)
    [(0, 'w'), (0, 'b'), (1, 'w'), (1, 'b')]
    """
    _check(shapes, n)
    return [(rank, name) for rank in range(n) for name in shapes]


# --8<-- [end:interleave]


# --8<-- [start:peak]
def fsdp_bytes(psi: int, unit: int, n: int, alive: int = 2, *, compute: int = 2, gradient: int = 4, buffers: int = 2) -> dict[str, float]:
    """一张卡上与参数有关的 GB（10⁹）：fp32 分片（权重 4、梯度 gradient、Adam 8），加上聚齐的 unit 与梯度的 reduce-scatter 输入。

    unit 是最大一组的参数量；alive 组同时聚齐（正在算的与预取的）；compute 字节/参数聚齐；buffers 组的完整梯度（compute 字节）在途。
    FSDP2 的混合精度策略：分片存 fp32，聚齐时转 bf16。不含激活。

    >>> for n in (8, 64, 512):
    ...     print(n, {k: round(v, 2) for k, v in fsdp_bytes(8_030_261_248, 218_112_000, n).items()})
    8 {'分片': 16.06, '聚齐的参数': 0.87, '在途的梯度': 0.87}
    64 {'分片': 2.01, '聚齐的参数': 0.87, '在途的梯度': 0.87}
    512 {'分片': 0.25, '聚齐的参数': 0.87, '在途的梯度': 0.87}
    >>> {k: round(v, 2) for k, v in fsdp_bytes(8_030_261_248, 8_030_261_248, 512, 1, buffers=1).items()}   # 只包一个 unit
    {'分片': 0.25, '聚齐的参数': 16.06, '在途的梯度': 16.06}
    """
    if min(psi, unit, n, alive) < 1 or unit > psi:
        raise ValueError(f"psi、unit、n、alive 须为正且 unit ≤ psi，收到 {psi}、{unit}、{n}、{alive}")
    return {
        "分片": psi / n * (4 + gradient + 8) / 1e9,
        "聚齐的参数": alive * unit * compute / 1e9,
        "在途的梯度": buffers * unit * compute / 1e9,
    }


# --8<-- [end:peak]
