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

    recompute: none、selective（重算注意力核心，去掉 5as/h 项）、full（只存层输入 2sbh；有 SP 时层输入本来就只有 s/t 行）。

    >>> gb = lambda **options: round(layer_bytes(GPT3, **options) / 1e9, 3)
    >>> gb(), gb(t=8), gb(t=8, sequence_parallel=True)                   # GPT-3 175B 一层，GB = 10⁹ 字节
    (2.869, 0.579, 0.359)
    >>> gb(t=8, recompute="selective"), gb(t=8, sequence_parallel=True, recompute="selective"), gb(recompute="full")
    (0.327, 0.107, 0.05)
    >>> f'{layer_bytes(GPT3, 8, True, "selective") / layer_bytes(GPT3, 8):.1%}'      # 论文 §6.1：不到 TP 基线的 20%，5 倍
    '18.5%'
    >>> layer_bytes(GPT3, recompute="some")
    Traceback (most recent call last):
    ...
    ValueError: recompute 须为 none、selective 或 full，收到 'some'
    """
    _positive(t=t)
    if recompute not in ("none", "selective", "full"):
        raise ValueError(f"recompute 须为 none、selective 或 full，收到 {recompute!r}")
    if recompute == "full":
        return 2 * shape.sbh / (t if sequence_parallel else 1)
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


def first_stage_gb(shape: Shape, layers: int, p: int, m: int, virtual: int, t: int = 8) -> tuple[float, float]:
    """第一段每卡的激活 GB（10⁹ 字节），TP + SP：(不重算, 选择性重算)。

    >>> [round(gb, 1) for gb in first_stage_gb(GPT3, 96, p=8, m=64, virtual=3)]      # 论文表 3 的 175B 配置，80 GB 的 A100
    [44.5, 13.3]
    """
    in_flight = pipeline_layers_in_flight(layers, p, m, virtual)
    none, selective = (layer_bytes(shape, t, True, recompute) * in_flight / 1e9 for recompute in ("none", "selective"))
    return none, selective


def ends_share(shape: Shape, layers: int, vocabulary: int, p: int = 1) -> float:
    """首尾与各层之比：嵌入的 dropout 掩码 sbhp/t；p = 1 时再加最后的归一化、输出层输入、fp32 logits 共 4sbh/t·(1 + v/h)。

    公式出自 Korthikanti 2022，§4.3；各项都除以 t，比值与 t 无关。

    >>> m22b = Shape(s=2048, b=4, h=6144, a=64)
    >>> f"{ends_share(m22b, 48, 51_200):.2%}"                # 论文 §4.3 写“不到 0.01%”
    '0.57%'
    >>> f"{ends_share(GPT3, 96, 51_200, p=8):.2%}"           # p > 1 时第一段没有输出层
    '0.07%'
    """
    _positive(layers=layers, vocabulary=vocabulary, p=p)
    output = 4 * (1 + vocabulary / shape.h) if p == 1 else 0
    return (p + output) / layers / (34 + shape.attention)


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


RECOMPUTE = ("none", "fused", "swiglu", "swiglu+norm", "full")


def decoder_items(model: Decoder, mode: str = "none") -> list[tuple[str, float]]:
    """每 token 每层要为反向留下的字节，逐项；RMSNorm 与注意力用融合核。

    mode 从多到少：none（SwiGLU 逐算子）、fused（融合 SwiGLU：SiLU(gate) 在反向现算）、swiglu（乘积也重算）、
    swiglu+norm（两个 RMSNorm 的输出也重算）、full（只存层输入）。

    >>> for name, size in decoder_items(LLAMA3_8B):
    ...     print(f"{size:>8,.0f}  {name}")
      16,384  两个 RMSNorm 的输入
      12,288  Q、K、V（RoPE 之后）
       8,192  注意力输出（也是输出投影的输入）
         128  FlashAttention 的 logsumexp（fp32）
      57,344  gate、up
      28,672  乘积（也是 down 的输入）
      28,672  SiLU(gate)
      16,384  QKV、gate/up 线性层的输入
           8  RMSNorm 的 1/RMS（fp32）
    >>> [round(sum(size for _, size in decoder_items(LLAMA3_8B, mode)) / 4096, 2) for mode in RECOMPUTE]   # 折合 sbh 的系数
    [41.03, 34.03, 27.03, 23.03, 2.0]
    """
    if mode not in RECOMPUTE:
        raise ValueError(f"recompute 须为 {'、'.join(RECOMPUTE)}，收到 {mode!r}")
    level = RECOMPUTE.index(mode)
    if mode == "full":
        return [("层输入", 2 * model.h)]
    kv_width = model.h * model.kv / model.a
    items = [
        ("两个 RMSNorm 的输入", 4 * model.h, 3),
        ("Q、K、V（RoPE 之后）", 2 * model.h + 4 * kv_width, 3),
        ("注意力输出（也是输出投影的输入）", 2 * model.h, 3),
        ("FlashAttention 的 logsumexp（fp32）", 4 * model.a, 3),
        ("gate、up", 4 * model.f, 3),
        ("乘积（也是 down 的输入）", 2 * model.f, 1),
        ("SiLU(gate)", 2 * model.f, 0),
        ("QKV、gate/up 线性层的输入", 4 * model.h, 2),
        ("RMSNorm 的 1/RMS（fp32）", 8, 2),
    ]
    return [(name, size) for name, size, last in items if level <= last]


def decoder_bytes(model: Decoder, tokens: int, recompute: str = "none", t: int = 1, c: int = 1) -> float:
    """整个模型一个 micro-batch 每卡的激活字节（不含嵌入与 logits）；tokens = s·b，t 为 TP + SP 的度，c 为 CP 的度。

    >>> for mode in RECOMPUTE:                                        # s = 8192，b = 1，GB = 10⁹ 字节
    ...     one, big, split = (decoder_bytes(*args) / 1e9 for args in (
    ...         (LLAMA3_8B, 8192, mode), (LLAMA3_70B, 8192, mode), (LLAMA3_70B, 8192, mode, 8)))
    ...     print(f"{mode:<12} 8B {one:5.1f}   70B {big:6.1f}   70B TP 8 + SP {split:5.1f}")
    none         8B  44.1   70B  217.6   70B TP 8 + SP  27.2
    fused        8B  36.5   70B  180.0   70B TP 8 + SP  22.5
    swiglu       8B  29.0   70B  142.4   70B TP 8 + SP  17.8
    swiglu+norm  8B  24.7   70B  121.0   70B TP 8 + SP  15.1
    full         8B   2.1   70B   10.7   70B TP 8 + SP   1.3
    """
    _positive(tokens=tokens, t=t, c=c)
    if model.kv % t:
        raise ValueError(f"KV 头数 {model.kv} 不是 t={t} 的整数倍：K、V 要复制，不再是整除 t")
    return sum(size for _, size in decoder_items(model, recompute)) * tokens * model.layers / (t * c)


LOSS = {"forward": 10, "backward": 12, "held": 14}  # 每 token 每词表项同时活着的字节，saved_tensors.loss_peak 数出


def logits_bytes(model: Decoder, tokens: int, phase: str = "forward") -> float:
    """逐算子的交叉熵在损失处的峰值。

    forward: bf16 logits 2 + fp32 的一份 4 + log-softmax 4；backward: log-softmax 4 + 两份 fp32 梯度 8；
    held: 调用方还握着 bf16 logits（例如把它放在返回值里），反向再加 2。

    >>> [round(logits_bytes(LLAMA3_8B, 8192, phase) / 1e9, 1) for phase in LOSS]
    [10.5, 12.6, 14.7]
    """
    _positive(tokens=tokens)
    if phase not in LOSS:
        raise ValueError(f"phase 须为 {'、'.join(LOSS)}，收到 {phase!r}")
    return float(LOSS[phase] * tokens * model.vocabulary)


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


def figure_modern() -> str:
    """Llama-3-8B 一层一条 8K 的激活，五档。"""
    labels = {"none": "逐算子", "fused": "融合 SwiGLU", "swiglu": "重算 SwiGLU", "swiglu+norm": "再重算归一化", "full": "全重算"}
    series = {"SwiGLU": [], "注意力": [], "归一化与线性层的输入": []}
    for mode in RECOMPUTE:
        sizes = dict.fromkeys(series, 0.0)
        for name, size in decoder_items(LLAMA3_8B, mode):
            if name.startswith(("gate", "乘积", "SiLU")):
                sizes["SwiGLU"] += size
            elif name.startswith(("Q、K、V", "注意力", "Flash")):
                sizes["注意力"] += size
            else:
                sizes["归一化与线性层的输入"] += size
        for group, size in sizes.items():
            series[group].append(size * 8192 / 1e9)
    return bars(list(labels.values()), series, title="Llama-3-8B 一层的激活显存（一条 8192）", unit="GB")
