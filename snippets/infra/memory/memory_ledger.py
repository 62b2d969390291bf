"""训练显存的总账：精度清单、每张卡的分项、一步之内的峰值时间线、NCCL 缓冲的可算部分（只用标准库）。"""

import math

from snippets.common.chart import bars
from snippets.deep_learning.training.zero import Inventory, state_bytes
from snippets.infra.memory.activation_memory import LLAMA3_8B, LLAMA3_70B, decoder_bytes, logits_bytes
from snippets.infra.memory.fsdp_layout import fsdp_bytes, llama_layer
from snippets.tools.presets import MODELS

GB = 1e9

# --8<-- [start:inventory]
INVENTORIES = {  # 每参数字节：(计算用的权重, 梯度, 优化器含主权重)
    "bf16 混合精度，梯度 bf16": Inventory(2, 2, 12),
    "bf16 混合精度，梯度 fp32": Inventory(2, 4, 12),
    "bf16 梯度之外另有 fp32 累加": Inventory(2, 6, 12),
    "全 fp32 或 autocast（副本另算）": Inventory(4, 4, 8),
    "DeepSeek-V3：m、v 用 bf16": Inventory(2, 4, 8),
    "8 位 Adam，块 256": Inventory(2, 2, 4 + 2 * (1 + 4 / 256)),
    "Muon（隐藏矩阵，只有 fp32 动量）": Inventory(2, 2, 8),
    "纯 bf16，没有主权重": Inventory(2, 2, 4),
}


def inventory_gb(psi: float) -> list[tuple[str, float, float]]:
    """每种清单的 (名字, 字节每参数, 总 GB)；8 位 Adam 每 256 个元素另存一个 fp32 的缩放。

    >>> for name, size, total in inventory_gb(MODELS["Llama-3-8B"].parameters):
    ...     print(f"{size:6.2f}  {total:6.1f}  {name}")
     16.00   128.5  bf16 混合精度，梯度 bf16
     18.00   144.5  bf16 混合精度，梯度 fp32
     20.00   160.6  bf16 梯度之外另有 fp32 累加
     16.00   128.5  全 fp32 或 autocast（副本另算）
     14.00   112.4  DeepSeek-V3：m、v 用 bf16
     10.03    80.6  8 位 Adam，块 256
     12.00    96.4  Muon（隐藏矩阵，只有 fp32 动量）
      8.00    64.2  纯 bf16，没有主权重
    """
    if not 0 < psi < float("inf"):
        raise ValueError(f"参数量须为有限正数，收到 {psi}")
    return [(name, inventory.total, psi * inventory.total / GB) for name, inventory in INVENTORIES.items()]


def lora_gb(psi: float, adapter: float, frozen_bytes: float = 2) -> float:
    """LoRA：底座只有权重（bf16 2 字节，4 位约 0.5 加缩放），适配器按 16 字节每参数。激活不因此消失。

    >>> r = 16                                        # Llama-3-8B 的 q、k、v、o、gate、up、down 全挂 r = 16
    >>> h, kv, f = 4096, 1024, 14336
    >>> adapter = 32 * r * (2 * (h + h) + 2 * (h + kv) + 3 * (h + f))
    >>> adapter, round(lora_gb(8.030261248e9, adapter), 1), round(16 * adapter / 1e9, 2)
    (41943040, 16.7, 0.67)
    """
    if not 0 < adapter <= psi or frozen_bytes <= 0:
        raise ValueError(f"须有 0 < adapter ≤ psi、frozen_bytes > 0，收到 {adapter}、{psi}、{frozen_bytes}")
    return (psi * frozen_bytes + adapter * 16) / GB


# --8<-- [end:inventory]


# --8<-- [start:nccl]
def nccl_buffer_bytes(channels: int, connections: int = 1, simple: int = 2**22) -> int:
    """一个通信组的协议缓冲：每通道、每条接收连接各一份 Simple、LL、LL128。这是可算的部分，不含 NVLS、CollNet、代理与注册缓冲。

    Simple 即 NCCL_BUFFSIZE，默认 4 MiB；LL = 8 行 × 512 线程 × 8 步 × 16 B；LL128 = 120 × 640 × 8 步 × 8 B
    （NCCL src/init.cc 的 DEFAULT_*BUFFSIZE，src/include/device.h 的常数）。

    >>> nccl_buffer_bytes(1)
    9633792
    >>> [round(nccl_buffer_bytes(channels) / 1e6) for channels in (8, 16, 32)]        # MB，只有 ring 的一条接收连接
    [77, 154, 308]
    >>> nccl_buffer_bytes(0)
    Traceback (most recent call last):
    ...
    ValueError: 通道、连接、缓冲须为正整数，通道不超过 64，收到 (0, 1, 4194304)
    """
    values = (channels, connections, simple)
    if any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values) or channels > 64:
        raise ValueError(f"通道、连接、缓冲须为正整数，通道不超过 64，收到 {values}")
    low_latency = 8 * 512 * 8 * 16
    low_latency_128 = 120 * 640 * 8 * 8
    return channels * connections * (simple + low_latency + low_latency_128)


