"""流水线气泡与峰值激活：五种调度并排（只用标准库）。

F 前向、B 对输入求梯度、W 对权重求梯度的时间（一个 micro-batch、一段），整个反向是 B + W。
GPipe 与 1F1B 的气泡 (p−1)(F+B+W)；交错除以 v；ZB-H1 为 (p−1)(F+B−W)；DualPipe 为 (p/2−1)(FB + (B+W) − 3W)，
FB 是一个前向与一个整反向互相重叠着做的时间。

>>> result = pipeline(stages=8, micro=32, chunks=4)
>>> result["1f1b_ideal"] / 100 == 7 / 32, result["interleaved_ideal"] / 100 == 7 / 4 / 32     # (p−1)/m、(p−1)/(v·m)
(True, True)
>>> round(result["1f1b_total"], 2) == round(100 * 7 / (32 + 7), 2)                            # (p−1)/(m+p−1)
True
"""

import math

from snippets.tools.checks import number, whole


def pipeline(
    stages: int = 8,
    micro: int = 32,
    chunks: int = 2,
    t_f: float = 1,
    t_b: float = 1,
    t_w: float = 1,
    t_fb: float = 3,
    unit_gb: float = 1,
) -> dict[str, float]:
    """流水线气泡与峰值激活。

    Args:
        [流水线]
        stages: 段数 p
        micro: 每步的 micro-batch 数 m
        chunks: 每卡的模型块数 v（交错调度用）
        [时间]
        t_f: 前向 F
        t_b: 对输入的反向 B
        t_w: 对权重的反向 W
        t_fb: 前向与整反向重叠着做 F&B（DualPipe 用）
        [显存]
        unit_gb: 一个 micro-batch 在一段上的激活〔GB〕

    Returns:
        gpipe_bubble: GPipe｜气泡时间
        *gpipe_ideal: GPipe｜÷ 理想〔%〕
        gpipe_total: GPipe｜÷ 总时间〔%〕
        gpipe_peak: GPipe｜峰值激活〔份〕
        gpipe_gb: GPipe｜峰值激活〔GB〕
        gpipe_params: GPipe｜参数〔份〕
        1f1b_bubble: 1F1B｜气泡时间
        *1f1b_ideal: 1F1B｜÷ 理想〔%〕
        1f1b_total: 1F1B｜÷ 总时间〔%〕
        1f1b_peak: 1F1B｜峰值激活〔份〕
        1f1b_gb: 1F1B｜峰值激活〔GB〕
        1f1b_params: 1F1B｜参数〔份〕
        interleaved_bubble: 交错 1F1B｜气泡时间
        *interleaved_ideal: 交错 1F1B｜÷ 理想〔%〕
        interleaved_total: 交错 1F1B｜÷ 总时间〔%〕
        interleaved_peak: 交错 1F1B｜峰值激活〔份〕
        interleaved_gb: 交错 1F1B｜峰值激活〔GB〕
        interleaved_params: 交错 1F1B｜参数〔份〕
        zb_h1_bubble: ZB-H1｜气泡时间
        *zb_h1_ideal: ZB-H1｜÷ 理想〔%〕
        zb_h1_total: ZB-H1｜÷ 总时间〔%〕
        zb_h1_peak: ZB-H1｜峰值激活〔份〕
        zb_h1_gb: ZB-H1｜峰值激活〔GB〕
        zb_h1_params: ZB-H1｜参数〔份〕
        dualpipe_bubble: DualPipe｜气泡时间
        *dualpipe_ideal: DualPipe｜÷ 理想〔%〕
        dualpipe_total: DualPipe｜÷ 总时间〔%〕
        dualpipe_peak: DualPipe｜峰值激活〔份〕
        dualpipe_gb: DualPipe｜峰值激活〔GB〕
        dualpipe_params: DualPipe｜参数〔份〕

    某种调度的前提不成立时（交错要 v ≥ 2 且 p 整除 m；ZB-H1 要 m ≥ p；DualPipe 要 p 为偶数且 m 是不小于 2p 的偶数），
    结果里没有它的几项。

    Raises:
        ValueError: 输入越界，消息以字段名开头。
    """
    whole("stages", stages, 1, 100000)
    whole("micro", micro, 1, 10000000)
    whole("chunks", chunks, 1, 1000)
    number("t_f", t_f, 0.001, 1000000)
    number("t_b", t_b, 0.001, 1000000)
    number("t_w", t_w, 0.001, 1000000)
    number("t_fb", t_fb, 0.001, 1000000)
    number("unit_gb", unit_gb, 0, 1000000)
    if t_w > t_f + t_b:
        raise ValueError("t_w: 闭式要求 W 不大于 F + B")
    if t_fb < 2 * t_w - t_b:
        raise ValueError("t_fb: 太小，气泡的闭式会是负数")
    step = t_f + t_b + t_w
    ideal = micro * step
    result = {}
    bubble = (stages - 1) * step
    in_flight = min(stages, micro)
    result["gpipe_bubble"] = bubble
    result["gpipe_ideal"] = 100 * bubble / ideal
    result["gpipe_total"] = 100 * bubble / (ideal + bubble)
    result["gpipe_peak"] = micro
    result["gpipe_gb"] = micro * unit_gb
    result["gpipe_params"] = 1
    result["1f1b_bubble"] = bubble
    result["1f1b_ideal"] = 100 * bubble / ideal
    result["1f1b_total"] = 100 * bubble / (ideal + bubble)
    result["1f1b_peak"] = in_flight
    result["1f1b_gb"] = in_flight * unit_gb
    result["1f1b_params"] = 1
    if chunks > 1 and math.floor(micro / stages) * stages == micro:
        bubble = (stages - 1) * step / chunks
        in_flight = min(micro, stages + (stages - 1) / chunks)
        result["interleaved_bubble"] = bubble
        result["interleaved_ideal"] = 100 * bubble / ideal
        result["interleaved_total"] = 100 * bubble / (ideal + bubble)
        result["interleaved_peak"] = in_flight
        result["interleaved_gb"] = in_flight * unit_gb
        result["interleaved_params"] = 1
    if micro >= stages:
        bubble = (stages - 1) * (t_f + t_b - t_w)
        in_flight = min(stages, micro)
        result["zb_h1_bubble"] = bubble
        result["zb_h1_ideal"] = 100 * bubble / ideal
        result["zb_h1_total"] = 100 * bubble / (ideal + bubble)
        result["zb_h1_peak"] = in_flight
        result["zb_h1_gb"] = in_flight * unit_gb
        result["zb_h1_params"] = 1
    even = math.floor(stages / 2) * 2 == stages and math.floor(micro / 2) * 2 == micro
    if even and micro >= 2 * stages:
        bubble = (stages / 2 - 1) * (t_fb + t_b - 2 * t_w)
        result["dualpipe_bubble"] = bubble
        result["dualpipe_ideal"] = 100 * bubble / ideal
        result["dualpipe_total"] = 100 * bubble / (ideal + bubble)
        result["dualpipe_peak"] = stages + 1
        result["dualpipe_gb"] = (stages + 1) * unit_gb
        result["dualpipe_params"] = 2
    return result
