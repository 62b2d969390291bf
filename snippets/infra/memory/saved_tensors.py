"""数出 PyTorch 真的为反向留了多少字节，与 activation_memory 的公式逐字节对照。

两把尺子：saved_tensors_hooks 记 autograd 保存的存储；TorchDispatchMode 记前向造出、前向结束仍活着的存储。
放进 FakeTensorMode 里张量只有形状没有数据，于是在笔记本上也能数 GPT-3 175B 与 Llama-3-8B 的真实形状。
"""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from snippets.infra.memory.activation_memory import (
    GPT3,
    LLAMA3_8B,
    Decoder,
    Shape,
    decoder_items,
    layer_bytes,
)

BF16 = torch.bfloat16


# --8<-- [start:count]
def storage_key(tensor: Tensor) -> int:
    """存储的身份。不用 data_ptr：FakeTensor 没有数据，而视图与本体要算同一块。"""
    return StorageWeakRef(tensor.untyped_storage()).cdata


def saved_storages(call: Callable[[Tensor], Tensor], x: Tensor, resident: Iterable[Tensor] = ()) -> list[Tensor]:
    """call(x) 的前向为反向保存的张量，每块存储一个；resident（权重、缓冲，本来就在显存里）不算。"""
    if not x.requires_grad:
        raise ValueError("x 须 requires_grad=True，否则第一层不为反向保存输入")
    skip = {storage_key(tensor) for tensor in resident}
    kept: dict[int, Tensor] = {}  # 留住引用，免得存储被释放后身份被重用

    def pack(tensor: Tensor) -> Tensor:
        if storage_key(tensor) not in skip:
            kept[storage_key(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call(x)
    return list(kept.values())


def saved_bytes(module: nn.Module, x: Tensor, call: Callable[[nn.Module, Tensor], Tensor] | None = None) -> int:
    """module(x)（或 call(module, x)）为反向保存的字节数：同一块存储只数一次，参数与缓冲不数。

    数的是整块存储：只留一个切片，整块也被钉住。

    >>> layer = nn.Linear(64, 256, dtype=BF16)
    >>> x = torch.randn(8, 64, dtype=BF16, requires_grad=True)
    >>> saved_bytes(layer, x) == x.numel() * 2                     # 线性层只留输入
    True
    """
    resident = [*module.parameters(), *module.buffers()]
    saved = saved_storages(lambda y: call(module, y) if call else module(y), x, resident)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved)


# --8<-- [end:count]


# --8<-- [start:live]
class LiveStorages(TorchDispatchMode):
    """第二把尺子：记下区间内新造出的存储，随时可问还活着多少字节（now）与最高到过多少（peak）；从外面来的（权重、输入）不算。"""

    def __init__(self):
        super().__init__()
        self.created: dict[int, tuple[StorageWeakRef, int]] = {}
        self.foreign: dict[int, StorageWeakRef] = {}  # 留住弱引用，身份就不会被新存储重用
        self.peak = 0

    def now(self) -> int:
        self.created = {key: (ref, size) for key, (ref, size) in self.created.items() if not ref.expired()}
        return sum(size for _, size in self.created.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and storage_key(tensor) not in self.created:
                self.foreign.setdefault(storage_key(tensor), StorageWeakRef(tensor.untyped_storage()))
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and storage_key(tensor) not in self.foreign:
                storage = tensor.untyped_storage()
                self.created.setdefault(storage_key(tensor), (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, self.now())
        return out


def live_bytes(call: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """前向结束、只留着输出时还活着的字节：加上输入 x，不算输出（输出是下一层的输入，由下一层计）。

    选择性 checkpoint 把张量存在自己的字典里，saved_tensors_hooks 看不到，只有这把尺子数得出。
    """
    with LiveStorages() as live:
        out = call(x)
        total = live.now()
    return total - out.untyped_storage().nbytes() + x.untyped_storage().nbytes()


# --8<-- [end:live]


# --8<-- [start:operators]
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "x + x": lambda x: x + x,
    "F.linear": lambda x: F.linear(x, torch.ones(1, x.size(-1), dtype=x.dtype, requires_grad=True)),
    "F.linear（权重冻结）": lambda x: F.linear(x, torch.ones(1, x.size(-1), dtype=x.dtype)),
    "softmax": lambda x: x.softmax(-1),
    "F.gelu": F.gelu,
    "F.silu": F.silu,
    "F.layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "F.rms_norm（CPU）": lambda x: F.rms_norm(x, x.shape[-1:], torch.ones(x.size(-1), dtype=x.dtype, requires_grad=True)),
    "native_dropout": lambda x: torch.native_dropout(x, 0.1, True)[0],
    "F.dropout（CPU）": lambda x: F.dropout(x, 0.1),
    "cross_entropy(x.float())": lambda x: F.cross_entropy(x.float(), torch.zeros(len(x), dtype=torch.long)),
}


def operator_saves(name: str, rows: int = 4, columns: int = 4096) -> str:
    """bf16 输入 (rows, columns) 时一个算子为反向保存什么：留下的是输入、输出还是新张量，各多少字节每元素。

    只列每元素至少 0.5 字节的：均值、1/σ、标量与权重不在内。

    >>> for name in OPERATORS:
    ...     print(f"{name:<26}{operator_saves(name)}")
    x + x                     不留
    F.linear                  输入 2
    F.linear（权重冻结）            不留
    softmax                   输出 2
    F.gelu                    输入 2
    F.silu                    输入 2
    F.layer_norm              输入 2
    F.rms_norm（CPU）           新 float32 4、新 float32 4
    native_dropout            新 bool 1
    F.dropout（CPU）            新 bfloat16 2
    cross_entropy(x.float())  新 float32 4
    """
    if name not in OPERATORS:
        raise ValueError(f"没有登记的算子 {name!r}")
    x = torch.randn(rows, columns, dtype=BF16, requires_grad=True)
    outputs: list[Tensor] = []
    saved = saved_storages(lambda y: outputs.append(OPERATORS[name](y)) or outputs[0], x)
    roles = {storage_key(x): "输入", storage_key(outputs[0]): "输出"}
    parts = []
    for tensor in saved:
        per_element = tensor.untyped_storage().nbytes() / x.numel()
        if tensor.numel() >= x.numel() / 2:
            parts.append(f"{roles.get(storage_key(tensor)) or f'新 {str(tensor.dtype)[6:]}'} {per_element:g}")
    return "、".join(parts) or "不留"


# --8<-- [end:operators]


# --8<-- [start:classic]
class GatherLinear(torch.autograd.Function):
    """SP 的列切线性层：前向 all-gather 序列后做乘法，只保存自己那一段输入，反向再 gather 一次。

    单进程里用复制 t 份代替 all-gather，形状与字节相同，数值没有意义；这里只数字节。
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, t: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.repeat(1, t, 1), weight)

    @staticmethod
    def backward(ctx, grad: Tensor):
        raise NotImplementedError("只用来数前向保存的字节")


class ClassicLayer(nn.Module):
    """公式假设的那一层在一张卡上的样子：LayerNorm、显式注意力、GELU、4h、三处 dropout。输入 (b, s, h)，SP 时 (b, s/t, h)。

    t > 1 时头与 MLP 宽度是 1/t；行切线性层之后的 all-reduce 不为反向留任何张量，略去。dropout 用 native_dropout：
    掩码为 bool，与 GPU 上 F.dropout 走的内核相同。注意力掩码是各层共用的常量，不加。
    """

    def __init__(self, h: int, a: int, t: int = 1, sequence_parallel: bool = False, p: float = 0.1, dtype: torch.dtype = BF16):
        super().__init__()
        if a % t:
            raise ValueError(f"头数 {a} 必须是 t={t} 的整数倍")
        linear = lambda i, o: nn.Linear(i, o, bias=False, dtype=dtype)  # noqa: E731
        self.heads, self.t, self.sp, self.p = a // t, t, sequence_parallel, p
        self.norm1, self.norm2 = nn.LayerNorm(h, dtype=dtype), nn.LayerNorm(h, dtype=dtype)
        self.qkv, self.out = linear(h, 3 * h // t), linear(h // t, h)
        self.up, self.down = linear(h, 4 * h // t), linear(4 * h // t, h)

    def dropout(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, self.p, train=True)[0]

    def column(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return GatherLinear.apply(x, linear.weight, self.t) if self.sp else linear(x)

    def scatter(self, x: Tensor) -> Tensor:
        """行切线性层之后：SP 用 reduce-scatter，每张卡只得到 s/t 行。"""
        return x[:, : x.size(1) // self.t].clone() if self.sp else x

    def attention_core(self, qkv: Tensor) -> Tensor:
        """QKᵀ → softmax → dropout → 乘 V；选择性重算就是重算这一段。"""
        b, s, _ = qkv.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(dim=-1)
        return (self.dropout(weights) @ v).transpose(1, 2).reshape(b, s, -1)

    def forward(self, x: Tensor, recompute_attention: bool = False) -> Tensor:
        qkv = self.column(self.qkv, self.norm1(x))
        core = checkpoint(self.attention_core, qkv, use_reentrant=False) if recompute_attention else self.attention_core(qkv)
        x = x + self.dropout(self.scatter(self.out(core)))
        hidden = F.gelu(self.column(self.up, self.norm2(x)))
        return x + self.dropout(self.scatter(self.down(hidden)))


def classic_difference(shape: Shape = GPT3, t: int = 1, sequence_parallel: bool = False, recompute: str = "none") -> tuple[int, float]:
    """返回 (数到的字节, 数到的 − 公式)。FakeTensor 只算形状，所以可以数 GPT-3 175B 的一层。

    多出来的只有两个 LayerNorm 的均值与 1/σ：CPU 上 2 × 2 个 bf16，每 token 8 字节（SP 时只有 s/t 个 token）；全重算则一字节不差。

    >>> for label, options in {
    ...     "不切": {},
    ...     "TP": {"t": 8},
    ...     "TP + SP": {"t": 8, "sequence_parallel": True},
    ...     "TP + 选择性": {"t": 8, "recompute": "selective"},
    ...     "TP + SP + 选择性": {"t": 8, "sequence_parallel": True, "recompute": "selective"},
    ...     "全重算": {"recompute": "full"},
    ...     "SP + 全重算": {"t": 8, "sequence_parallel": True, "recompute": "full"},
    ... }.items():
    ...     counted, extra = classic_difference(**options)
    ...     print(f"{counted:>13,} {extra:>6,.0f}  {label}")
    2,868,920,320 16,384  不切
      578,830,336 16,384  TP
      358,615,040  2,048  TP + SP
      327,172,096 16,384  TP + 选择性
      106,956,800  2,048  TP + SP + 选择性
       50,331,648      0  全重算
        6,291,456      0  SP + 全重算
    """
    with FakeTensorMode():
        layer = ClassicLayer(shape.h, shape.a, t, sequence_parallel)
        x = torch.empty(shape.b, shape.s // t if sequence_parallel else shape.s, shape.h, dtype=BF16, requires_grad=True)
        if recompute == "full":
            counted = saved_bytes(layer, x, lambda layer, y: checkpoint(layer, y, use_reentrant=False))
        else:
            counted = saved_bytes(layer, x, lambda layer, y: layer(y, recompute == "selective"))
    return counted, counted - layer_bytes(shape, t, sequence_parallel, recompute)


# --8<-- [end:classic]


# --8<-- [start:fused]
class FusedRMSNorm(torch.autograd.Function):
    """融合核存什么：输入（bf16）与每行一个 fp32 的 1/RMS。逐算子执行则会留下两份 fp32 的 (…, h)。"""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rrms = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, rrms, weight)
        return (x.float() * rrms * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, rrms, weight = ctx.saved_tensors
        normal, grad = x.float() * rrms, grad.float()
        scaled = grad * weight.float()
        dx = rrms * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
        return dx.to(x.dtype), (grad * normal).flatten(0, -2).sum(0).to(weight.dtype), None


class FusedSwiGLU(torch.autograd.Function):
    """融合核存什么：只有 gate 与 up（各宽 f），SiLU(gate) 在反向里现算；输出由下一个线性层当输入另存。"""

    @staticmethod
    def forward(ctx, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        gate, up = ctx.saved_tensors[0].chunk(2, dim=-1)
        sigmoid = gate.sigmoid()
        return torch.cat((grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid), dim=-1)


# --8<-- [end:fused]


# --8<-- [start:modern]
class ModernLayer(nn.Module):
    """今天的解码器层：RMSNorm、SwiGLU、GQA、SDPA，无 dropout、无偏置。输入 (b, s, h)。

    RoPE 略去：它是线性的，为反向只留各层共用的 cos、sin。fused=True 用上面两个融合核，False 逐算子执行。
    """

    def __init__(self, h: int, a: int, kv: int, f: int, fused: bool = True, dtype: torch.dtype = BF16):
        super().__init__()
        self.heads, self.fused = (a, kv, kv), fused
        linear = lambda i, o: nn.Linear(i, o, bias=False, dtype=dtype)  # noqa: E731
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-5, dtype=dtype), nn.RMSNorm(h, eps=1e-5, dtype=dtype)
        self.qkv, self.out = linear(h, h + 2 * kv * (h // a)), linear(h, h)
        self.gate_up, self.down = linear(h, 2 * f), linear(f, h)

    def norm(self, norm: nn.RMSNorm, x: Tensor) -> Tensor:
        return FusedRMSNorm.apply(x, norm.weight, norm.eps) if self.fused else norm(x)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        if self.fused:
            return FusedSwiGLU.apply(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def attention(self, qkv: Tensor) -> Tensor:
        b, s, width = qkv.shape
        d = width // sum(self.heads)
        q, k, v = (part.view(b, s, -1, d).transpose(1, 2) for part in qkv.split([heads * d for heads in self.heads], dim=-1))
        core = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return core.transpose(1, 2).reshape(b, s, -1)

    def forward(self, x: Tensor, recompute: frozenset[str] = frozenset()) -> Tensor:
        """recompute 取自 {"norm", "swiglu"}。重算段都把后面的线性层包进去，否则它会把段的输出当输入留住。"""
        maybe = lambda name, function, y: checkpoint(function, y, use_reentrant=False) if name in recompute else function(y)  # noqa: E731
        x = x + self.out(self.attention(maybe("norm", lambda y: self.qkv(self.norm(self.norm1, y)), x)))
        gate_up = maybe("norm", lambda y: self.gate_up(self.norm(self.norm2, y)), x)
        return x + maybe("swiglu", lambda y: self.down(self.swiglu(y)), gate_up)


MODES = {  # decoder_items 的档位 → 怎样跑这一层
    "none": {"fused": False},
    "fused": {"fused": True},
    "swiglu": {"recompute": frozenset({"swiglu"})},
    "swiglu+norm": {"recompute": frozenset({"swiglu", "norm"})},
}


def modern_difference(model: Decoder = LLAMA3_8B, tokens: int = 8192, mode: str = "none") -> tuple[int, float]:
    """返回 (数到的字节, 数到的 − decoder_items 之和)，都是一层、每 token。

    融合核时一字节不差。逐算子（none）多 12h：两个 RMSNorm 各留两份 fp32（8h 字节），而清单按融合核记 2h。

    >>> for mode in (*MODES, "full"):
    ...     counted, extra = modern_difference(mode=mode)
    ...     print(f"{counted:>9,} {extra:>7,.0f}  {mode}")
      217,224  49,152  none
      139,400       0  fused
      110,728       0  swiglu
       94,336       0  swiglu+norm
        8,192       0  full
    """
    options = dict(MODES.get(mode, {}))
    recompute = options.pop("recompute", frozenset())
    with FakeTensorMode():
        layer = ModernLayer(model.h, model.a, model.kv, model.f, **options)
        x = torch.empty(1, tokens, model.h, dtype=BF16, requires_grad=True)
        if mode == "full":
            counted = saved_bytes(layer, x, lambda layer, y: checkpoint(layer, y, use_reentrant=False))
        else:
            counted = saved_bytes(layer, x, lambda layer, y: layer(y, recompute))
    return counted // tokens, counted / tokens - sum(size for _, size in decoder_items(model, mode))


# --8<-- [end:modern]


# --8<-- [start:sac]
SAVE = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def save_matmul_and_attention(ctx, op, *args, **kwargs) -> CheckpointPolicy:
    """按算子的策略：贵的（矩阵乘、注意力）存，便宜的（归一化、SiLU、逐元素乘）重算。"""
    return CheckpointPolicy.MUST_SAVE if op in SAVE else CheckpointPolicy.PREFER_RECOMPUTE


def selective(layer: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(layer, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(save_matmul_and_attention))


def selective_per_token(b: int, s: int, h: int, a: int, kv: int, f: int) -> tuple[float, float]:
    """按算子选择性 checkpoint 一层，每 token 留下的字节：(hooks 数到的, 活着的)。

    存下的是各矩阵乘与注意力的**输出**：qkv、注意力输出与 logsumexp、out、gate_up、down，加层输入。
    与 swiglu+norm 相比，out 的输出顶替了第二个归一化的输入，只多 down 的输出 2h：谁的反向都不要它。

    >>> b, s, h, a, kv, f = 2, 128, 256, 8, 2, 704
    >>> hooks, live = selective_per_token(b, s, h, a, kv, f)
    >>> by_hand = sum(size for _, size in decoder_items(Decoder(h, a, kv, f, layers=1, vocabulary=1), "swiglu+norm"))
    >>> hooks == 2 * h, live - by_hand == 2 * h                    # hooks 只看到层输入：缓存不归 autograd 管
    (True, True)
    """
    layer = ModernLayer(h, a, kv, f, fused=False)
    x = torch.zeros(b, s, h, dtype=BF16, requires_grad=True)
    return saved_bytes(layer, x, selective) / (b * s), live_bytes(lambda y: selective(layer, y), x) / (b * s)


# --8<-- [end:sac]


# --8<-- [start:surprises]
def loss_peak(tokens: int = 64, h: int = 32, vocabulary: int = 4096, hold_logits: bool = False) -> tuple[float, float]:
    """bf16 logits 转 fp32 求交叉熵：前向、反向里每个 logit 最多同时活着几字节（h 取小，x 与 W 的梯度可以忽略）。

    >>> loss_peak(), loss_peak(hold_logits=True)                   # 调用方还握着 bf16 logits 时反向再多 2
    ((10.0, 12.0), (10.0, 14.0))
    """
    x, w = torch.randn(tokens, h, dtype=BF16, requires_grad=True), torch.randn(h, vocabulary, dtype=BF16, requires_grad=True)
    with LiveStorages() as live:
        logits = x @ w
        loss = F.cross_entropy(logits.float(), torch.zeros(tokens, dtype=torch.long))
        forward, live.peak = live.peak, 0
        if not hold_logits:
            del logits
        loss.backward()
    return tuple(round(peak / tokens / vocabulary, 1) for peak in (forward, live.peak))


def autocast_copies(h: int = 512) -> int:
    """fp32 权重在 autocast 下做一次线性层，除输入外多留的字节每参数：转出来的 bf16 权重也被反向留住。

    >>> autocast_copies()
    2
    """
    layer, x = nn.Linear(h, h, bias=False), torch.randn(4, h, requires_grad=True)
    with torch.autocast("cpu", BF16):
        return (saved_bytes(layer, x) - 2 * x.numel()) // layer.weight.numel()


def pinned_by_view(h: int = 256, a: int = 8, kv: int = 2, tokens: int = 64) -> tuple[int, int]:
    """QKV 合成一个线性层、只对 Q、K 做 RoPE：V 是整块输出的切片，整块都放不掉。返回每 token (数到的, 清单里的 Q、K、V)。

    >>> counted, expected = pinned_by_view()
    >>> counted - expected == 2 * (256 + 64)                       # 多留旋转前的 Q（2h）与 K（2 × 64）
    True
    """
    d = h // a
    qkv = torch.zeros(1, tokens, h + 2 * kv * d, dtype=BF16, requires_grad=True)

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = (part.view(1, tokens, -1, d).transpose(1, 2) for part in qkv.split([h, kv * d, kv * d], dim=-1))
        rotate = lambda y: y * torch.ones(tokens, d, dtype=BF16)  # noqa: E731  只看存储，角度取 0
        return F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)

    saved = saved_storages(attend, qkv)
    widths = [tensor.untyped_storage().nbytes() // tokens for tensor in saved]
    others = 2 * h + 4 * a + 2 * tokens * d * 2 // tokens  # 输出、logsumexp、两份 cos
    return sum(widths) - others, 2 * (h + 2 * kv * d)


# --8<-- [end:surprises]
