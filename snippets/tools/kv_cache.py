"""KV cache 的显存，与一张（或一组 TP）卡上放得下的最大 batch（只用标准库）。

每 token：MHA / GQA / MQA 存每层每个 KV 头的 K 与 V，2·L·n_kv·d 个数；MLA 存每层一份潜向量与解耦的 RoPE 键，L·(d_c + d_rope) 个数。

>>> result = kv_cache()                                    # Llama-3-8B，bf16：每 token 128 KiB
>>> result["token_bytes"], result["token_bytes"] / 1024
(131072.0, 128.0)
>>> kv_cache(attention="mla", layers=61, heads=128, latent=512 + 64)["token_bytes"]     # DeepSeek-V3
70272.0
>>> kv_cache(layers=80, heads=64, kv_heads=8, seq=131072, batch=1)["total_gb"]          # Llama-2/3-70B，128K
42.94967296
"""

import math
from typing import Literal

from snippets.tools.checks import choice, number, whole

ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int4": 0.5}


def kv_cache(
    attention: Literal["gqa", "mla"] = "gqa",
    layers: int = 32,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    latent: int = 576,
    dtype: Literal["fp32", "bf16", "fp8", "int4"] = "bf16",
    seq: int = 8192,
    batch: int = 16,
    params_b: float = 8.030261248,
    weight_bytes: float = 2,
    tp: int = 1,
    memory_gb: float = 80,
    usable: float = 90,
) -> dict[str, float]:
    """KV cache 与最大 batch。

    Args:
        [模型]
        attention: 注意力 {gqa=MHA / GQA / MQA; mla=MLA}
        layers: 层数 L
        heads: 头数 a（只用来与 MHA 比）
        kv_heads: KV 头数（MHA 填头数，MQA 填 1）
        head_dim: 每头维度 d
        latent: MLA 每层每 token 存的个数 d_c + d_rope
        params_b: 参数量〔十亿〕
        [负载]
        dtype: KV 精度 {fp32=fp32，4 B; bf16=bf16 / fp16，2 B; fp8=fp8 / int8，1 B; int4=int4，0.5 B（不含缩放因子）}
        seq: 每条的上下文长〔token〕
        batch: 同时在跑的条数
        [硬件]
        weight_bytes: 权重每参数〔字节〕
        tp: TP 度 t
        memory_gb: 每卡显存〔GB〕
        usable: 其中可用（扣除激活、缓冲）〔%〕

    Returns:
        *token_bytes: 每 token，整个模型〔字节〕
        *max_batch: 放得下的最大 batch〔条〕
        seq_gb: 每条〔GB〕
        total_gb: 全部 batch，整个模型〔GB〕
        total_gib: 同上〔GiB〕
        device_gb: 全部 batch，每卡〔GB〕
        weights_gb: 权重，每卡〔GB〕
        room_gb: 每卡留给 KV 的〔GB〕
        max_seq: 这个 batch 放得下的最长上下文〔token〕
        of_mha: 与同头数的 MHA 之比〔%〕

    Raises:
        ValueError: 输入越界，消息以字段名开头。
    """
    choice("attention", attention, ["gqa", "mla"])
    choice("dtype", dtype, ["fp32", "bf16", "fp8", "int4"])
    whole("layers", layers, 1, 10000)
    whole("heads", heads, 1, 10000)
    whole("kv_heads", kv_heads, 1, 10000)
    whole("head_dim", head_dim, 1, 100000)
    whole("latent", latent, 1, 100000)
    number("params_b", params_b, 0.001, 1000000)
    whole("seq", seq, 1, 1000000000)
    whole("batch", batch, 1, 10000000)
    number("weight_bytes", weight_bytes, 0.125, 8)
    whole("tp", tp, 1, 100000)
    number("memory_gb", memory_gb, 1, 100000)
    number("usable", usable, 1, 100)
    element = ELEMENT_BYTES[dtype]
    if attention == "mla":
        count = 1.0 * layers * latent
        local = count  # 潜向量所有头共用，TP 的每张卡各存一份
    else:
        if kv_heads > heads:
            raise ValueError("kv_heads: 不能多于头数")
        count = 2.0 * layers * kv_heads * head_dim
        # t > n_kv 时 KV 头要复制，每卡至少一个；不整除时最忙的卡向上取整
        local = 2.0 * layers * math.ceil(kv_heads / tp) * head_dim
    token = count * element
    device_token = local * element
    weights = params_b * weight_bytes / tp
    room = memory_gb * usable / 100 - weights
    if room < 0:
        room = 0.0
    fitting = math.floor(room * 1e9 / device_token)
    return {
        "token_bytes": token,
        "max_batch": math.floor(fitting / seq),
        "seq_gb": token * seq / 1e9,
        "total_gb": token * seq * batch / 1e9,
        "total_gib": token * seq * batch / 1073741824,
        "device_gb": device_token * seq * batch / 1e9,
        "weights_gb": weights,
        "room_gb": room,
        "max_seq": math.floor(fitting / batch),
        "of_mha": 100 * count / (2.0 * layers * heads * head_dim),
    }
