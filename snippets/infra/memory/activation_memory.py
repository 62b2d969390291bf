"""激活显存：Korthikanti 2022 的逐项公式、TP / SP / 选择性重算 / 全重算，以及今天的解码器层（只用标准库）。

公式里的系数已经是**字节**（16 位激活每元素 2 字节，dropout 掩码 1 字节），不要再乘 2。
"""

from dataclasses import dataclass

from snippets.common.chart import bars


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} 必须为正，收到 {value}")


# --8<-- [start:classic]
CLASSIC_LAYER = (
    # (张量, 每 sbh 的字节, 每 as²b 的字节)；fp16，GPT 式：LayerNorm、GELU、4h、dropout、显式注意力
    ("LayerNorm 1 的输入", 2, 0),
    ("QKV 线性层的输入", 2, 0),
    ("Q、K（算 QKᵀ 要用）", 4, 0),
    ("softmax 的输出", 0, 2),
    ("注意力 dropout 的掩码", 0, 1),
    ("dropout 后的权重（乘 V 要用）", 0, 2),
    ("V", 2, 0),
    ("输出投影的输入", 2, 0),
    ("输出投影后 dropout 的掩码", 1, 0),
    ("LayerNorm 2 的输入", 2, 0),
    ("h→4h 的输入", 2, 0),
    ("GELU 的输入（4h 宽）", 8, 0),
    ("4h→h 的输入（4h 宽）", 8, 0),
    ("MLP 后 dropout 的掩码", 1, 0),
)


def classic_coefficients() -> tuple[int, int]:
    """把逐项清单相加，得到 sbh·(34 + 5·a·s/h) 的两个系数。

    >>> classic_coefficients()
    (34, 5)
    """
    return sum(linear for _, linear, _ in CLASSIC_LAYER), sum(square for _, _, square in CLASSIC_LAYER)


@dataclass(frozen=True)
class Shape:
    """s 序列长、b micro-batch、h hidden、a 头数。"""

    s: int
    b: int
    h: int
    a: int

    def __post_init__(self) -> None:
        _positive(s=self.s, b=self.b, h=self.h, a=self.a)

    @property
    def sbh(self) -> int:
        return self.s * self.b * self.h

    @property
    def attention(self) -> float:
        """注意力项 5·a·s/h：它与 34 之比决定选择性重算省多少。"""
        return 5 * self.a * self.s / self.h


GPT3 = Shape(s=2048, b=1, h=12288, a=96)


def layer_bytes(shape: Shape, t: int = 1, sequence_parallel: bool = False, recompute: str = "none") -> float:
    """每层每个 micro-batch 每卡的激活字节（Korthikanti 2022，表 2）。

    recompute: none、selective（重算注意力核心，去掉 5as/h 项）、full（只存层输入 2sbh）。

    >>> gb = lambda **options: round(layer_bytes(GPT3, **options) / 1e9, 3)
    >>> gb(), gb(t=8), gb(t=8, sequence_parallel=True)                   # GPT-3 175B 一层，GB = 10⁹ 字节
    (2.869, 0.579, 0.359)
    >>> gb(t=8, recompute="selective"), gb(t=8, sequence_parallel=True, recompute="selective"), gb(recompute="full")
    (0.327, 0.107, 0.05)
    >>> layer_bytes(GPT3, recompute="some")
    Traceback (most recent call last):
    ...
    ValueError: recompute 须为 none、selective 或 full，收到 'some'
    """
    _positive(t=t)
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f"recompute 须为 none、selective 或 full，收到 {recompute!r}")
    if recompute == "full":
        return 2 * shape.sbh
    attention = 0 if recompute == "selective" else shape.attention
    if sequence_parallel:
        return shape.sbh * (34 + attention) / t
    return shape.sbh * (10 + 24 / t + attention / t)


def selective_saving(shape: Shape) -> float:
    """选择性重算省下的比例 (5as/h) / (34 + 5as/h)。

    >>> f"{selective_saving(GPT3):.0%}", f"{selective_saving(Shape(s=2048, b=1, h=20480, a=128)):.0%}"   # GPT-3、MT-NLG 530B
    ('70%', '65%')
    """
    return shape.attention / (34 + shape.attention)


