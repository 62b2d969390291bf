"""一步的时间预算：从峰值到实测逐项加回去，每项的上限、等最慢的卡、故障，以及该不该再优化（只用标准库）。"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from snippets.common.chart import bars
from snippets.infra.mfu.layer_roofline import backward_ops, layer_ops
from snippets.tools.presets import GPUS, MODELS, Gpu, Model


def _positive(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} 须为正且有限，收到 {value!r}")


# --8<-- [start:run]
@dataclass(frozen=True)
class Run:
    """一次训练的配置。t、p、dp 并行度，v 每卡的流水线块数，m 每步的 micro-batch 数，b 每个 micro-batch 的条数；
    network: 跨机每卡单向 GB/s；tflops: 报告的每卡模型 TFLOP/s（实测）。
    """

    model: Model
    gpu: Gpu
    t: int
    p: int
    dp: int
    m: int
    v: int
    s: int
    tflops: float
    b: int = 1
    network: float = 50.0  # 400 Gb/s

    def __post_init__(self) -> None:
        for name in ("t", "p", "dp", "m", "v", "s", "b"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} 须是正整数，收到 {value!r}")
        _positive(tflops=self.tflops, network=self.network)
        if self.tflops > self.gpu.bf16:
            raise ValueError(f"实测 {self.tflops} TFLOP/s 超过稠密峰值 {self.gpu.bf16}：口径不对（稀疏峰值？因果没减半？）")

    @property
    def gpus(self) -> int:
        return self.t * self.p * self.dp

    @property
    def tokens(self) -> int:
        return self.dp * self.m * self.b * self.s

    @property
    def flops(self) -> float:
        """每卡每步的模型 FLOPs：6N 加注意力，因果算一半（口径见 I2-1）。"""
        model = self.model
        return self.tokens * (6 * model.parameters + 6 * model.layers * model.a * model.d * self.s) / self.gpus


def llama3_405b(gpus: int, v: int = 8) -> Run:
    """Dubey et al. 2024，表 4 的前两行（H100，TP 8、PP 16、s=8192）。每 DP 组的条数 32 与 16；b=1、v=8 是**推断**：
    126 层加首尾两块正好 16 × 8，论文只给了气泡公式 (PP−1)/(V·M)。

    >>> for gpus in (8192, 16384):
    ...     run = llama3_405b(gpus)
    ...     print(run.gpus, f"{run.tokens:,}", f"{run.flops / 1e12 / run.tflops:.2f} s", f"MFU {run.tflops / run.gpu.bf16:.1%}")
    8192 16,777,216 12.08 s MFU 43.5%
    16384 16,777,216 6.49 s MFU 40.4%
    """
    rows = {8192: (64, 32, 430.0), 16384: (128, 16, 400.0)}
    if gpus not in rows:
        raise ValueError(f"表 4 只有 {list(rows)}，收到 {gpus}")
    dp, m, tflops = rows[gpus]
    return Run(MODELS["Llama-3-405B"], GPUS["H100 80GB SXM"], 8, 16, dp, m, v, 8192, tflops)


# --8<-- [end:run]


# --8<-- [start:budget]
def budget(run: Run, gemm: float = 0.8, link: float = 0.8, tp_exposed: float = 1.0) -> dict[str, float]:
    """一步的时间，秒，逐项相加；最后一项是实测减去以上各项。

    gemm: 矩阵乘达到峰值的比例；link: 通信达到规格带宽的比例；tp_exposed: TP 通信露在外面的比例（**三个都是假设**）。
    逐元素算子按带宽下限；TP + SP 每层每 micro-batch 8bsh(t−1)/t 个元素（SP 在反向重新
    all-gather 的 2 份能与权重梯度重叠，不计）；气泡是 (p−1)/(vm)，分母是前四项；
    DP 是 fp32 梯度的 reduce-scatter 与 bf16 参数的 all-gather，只有首尾一块露出（÷ v）。

    >>> columns = [budget(llama3_405b(gpus)) for gpus in (8192, 16384)]
    >>> for name in columns[0]:
    ...     print(*(f"{column[name]:5.2f} s {column[name] / sum(column.values()):6.1%} " for column in columns), name)
     5.25 s  43.5%   2.63 s  40.4%  峰值下的计算
     1.31 s  10.9%   0.66 s  10.1%  矩阵乘达不到峰值
     0.13 s   1.1%   0.07 s   1.0%  逐元素算子
     1.32 s  10.9%   0.66 s  10.1%  露出的 TP 通信
     0.47 s   3.9%   0.47 s   7.2%  气泡
     0.06 s   0.5%   0.06 s   0.9%  露出的 DP 通信
     3.54 s  29.3%   1.96 s  30.2%  还没解释的
    """
    _positive(gemm=gemm, link=link)
    if not (gemm <= 1 and link <= 1 and 0 <= tp_exposed <= 1):
        raise ValueError(f"gemm、link、tp_exposed 须不超过 1，收到 {gemm}、{link}、{tp_exposed}")
    model, gpu = run.model, run.gpu
    layers = model.layers / run.p * run.m  # 一张卡一步要过多少个 (层, micro-batch)
    ideal = run.flops / (gpu.bf16 * 1e12)
    ops = layer_ops(model, run.b, run.s, t=run.t) + backward_ops(model, run.b, run.s, t=run.t)
    pointwise = layers * math.fsum(op.seconds(gpu) for op in ops if op.kind == "pointwise")
    sent = 2 * 8 * run.b * run.s * model.h * (run.t - 1) / run.t  # 字节
    tp = tp_exposed * layers * sent / (gpu.nvlink * 1e9 * link)
    parts = {"峰值下的计算": ideal, "矩阵乘达不到峰值": ideal * (1 / gemm - 1), "逐元素算子": pointwise, "露出的 TP 通信": tp}
    parts["气泡"] = math.fsum(parts.values()) * (run.p - 1) / (run.v * run.m)
    shard = model.parameters / (run.t * run.p) * (run.dp - 1) / run.dp
    parts["露出的 DP 通信"] = (4 + 2) * shard / (run.network * 1e9 * link) / run.v
    parts["还没解释的"] = run.flops / (run.tflops * 1e12) - math.fsum(parts.values())
    return parts


def explained_mfu(parts: Mapping[str, float]) -> float:
    """把“还没解释的”全部找回来之后的 MFU：预算自己承认的损失都留着。

    >>> [round(100 * explained_mfu(budget(llama3_405b(gpus))), 1) for gpus in (8192, 16384)]
    [61.5, 57.9]
    """
    if "峰值下的计算" not in parts:
        raise ValueError("预算里没有“峰值下的计算”这一项")
    explained = math.fsum(time for name, time in parts.items() if name != "还没解释的")
    _positive(explained=explained)
    return parts["峰值下的计算"] / explained


# --8<-- [end:budget]


# --8<-- [start:bubble]
def bubble_check(v: int) -> tuple[float, float]:
    """8K 卡到 16K 卡，每卡 TFLOP/s 掉了多少：(气泡公式预测的比值, 论文的比值)。

    其他项都随 micro-batch 数等比，只有气泡从 15/(32v) 变成 15/(16v)：

    >>> [tuple(round(x, 3) for x in bubble_check(v)) for v in (1, 4, 8)]
    [(1.319, 1.075), (1.105, 1.075), (1.055, 1.075)]
    """
    few, many = llama3_405b(16384, v), llama3_405b(8192, v)
    ratio = [1 + (run.p - 1) / (run.v * run.m) for run in (few, many)]
    return ratio[0] / ratio[1], many.tflops / few.tflops


# --8<-- [end:bubble]


# --8<-- [start:amdahl]
def amdahl(share: float, factor: float = math.inf) -> float:
    """占墙钟 share 的一块快 factor 倍，整体快几倍；factor 取无穷就是这块的上限。

    >>> [round(amdahl(share), 3) for share in (0.01, 0.10, 0.30)], round(amdahl(0.10, 2), 3)
    ([1.01, 1.111, 1.429], 1.053)
    """
    if not 0 <= share < 1:
        raise ValueError(f"share 须在 [0, 1)，收到 {share!r}")
    if not factor > 0:
        raise ValueError(f"factor 须为正，收到 {factor!r}")
    return 1 / (1 - share + share / factor)


def ceilings(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """把各项从大到小排，附上“做到 0”的加速上限。

    >>> for name, most in ceilings(budget(llama3_405b(16384)))[1:5]:
    ...     print(f"{most:.3f}×  {name}")
    1.432×  还没解释的
    1.113×  露出的 TP 通信
    1.112×  矩阵乘达不到峰值
    1.078×  气泡
    """
    if not parts or not all(math.isfinite(time) for time in parts.values()):
        raise ValueError("各项须有限且不为空")
    total = math.fsum(parts.values())
    _positive(total=total)
    return sorted(((name, amdahl(time / total)) for name, time in parts.items() if 0 <= time < total), key=lambda row: -row[1])


def overlapped(compute: float, comm: float, serial: float = 0.0) -> float:
    """计算与通信完全重叠、另有 serial 不能重叠：墙钟 = max(compute, comm) + serial。

    藏着的通信不占墙钟，却是下一个天花板：计算 70 ms、通信 60 ms，计算快 1 倍并不是快 1 倍：

    >>> overlapped(70, 60, 5), overlapped(35, 60, 5)
    (75, 65)
    >>> round(75 / 65, 3), round(amdahl(70 / 75, 2), 3)            # 真的得到 1.154×，按 Amdahl 会以为 1.875×
    (1.154, 1.875)
    """
    if not all(math.isfinite(x) and x >= 0 for x in (compute, comm, serial)):
        raise ValueError("时间须有限且非负")
    return max(compute, comm) + serial


# --8<-- [end:amdahl]


# --8<-- [start:straggler]
def expected_max(n: int, points: int = 4000) -> float:
    """n 个独立标准正态的最大值的期望，E = ∫ x d(Φⁿ)；换元 u = Φⁿ 后在 (0, 1) 上取中点。

    >>> [round(expected_max(n), 2) for n in (1, 8, 1024, 16384)]
    [0.0, 1.42, 3.25, 3.97]
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n 须是正整数，收到 {n!r}")
    normal = NormalDist()
    # Φ(x) = u^(1/n)；尾部用 1 − u^(1/n) = −expm1(ln(u)/n) 免得舍入成 1
    return math.fsum(-normal.inv_cdf(-math.expm1(math.log((i + 0.5) / points) / n)) for i in range(points)) / points


