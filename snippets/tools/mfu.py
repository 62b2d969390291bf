"""MFU 与 HFU：模型该做的 FLOPs、硬件真做的 FLOPs，除以峰值（只用标准库）。

每 token 训练 FLOPs：矩阵乘 6N（前向 2N、反向 4N），注意力 12·L·a·d·s（QKᵀ 与加权求和，前向 4·L·a·d·s、反向两倍）。
s 全算是 PaLM 附录 B 的口径；因果掩码下真正要做的是一半。HFU 再加上重算。

>>> palm = mfu(active_b=540.354281472, layers=118, heads=48, head_dim=256, seq=2048, tokens_per_s=238300,
...            gpus=6144, peak_tflops=275, causal="full", recompute="none")
>>> round(palm["mfu"], 1)                                  # Chowdhery et al. 2022，§4 与附录 B：46.2%
46.2
"""

from typing import Literal

from snippets.tools.checks import choice, number, whole


def mfu(
    active_b: float = 8.030261248,
    layers: int = 32,
    heads: int = 32,
    head_dim: int = 128,
    seq: int = 8192,
    causal: Literal["half", "full"] = "half",
    recompute: Literal["none", "selective", "full"] = "none",
    tokens_per_s: float = 60000,
    gpus: int = 8,
    peak_tflops: float = 989,
) -> dict[str, float]:
    """MFU 与 HFU。

    Args:
        [模型]
        active_b: 参与矩阵乘的参数（MoE 填激活的）〔十亿〕
        layers: 层数 L
        heads: 头数 a
        head_dim: 每头维度 d
        seq: 序列长 s〔token〕
        [口径]
        causal: 注意力的 FLOPs {half=因果掩码，算一半; full=整个 s²，PaLM 口径}
        recompute: 重算（只影响 HFU） {none=不重算; selective=只重算注意力核心; full=全重算}
        [测得]
        tokens_per_s: 全部卡的吞吐〔token/s〕
        gpus: 卡数
        peak_tflops: 每卡稠密峰值〔TFLOP/s〕

    Returns:
        *mfu: MFU（6N + 注意力）〔%〕
        *hfu: HFU（再加重算）〔%〕
        mfu_6n: 只算 6N 的 MFU〔%〕
        mfu_other: 注意力换另一种口径的 MFU〔%〕
        mfu_sparse: 误用 2:4 稀疏峰值（2 倍）作分母〔%〕
        achieved: 每卡模型 FLOPs〔TFLOP/s〕
        token_gflop: 每 token 的模型 FLOPs〔GFLOP〕
        attention: 其中注意力〔%〕

    Raises:
        ValueError: 输入越界，或算出的 MFU 超过 100%；消息以字段名开头。
    """
    choice("causal", causal, ["half", "full"])
    choice("recompute", recompute, ["none", "selective", "full"])
    number("active_b", active_b, 0.001, 1000000)
    whole("layers", layers, 1, 10000)
    whole("heads", heads, 1, 10000)
    whole("head_dim", head_dim, 1, 100000)
    whole("seq", seq, 1, 1000000000)
    number("tokens_per_s", tokens_per_s, 0.001, 1000000000000)
    whole("gpus", gpus, 1, 10000000)
    number("peak_tflops", peak_tflops, 0.1, 10000000)
    matmul = 6.0 * active_b * 1e9
    whole_square = 12.0 * layers * heads * head_dim * seq
    half_square = whole_square / 2
    attention = half_square
    other = whole_square
    if causal == "full":
        attention = whole_square
        other = half_square
    extra = 0.0
    if recompute == "selective":
        extra = attention / 3  # 注意力核心的前向再做一遍
    if recompute == "full":
        extra = (matmul + attention) / 3  # 整个前向再做一遍
    scale = tokens_per_s / gpus / 1e12  # FLOP/token → 每卡 TFLOP/s
    achieved = (matmul + attention) * scale
    if achieved > peak_tflops:
        raise ValueError("tokens_per_s: 算出的 MFU 超过 100%，请核对吞吐、卡数与峰值的口径")
    return {
        "mfu": 100 * achieved / peak_tflops,
        "hfu": 100 * (matmul + attention + extra) * scale / peak_tflops,
        "mfu_6n": 100 * matmul * scale / peak_tflops,
        "mfu_other": 100 * (matmul + other) * scale / peak_tflops,
        "mfu_sparse": 50 * achieved / peak_tflops,
        "achieved": achieved,
        "token_gflop": (matmul + attention) / 1e9,
        "attention": 100 * attention / (matmul + attention),
    }
