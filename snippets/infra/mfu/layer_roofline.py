"""一层 Transformer 的逐算子 roofline：每个算子的 FLOPs、最少搬的字节、卡在哪、最少多少时间（只用标准库）。

口径：每个张量从 HBM 读一次、写一次（片上缓存放得下的重用不另计），所以字节与时间都是**下限**；乘加记 2 FLOPs；
注意力是 FlashAttention，分数矩阵不落显存；因果按实际要算的格子数；不含通信与核的发射。
"""

from collections.abc import Sequence
from dataclasses import dataclass

from snippets.tools.presets import GPUS, MODELS, Gpu, Model  # noqa: F401  doctest 用前两个


# --8<-- [start:ops]
@dataclass(frozen=True)
class Op:
    """name 算子；kind 是 gemm、attention、pointwise 之一；flops 次数；size 字节。"""

    name: str
    kind: str
    flops: float
    size: float

    @property
    def intensity(self) -> float:
        """算术强度，FLOP/字节。"""
        return self.flops / self.size

    def seconds(self, gpu: Gpu) -> float:
        """roofline 下限：max(FLOPs / 稠密峰值, 字节 / 显存带宽)。逐元素算子用不上 tensor core，但它们本来就卡在带宽。"""
        return max(self.flops / (gpu.bf16 * 1e12), self.size / (gpu.hbm * 1e9))

    def bound(self, gpu: Gpu) -> str:
        return "算力" if self.flops / (gpu.bf16 * 1e12) >= self.size / (gpu.hbm * 1e9) else "带宽"


def _check(model: Model, b: int, s: int, t: int, element_bytes: float) -> None:
    for name, value in (("b", b), ("s", s), ("t", t)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} 须是正整数，收到 {value!r}")
    if isinstance(element_bytes, bool) or not 0 < element_bytes < float("inf"):
        raise ValueError(f"element_bytes 须为正且有限，收到 {element_bytes!r}")
    if model.experts or model.mla or not model.gated:
        raise ValueError(f"只会算稠密、GQA、SwiGLU 的层，{model.name} 不是")
    if model.a % t or model.kv % t or model.f % t:
        raise ValueError(f"t={t} 须整除 a={model.a}、kv={model.kv}、f={model.f}")


