"""BERT 的参数量与可见范围（只用标准库）。"""


# --8<-- [start:parameters]
def parameters(layers: int, h: int, vocabulary: int = 30_522, positions: int = 512, segments: int = 2) -> dict[str, int]:
    """BERT 编码器（含 pooler、不含预训练的两个头）的参数量，MLP 宽 4h，线性层都有偏置，post-LN。

    >>> parameters(12, 768)["合计"], parameters(24, 1024)["合计"]
    (109482240, 335141888)
    >>> {name: round(100 * n / 109_482_240, 1) for name, n in parameters(12, 768).items() if name != "合计"}   # %
    {'embedding': 21.8, '注意力': 25.9, 'MLP': 51.8, 'pooler': 0.5}
    """
    if any(type(n) is not int or n < 1 for n in (layers, h, vocabulary, positions, segments)):
        raise ValueError("层数、宽度、词表、位置数、段数都须为正整数")
    norm = 2 * h  # LayerNorm 的增益与偏置
    parts = {
        "embedding": (vocabulary + positions + segments) * h + norm,
        "注意力": layers * (4 * (h * h + h) + norm),
        "MLP": layers * (h * 4 * h + 4 * h + 4 * h * h + h + norm),
        "pooler": h * h + h,
    }
    return parts | {"合计": sum(parts.values())}


# --8<-- [end:parameters]


# --8<-- [start:visible]
def visible(length: int, *, causal: bool) -> list[int]:
    """每个位置能看到几个位置（含自己）。

    >>> visible(6, causal=False), visible(6, causal=True)
    ([6, 6, 6, 6, 6, 6], [1, 2, 3, 4, 5, 6])
    """
    if type(length) is not int or length < 0:
        raise ValueError(f"长度须为非负整数，收到 {length}")
    return [position + 1 if causal else length for position in range(length)]


# --8<-- [end:visible]
