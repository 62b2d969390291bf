"""MFU 与 HFU 从头推：每 token 的 FLOPs、几种口径，重现公布的表（只用标准库）。

约定：一次乘加 2 FLOPs；只数矩阵乘与注意力；训练 = 前向 × 3（反向对输入、对权重各一遍）。
"""

from dataclasses import dataclass

from snippets.tools.presets import MODELS, Model


# --8<-- [start:flops]
def matmul_parameters(model: Model) -> int:
    """每个 token 真的参与矩阵乘的参数：MoE 只算被选中的专家，嵌入查表不算，输出层算；归一化、位置嵌入不算。

    >>> for name in ("Llama-3-8B", "Llama-3-405B", "DeepSeek-V3", "GPT-3 175B"):
    ...     print(f"{MODELS[name].active / 1e9:.2f} → {matmul_parameters(MODELS[name]) / 1e9:.2f}  {name}")
    8.03 → 7.50  Llama-3-8B
    405.85 → 403.75  Llama-3-405B
    37.55 → 36.62  DeepSeek-V3
    174.60 → 174.56  GPT-3 175B
    """
    lookup = 0 if model.tied else model.vocabulary * model.h  # 绑定的那一份在输出层用到，算一次
    norms = model.layers * model.norms + model.outside
    return model.active - lookup - norms - mla_norms(model)


def mla_norms(model: Model) -> int:
    return model.layers * (model.mla[0] + model.mla[1]) if model.mla else 0


def attention_flops(model: Model, s: int, causal: bool = True) -> float:
    """每 token 训练时注意力核心的 FLOPs：3 × 2 × L × a × (QK 的头维 + V 的头维) × s，因果减半。

    GQA 不减：每个查询头都要算自己的一行，共用的只是存储。MLA 训练时展开成普通的头：QK 192 维、V 128 维。

    >>> gqa, mha = MODELS["Llama-3-8B"], MODELS["GPT-3 175B"]
    >>> attention_flops(gqa, 8192, causal=False) == 12 * gqa.layers * gqa.a * gqa.d * 8192       # PaLM 的 12·L·H·Q·T
    True
    >>> round(attention_flops(MODELS["DeepSeek-V3"], 4096) / 1e9, 2)
    30.71
    """
    if isinstance(s, bool) or not isinstance(s, int) or s < 1:
        raise ValueError(f"s 须是正整数，收到 {s!r}")
    if model.mla:
        _, _, nope, rope, v = model.mla
        width = nope + rope + v
    else:
        width = 2 * model.d
    full = 3 * 2.0 * model.layers * model.a * width * s
    return full * (s + 1) / (2 * s) if causal else full


def flops_per_token(model: Model, s: int, causal: bool = True) -> float:
    """训练一个 token 的模型 FLOPs：6N + 注意力。

    >>> for s in (2048, 8192, 131072):
    ...     total, core = flops_per_token(MODELS["Llama-3-8B"], s), attention_flops(MODELS["Llama-3-8B"], s)
    ...     print(s, f"{total / 1e9:.1f} GFLOP，注意力 {100 * core / total:.0f}%")
    2048 46.6 GFLOP，注意力 3%
    8192 51.5 GFLOP，注意力 13%
    131072 148.1 GFLOP，注意力 70%
    """
    return 6.0 * matmul_parameters(model) + attention_flops(model, s, causal)


# --8<-- [end:flops]


# --8<-- [start:megatron]
def megatron_iteration(b: int, layers: int, s: int, h: int, vocabulary: int, selective: bool = False) -> float:
    """Megatron 的一步 FLOPs：72·B·L·s·h²·(1 + s/6h + V/12hL)，不计因果减半；选择性重算的硬件 FLOPs 把 s/6h 换成 s/3h。

    Korthikanti 2022，式 7、8。72Lh² 就是 6 × 12Lh²，s/6h 是 12Lhs，V/12hL 是 6hV。
    """
    if min(b, layers, s, h, vocabulary) < 1:
        raise ValueError("B、L、s、h、V 须为正")
    return 72.0 * b * layers * s * h**2 * (1 + s / ((3 if selective else 6) * h) + vocabulary / (12 * h * layers))