def layer_ops(model: Model, b: int, s: int, *, decode: bool = False, fused: bool = False, t: int = 1, element_bytes: int = 2) -> list[Op]:
    """一层**前向**的算子。

    prefill/训练前向：b 条长 s 的序列，因果；decode：b 条各来 1 个 token，各有 s 个 token 的 KV cache（含自己）。
    t：张量并行加序列并行，返回一张卡的份（不含通信）。fused：RoPE 并进 QKV 的尾声、残差加并进归一化、SwiGLU 并进 gate_up 的尾声。

    >>> ops = layer_ops(MODELS["Llama-3-8B"], 1, 8192)
    >>> sum(op.flops for op in ops if op.kind == "gemm") == 2 * 8192 * (2 * 4096 * 5120 + 3 * 4096 * 14336)   # 2 × token × 矩阵参数
    True
    >>> [op.name for op in ops if op.bound(GPUS["H100 80GB SXM"]) == "算力"]
    ['QKV', '注意力', 'out', 'gate_up', 'down']
    """
    _check(model, b, s, t, element_bytes)
    h, d, a, kv, f, e = model.h, model.d, model.a // t, model.kv // t, model.f // t, element_bytes
    tokens = b if decode else b * s
    rows = tokens / t  # 序列并行：归一化与残差只做自己那一段
    pairs = b * (s if decode else s * (s + 1) // 2)

    def gemm(name: str, k: int, n: int, written: int | None = None) -> Op:
        return Op(name, "gemm", 2.0 * tokens * k * n, e * (tokens * k + k * n + tokens * (n if written is None else written)))

    def pointwise(name: str, flops: float, elements: float) -> Op:
        return Op(name, "pointwise", flops, e * elements)

    attention = Op("注意力", "attention", 4.0 * pairs * a * d, e * (2 * tokens * a * d + 2 * b * s * kv * d))
    width = (a + 2 * kv) * d
    if fused:
        return [
            pointwise("残差 + 归一化 1", 5 * rows * h, 4 * rows * h),  # 读两路、写和与归一化后的：上一层的残差加算在这里
            gemm("QKV + RoPE", h, width),
            attention,
            gemm("out", a * d, h),
            pointwise("残差 + 归一化 2", 5 * rows * h, 4 * rows * h),
            gemm("gate_up + SwiGLU", h, 2 * f, written=f),
            gemm("down", f, h),
        ]
    return [
        pointwise("归一化 1", 4 * rows * h, 2 * rows * h),
        gemm("QKV", h, width),
        pointwise("RoPE", 3 * tokens * (a + kv) * d, 2 * tokens * (a + kv) * d),
        attention,
        gemm("out", a * d, h),
        pointwise("残差 1", rows * h, 3 * rows * h),
        pointwise("归一化 2", 4 * rows * h, 2 * rows * h),
        gemm("gate_up", h, 2 * f),
        pointwise("SwiGLU", 5 * tokens * f, 3 * tokens * f),
        gemm("down", f, h),
        pointwise("残差 2", rows * h, 3 * rows * h),
    ]


# --8<-- [end:ops]


# --8<-- [start:backward]
def backward_ops(model: Model, b: int, s: int, *, t: int = 1, element_bytes: int = 2) -> list[Op]:
    """一层**反向**的算子（不融合）：每个 GEMM 变成两个（对输入、对权重），注意力按模型 FLOPs 记前向的 2 倍（真做 2.5 倍）。

    >>> model = MODELS["Llama-3-8B"]
    >>> forward, backward = layer_ops(model, 1, 8192), backward_ops(model, 1, 8192)
    >>> [sum(op.flops for op in ops if op.kind == "gemm") for ops in (forward, backward)]
    [3573412790272.0, 7146825580544.0]
    """
    ops = []
    for op in reversed(layer_ops(model, b, s, t=t, element_bytes=element_bytes)):
        if op.kind == "gemm":
            ops += [Op(f"{op.name} {which}", "gemm", op.flops, op.size) for which in ("dgrad", "wgrad")]
        elif op.kind == "attention":  # 读 Q K V O dO，写 dQ dK dV：恰是前向的两倍
            ops.append(Op("注意力 bwd", "attention", 2 * op.flops, 2 * op.size))
        else:  # 归一化：读 x、dy 写 dx；SwiGLU：读 gate、up、dy 写两路；残差：两路梯度相加；RoPE：反着转
            factor = {"归一化": 3 / 2, "SwiGLU": 5 / 3}.get(op.name.split()[0], 1)
            ops.append(Op(f"{op.name} bwd", "pointwise", 2 * op.flops, factor * op.size))
    return ops


# --8<-- [end:backward]


# --8<-- [start:total]
def by_bound(ops: Sequence[Op], gpu: Gpu) -> dict[str, float]:
    """按卡在哪一边汇总最少时间，秒。

    Llama-3-8B 一层，H100，µs：训练/prefill 一条 8192，decode 各 batch（context 8192）：

    >>> h100, model = GPUS["H100 80GB SXM"], MODELS["Llama-3-8B"]
    >>> show = lambda ops: {side: round(1e6 * time, 1) for side, time in by_bound(ops, h100).items()}
    >>> show(layer_ops(model, 1, 8192)), show(layer_ops(model, 1, 8192, fused=True))
    ({'算力': 4169.1, '带宽': 460.7}, {'算力': 4169.1, '带宽': 160.3})
    >>> for b in (1, 64, 256):
    ...     print(b, show(layer_ops(model, b, 8192, decode=True)))
    1 {'算力': 0.0, '带宽': 140.3}
    64 {'算力': 0.0, '带宽': 777.8}
    256 {'算力': 0.0, '带宽': 2720.7}
    """
    total = {"算力": 0.0, "带宽": 0.0}
    for op in ops:
        total[op.bound(gpu)] += op.seconds(gpu)
    return total


def table(ops: Sequence[Op], gpu: Gpu) -> list[str]:
    """逐算子一行：GFLOP、MB、强度、卡在哪、最少 µs、占比。"""
    whole = sum(op.seconds(gpu) for op in ops)
    return [
        f"{op.flops / 1e9:10.2f} GFLOP {op.size / 1e6:9.2f} MB  强度 {op.intensity:8.2f}  {op.bound(gpu)} "
        f"{1e6 * op.seconds(gpu):9.2f} µs {op.seconds(gpu) / whole:6.1%}  {op.name}"
        for op in ops
    ]


# --8<-- [end:total]