def selective_overhead(shape: Shape) -> tuple[float, float]:
    """选择性重算多花的 FLOPs ÷ 一层前向加反向的 FLOPs：(逐项数, 论文式 8)。

    一层前向 24bsh²·(1 + s/6h)，反向两倍，共 72bsh²·(1 + s/6h)。重算只再做一次前向的 QKᵀ 与加权求和，4bs²h，
    论文附录 A 的文字也这样说；但式 8 减式 7 是 72bsh²·s/6h = 12bs²h，为它的 3 倍（等于注意力的前向与反向都再算一遍）。
    按文字，式 8 的 s/3h 应为 2s/9h。

    >>> [f"{ratio:.1%}" for ratio in selective_overhead(GPT3)]            # 论文写 2.7%
    ['0.9%', '2.7%']
    >>> [f"{ratio:.1%}" for ratio in selective_overhead(Shape(s=2048, b=4, h=6144, a=64))]     # 论文表 4 的 22B
    ['1.8%', '5.3%']
    """
    attention = 4 * shape.b * shape.s**2 * shape.h
    total = 72 * shape.b * shape.s * shape.h**2 * (1 + shape.s / (6 * shape.h))
    return attention / total, 3 * attention / total


# --8<-- [end:classic]


# --8<-- [start:pipeline]
def pipeline_layers_in_flight(layers: int, p: int, m: int, virtual: int = 1) -> float:
    """1F1B 第一段同时存着多少“层 × micro-batch”的激活：p 个 micro-batch × L/p 层 = L；交错再乘 1 + (p−1)/(p·v)。

    无论如何不超过 m 个 micro-batch 都在途的 m·L/p。virtual = v 为每卡的模型块数（Korthikanti 2022，§4.2.3；v 个块的交错调度）。

    >>> pipeline_layers_in_flight(96, p=8, m=64), round(pipeline_layers_in_flight(96, p=8, m=64, virtual=3), 1)
    (96.0, 124.0)
    >>> pipeline_layers_in_flight(96, p=8, m=2), pipeline_layers_in_flight(96, p=8, m=8, virtual=3)
    (24.0, 96.0)
    """
    _positive(layers=layers, p=p, m=m, virtual=virtual)
    factor = 1 + (p - 1) / (p * virtual) if virtual > 1 else 1
    return min(m, p * factor) * layers / p


# --8<-- [end:pipeline]


# --8<-- [start:modern]
@dataclass(frozen=True)
class Decoder:
    """今天的解码器层：RMSNorm、SwiGLU（宽 f）、GQA（kv 个 KV 头）、RoPE、FlashAttention，无 dropout、无偏置，bf16。"""

    h: int
    a: int
    kv: int
    f: int
    layers: int
    vocabulary: int

    def __post_init__(self) -> None:
        _positive(h=self.h, a=self.a, kv=self.kv, f=self.f, layers=self.layers, vocabulary=self.vocabulary)
        if self.a % self.kv:
            raise ValueError(f"头数 {self.a} 必须是 KV 头数 {self.kv} 的整数倍")


LLAMA3_8B = Decoder(h=4096, a=32, kv=8, f=14336, layers=32, vocabulary=128_256)
LLAMA3_70B = Decoder(h=8192, a=64, kv=8, f=28672, layers=80, vocabulary=128_256)


