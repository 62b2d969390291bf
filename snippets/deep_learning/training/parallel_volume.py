"""四种切法每卡每步搬多少数据、存多少模型状态（只用标准库）。"""

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

    tokens 是**每卡看到**的 token 数 b·s·micro_batches；同样的卡数下，DP 的全局 batch 是它的 n 倍，TP 与 PP 就是它。
    DP 2Ψ(n−1)/n；ZeRO-3 每个 micro-batch 3Ψ(n−1)/n；TP 每层前向 2 次、反向 2 次 all-reduce；PP 每个边界一去一回。

    >>> for model in (LLAMA3_8B, LLAMA3_70B):
    ...     print({k: round(v, 2) for k, v in sent_per_step(model, 8, tokens=8192).items()})
    {'DP': 28.11, 'ZeRO-3': 42.16, 'TP': 15.03, 'PP': 0.13}
    {'DP': 246.94, 'ZeRO-3': 370.41, 'TP': 75.16, 'PP': 0.27}
    """
    if n < 1 or tokens < 1 or micro_batches < 1:
        raise ValueError(f"n、tokens、micro_batches 必须为正，收到 {n}、{tokens}、{micro_batches}")
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

    计算按 6Ψ·tokens，TP 与 PP 由 n 卡分摊。8 卡、8B、每卡 8192 token：NVLink 4（450 GB/s）与一张 400 Gb/s 网卡（50 GB/s）

    >>> for bandwidth in (450, 50):
    ...     ratios = communication_over_compute(LLAMA3_8B, 8, tokens=8192, gb_per_s=bandwidth)
    ...     print(bandwidth, {k: round(v, 3) for k, v in ratios.items()})
    450 {'DP': 0.063, 'ZeRO-3': 0.094, 'TP': 0.268, 'PP': 0.002}
    50 {'DP': 0.563, 'ZeRO-3': 0.845, 'TP': 2.411, 'PP': 0.022}
    """
    if gb_per_s <= 0 or peak <= 0 or not 0 < mfu <= 1:
        raise ValueError(f"带宽、峰值须为正，mfu 在 (0, 1] 内，收到 {gb_per_s}、{peak}、{mfu}")
    alone = 6 * model.psi * tokens / (peak * mfu)
    sent = sent_per_step(model, n, tokens=tokens)
    return {name: gb / gb_per_s / (alone / n if name in ("TP", "PP") else alone) for name, gb in sent.items()}


# --8<-- [end:ratio]


def breakeven_tokens(model: Model) -> float:
    """每卡每步多少 token 时，TP 与 DP 发出的元素一样多：8·L·h·tokens = 2Ψ。

    >>> round(breakeven_tokens(LLAMA3_8B)), round(breakeven_tokens(LLAMA3_70B))
    (15317, 26914)
    """
    return 2 * model.psi / (8 * model.layers * model.h)
