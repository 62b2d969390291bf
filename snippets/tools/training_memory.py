"""训练显存：模型状态（精度清单 × ZeRO）、激活（TP / SP / CP / 重算 × 流水线在途）与 logits，逐段算（只用标准库）。

每层激活与 I1-2 同一本账：classic 是 Korthikanti 2022 表 2 的 sbh·(34 + 5as/h)，modern 是 RMSNorm + SwiGLU + FlashAttention 的逐项清单。

>>> zero = training_memory(params_b=7.5, vocab=1, dp=64, zero=2, logits="none", seq=1)      # ZeRO 论文图 1：16.6 GB
>>> round(zero["states_gb"], 1)
16.6
>>> gpt3 = training_memory(params_b=175, layer="classic", layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128,
...                        seq=2048, batch=1, tp=8, sp="on", pp=1, recompute="selective", logits="none")
>>> round(gpt3["layer_gb"], 3)                              # I1-2：一层 0.107 GB
0.107
"""

import math
from typing import Literal

from snippets.tools.checks import choice, divides, number, whole


def layer_bytes(
    layer: str,
    recompute: str,
    tokens: float,
    seq: float,
    hidden: float,
    heads: float,
    kv_heads: float,
    head_dim: float,
    ffn: float,
    top_k: float,
    tp: float,
    cp: float,
    sp: bool,
) -> float:
    """一层一个 micro-batch 每卡的激活字节；tokens = s·b，kv_heads 已按 t 复制过（不少于 t）。

    >>> round(layer_bytes("modern", "none", 8192, 8192, 4096, 32, 8, 128, 14336, 0, 1, 1, False) / 1e9, 3)     # Llama-3-8B，41.03 sbh
    1.377
    >>> round(layer_bytes("classic", "none", 2048, 2048, 12288, 96, 96, 128, 0, 0, 8, 1, False) / 1e9, 3)      # GPT-3，TP 8
    0.579
    """
    entrance = 1.0  # 层入口的张量：有 SP 才除以 t
    if sp:
        entrance = 1.0 / tp
    if recompute == "full":
        return 2.0 * hidden * tokens * entrance / cp
    if layer == "classic":
        kept = 10.0 * hidden * entrance
        inside = 24.0 * hidden
        if recompute == "none":
            inside = inside + 5.0 * heads * seq
        return (kept + inside / tp) * tokens / cp
    kept = 4.0 * hidden  # 两个 RMSNorm 的输入
    if recompute != "swiglu_norm":
        kept = kept + 4.0 * hidden + 8  # 它们的输出（QKV 与 gate/up 的输入）、1/RMS
    inside = 4.0 * heads * head_dim + 4.0 * kv_heads * head_dim + 4.0 * heads  # Q 与输出、K 与 V、logsumexp
    inside = inside + 4.0 * ffn  # gate、up
    if recompute == "none" or recompute == "fused":
        inside = inside + 2.0 * ffn  # 乘积
    if recompute == "none":
        inside = inside + 2.0 * ffn  # SiLU(gate)
    inside = inside + 4.0 * top_k * hidden  # MoE：重排后的输入与专家的输出
    return (kept * entrance + inside / tp) * tokens / cp