@dataclass(frozen=True)
class Run:
    """Korthikanti 2022，表 3 与表 5 的一行：层数、h、batch、GPU 数、一步秒数。A100，s = 2048，V = 51200。"""

    name: str
    layers: int
    h: int
    batch: int
    gpus: int
    seconds: float


RUNS = (
    Run("22B", 48, 6144, 4, 8, 1.10),
    Run("175B", 96, 12288, 64, 64, 13.75),
    Run("530B", 105, 20480, 280, 280, 37.83),
    Run("1T", 128, 25600, 512, 512, 71.49),
)


def utilization(run: Run, peak: float = 312e12) -> tuple[float, float]:
    """(MFU, HFU)，百分数。

    >>> for run in RUNS:
    ...     print(run.name, *(f"{x:.1f}" for x in utilization(run)))
    22B 41.7 43.8
    175B 51.4 52.8
    530B 56.0 57.0
    1T 56.3 57.0
    """
    shape = (run.batch, run.layers, 2048, run.h, 51200)
    spent = run.seconds * run.gpus * peak
    return 100 * megatron_iteration(*shape) / spent, 100 * megatron_iteration(*shape, selective=True) / spent


# --8<-- [end:megatron]


# --8<-- [start:deepseek]
def deepseek_v3(hours_per_trillion: float = 180e3, peak: float = 989e12) -> dict[str, float]:
    """由公布的“每万亿 token 18 万 H800 卡时”反推（s = 4096，不含 MTP 模块与重算）。

    >>> for name, value in deepseek_v3().items():
    ...     print(f"{value:7.1f}  {name}")
     1543.2  token/s/卡
      386.5  TFLOP/s（因果）
       39.1  MFU（因果）
       43.9  MFU（不减半）
       34.6  MFU（6 × 37B）
       19.5  对 fp8 峰值（因果）
    """
    if not (hours_per_trillion > 0 and peak > 0):
        raise ValueError("卡时与峰值须为正")
    model = MODELS["DeepSeek-V3"]
    rate = 1e12 / (hours_per_trillion * 3600)
    causal, full = (rate * flops_per_token(model, 4096, flag) for flag in (True, False))
    return {
        "token/s/卡": rate,
        "TFLOP/s（因果）": causal / 1e12,
        "MFU（因果）": 100 * causal / peak,
        "MFU（不减半）": 100 * full / peak,
        "MFU（6 × 37B）": 100 * 6 * 37e9 * rate / peak,
        "对 fp8 峰值（因果）": 100 * causal / (2 * peak),
    }


# --8<-- [end:deepseek]


# --8<-- [start:conventions]
def conventions(model: Model, s: int, tokens_per_s: float, gpus: int, peak: float = 989e12, recompute: bool = False) -> dict[str, float]:
    """同一次训练的六个“利用率”（百分数）：差别全在口径。recompute: 全重算（只影响 HFU）。

    >>> report = conventions(MODELS["Llama-3-8B"], 8192, 8 * 7200, 8, recompute=True)
    >>> for name, value in report.items():
    ...     print(f"{value:5.1f}  {name}")
     37.5  MFU，因果减半
     42.2  MFU，注意力不减半（PaLM、Megatron 的口径）
     32.8  只算 6N，N 不含嵌入
     35.1  只算 6N，N 用总参数
     18.7  误用 2:4 稀疏峰值
     50.0  HFU，全重算，因果减半
    """
    if min(tokens_per_s, gpus, peak) <= 0:
        raise ValueError("吞吐、卡数、峰值须为正")
    scale = 100 * tokens_per_s / gpus / peak
    causal = flops_per_token(model, s)
    if scale * causal > 100:
        raise ValueError(f"MFU 算出 {scale * causal:.0f}%，请核对吞吐、卡数与峰值")
    return {
        "MFU，因果减半": scale * causal,
        "MFU，注意力不减半（PaLM、Megatron 的口径）": scale * flops_per_token(model, s, causal=False),
        "只算 6N，N 不含嵌入": scale * 6 * matmul_parameters(model),
        "只算 6N，N 用总参数": scale * 6 * model.active,
        "误用 2:4 稀疏峰值": scale * causal / 2,
        "HFU，全重算，因果减半": scale * causal * (4 / 3 if recompute else 1),
    }


# --8<-- [end:conventions]