def decoder_items(model: Decoder) -> list[tuple[str, float]]:
    """每 token 每层要为反向留下的字节，逐项（PyTorch 逐算子执行，RMSNorm 用融合核）。

    >>> items = decoder_items(LLAMA3_8B)
    >>> for name, size in items:
    ...     print(f"{size:>8,.0f}  {name}")
      16,384  两个 RMSNorm 的输入
       8,192  QKV 线性层的输入
      12,288  Q、K、V（RoPE 之后）
       8,192  注意力输出（也是输出投影的输入）
         128  FlashAttention 的 logsumexp（fp32）
       8,192  gate、up 线性层的输入
     114,688  SwiGLU：gate、SiLU(gate)、up、乘积
           8  RMSNorm 的 1/RMS（fp32）
    >>> round(sum(size for _, size in items) / 4096, 2)        # 折合 sbh 的系数
    41.03
    """
    kv_width = model.h * model.kv / model.a
    return [
        ("两个 RMSNorm 的输入", 4 * model.h),
        ("QKV 线性层的输入", 2 * model.h),
        ("Q、K、V（RoPE 之后）", 2 * model.h + 4 * kv_width),
        ("注意力输出（也是输出投影的输入）", 2 * model.h),
        ("FlashAttention 的 logsumexp（fp32）", 4 * model.a),
        ("gate、up 线性层的输入", 2 * model.h),
        ("SwiGLU：gate、SiLU(gate)、up、乘积", 8 * model.f),
        ("RMSNorm 的 1/RMS（fp32）", 8),
    ]


def decoder_bytes(model: Decoder, tokens: int, recompute: str = "none") -> float:
    """整个模型一个 micro-batch 的激活字节（不含嵌入与 logits）；tokens = s·b。

    recompute: none；swiglu（SiLU 与乘积在反向重算，只留 gate、up）；full（每层只存输入 2h）。

    >>> [round(decoder_bytes(LLAMA3_8B, 8192, mode) / 1e9, 1) for mode in ("none", "swiglu", "full")]
    [44.1, 29.0, 2.1]
    >>> [round(decoder_bytes(LLAMA3_70B, 8192, mode) / 1e9, 1) for mode in ("none", "swiglu", "full")]
    [217.6, 142.4, 10.7]
    """
    _positive(tokens=tokens)
    per_token = sum(size for _, size in decoder_items(model))
    match recompute:
        case "none":
            pass
        case "swiglu":
            per_token -= 4 * model.f
        case "full":
            per_token = 2 * model.h
        case _:
            raise ValueError(f"recompute 须为 none、swiglu 或 full，收到 {recompute!r}")
    return per_token * tokens * model.layers


def logits_bytes(model: Decoder, tokens: int) -> float:
    """损失处的峰值：bf16 logits、转成 fp32 的一份、fp32 的 softmax 梯度，每 token 每词表项 2 + 4 + 4 字节。

    >>> round(logits_bytes(LLAMA3_8B, 8192) / 1e9, 1)            # 比 7 层的激活还大
    10.5
    """
    _positive(tokens=tokens)
    return 10.0 * tokens * model.vocabulary


# --8<-- [end:modern]


# --8<-- [start:wrong]
def doubled_by_mistake(shape: Shape = GPT3) -> tuple[float, float]:
    """反例：“sbh(34 + 5as/h) 是元素数，fp16 再乘 2”。返回 (正确的 GB, 再乘 2 的 GB)。

    系数里每个 16 位张量已经算 2 字节、掩码算 1 字节：14 项里 3 项是掩码，不可能统一再乘 2。

    >>> [round(gb, 2) for gb in doubled_by_mistake()]
    [2.87, 5.74]
    """
    correct = layer_bytes(shape) / 1e9
    return correct, 2 * correct


# --8<-- [end:wrong]


def figure_variants() -> str:
    """GPT-3 175B 一层一个 micro-batch 每卡的激活，六种做法。"""
    sbh = GPT3.sbh / 1e9
    rows = [
        ("不切", 34 * sbh, GPT3.attention * sbh),
        ("TP 8", 13 * sbh, GPT3.attention / 8 * sbh),
        ("TP 8 + SP", 34 / 8 * sbh, GPT3.attention / 8 * sbh),
        ("TP 8 + 选择性", 13 * sbh, 0.0),
        ("TP 8 + SP + 选择性", 34 / 8 * sbh, 0.0),
        ("全重算", 2 * sbh, 0.0),
    ]
    return bars(
        [name for name, _, _ in rows],
        {"其余张量": [linear for _, linear, _ in rows], "注意力 5as/h 项": [square for _, _, square in rows]},
        title="GPT-3 175B 一层的激活显存（s = 2048，b = 1）",
        unit="GB",
    )