def training_memory(
    params_b: float = 8.030261248,
    expert_b: float = 0,
    layer: Literal["modern", "classic"] = "modern",
    layers: int = 32,
    hidden: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    ffn: int = 14336,
    top_k: int = 0,
    vocab: int = 128256,
    tied: Literal["no", "yes"] = "no",
    weights_bytes: float = 2,
    grads_bytes: float = 2,
    optim_bytes: float = 12,
    zero: Literal[0, 1, 2, 3] = 3,
    seq: int = 8192,
    batch: int = 1,
    micro: int = 8,
    recompute: Literal["none", "fused", "swiglu", "swiglu_norm", "selective", "full"] = "none",
    logits: Literal["backward", "forward", "none"] = "backward",
    dp: int = 8,
    tp: int = 1,
    sp: Literal["on", "off"] = "on",
    cp: int = 1,
    ep: int = 1,
    pp: int = 1,
    chunks: int = 1,
    memory_gb: float = 80,
) -> dict[str, float]:
    """训练显存。

    Args:
        [模型]
        params_b: 参数量 Ψ〔十亿〕
        expert_b: 其中路由专家的参数（稠密填 0）〔十亿〕
        layer: 层的样式 {modern=RMSNorm + SwiGLU + FlashAttention; classic=GPT：LayerNorm + GELU + dropout + 显式注意力}
        layers: 层数 L
        hidden: hidden h
        heads: 头数 a
        kv_heads: KV 头数
        head_dim: 每头维度
        ffn: 每 token 的 MLP 宽（MoE：(top-k + 共享) × 专家宽）
        top_k: MoE 的 top-k（稠密填 0）
        vocab: 词表 V
        tied: 首尾嵌入 {no=各一份; yes=共享（有 PP 时首尾各存一份）}
        [精度清单]
        weights_bytes: 权重〔字节/参数〕
        grads_bytes: 梯度〔字节/参数〕
        optim_bytes: 优化器，含 fp32 主权重〔字节/参数〕
        zero: ZeRO {0=DDP，不切; 1=ZeRO-1，切优化器; 2=ZeRO-2，再切梯度; 3=ZeRO-3 / FSDP，再切权重}
        [一个 micro-batch]
        seq: 序列长 s〔token〕
        batch: micro-batch b
        micro: 每步 micro-batch 数 m
        recompute: 重算 {none=不重算; fused=融合 SwiGLU; swiglu=再重算乘积; swiglu_norm=再重算归一化; selective=注意力核心; full=全重算}
        logits: 交叉熵 {backward=逐算子，反向峰值 12 B/logit; forward=逐算子，前向 10 B/logit; none=分块或融合，略去}
        [并行]
        dp: DP 度 d
        tp: TP 度 t
        sp: 序列并行 SP {on=开; off=关}
        cp: CP 度 c
        ep: EP 度 e（整除 d·c）
        pp: PP 段数 p
        chunks: 交错的块数 v（1 即 1F1B）
        [硬件]
        memory_gb: 每卡显存〔GB〕

    Returns:
        *worst_gb: 最满的一段，每卡〔GB〕
        *spare_gb: 每卡还剩〔GB〕
        worst_stage: 最满的是第几段
        weights_gb: 最满的一段｜权重〔GB〕
        grads_gb: 最满的一段｜梯度〔GB〕
        optim_gb: 最满的一段｜优化器〔GB〕
        states_gb: 最满的一段｜状态合计〔GB〕
        act_gb: 最满的一段｜激活〔GB〕
        logits_gb: 最满的一段｜logits〔GB〕
        first_weights_gb: 首段｜权重〔GB〕
        first_grads_gb: 首段｜梯度〔GB〕
        first_optim_gb: 首段｜优化器〔GB〕
        first_states_gb: 首段｜状态合计〔GB〕
        first_act_gb: 首段｜激活〔GB〕
        first_logits_gb: 首段｜logits〔GB〕
        last_weights_gb: 末段｜权重〔GB〕
        last_grads_gb: 末段｜梯度〔GB〕
        last_optim_gb: 末段｜优化器〔GB〕
        last_states_gb: 末段｜状态合计〔GB〕
        last_act_gb: 末段｜激活〔GB〕
        last_logits_gb: 末段｜logits〔GB〕
        layer_gb: 一层一个 micro-batch 的激活，每卡〔GB〕
        in_flight: 首段同时存着的层 × micro-batch
        total_gb: 全部卡合计〔GB〕
        bytes_per_param: 不切时每参数〔字节〕

    Raises:
        ValueError: 输入越界或切不开，消息以字段名开头。
    """
    choice("layer", layer, ["modern", "classic"])
    choice("tied", tied, ["no", "yes"])
    choice("zero", zero, [0, 1, 2, 3])
    choice("recompute", recompute, ["none", "fused", "swiglu", "swiglu_norm", "selective", "full"])
    choice("logits", logits, ["backward", "forward", "none"])
    choice("sp", sp, ["on", "off"])
    number("params_b", params_b, 0.001, 1000000)
    number("expert_b", expert_b, 0, 1000000)
    whole("layers", layers, 1, 10000)
    whole("hidden", hidden, 1, 1000000)
    whole("heads", heads, 1, 10000)
    whole("kv_heads", kv_heads, 1, 10000)
    whole("head_dim", head_dim, 1, 100000)
    whole("ffn", ffn, 1, 10000000)
    whole("top_k", top_k, 0, 1000)
    whole("vocab", vocab, 1, 100000000)
    number("weights_bytes", weights_bytes, 0.125, 8)
    number("grads_bytes", grads_bytes, 0, 16)
    number("optim_bytes", optim_bytes, 0, 64)
    whole("seq", seq, 1, 1000000000)
    whole("batch", batch, 1, 1000000)
    whole("micro", micro, 1, 10000000)
    whole("dp", dp, 1, 1000000)
    whole("tp", tp, 1, 10000)
    whole("cp", cp, 1, 10000)
    whole("ep", ep, 1, 100000)
    whole("pp", pp, 1, 1000)
    whole("chunks", chunks, 1, 1000)
    number("memory_gb", memory_gb, 1, 100000)
    if kv_heads > heads:
        raise ValueError("kv_heads: 不能多于头数")
    divides("tp", tp, heads, "须整除头数")
    if kv_heads >= tp:
        divides("tp", tp, kv_heads, "须整除 KV 头数")
    else:
        divides("tp", kv_heads, tp, "大于 KV 头数时须是它的整数倍（KV 要复制）")
    divides("cp", cp, seq, "须整除序列长")
    divides("ep", ep, 1.0 * dp * cp, "须整除 d·c")
    if expert_b == 0 and ep > 1:
        raise ValueError("ep: 没有路由专家，EP 度只能是 1")
    if pp > layers:
        raise ValueError("pp: 段数不能多于层数")
    if chunks > 1:
        divides("chunks", 1.0 * pp * chunks, layers, "p·v 须整除层数")
        divides("micro", pp, micro, "交错时须是 p 的整数倍")
    if layer == "modern" and recompute == "selective":
        raise ValueError("recompute: FlashAttention 的层没有注意力矩阵可重算，选 SwiGLU 或全重算")
    if layer == "classic" and recompute != "none" and recompute != "selective" and recompute != "full":
        raise ValueError("recompute: GPT 式的层没有 SwiGLU，选选择性或全重算")
    embedding = 1.0 * vocab * hidden
    body = params_b * 1e9 - expert_b * 1e9 - embedding
    if tied == "no":
        body = body - embedding
    if body < 0:
        raise ValueError("params_b: 小于嵌入与路由专家之和")
    tokens = 1.0 * seq * batch
    kv = max(kv_heads, tp)
    one = layer_bytes(layer, recompute, tokens, seq, hidden, heads, kv, head_dim, ffn, top_k, tp, cp, sp == "on")
    per_logit = 0.0
    if logits == "forward":
        per_logit = 10.0
    if logits == "backward":
        per_logit = 12.0
    shards = 1.0 * dp * cp  # ZeRO 的组是 DP × CP
    expert_shards = shards / ep
    by_weights = 1.0
    by_grads = 1.0
    by_optim = 1.0
    expert_by_weights = 1.0
    expert_by_grads = 1.0
    expert_by_optim = 1.0
    if zero >= 1:
        by_optim = shards
        expert_by_optim = expert_shards
    if zero >= 2:
        by_grads = shards
        expert_by_grads = expert_shards
    if zero >= 3:
        by_weights = shards
        expert_by_weights = expert_shards
    base = math.floor(layers / pp)
    more = layers - base * pp  # 除不尽的层放在第二段起
    result = {}
    worst = -1.0
    all_stages = 0.0
    for stage in range(pp):
        here = 1.0 * base
        if stage >= 1 and stage <= more:
            here = here + 1
        dense = body * here / layers
        if stage == 0:
            dense = dense + embedding
        if stage == pp - 1 and (pp > 1 or tied == "no"):
            dense = dense + embedding
        dense = dense / tp
        expert = expert_b * 1e9 * here / layers / tp / ep
        weights = (dense / by_weights + expert / expert_by_weights) * weights_bytes / 1e9
        grads = (dense / by_grads + expert / expert_by_grads) * grads_bytes / 1e9
        optim = (dense / by_optim + expert / expert_by_optim) * optim_bytes / 1e9
        if chunks > 1:
            warm = min(1.0 * micro * chunks, 2.0 * (pp - stage - 1) + (chunks - 1.0) * pp + 1)
            flight = warm * here / chunks
        else:
            flight = min(1.0 * micro, 1.0 * pp - stage) * here
        act = one * flight / 1e9
        head = 0.0
        if stage == pp - 1:
            head = per_logit * tokens * vocab / tp / cp / 1e9
        states = weights + grads + optim
        total = states + act + head
        all_stages = all_stages + total
        if stage == 0:
            result["in_flight"] = flight
            result["first_weights_gb"] = weights
            result["first_grads_gb"] = grads
            result["first_optim_gb"] = optim
            result["first_states_gb"] = states
            result["first_act_gb"] = act
            result["first_logits_gb"] = head
        if stage == pp - 1:
            result["last_weights_gb"] = weights
            result["last_grads_gb"] = grads
            result["last_optim_gb"] = optim
            result["last_states_gb"] = states
            result["last_act_gb"] = act
            result["last_logits_gb"] = head
        if total > worst:
            worst = total
            result["worst_stage"] = stage + 1
            result["weights_gb"] = weights
            result["grads_gb"] = grads
            result["optim_gb"] = optim
            result["states_gb"] = states
            result["act_gb"] = act
            result["logits_gb"] = head
    result["worst_gb"] = worst
    result["spare_gb"] = memory_gb - worst
    result["layer_gb"] = one / 1e9
    result["total_gb"] = all_stages * tp * cp * dp
    result["bytes_per_param"] = 1.0 * weights_bytes + grads_bytes + optim_bytes
    return result