def jitter_slowdown(n: int, cv: float, syncs: int = 1) -> float:
    """n 张卡每步都要等最慢的：步时间比单卡平均长多少。cv 是**一段**的标准差 ÷ 均值，syncs 是两次同步之间有几段独立的抖动。

    >>> [f"{jitter_slowdown(n, 0.02):.1%}" for n in (8, 1024, 16384)]
    ['2.8%', '6.5%', '7.9%']
    >>> f"{jitter_slowdown(16384, 0.02, syncs=64):.1%}"            # 一步 64 段、只在最后同步：抖动互相抵消
    '1.0%'
    """
    if not (math.isfinite(cv) and cv >= 0):
        raise ValueError(f"cv 须有限且非负，收到 {cv!r}")
    if isinstance(syncs, bool) or not isinstance(syncs, int) or syncs < 1:
        raise ValueError(f"syncs 须是正整数，收到 {syncs!r}")
    return expected_max(n) * cv / math.sqrt(syncs)


def slow_card(n: int, fraction: float, slower: float) -> float:
    """每张卡以 fraction 的概率慢 slower（固定慢，不是抖动）：期望的步时间增加。只要还剩一张，全体就慢这么多。

    >>> [f"{slow_card(n, 0.001, 0.10):.1%}" for n in (8, 1024, 16384)]
    ['0.1%', '6.4%', '10.0%']
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n 须是正整数，收到 {n!r}")
    if not (0 <= fraction <= 1 and math.isfinite(slower) and slower >= 0):
        raise ValueError(f"fraction 须在 [0, 1]、slower 须非负，收到 {fraction!r}、{slower!r}")
    return slower * (1 - (1 - fraction) ** n)


# --8<-- [end:straggler]


# --8<-- [start:goodput]
def loss_per_interruption(days: float, interruptions: int, effective: float) -> tuple[float, float]:
    """(平均多少小时中断一次, 每次最多丢多少分钟)，由有效训练时间占比反推。

    Llama 3 405B：54 天 466 次中断，有效训练时间超过 90%（Dubey et al. 2024，§3.3.4）：

    >>> [round(x, 1) for x in loss_per_interruption(54, 466, 0.90)]
    [2.8, 16.7]
    """
    _positive(days=days, interruptions=interruptions)
    if not 0 < effective <= 1:
        raise ValueError(f"effective 须在 (0, 1]，收到 {effective!r}")
    hours = 24 * days / interruptions
    return hours, 60 * hours * (1 - effective)


def saved_gpu_hours(gain: float, gpus: int, days_left: float) -> float:
    """再快 gain（0.01 = 步时间少 1%），剩下的训练省多少卡时。

    >>> f"{saved_gpu_hours(0.01, 16384, 54):,.0f} {saved_gpu_hours(0.01, 64, 5):,.0f}"
    '212,337 77'
    """
    _positive(gpus=gpus, days_left=days_left)
    if not 0 <= gain < 1:
        raise ValueError(f"gain 须在 [0, 1)，收到 {gain!r}")
    return gain * gpus * 24 * days_left


# --8<-- [end:goodput]


# --8<-- [start:wrong]
def slow_kernel_is_not_the_headroom() -> tuple[float, float]:
    """反例：“归一化只用到峰值的 0.3%，先优化它。”Llama-3-8B 一层、8192 token、H100 的 roofline 下限：
    返回 (归一化 1 用到的算力比例, 把它做到 0 的加速上限)。

    >>> used, most = slow_kernel_is_not_the_headroom()
    >>> f"{used:.2%} {most:.3f}×"
    '0.34% 1.009×'
    """
    gpu = GPUS["H100 80GB SXM"]
    ops = layer_ops(MODELS["Llama-3-8B"], 1, 8192)
    total = math.fsum(op.seconds(gpu) for op in ops)
    norm = ops[0]
    return norm.flops / norm.seconds(gpu) / (gpu.bf16 * 1e12), amdahl(norm.seconds(gpu) / total)


# --8<-- [end:wrong]


def figure_llama3() -> str:
    """Llama 3 405B 的两行：每项占实测步时间的百分比。"""
    labels, columns = [], []
    for gpus in (8192, 16384):
        parts = budget(llama3_405b(gpus))
        whole = math.fsum(parts.values())
        labels.append(f"{gpus:,} 卡")
        columns.append({name: 100 * time / whole for name, time in parts.items()})
    series = {name: [column[name] for column in columns] for name in columns[0]}
    return bars(labels, series, title="Llama 3 405B 一步的时间预算（假设见正文）", unit="%", fmt=lambda value: f"{value:.0f}")