# --8<-- [end:nccl]


# --8<-- [start:ledger]
DECODER = {"Llama-3-8B": LLAMA3_8B, "Llama-3-70B": LLAMA3_70B}
UNIT = {  # 一层的参数量：FSDP 的一个 unit
    name: sum(map(math.prod, llama_layer(model.h, model.kv, model.h // model.a, model.f).values())) for name, model in DECODER.items()
}


def fsdp_ledger(name: str, n: int, recompute: str = "none", tokens: int = 8192, logits: str = "backward") -> dict[str, float]:
    """ZeRO-3 / FSDP2 一张卡的分项 GB，损失反向开始的那一刻（fp32 分片 16 B 每参数，梯度分片已在，即累积的第二个 micro-batch）。

    层 unit 聚齐两组（正在算的与预取的），梯度的 reduce-scatter 输入两组（bf16；reduce_dtype 用 fp32 就翻倍）。
    嵌入与输出头在根 unit，前向之后不放。
    全重算另加正在重算的一层。

    >>> for args in (("Llama-3-8B", 8), ("Llama-3-8B", 8, "full"), ("Llama-3-70B", 64, "full")):
    ...     ledger = fsdp_ledger(*args)
    ...     print({k: round(v, 1) for k, v in ledger.items()}, round(sum(ledger.values()), 1))
    {'状态分片': 16.1, '激活': 44.1, 'logits': 12.6, '聚齐的层': 0.9, '根 unit': 2.1, '在途梯度': 0.9} 76.6
    {'状态分片': 16.1, '激活': 3.5, 'logits': 12.6, '聚齐的层': 0.9, '根 unit': 2.1, '在途梯度': 0.9} 36.0
    {'状态分片': 17.6, '激活': 13.5, 'logits': 12.6, '聚齐的层': 3.4, '根 unit': 4.2, '在途梯度': 3.4} 54.8
    """
    if name not in DECODER:
        raise ValueError(f"模型须为 {'、'.join(DECODER)}，收到 {name!r}")
    if logits not in ("backward", "none"):
        raise ValueError(f"logits 须为 backward 或 none，收到 {logits!r}")
    model, decoder = MODELS[name], DECODER[name]
    sharded = fsdp_bytes(model.parameters, UNIT[name], n)
    activations = decoder_bytes(decoder, tokens, recompute)
    if recompute == "full":
        activations += decoder_bytes(decoder, tokens) / decoder.layers
    return {
        "状态分片": sharded["分片"],
        "激活": activations / GB,
        "logits": logits_bytes(decoder, tokens, "backward") / GB if logits == "backward" else 0.0,
        "聚齐的层": sharded["聚齐的参数"],
        "根 unit": 2 * model.embeddings / GB,
        "在途梯度": sharded["在途的梯度"],
    }


def tensor_parallel_ledger(inventory: Inventory, stage: int = 1, recompute: str = "swiglu+norm", tokens: int = 8192) -> dict[str, float]:
    """Llama-3-70B，64 张卡，TP 8（+ SP）× DP 8：一张卡的分项 GB。

    >>> for inventory in (Inventory(2, 4, 12), Inventory(2, 2, 12)):
    ...     ledger = tensor_parallel_ledger(inventory)
    ...     print({k: round(v, 1) for k, v in ledger.items()}, round(sum(ledger.values()), 1))
    {'权重': 17.6, '梯度': 35.3, '优化器': 13.2, '激活': 15.1, 'logits': 1.6} 82.8
    {'权重': 17.6, '梯度': 17.6, '优化器': 13.2, '激活': 15.1, 'logits': 1.6} 65.2
    """
    states = state_bytes(MODELS["Llama-3-70B"].parameters / 8, 8, stage, inventory)
    sizes = (*states, decoder_bytes(LLAMA3_70B, tokens, recompute, t=8), logits_bytes(LLAMA3_70B, tokens, "backward") / 8)
    return {name: size / GB for name, size in zip(("权重", "梯度", "优化器", "激活", "logits"), sizes, strict=True)}


def deepseek_v3_ledger(copies: int = 2, pp: int = 16, ep: int = 64, gpus: int = 2048) -> dict[str, float]:
    """DeepSeek-V3（671B，不含 MTP）一张卡的模型状态 GB，按各段平均：PP 16、EP 64、ZeRO-1。

    披露：m、v 为 bf16，主权重与梯度 fp32，DualPipe 留两份参数（§3.2.1、§3.3.3）。推断：计算用的权重按 bf16 2 字节，两份都有梯度，
    优化器只有一份。专家的数据并行度是 d/e，其余参数的是 d。

    >>> {k: round(v, 2) for k, v in deepseek_v3_ledger(1).items()}, {k: round(v, 2) for k, v in deepseek_v3_ledger(2).items()}
    ({'权重': 3.42, '梯度': 6.83, '优化器': 2.62}, {'权重': 6.83, '梯度': 13.67, '优化器': 2.62})
    >>> [round(sum(deepseek_v3_ledger(copies).values()), 1) for copies in (1, 2)]
    [12.9, 23.1]
    """
    if min(copies, pp, ep, gpus) < 1 or gpus % pp or gpus // pp % ep:
        raise ValueError(f"p 须整除卡数、e 须整除 d，各数为正，收到 {copies, pp, ep, gpus}")
    model, d = MODELS["DeepSeek-V3"], gpus // pp
    inventory = Inventory(2, 4, 8)
    dense = state_bytes((model.parameters - model.routed) / pp, d, 1, inventory)
    expert = state_bytes(model.routed / pp / ep, d // ep, 1, inventory)
    weights, grads, optimizer = (a + b for a, b in zip(dense, expert, strict=True))
    return {"权重": copies * weights / GB, "梯度": copies * grads / GB, "优化器": optimizer / GB}


# --8<-- [end:ledger]


# --8<-- [start:timeline]
def step_timeline(recompute: str = "none", fused_loss: bool = False, foreach: bool = True, n: int = 8) -> list[tuple[str, float]]:
    """Llama-3-8B，ZeRO-3 在 n 张卡上，一条 8K、一个 micro-batch 一步：(时刻, GB)。梯度在步首为空，随反向逐层长出来。

    只记参数、梯度、优化器、激活、logits、聚齐与在途的 unit、foreach 的临时（一份 fp32 分片）；不含上下文、NCCL、碎片。

    >>> for options in ({}, {"recompute": "full"}, {"recompute": "full", "fused_loss": True}):
    ...     print({name: round(gb, 1) for name, gb in step_timeline(**options)})
    {'步首': 12.0, '前向末': 59.1, '损失前向': 69.6, '损失反向': 72.7, '反向过半': 41.0, '反向末': 23.4, '优化器': 20.1}
    {'步首': 12.0, '前向末': 17.2, '损失前向': 27.7, '损失反向': 30.8, '反向过半': 21.4, '反向末': 23.5, '优化器': 20.1}
    {'步首': 12.0, '前向末': 17.2, '损失前向': 17.2, '损失反向': 18.2, '反向过半': 21.4, '反向末': 23.5, '优化器': 20.1}
    >>> max(step_timeline(), key=lambda row: row[1])[0], max(step_timeline("full", True), key=lambda row: row[1])[0]
    ('损失反向', '反向末')
    """
    if n < 1:
        raise ValueError(f"卡数须为正，收到 {n}")
    model = MODELS["Llama-3-8B"]
    shard = model.parameters / n / GB
    resident = 12 * shard
    activations = decoder_bytes(LLAMA3_8B, 8192, recompute) / GB
    working = decoder_bytes(LLAMA3_8B, 8192) / LLAMA3_8B.layers / GB if recompute == "full" else 0.0
    layer, root, head = 2 * 2 * UNIT["Llama-3-8B"] / GB, 2 * model.embeddings / GB, model.embeddings / GB
    forward, backward = (0.0 if fused_loss else logits_bytes(LLAMA3_8B, 8192, phase) / GB for phase in ("forward", "backward"))
    return [
        ("步首", resident),
        ("前向末", resident + activations + layer + root),
        ("损失前向", resident + activations + layer + root + forward),
        ("损失反向", resident + activations + layer + root + backward + head),
        ("反向过半", resident + activations / 2 + working + 2 * layer + root + head + 2 * shard),
        ("反向末", resident + activations / 32 + working + 2 * layer + root + 2 * head + 4 * shard),
        ("优化器", resident + 4 * shard + (4 * shard if foreach else 0)),
    ]


# --8<-- [end:timeline]


# --8<-- [start:wrong]
def seven_b_is_not_54_gb(psi: float = 6.738e9) -> tuple[float, float, float]:
    """反例：“7B 混合精度 Adam 的训练状态是 54 GB”。返回 (54 对应的 8 B, 只有优化器的 12 B, 全部 16 B) 的 GB。

    >>> [round(gb, 1) for gb in seven_b_is_not_54_gb()]
    [53.9, 80.9, 107.8]
    """
    return psi * 8 / GB, psi * 12 / GB, psi * 16 / GB


# --8<-- [end:wrong]


def figure_step_timeline() -> str:
    """一步之内七个时刻的显存，三种做法。"""
    rows = {
        "不重算": dict(step_timeline()),
        "全重算": dict(step_timeline("full")),
        "全重算 + 分块损失": dict(step_timeline("full", True)),
    }
    labels = list(rows["不重算"])
    return bars(
        labels,
        {name: [values[label] for label in labels] for name, values in rows.items()},
        title="Llama-3-8B 一步之内的显存（ZeRO-3，8 卡，一条 8192）",
        unit="GB",
        stacked=False,
    )
