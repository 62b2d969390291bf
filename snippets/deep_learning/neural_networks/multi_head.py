"""多头与单头：参数一样、算得一样多，差在能同时看几处；以及 MHA、GQA、MQA、MLA 的 KV 字节（只用标准库）。"""

import math
from collections.abc import Sequence

from snippets.tools.presets import MODELS


# --8<-- [start:count]
def attention_parameters(h: int, heads: int) -> int:
    """d = h / heads 时 W_Q、W_K、W_V、W_O 的参数：4h²，与头数无关。

    >>> attention_parameters(512, 1), attention_parameters(512, 8)
    (1048576, 1048576)
    """
    if h < 1 or heads < 1 or h % heads:
        raise ValueError(f"h 须能被头数整除，收到 {h}、{heads}")
    d = h // heads
    return 3 * heads * h * d + heads * d * h


def score_flops(s: int, h: int, heads: int) -> int:
    """一层的分数与加权和（不因因果减半）：heads·(2s²d + 2s²d) = 4s²h，与头数无关；权重矩阵却有 heads 份。

    >>> score_flops(2048, 512, 1) == score_flops(2048, 512, 8), 8 * 2048**2
    (True, 33554432)
    """
    if min(s, h, heads) < 1 or h % heads:
        raise ValueError(f"尺寸须为正、h 须能被头数整除，收到 {s, h, heads}")
    return heads * 4 * s * s * (h // heads)


# --8<-- [end:count]


# --8<-- [start:places]
def softmax(scores: Sequence[float]) -> list[float]:
    if not scores or not all(map(math.isfinite, scores)):
        raise ValueError(f"分数须非空且有限，收到 {list(scores)}")
    top = max(scores)
    exps = [math.exp(v - top) for v in scores]
    total = math.fsum(exps)
    return [e / total for e in exps]


def read_two_places(first: float, last: float, sharpness: float = 20.0) -> dict[str, tuple[float, ...]]:
    """四个位置的值是 first、0、0、last（同一个子空间里），要知道首、末两处各是什么。

    单头只有一组权重，读出一个加权和；乘个系数能补回大小，补不回“谁是谁”。两个头各看一处，写到两个坐标。

    >>> read_two_places(3.0, 5.0)
    {'单头': (4.0,), '两个头': (3.0, 5.0)}
    >>> read_two_places(5.0, 3.0)                                              # 对调：单头读到的一样
    {'单头': (4.0,), '两个头': (5.0, 3.0)}
    """
    if not math.isfinite(first) or not math.isfinite(last):
        raise ValueError(f"值须为有限的数，收到 {first}、{last}")
    values = [first, 0.0, 0.0, last]

    def read(scores: Sequence[float]) -> float:
        return round(math.fsum(w * v for w, v in zip(softmax(scores), values, strict=True)), 6)

    return {
        "单头": (read([sharpness, 0.0, 0.0, sharpness]),),
        "两个头": (read([sharpness, 0.0, 0.0, 0.0]), read([0.0, 0.0, 0.0, sharpness])),
    }


# --8<-- [end:places]


# --8<-- [start:paper]
# Vaswani 2017 表 3 (A)：头数 → newstest2013（开发集）BLEU，d = 512 / 头数
TABLE_3A = {1: 24.9, 4: 25.5, 8: 25.8, 16: 25.8, 32: 25.4}


def single_head_loss() -> tuple[float, float]:
    """单头比最好的头数差多少 BLEU，32 个头又差多少。

    >>> single_head_loss()
    (0.9, 0.4)
    """
    best = max(TABLE_3A.values())
    return round(best - TABLE_3A[1], 1), round(best - TABLE_3A[32], 1)


# --8<-- [end:paper]


# --8<-- [start:kv]
def kv_bytes_per_token(heads: int, d: int, layers: int, kind: str, groups: int = 1, latent: int = 0, element: int = 2) -> int:
    """每 token 的 KV cache 字节：MHA 2·a·d，GQA 2·groups·d，MQA 2·d，MLA 每层 latent 个（含解耦的 RoPE 键）；bf16。

    >>> kv_bytes_per_token(32, 128, 32, "GQA", groups=8)                       # Llama-3-8B：128 KiB
    131072
    >>> kv_bytes_per_token(128, 128, 61, "MLA", latent=576)                    # DeepSeek-V3
    70272
    """
    per_layer = {"MHA": 2 * heads * d, "GQA": 2 * groups * d, "MQA": 2 * d, "MLA": latent}
    if kind not in per_layer:
        raise ValueError(f"kind 须为 {'、'.join(per_layer)}，收到 {kind!r}")
    if min(heads, d, layers, groups, element) < 1 or (kind == "GQA" and heads % groups) or (kind == "MLA" and latent < 1):
        raise ValueError("尺寸须为正，头数须是组数的整数倍，MLA 要给 latent")
    return per_layer[kind] * layers * element


def deepseek_v3_alternatives() -> list[str]:
    """DeepSeek-V3 的 61 层、128 头换成别的做法，K、V 每头都按 128 维，每 token 多少 KB（10³ 字节）。

    >>> print(*deepseek_v3_alternatives(), sep="\\n")
    MHA         3997.7 KB  56.9 倍
    GQA（8 组）   249.9 KB   3.6 倍
    MQA           31.2 KB   0.4 倍
    MLA           70.3 KB   1.0 倍
    >>> [round(131_072 * kv_bytes_per_token(128, 128, 61, kind, latent=576) / 1e9, 1) for kind in ("MHA", "MLA")]  # 128K 上下文，GB
    [524.0, 9.2]
    """
    model = MODELS["DeepSeek-V3"]
    rows = []
    for name, kind, groups in (("MHA", "MHA", 1), ("GQA（8 组）", "GQA", 8), ("MQA", "MQA", 1), ("MLA", "MLA", 1)):
        size = kv_bytes_per_token(model.a, 128, model.layers, kind, groups, latent=576)
        width = 10 - (4 if "（" in name else 0)
        rows.append(f"{name:<{width}} {size / 1e3:7.1f} KB  {size / 70_272:4.1f} 倍")
    return rows


# --8<-- [end:kv]
