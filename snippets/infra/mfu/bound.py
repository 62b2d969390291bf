"""memory-bound 还是 compute-bound：各类算子的算术强度、各卡的拐点、越过拐点要多大的 batch、怎样用实验区分（只用标准库）。

口径：每个张量从 HBM 读一次、写一次；乘加记 2 FLOPs；峰值稠密；因果注意力按实际要算的格子数。强度单位 FLOP/字节。
"""

import math
from collections.abc import Mapping

from snippets.common.chart import lines
from snippets.math.algorithms.matmul import gemm_intensity
from snippets.tools.presets import GPUS, Gpu


# --8<-- [start:ridge]
def ridge(gpu: Gpu, precision: str = "bf16") -> float:
    """拐点：强度低于它就卡带宽。峰值（TFLOP/s，稠密）÷ 带宽（GB/s）× 1000。

    >>> for name, gpu in GPUS.items():
    ...     print(f"{ridge(gpu):5.0f} {ridge(gpu, 'fp8') if gpu.fp8 else float('nan'):5.0f}  {name}")
      153   nan  A100 80GB SXM
      295   591  H100 80GB SXM
      295   591  H800 80GB SXM
       37    74  H20 96GB
      206   412  H200 141GB SXM
      281   562  B200（HGX/DGX）
      312   625  GB200（NVL72）
    """
    peak = {"bf16": gpu.bf16, "fp8": gpu.fp8}.get(precision)
    if peak is None:
        raise ValueError(f"{gpu.name} 没有 {precision} 的峰值")
    return peak * 1000 / gpu.hbm


# --8<-- [end:ridge]


# --8<-- [start:intensity]
def attention_prefill(s: int, d: int, groups: int = 1, element: float = 2) -> float:
    """FlashAttention 的前向，因果：4·s(s+1)/2·d 次乘加的 FLOPs，读 Q、K、V 写 O。groups 个查询头共用一个 KV 头。

    >>> round(attention_prefill(8192, 128, groups=4)), round(attention_prefill(512, 128, groups=4))
    (3277, 205)
    """
    return 4 * s * (s + 1) / 2 * d / (element * s * d * (2 + 2 / groups))


def attention_decode(groups: int, element: float = 2) -> float:
    """每条序列一个新 token、长 KV：QKᵀ 与加权求和各 2 FLOPs，每个 KV 元素读一次。与 batch、长度、头维都无关。

    >>> [attention_decode(groups) for groups in (1, 4, 8, 64)], attention_decode(8, element=1)
    ([1.0, 4.0, 8.0, 64.0], 16.0)
    """
    return 2 * groups / element


def mla_decode(heads: int, rank: int = 512, rope: int = 64, element: float = 2) -> float:
    """吸收后的 MLA：每个 token 只存 rank + rope 个数，全部头共用；QKᵀ 用 rank + rope 维，加权求和用 rank 维。

    >>> round(mla_decode(128), 1), round(mla_decode(16), 1)           # DeepSeek-V3 的 128 头；TP 8 之后每卡 16 头
    (241.8, 30.2)
    """
    return 2 * heads * (2 * rank + rope) / (element * (rank + rope))


def elementwise(reads: int, writes: int, flops: float, element: float = 2) -> float:
    """逐元素算子：每个元素读 reads 遍、写 writes 遍、做 flops 次。

    >>> round(elementwise(1, 1, 4), 2), round(elementwise(2, 1, 5), 2)     # RMSNorm、SwiGLU
    (1.0, 0.83)
    """
    return flops / (element * (reads + writes))


def adamw_step() -> float:
    """混合精度 AdamW：读 fp32 的主权重、m、v 与梯度（16 字节），写前三个（12）与 bf16 权重（2），约 14 次运算每参数。

    >>> round(adamw_step(), 2)
    0.47
    """
    return 14 / (16 + 12 + 2)


# --8<-- [end:intensity]


