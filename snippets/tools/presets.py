"""计算器的预设：模型与硬件，每个数带出处；参数量由结构算出，不抄（只用标准库）。"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """h hidden、a 头数、kv 个 KV 头、d 每头维度、f MLP 宽（MoE 是一个专家的宽）、V 词表。

    gated: SwiGLU 三个矩阵，否则两个。experts = 0 是稠密模型；dense_layers 层用宽 dense_f 的普通 MLP，其余层是 MoE。
    mla 依次是 q_lora_rank、kv_lora_rank、qk_nope、qk_rope、v 每头维度。norms 是每层的归一化与偏置，outside 是层外的归一化与位置嵌入。
    layer: 激活的账本认识的层（modern、classic），都不是则为 None。
    """

    name: str
    layers: int
    h: int
    a: int
    kv: int
    d: int
    f: int
    vocabulary: int
    source: str
    experts: int = 0
    top_k: int = 0
    shared: int = 0
    dense_layers: int = 0
    dense_f: int = 0
    gated: bool = True
    tied: bool = False
    norms: int = 0
    outside: int = 0
    mla: tuple[int, int, int, int, int] | None = None
    layer: str | None = "modern"

    @property
    def attention(self) -> int:
        """一层注意力的矩阵参数。"""
        if self.mla is None:
            return self.h * self.a * self.d * 2 + self.h * self.kv * self.d * 2
        q, c, nope, rope, v = self.mla
        down = self.h * q + self.h * (c + rope)
        up = q * self.a * (nope + rope) + c * self.a * (nope + v)
        return down + up + self.a * v * self.h + q + c  # 末两项是两个 RMSNorm

    @property
    def expert(self) -> int:
        """一个专家（稠密模型是整个 MLP）的参数。"""
        return (3 if self.gated else 2) * self.h * self.f

    @property
    def routed(self) -> int:
        """全部路由专家的参数，稠密模型为 0。"""
        return (self.layers - self.dense_layers) * self.experts * self.expert

    @property
    def embeddings(self) -> int:
        return self.vocabulary * self.h * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """总参数量。

        >>> for name in ("Llama-3-8B", "Mixtral 8x7B", "GPT-3 175B"):
        ...     print(name, f"{MODELS[name].parameters:,}")
        Llama-3-8B 8,030,261,248
        Mixtral 8x7B 46,702,792,704
        GPT-3 175B 174,604,259,328
        """
        moe = self.layers - self.dense_layers
        if not self.experts:
            mlp = self.layers * self.expert
        else:
            router = self.h * self.experts
            mlp = moe * ((self.experts + self.shared) * self.expert + router) + self.dense_layers * 3 * self.h * self.dense_f
        return self.layers * (self.attention + self.norms) + mlp + self.embeddings + self.outside

    @property
    def active(self) -> int:
        """每个 token 用到的参数量（路由专家只算 top-k）。

        >>> f"{MODELS['Mixtral 8x7B'].active:,}"
        '12,879,925,248'
        """
        if not self.experts:
            return self.parameters
        return self.parameters - (self.layers - self.dense_layers) * (self.experts - self.top_k) * self.expert

    def fields(self) -> dict[str, float | int | str]:
        """计算器的字段名与值；计算器只取它有的字段。"""
        width = self.f * (self.top_k + self.shared) if self.experts else self.f
        # MLA 展开后 K 每头 nope + rope、V 每头 v：注意力的 FLOPs 与 K、V 的总宽都等于每头取二者的平均
        dim = (self.mla[2] + self.mla[3] + self.mla[4]) // 2 if self.mla else self.d
        return {
            "params_b": self.parameters / 1e9,
            "active_b": self.active / 1e9,
            "expert_b": self.routed / 1e9,
            "layers": self.layers,
            "hidden": self.h,
            "heads": self.a,
            "kv_heads": self.kv,
            "head_dim": dim,
            "ffn": width,
            "vocab": self.vocabulary,
            "tied": "yes" if self.tied else "no",
            "top_k": self.top_k,
            "moe_layers": self.layers - self.dense_layers if self.experts else 0,
            "attention": "mla" if self.mla else "gqa",
            "latent": self.mla[1] + self.mla[3] if self.mla else 576,
            "layer": self.layer,
            "kv_width": 2 * self.kv * dim,
        }


LLAMA3 = "Dubey et al. 2024（arXiv 2407.21783），表 3；config.json"
QWEN3 = "Qwen3 Technical Report（arXiv 2505.09388），表 1–2；config.json"

MODELS = {
    model.name: model
    for model in (
        Model("Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128_256, LLAMA3, norms=2 * 4096, outside=4096),
        Model("Llama-3-70B", 80, 8192, 64, 8, 128, 28672, 128_256, LLAMA3, norms=2 * 8192, outside=8192),
        Model("Llama-3-405B", 126, 16384, 128, 8, 128, 53248, 128_256, LLAMA3, norms=2 * 16384, outside=16384),
        Model("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151_936, QWEN3, norms=2 * 4096 + 256, outside=4096),
        Model("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151_936, QWEN3, norms=2 * 5120 + 256, outside=5120),
        Model(
            "Qwen3-235B-A22B",
            94,
            4096,
            64,
            4,
            128,
            1536,
            151_936,
            QWEN3,
            experts=128,
            top_k=8,
            norms=2 * 4096 + 256,
            outside=4096,
        ),
        Model(
            "Mixtral 8x7B",
            32,
            4096,
            32,
            8,
            128,
            14336,
            32_000,
            "Jiang et al. 2024（arXiv 2401.04088），表 1；config.json",
            experts=8,
            top_k=2,
            norms=2 * 4096,
            outside=4096,
        ),
        Model(
            "DeepSeek-V3",
            61,
            7168,
            128,
            128,
            128,
            2048,
            129_280,
            "DeepSeek-AI 2024（arXiv 2412.19437），§4.2；config.json（不含 MTP 模块）",
            experts=256,
            top_k=8,
            shared=1,
            dense_layers=3,
            dense_f=18432,
            norms=2 * 7168,
            outside=7168,
            mla=(1536, 512, 128, 64, 128),
            layer=None,
        ),
        Model(
            "GPT-3 175B",
            96,
            12288,
            96,
            96,
            128,
            4 * 12288,
            50_257,
            "Brown et al. 2020（arXiv 2005.14165），表 2.1",
            gated=False,
            tied=True,
            layer="classic",
            norms=13 * 12288,  # 两个 LayerNorm 4h、偏置 3h + h + 4h + h
            outside=2 * 12288 + 2048 * 12288,  # 末尾的 LayerNorm、位置嵌入
        ),
        Model(
            "PaLM 540B",
            118,
            18432,
            48,
            1,
            256,
            4 * 18432,
            256_000,
            "Chowdhery et al. 2022（arXiv 2204.02311），表 1、§2（归一化的参数未计）",
            tied=True,
            layer=None,
        ),
    )
}


@dataclass(frozen=True)
class Gpu:
    """稠密峰值 TFLOP/s、显存 GB、HBM GB/s、NVLink 单向 GB/s（规格表印双向合计，除以 2）。"""

    name: str
    bf16: float
    fp8: float | None
    memory: float
    hbm: float
    nvlink: float
    source: str

    def fields(self) -> dict[str, float]:
        return {"peak_tflops": self.bf16, "memory_gb": self.memory, "hbm_gbps": self.hbm, "nvlink_gbps": self.nvlink}


SPARSE = "规格表的 1,979（bf16）与 3,958（fp8）含 2:4 稀疏，取一半"
SECOND_HAND = "未核实规格表原件，取自多处一致的转述"

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100 80GB SXM", 312, None, 80, 2039, 300, f"NVIDIA A100 规格表（{SECOND_HAND}）；312 已是稠密；NVLink 3 双向 600"),
        Gpu("H100 80GB SXM", 989, 1979, 80, 3350, 450, f"NVIDIA H100 规格表（{SECOND_HAND}）；{SPARSE}；NVLink 4 双向 900"),
        Gpu("H800 80GB SXM", 989, 1979, 80, 3350, 200, f"算力与显存同 H100，NVLink 双向 400（{SECOND_HAND}）"),
        Gpu("H20 96GB", 148, 296, 96, 4000, 450, f"fp16 148、fp8/int8 296、4.0 TB/s、NVLink 双向 900（{SECOND_HAND}）"),
        Gpu(
            "H200 141GB SXM",
            989,
            1979,
            141,
            4800,
            450,
            f"141 GB 与 18 条 NVLink 4、双向 900：NVIDIA 提交 MLPerf Inference v4.1 的系统描述；算力同 H100，4.8 TB/s（{SECOND_HAND}）",
        ),
        Gpu(
            "B200（HGX/DGX）",
            2250,
            4500,
            180,
            8000,
            900,
            f"180 GB 与 8 卡 NVLink 合计双向 14.4 TB/s：MLPerf Inference v6.0；稠密 2,250、8 TB/s（{SECOND_HAND}，也有写 7.7）",
        ),
        Gpu(
            "GB200（NVL72）",
            2500,
            5000,
            186,
            8000,
            900,
            f"186 GB：MLPerf Inference v6.1 的系统描述；72 卡 fp8 含稀疏 720 PFLOP/s、NVLink 合计双向 130 TB/s、8 TB/s（{SECOND_HAND}）",
        ),
    )
}

# 每参数的字节：权重、梯度、优化器状态（含 fp32 主权重），与 Q033 的清单一致
INVENTORIES = {
    "16 B：bf16 权重与梯度，fp32 主权重 + m + v": (2, 2, 12),
    "18 B：梯度改用 fp32": (2, 4, 12),
    "20 B：bf16 梯度之外再留一份 fp32 累加梯度": (2, 6, 12),
    "16 B：全 fp32（权重、梯度、m、v 各 4）": (4, 4, 8),
    "14 B：DeepSeek-V3 的做法，梯度与主权重 fp32，m、v 用 bf16": (2, 4, 8),  # arXiv 2412.19437，§3.3.3
}


def inventory_fields(name: str) -> dict[str, float]:
    """一份清单的字段。

    >>> inventory_fields("18 B：梯度改用 fp32")
    {'weights_bytes': 2, 'grads_bytes': 4, 'optim_bytes': 12}
    """
    return dict(zip(("weights_bytes", "grads_bytes", "optim_bytes"), INVENTORIES[name], strict=True))
