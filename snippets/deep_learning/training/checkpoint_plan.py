"""激活检查点的账：每段几层峰值最小、要多算多少（只用标准库）。"""

import math

from snippets.common.chart import binary, lines
from snippets.infra.memory.activation_memory import LLAMA3_8B, decoder_items


# --8<-- [start:plan]
def peak(n: int, k: int, interior: float = 1.0, boundary: float = 1.0) -> float:
    """n 层、每 k 层一段只留段的输入时，前向加反向的激活峰值（与 interior 同单位）。

    interior 是一层内部要留的量（含它的输入），boundary 是一层的输入。峰值在反向的第一段：各段的输入，加上重算出来的整整一段。

    >>> [peak(100, k) for k in (1, 5, 10, 20, 100)]             # Chen 2016 的设定：每层只留一份输出
    [100.0, 24.0, 19.0, 24.0, 100.0]
    """
    if n < 1 or not 1 <= k <= n:
        raise ValueError(f"须 n ≥ 1 且 1 ≤ k ≤ n，收到 n={n}、k={k}")
    if not 0 <= boundary <= interior:
        raise ValueError(f"须 0 ≤ boundary ≤ interior，收到 {boundary} 与 {interior}")
    return math.ceil(n / k) * boundary + k * interior - boundary


def best_segment(n: int, interior: float = 1.0, boundary: float = 1.0) -> int:
    """使峰值最小的每段层数，约 √(n·boundary/interior)，至少 1。

    >>> best_segment(100), best_segment(32, *layer_bytes())      # Llama-3-8B：一层内部是输入的 20 倍，逐层重算就是最优
    (10, 1)
    """
    return min(range(1, n + 1), key=lambda k: peak(n, k, interior, boundary))


def layer_bytes() -> tuple[float, float]:
    """Llama-3-8B 一层、每 token：内部要留的字节与输入的字节（bf16，I1-2 的清单，逐算子）。

    >>> layer_bytes()
    (168072.0, 8192)
    """
    return sum(size for _, size in decoder_items(LLAMA3_8B)), 2 * LLAMA3_8B.h


# --8<-- [end:plan]


# --8<-- [start:llama]
def llama_peaks(tokens: int = 8192) -> dict[str, float]:
    """Llama-3-8B、一条 8192 token：不重算、每段 8、4、2、1 层时的激活峰值，GB = 10⁹ 字节，不含 embedding 与 logits。

    >>> llama_peaks()
    {'不重算': 44.1, '每段 8 层': 11.2, '每段 4 层': 6.0, '每段 2 层': 3.8, '每段 1 层': 3.5}
    """
    if tokens < 1:
        raise ValueError(f"tokens 必须为正，收到 {tokens}")
    interior, boundary = (size * tokens / 1e9 for size in layer_bytes())
    sizes = {"不重算": LLAMA3_8B.layers * interior}
    for k in (8, 4, 2, 1):
        sizes[f"每段 {k} 层"] = peak(LLAMA3_8B.layers, k, interior, boundary)
    return {name: round(size, 1) for name, size in sizes.items()}


def selective_peaks(tokens: int = 8192) -> dict[str, float]:
    """选择性重算（归一化的输出、SwiGLU 的中间量重算）的激活，GB，口径同 llama_peaks。

    前向结束时各层留 decoder_items 的 swiglu+norm 一档；反向第一层再把重算的那部分补齐，就是峰值。按算子缓存的实现
    （saved_tensors.selective_per_token 数出）每层还多留一份谁也不要的 down 输出。

    >>> selective_peaks()
    {'前向结束': 24.7, '峰值': 25.3, '按算子缓存的峰值': 27.5}
    """
    if tokens < 1:
        raise ValueError(f"tokens 必须为正，收到 {tokens}")
    full, boundary = layer_bytes()
    kept = sum(size for _, size in decoder_items(LLAMA3_8B, "swiglu+norm"))
    sizes = {
        "前向结束": LLAMA3_8B.layers * kept,
        "峰值": LLAMA3_8B.layers * kept + full - kept,
        "按算子缓存的峰值": LLAMA3_8B.layers * (kept + boundary) + full - kept,
    }
    return {name: round(size * tokens / 1e9, 1) for name, size in sizes.items()}


def step_cost(recomputed: float = 1.0) -> float:
    """一步的计算量是不重算时的几倍：前向 1、反向 2，另外重做前向的 recomputed 份。

    >>> round(step_cost(), 4), round(1 / step_cost(), 2)             # 全重算 4/3 倍；MFU 是 HFU 的 3/4
    (1.3333, 0.75)
    """
    if not 0 <= recomputed <= 1:
        raise ValueError(f"recomputed 须在 [0, 1]，收到 {recomputed}")
    return (3 + recomputed) / 3


# --8<-- [end:llama]


# --8<-- [start:offload]
def offload_milliseconds(tokens: int = 8192, gb_per_s: float = 64, peak_flops: float = 989e12, mfu: float = 0.4) -> dict[str, float]:
    """Llama-3-8B 一层：把输入、把全部激活搬到 CPU 各要多久，前向算一层要多久（毫秒）。

    gb_per_s 是单向带宽，默认 PCIe 5.0 x16 的规格；计算按每参数 2 FLOP，不含注意力的 s² 项。

    >>> offload_milliseconds()
    {'搬输入': 1.05, '搬全部激活': 21.51, '算前向': 9.03}
    """
    if min(tokens, gb_per_s, peak_flops) <= 0 or not 0 < mfu <= 1:
        raise ValueError(f"tokens、带宽、峰值须为正，mfu 须在 (0, 1]，收到 {tokens}、{gb_per_s}、{peak_flops}、{mfu}")
    interior, boundary = layer_bytes()
    layer_parameters = 218_112_000  # 一层的参数：QKVO 41,943,040 + SwiGLU 176,160,768 + 两个 RMSNorm 8,192
    return {
        "搬输入": round(boundary * tokens / gb_per_s / 1e6, 2),
        "搬全部激活": round(interior * tokens / gb_per_s / 1e6, 2),
        "算前向": round(2 * layer_parameters * tokens / (peak_flops * mfu) * 1e3, 2),
    }


# --8<-- [end:offload]


# --8<-- [start:levels]
def reversible_layers(slots: int, repeats: int) -> int:
    """slots 份检查点、每层最多重算 repeats 次，能反传多少层：C(slots + repeats, slots)（Griewank 2000，revolve）。

    >>> reversible_layers(3, 1), reversible_layers(3, 3), reversible_layers(10, 3)
    (4, 20, 286)
    """
    if slots < 0 or repeats < 0:
        raise ValueError(f"slots 与 repeats 不能为负，收到 {slots}、{repeats}")
    return math.comb(slots + repeats, slots)


# --8<-- [end:levels]


def figure_segments() -> str:
    """每段层数对峰值：层内与层间一样大时谷底在 √n；Transformer 的层内大 20 倍，谷底在 1。"""
    interior, boundary = layer_bytes()
    ks = [1, 2, 4, 8, 16, 32]
    return lines(
        {
            "每层只留一份输出": [(k, peak(32, k) / 32) for k in ks],
            "Llama-3-8B 的层": [(k, peak(32, k, interior, boundary) / (32 * interior)) for k in ks],
        },
        title="32 层：激活峰值占不重算的比例",
        x_label="每段几层",
        y_label="峰值 ÷ 不重算",
        x_log=2,
        x_fmt=binary,
    )
