"""每步每卡发出的字节与时间：DDP、ZeRO、TP、SP、CP、EP、PP（只用标准库）。

环形集合通信，n 卡各发 (n−1)/n 份；时间是字节 ÷ 单向带宽，不含延迟、不算重叠，是下限。

>>> one = communication(dp=64, tp=1, pp=1, micro=1)
>>> [round(one[key], 1) for key in ("ddp_gb", "zero1_gb", "zero2_gb", "zero3_gb")]       # Q033：31.6、31.6、31.6、47.4
[31.6, 31.6, 31.6, 47.4]
>>> eight = communication(dp=64, tp=1, pp=1, micro=8)
>>> [round(eight[key], 1) for key in ("ddp_gb", "zero1_gb", "zero2_gb", "zero3_gb")]     # 累积 8 次
[31.6, 31.6, 142.3, 379.4]
"""

from typing import Literal

from snippets.tools.checks import choice, divides, number, whole


def communication(
    params_b: float = 8.030261248,
    active_b: float = 8.030261248,
    expert_b: float = 0,
    layers: int = 32,
    hidden: int = 4096,
    kv_width: int = 2048,
    top_k: int = 0,
    moe_layers: int = 0,
    seq: int = 8192,
    batch: int = 1,
    micro: int = 8,
    weights_bytes: float = 2,
    grads_bytes: float = 2,
    dispatch_bytes: float = 2,
    dp: int = 64,
    tp: int = 8,
    cp: int = 1,
    ep: int = 1,
    pp: int = 1,
    chunks: int = 1,
    nvlink_gbps: float = 450,
    network_gbps: float = 50,
    group: Literal["network", "nvlink"] = "network",
    efficiency: float = 100,
    peak_tflops: float = 989,
    mfu: float = 40,
) -> dict[str, float]:
    """通信量与时间。

    Args:
        [模型]
        params_b: 参数量 Ψ〔十亿〕
        active_b: 每 token 激活的参数〔十亿〕
        expert_b: 其中路由专家的参数（稠密填 0）〔十亿〕
        layers: 层数 L
        hidden: hidden h
        kv_width: K 与 V 的总宽 2·n_kv·d
        top_k: MoE 的 top-k（稠密填 0）
        moe_layers: MoE 层数
        [每卡一步]
        seq: 序列长 s〔token〕
        batch: micro-batch b
        micro: micro-batch 数 m（梯度累积）
        weights_bytes: 参数 all-gather 的精度〔字节〕
        grads_bytes: 梯度归约的精度〔字节〕
        dispatch_bytes: MoE 分发的精度（合并按 2 字节）〔字节〕
        [并行]
        dp: DP 度 d（含 EP）
        tp: TP 度 t
        cp: CP 度 c
        ep: EP 度 e
        pp: PP 段数 p
        chunks: 交错的块数 v
        [链路与算力]
        nvlink_gbps: 机内每卡单向（TP、CP）〔GB/s〕
        network_gbps: 跨机每卡单向（PP 及下一项）〔GB/s〕
        group: DP 与 EP 走 {network=跨机; nvlink=机内}
        efficiency: 带宽达到规格的〔%〕
        peak_tflops: 每卡稠密峰值〔TFLOP/s〕
        mfu: 计算部分的 MFU〔%〕

    Returns:
        *compute_ms: 一步的计算时间（6N，按 MFU）〔ms〕
        ddp_gb: DDP｜每卡发出〔GB〕
        ddp_ms: DDP｜时间〔ms〕
        ddp_ratio: DDP｜÷ 计算〔%〕
        zero1_gb: ZeRO-1｜每卡发出〔GB〕
        zero1_ms: ZeRO-1｜时间〔ms〕
        zero1_ratio: ZeRO-1｜÷ 计算〔%〕
        zero2_gb: ZeRO-2｜每卡发出〔GB〕
        zero2_ms: ZeRO-2｜时间〔ms〕
        zero2_ratio: ZeRO-2｜÷ 计算〔%〕
        zero3_gb: ZeRO-3 / FSDP｜每卡发出〔GB〕
        zero3_ms: ZeRO-3 / FSDP｜时间〔ms〕
        zero3_ratio: ZeRO-3 / FSDP｜÷ 计算〔%〕
        tp_gb: TP｜每卡发出〔GB〕
        tp_ms: TP｜时间〔ms〕
        tp_ratio: TP｜÷ 计算〔%〕
        sp_gb: TP + SP｜每卡发出〔GB〕
        sp_ms: TP + SP｜时间〔ms〕
        sp_ratio: TP + SP｜÷ 计算〔%〕
        cp_gb: CP（ring）｜每卡发出〔GB〕
        cp_ms: CP（ring）｜时间〔ms〕
        cp_ratio: CP（ring）｜÷ 计算〔%〕
        ep_gb: EP（all-to-all）｜每卡发出〔GB〕
        ep_ms: EP（all-to-all）｜时间〔ms〕
        ep_ratio: EP（all-to-all）｜÷ 计算〔%〕
        pp_gb: PP｜每卡发出〔GB〕
        pp_ms: PP｜时间〔ms〕
        pp_ratio: PP｜÷ 计算〔%〕

    Raises:
        ValueError: 输入越界或切不开，消息以字段名开头。
    """
    choice("group", group, ["network", "nvlink"])
    number("params_b", params_b, 0.001, 1000000)
    number("active_b", active_b, 0.001, 1000000)
    number("expert_b", expert_b, 0, 1000000)
    whole("layers", layers, 1, 10000)
    whole("hidden", hidden, 1, 1000000)
    whole("kv_width", kv_width, 1, 10000000)
    whole("top_k", top_k, 0, 1000)
    whole("moe_layers", moe_layers, 0, 10000)
    whole("seq", seq, 1, 1000000000)
    whole("batch", batch, 1, 1000000)
    whole("micro", micro, 1, 10000000)
    number("weights_bytes", weights_bytes, 0.125, 8)
    number("grads_bytes", grads_bytes, 0.125, 8)
    number("dispatch_bytes", dispatch_bytes, 0.125, 8)
    whole("dp", dp, 1, 1000000)
    whole("tp", tp, 1, 10000)
    whole("cp", cp, 1, 10000)
    whole("ep", ep, 1, 100000)
    whole("pp", pp, 1, 1000)
    whole("chunks", chunks, 1, 1000)
    number("nvlink_gbps", nvlink_gbps, 0.001, 1000000)
    number("network_gbps", network_gbps, 0.001, 1000000)
    number("efficiency", efficiency, 1, 100)
    number("peak_tflops", peak_tflops, 0.1, 10000000)
    number("mfu", mfu, 0.1, 100)
    if active_b > params_b:
        raise ValueError("active_b: 不能多于参数量")
    if expert_b > params_b:
        raise ValueError("expert_b: 不能多于参数量")
    if moe_layers > layers:
        raise ValueError("moe_layers: 不能多于层数")
    if pp > layers:
        raise ValueError("pp: 段数不能多于层数")
    divides("ep", ep, 1.0 * dp * cp, "须整除 d·c")
    if expert_b == 0 and ep > 1:
        raise ValueError("ep: 没有路由专家，EP 度只能是 1")
    ranks = 1.0 * dp * cp
    expert_ranks = ranks / ep
    dense = (params_b - expert_b) / tp / pp * (ranks - 1) / ranks
    expert = expert_b / tp / pp / ep * (expert_ranks - 1) / expert_ranks
    once = dense + expert  # 一次 reduce-scatter 或 all-gather 每卡发出的元素，十亿
    tokens = 1.0 * seq * batch / cp
    stage_layers = 1.0 * layers / pp
    ring = 2.0 * tokens * hidden * (tp - 1) / tp * stage_layers * micro / 1e9  # 一次 all-reduce / 层，元素，十亿
    kv = 1.0 * tokens * kv_width / tp * (cp - 1) * stage_layers * micro / 1e9
    routed = tokens / tp * top_k * hidden * (ep - 1) / ep * (1.0 * moe_layers / pp) * micro / 1e9
    sent = {
        "ddp": 2 * once * grads_bytes,
        "zero1": once * (grads_bytes + weights_bytes),
        "zero2": once * (micro * grads_bytes + weights_bytes),
        "zero3": once * (grads_bytes + 2 * weights_bytes) * micro,
        "tp": 4 * ring * 2,  # 前向 2 次、反向 2 次 all-reduce，bf16
        "sp": 5 * ring * 2,  # all-reduce 换成 all-gather + reduce-scatter；反向再 all-gather 两处线性层的输入
        "cp": 3 * kv * 2,  # 前向传 K、V；反向再传一遍并传 dK、dV
        "ep": 2 * routed * (dispatch_bytes + 2),  # 分发、合并；反向各一次
        "pp": 0.0,
    }
    if pp > 1:
        sent["pp"] = 2 * chunks * tokens * hidden / tp * micro * 2 / 1e9  # 中间的段：前向发激活，反向发梯度，各 1/t
    nvlink = nvlink_gbps * efficiency / 100
    network = network_gbps * efficiency / 100
    wide = network
    if group == "nvlink":
        wide = nvlink
    link = {
        "ddp": wide,
        "zero1": wide,
        "zero2": wide,
        "zero3": wide,
        "tp": nvlink,
        "sp": nvlink,
        "cp": nvlink,
        "ep": wide,
        "pp": network,
    }
    compute = 6.0 * active_b * 1e9 * tokens * micro / tp / pp / (peak_tflops * 1e12 * mfu / 100)
    result = {"compute_ms": compute * 1000}
    for key in sent:
        result[key + "_gb"] = sent[key]
        result[key + "_ms"] = sent[key] / link[key] * 1000
        result[key + "_ratio"] = 100 * sent[key] / link[key] / compute
    return result