# --8<-- [start:batch]
def tokens_to_cross(n: int, k: int, gpu: Gpu, weight: float = 2, activation: float = 2, precision: str = "bf16") -> float:
    """一个 (k, n) 的线性层至少要几个 token（GEMM 的 m）才越过拐点；权重 weight 字节、激活 activation 字节每元素。

    解 2mnk = 拐点·(weight·kn + activation·m(k + n))；达不到（激活的搬运本身就超过拐点）时为 inf。

    >>> round(gemm_intensity(8192, 14336, 4096))                     # 8192 个 token 的强度
    2294
    >>> h100 = GPUS["H100 80GB SXM"]
    >>> math.ceil(tokens_to_cross(14336, 4096, h100)), math.ceil(tokens_to_cross(14336, 4096, GPUS["H20 96GB"]))
    (326, 38)
    >>> math.ceil(tokens_to_cross(14336, 4096, h100, weight=0.5))         # int4 权重、bf16 计算：权重字节少四倍
    82
    >>> math.ceil(tokens_to_cross(14336, 4096, h100, weight=1, activation=1, precision="fp8"))   # 峰值翻倍、字节减半，几乎同样多
    326
    >>> tokens_to_cross(64, 4096, h100)                              # 瘦高的矩阵：再多 token 也卡带宽
    inf
    """
    if min(n, k) < 1 or min(weight, activation) <= 0:
        raise ValueError(f"n、k、字节须为正，收到 {n}、{k}、{weight}、{activation}")
    corner = ridge(gpu, precision)
    slope = 2 * n * k - corner * activation * (n + k)
    return corner * weight * n * k / slope if slope > 0 else math.inf


# --8<-- [end:batch]


# --8<-- [start:experiment]
def seconds(flops: float, size: float, gpu: Gpu, *, clock: float = 1.0, bandwidth: float = 1.0, overhead: float = 0.0) -> float:
    """roofline 时间：clock、bandwidth 是相对倍数（降频、降带宽），overhead 秒是发射与同步，不与前两者重叠。"""
    if min(flops, size, overhead) < 0 or min(clock, bandwidth) <= 0:
        raise ValueError("flops、size、overhead 须非负，clock、bandwidth 须为正")
    return max(flops / (gpu.bf16 * 1e12 * clock), size / (gpu.hbm * 1e9 * bandwidth)) + overhead


def sensitivity(flops: float, size: float, gpu: Gpu, overhead: float = 0.0) -> dict[str, float]:
    """三个便宜的实验各让时间变几倍：SM 频率降两成、数据减半（batch 或精度）、只留发射（空核）。

    >>> h100 = GPUS["H100 80GB SXM"]
    >>> gemm, norm = (2 * 8192 * 4096 * 14336, 2 * (8192 * 4096 + 4096 * 14336 + 8192 * 14336)), (4 * 8192 * 4096, 4 * 8192 * 4096)
    >>> tiny = (4 * 4096, 4 * 4096)                                  # 解码时一个 token 的归一化
    >>> for name, op, launch in (("GEMM", gemm, 0), ("归一化", norm, 0), ("一个 token 的归一化", tiny, 5e-6)):
    ...     print({k: round(v, 2) for k, v in sensitivity(*op, h100, launch).items()}, name)
    {'降频 20%': 1.25, 'token 减半': 0.5, '空核': 0.0} GEMM
    {'降频 20%': 1.0, 'token 减半': 0.5, '空核': 0.0} 归一化
    {'降频 20%': 1.0, 'token 减半': 1.0, '空核': 1.0} 一个 token 的归一化
    """
    base = seconds(flops, size, gpu, overhead=overhead)
    return {
        "降频 20%": seconds(flops, size, gpu, clock=0.8, overhead=overhead) / base,
        "token 减半": seconds(flops / 2, size / 2, gpu, overhead=overhead) / base,
        "空核": overhead / base,
    }


# --8<-- [end:experiment]


# --8<-- [start:fusion]
def fused_intensity(ops: list[tuple[float, float, float]]) -> tuple[float, float]:
    """一串逐元素算子 (FLOPs, 读, 写)（每元素），不融合与融合成一个核的强度；融合后只读最初的、写最后的。

    >>> chain = [(1, 4, 2), (4, 2, 2), (1, 2, 2)]                     # 残差加、归一化、乘缩放，bf16
    >>> tuple(round(x, 2) for x in fused_intensity(chain))
    (0.43, 1.0)
    """
    if not ops:
        raise ValueError("至少一个算子")
    flops = sum(op[0] for op in ops)
    return flops / sum(read + write for _, read, write in ops), flops / (ops[0][1] + ops[-1][2])


# --8<-- [end:fusion]


def figure_gemm_batch() -> str:
    """各卡上，8B 的 gate 投影能用到峰值的几成，随 token 数变化。"""
    counts = [2**i for i in range(13)]
    chosen: Mapping[str, str] = {"A100": "A100 80GB SXM", "H100": "H100 80GB SXM", "H20": "H20 96GB", "B200": "B200（HGX/DGX）"}
    series = {
        short: [(m, 100 * min(1.0, gemm_intensity(m, 14336, 4096) / ridge(GPUS[name]))) for m in counts] for short, name in chosen.items()
    }
    return lines(
        series,
        title="gate 投影（4096 → 14336，bf16）能用到稠密峰值的上限",
        x_label="一次送进去的 token 数",
        y_label="峰值的 %",
        x_log=2,
        markers=True,
    )
