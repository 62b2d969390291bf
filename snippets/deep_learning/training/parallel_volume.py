"""四种切法每卡每步搬多少数据（只用标准库）。"""

from dataclasses import dataclass


# --8<-- [start:volume]
@dataclass(frozen=True)
class Model:
    """psi 参数量、layers 层数、h hidden。"""

    psi: int
    layers: int
    h: int


LLAMA3_8B = Model(8_030_261_248, 32, 4096)
LLAMA3_70B = Model(70_553_706_496, 80, 8192)


def sent_per_step(model: Model, n: int, *, tokens: int, micro_batches: int = 1, element: int = 2) -> dict[str, float]:
    """每卡每步发出的 GB（10⁹ 字节），n 卡只用一种切法，element 字节/元素，环形集合通信，不含 embedding 与重算。

    tokens 是这 n 卡一步**合计**处理的 token 数（全局 batch），四种切法都相同，所以每卡的计算量也相同，可以直接比。
    DP 与 ZeRO-3 每卡只看到 tokens/n 个；TP 与 PP 的每张卡都见到全部 tokens，但只算其中 1/n 的工作。
    DP 2Ψ(n−1)/n；ZeRO-3 每个 micro-batch 3Ψ(n−1)/n；TP 每层前向 2 次、反向 2 次 all-reduce；PP 每个边界一去一回。

    >>> for model in (LLAMA3_8B, LLAMA3_70B):                          # 8 条 8K：DP 每卡一条
    ...     print({k: round(v, 2) for k, v in sent_per_step(model, 8, tokens=65536).items()})
    {'DP': 28.11, 'ZeRO-3': 42.16, 'TP': 120.26, 'PP': 1.07}
    {'DP': 246.94, 'ZeRO-3': 370.41, 'TP': 601.3, 'PP': 2.15}
    """
    if min(n, tokens, micro_batches, element) < 1:
        raise ValueError(f"n、tokens、micro_batches、element 必须为正，收到 {n}、{tokens}、{micro_batches}、{element}")
    ring = (n - 1) / n
    activation = tokens * model.h
    elements = {
        "DP": 2 * ring * model.psi,
        "ZeRO-3": 3 * ring * model.psi * micro_batches,
        "TP": 4 * model.layers * 2 * ring * activation,
        "PP": 2 * activation if n > 1 else 0,  # 中间的段：前向发一份激活，反向发一份梯度
    }
    return {name: count * element / 1e9 for name, count in elements.items()}


# --8<-- [end:volume]


# --8<-- [start:ratio]
def communication_over_compute(
    model: Model, n: int, *, tokens: int, gb_per_s: float, peak: float = 989e12, mfu: float = 0.4
) -> dict[str, float]:
    """一步里通信时间除以计算时间（不重叠时的比例），gb_per_s 是每卡单向带宽，peak 是稠密 bf16 峰值 FLOP/s。

    每卡计算 6Ψ·tokens/n。8 卡、8B、全局 65536 token：NVLink 4（450 GB/s）与一张 400 Gb/s 网卡（50 GB/s）

    >>> for bandwidth in (450, 50):
    ...     ratios = communication_over_compute(LLAMA3_8B, 8, tokens=65536, gb_per_s=bandwidth)
    ...     print(bandwidth, {k: round(v, 3) for k, v in ratios.items()})
    450 {'DP': 0.063, 'ZeRO-3': 0.094, 'TP': 0.268, 'PP': 0.002}
    50 {'DP': 0.563, 'ZeRO-3': 0.845, 'TP': 2.411, 'PP': 0.022}
    """
    if gb_per_s <= 0 or peak <= 0 or not 0 < mfu <= 1:
        raise ValueError(f"带宽、峰值须为正，mfu 在 (0, 1] 内，收到 {gb_per_s}、{peak}、{mfu}")
    sent = sent_per_step(model, n, tokens=tokens)
    compute = 6 * model.psi * tokens / n / (peak * mfu)
    return {name: gb / gb_per_s / compute for name, gb in sent.items()}


# --8<-- [end:ratio]


def breakeven_tokens(model: Model) -> float:
    """全局每步多少 token 时，TP 与 DP 发出的元素一样多：8·L·h·tokens = 2Ψ；再多，TP 就发得更多。

    >>> round(breakeven_tokens(LLAMA3_8B)), round(breakeven_tokens(LLAMA3_70B))
    (15317, 26914)
    """
    return 2 * model.psi / (8 * model.layers * model.h)
