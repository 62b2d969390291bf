"""FSDP2 一步里与参数有关的显存：每个时刻活着什么（只用标准库）。

次序照 PyTorch 2.13 的 _fsdp_param_group.py：前向的聚齐缓冲留到下一个 unit 拷出之后；反向的拷出之后就放；
反向做完先 reshard 再把梯度拷进 reduce-scatter 的输入，然后放掉完整的梯度；上一个 unit 的归约输入只留一份。
"""

from collections.abc import Sequence

from snippets.common.chart import lines

LLAMA3_8B_LAYERS = (218_112_000,) * 32
LLAMA3_8B_ROOT = 1_050_677_248  # 嵌入、输出层、末尾的归一化


# --8<-- [start:timeline]
def timeline(units: Sequence[int], root: int = 0, *, reshard: bool = True, compute: int = 2, reduce: int = 2) -> list[tuple[str, float]]:
    """逐时刻的 (名字, 活着的字节)，不含分片与激活。units 是各层的参数量，root 是根那一组（前向后不 reshard）。

    compute 字节/参数聚齐与算梯度，reduce 字节/参数归约（fp32 归约填 4）。根的权重从步首活到最后，梯度到最后才归约。

    >>> moments = timeline([100, 100, 100])
    >>> max(size for _, size in moments), [name for name, size in moments if size == 800]
    (800.0, ['反向 1'])
    >>> max(size for _, size in timeline([100, 100, 100], reduce=4)), max(size for _, size in timeline([300]))
    (1000.0, 1200.0)
    """
    if not units or min(units) < 1 or root < 0 or min(compute, reduce) < 1:
        raise ValueError("units 须非空且为正，root 非负，compute、reduce 为正")
    out = []
    kept = compute * root  # 根的权重
    held = 0.0  # 前向：上一个 unit 的聚齐缓冲，等下一个拷出才放
    resident = 0.0  # reshard=False 时留下的完整权重
    last = len(units) - 1
    for i, size in enumerate(units):
        full = compute * size
        upcoming = compute * units[i + 1] if i < last else 0  # CPU 跑在前面，下一个的缓冲已经分配
        out.append((f"前向 {i} 拷出", kept + resident + held + 2 * full))
        held = full
        out.append((f"前向 {i}", kept + resident + full + held + upcoming))
        resident += 0 if reshard else full
    pending = 0.0  # 上一个 unit 的归约输入
    root_grad = compute * root if root else 0.0  # 输出层先反向，它的梯度要留到根归约
    for i in range(last, -1, -1):
        full = compute * units[i]
        gathered = 0.0 if not reshard else full
        ahead = compute * units[i - 1] if reshard and i else 0  # 反向预取的缓冲
        base = kept + root_grad + resident
        out.append((f"反向 {i}", base + gathered + full + ahead + pending))  # 权重 + 完整的梯度 + 预取 + 上一个的归约输入
        resident -= 0 if reshard else full
        base = kept + root_grad + resident
        pending = reduce * units[i]
        out.append((f"反向 {i} 归约", base + full + pending + ahead))
    out.append(("根归约", root_grad + reduce * root + pending))
    return out


# --8<-- [end:timeline]


# --8<-- [start:granularity]
def merged(units: Sequence[int], per: int) -> list[int]:
    """每 per 层包成一个 unit。

    >>> merged([1, 2, 3, 4, 5], 2)
    [3, 7, 5]
    """
    if per < 1:
        raise ValueError(f"per 须为正，收到 {per}")
    return [sum(units[i : i + per]) for i in range(0, len(units), per)]


def peak_gb(per: int, *, reshard: bool = True, reduce: int = 2) -> float:
    """Llama-3-8B、每 per 层一个 unit，与参数有关的临时显存的峰值，GB（10⁹）；与卡数无关。

    >>> [round(peak_gb(per), 1) for per in (1, 2, 4, 8, 32)]
    [5.9, 7.7, 11.2, 18.2, 32.1]
    >>> round(peak_gb(1, reduce=4), 1), round(peak_gb(1, reshard=False), 1)
    (7.2, 18.6)
    """
    units = merged(LLAMA3_8B_LAYERS, per)
    return max(size for _, size in timeline(units, LLAMA3_8B_ROOT, reshard=reshard, reduce=reduce)) / 1e9


# --8<-- [end:granularity]


# --8<-- [start:persistent]
def persistent_gb(psi: float, n: int, *, weight: int = 4, gradient: int = 4, optimizer: int = 8) -> float:
    """一直在的分片：权重、梯度、Adam 的 m 与 v，GB。

    >>> [round(persistent_gb(8_030_261_248, n), 2) for n in (1, 8, 64, 512)]
    [128.48, 16.06, 2.01, 0.25]
    """
    if psi <= 0 or n < 1:
        raise ValueError(f"psi、n 须为正，收到 {psi}、{n}")
    return psi / n * (weight + gradient + optimizer) / 1e9


# --8<-- [end:persistent]


def figure_step() -> str:
    """8B 一步里与参数有关的临时显存，三种包法。"""
    series = {}
    for name, per in (("每层一个 unit", 1), ("4 层一个", 4), ("整个模型一个", 32)):
        moments = timeline(merged(LLAMA3_8B_LAYERS, per), LLAMA3_8B_ROOT)
        series[name] = [(i / (len(moments) - 1), size / 1e9) for i, (_, size) in enumerate(moments)]
    return lines(series, title="Llama-3-8B，一步里聚齐的参数、梯度与缓冲", x_label="步首 → 步末", y_label="GB")
