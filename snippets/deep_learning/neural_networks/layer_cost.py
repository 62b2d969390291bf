"""一层的参数与 FLOPs 花在哪：注意力、MLP、分数，2017 与今天（只用标准库）。"""

import math

from snippets.tools.presets import MODELS


# --8<-- [start:flops]
def forward_flops(h: int, a: int, kv: int, d: int, f: int, *, gated: bool, s: int) -> dict[str, int]:
    """一层前向、每个 token 的 FLOPs（乘加记 2）；分数两项按整个 s 计，不因因果减半。

    >>> transformer_base = forward_flops(512, 8, 8, 64, 2048, gated=False, s=512)
    >>> llama3_8b = forward_flops(4096, 32, 8, 128, 14336, gated=True, s=8192)
    >>> for cost in (transformer_base, llama3_8b):
    ...     total = sum(cost.values())
    ...     print(f"{total:>11,}", {name: f"{n / total:.0%}" for name, n in cost.items()})
      7,340,032 {'QKV 与输出': '29%', '分数与加权和': '14%', 'MLP': '57%'}
    570,425,344 {'QKV 与输出': '15%', '分数与加权和': '24%', 'MLP': '62%'}
    """
    if min(h, a, kv, d, f, s) < 1 or a % kv:
        raise ValueError(f"尺寸须为正且 a 是 kv 的整数倍，收到 {h, a, kv, d, f, s}")
    return {
        "QKV 与输出": 2 * h * d * (2 * a + 2 * kv),
        "分数与加权和": 4 * s * a * d,
        "MLP": 2 * h * f * (3 if gated else 2),
    }


# --8<-- [end:flops]


# --8<-- [start:swiglu]
def swiglu_width(h: int, multiple: int = 256, factor: float = 1.0) -> int:
    """与 4h 的两矩阵 MLP 同参数的 SwiGLU 宽：8h/3，再乘 factor、向上凑成 multiple 的倍数（Llama 的写法）。

    >>> swiglu_width(4096), swiglu_width(4096, 1024, 1.3), swiglu_width(8192, 4096, 1.3)   # Llama-1 7B、Llama-3 8B、70B
    (11008, 14336, 28672)
    """
    if h < 1 or multiple < 1 or not 0 < factor < math.inf:
        raise ValueError(f"h、multiple、factor 须为正且有限，收到 {h}、{multiple}、{factor}")
    width = int(factor * int(8 * h / 3))
    return -(-width // multiple) * multiple


# --8<-- [end:swiglu]


# --8<-- [start:models]
def model_table() -> list[str]:
    """公开模型的总参数、每 token 激活的参数与 embedding 占比，由结构算出。

    >>> print(*model_table(), sep="\\n")
    GPT-3 175B        174.6B  激活  174.6B  embedding 占 0.4%
    Llama-3-8B          8.0B  激活    8.0B  embedding 占 13.1%
    Llama-3-70B        70.6B  激活   70.6B  embedding 占 3.0%
    Qwen3-8B            8.2B  激活    8.2B  embedding 占 15.2%
    Qwen3-235B-A22B   235.1B  激活   22.2B  embedding 占 0.5%
    Mixtral 8x7B       46.7B  激活   12.9B  embedding 占 0.6%
    DeepSeek-V3       671.0B  激活   37.6B  embedding 占 0.3%
    """
    names = ("GPT-3 175B", "Llama-3-8B", "Llama-3-70B", "Qwen3-8B", "Qwen3-235B-A22B", "Mixtral 8x7B", "DeepSeek-V3")
    rows = []
    for name in names:
        model = MODELS[name]
        share = model.embeddings / model.parameters
        rows.append(f"{name:<16} {model.parameters / 1e9:6.1f}B  激活 {model.active / 1e9:6.1f}B  embedding 占 {share:.1%}")
    return rows


# --8<-- [end:models]
