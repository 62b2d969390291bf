"""数出 PyTorch 真的为反向留了多少字节：saved_tensors_hooks 记下每个被保存的张量，按存储去重，参数不算。"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from snippets.infra.memory.activation_memory import Decoder, decoder_items


# --8<-- [start:count]
def saved_bytes(module: nn.Module, x: Tensor, call: Callable[[nn.Module, Tensor], Tensor] | None = None) -> int:
    """module(x) 的前向为反向保存的字节数。同一块存储只数一次；参数与缓冲（权重本来就在）不数。

    >>> layer = nn.Linear(64, 256, dtype=torch.bfloat16)
    >>> x = torch.randn(8, 64, dtype=torch.bfloat16, requires_grad=True)
    >>> saved_bytes(layer, x) == x.numel() * 2                     # 线性层只留输入
    True
    >>> saved_bytes(nn.GELU(), torch.randn(8, 64, requires_grad=True)) == 8 * 64 * 4
    True
    """
    if not x.requires_grad:
        raise ValueError("x 须 requires_grad=True，否则第一层不为反向保存输入")
    resident = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    sizes: dict[int, int] = {}
    kept = []  # 留住引用，免得存储被释放后地址重用

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = call(module, x) if call else module(x)
    del out
    return sum(sizes.values())


# --8<-- [end:count]


# --8<-- [start:classic]
def dropout(x: Tensor, p: float) -> Tensor:
    """掩码为 bool（每元素 1 字节）的 dropout，与 GPU 上 F.dropout 走的内核相同；CPU 上的 F.dropout 会留 16 位的掩码。"""
    return torch.native_dropout(x, p, train=True)[0]


class ClassicLayer(nn.Module):
    """公式假设的那一层：LayerNorm、显式注意力、GELU、4h、三处 dropout。输入 (b, s, h)。"""

    def __init__(self, h: int, a: int, p: float = 0.1, dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        self.a, self.p = a, p
        self.norm1, self.norm2 = nn.LayerNorm(h, dtype=dtype), nn.LayerNorm(h, dtype=dtype)
        self.qkv, self.out = nn.Linear(h, 3 * h, dtype=dtype), nn.Linear(h, h, dtype=dtype)
        self.up, self.down = nn.Linear(h, 4 * h, dtype=dtype), nn.Linear(4 * h, h, dtype=dtype)

    def attention_core(self, qkv: Tensor) -> Tensor:
        """QKᵀ → softmax → dropout → 乘 V；选择性重算就是重算这一段。不加掩码：掩码是各层共用的常量。"""
        b, s, _ = qkv.shape
        q, k, v = (part.view(b, s, self.a, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(dim=-1)
        return (dropout(weights, self.p) @ v).transpose(1, 2).reshape(b, s, -1)

    def forward(self, x: Tensor, recompute_attention: bool = False) -> Tensor:
        qkv = self.qkv(self.norm1(x))
        core = checkpoint(self.attention_core, qkv, use_reentrant=False) if recompute_attention else self.attention_core(qkv)
        x = x + dropout(self.out(core), self.p)
        return x + dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.p)


# --8<-- [end:classic]


# --8<-- [start:modern]
class ModernLayer(nn.Module):
    """今天的解码器层：RMSNorm、SwiGLU、GQA、SDPA，无 dropout、无偏置。输入 (b, s, h)。

    RoPE 略去：它是线性的，为反向只留各层共用的 cos、sin，不按 micro-batch 计。
    """

    def __init__(self, h: int, a: int, kv: int, f: int, dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        self.a, self.kv, self.d = a, kv, h // a
        linear = lambda i, o: nn.Linear(i, o, bias=False, dtype=dtype)  # noqa: E731
        self.norm1, self.norm2 = nn.RMSNorm(h, dtype=dtype), nn.RMSNorm(h, dtype=dtype)
        self.q, self.k, self.v, self.o = linear(h, h), linear(h, kv * self.d), linear(h, kv * self.d), linear(h, h)
        self.gate, self.up, self.down = linear(h, f), linear(h, f), linear(f, h)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, s, self.a, self.d).transpose(1, 2)
        k, v = (projection(y).view(b, s, self.kv, self.d).transpose(1, 2) for projection in (self.k, self.v))
        core = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(core.transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


# --8<-- [end:modern]


# --8<-- [start:compare]
def classic_counted_and_formula(b: int, s: int, h: int, a: int, recompute_attention: bool = False) -> tuple[int, int]:
    """经典层数到的字节与 sbh·(34 + 5as/h)（选择性重算时为 34·sbh）。

    多出的只有两个 LayerNorm 的均值与 1/σ：每 token 2 × 2 个 16 位数，共 8 字节。

    >>> counted, formula = classic_counted_and_formula(b=2, s=256, h=512, a=8)
    >>> counted - formula == 8 * 2 * 256, round(counted / formula, 4)
    (True, 1.0003)
    >>> counted, formula = classic_counted_and_formula(b=2, s=256, h=512, a=8, recompute_attention=True)
    >>> counted - formula == 8 * 2 * 256
    True
    """
    x = torch.zeros(b, s, h, dtype=torch.bfloat16, requires_grad=True)
    counted = saved_bytes(ClassicLayer(h, a), x, lambda layer, y: layer(y, recompute_attention))
    return counted, 34 * b * s * h + (0 if recompute_attention else 5 * a * s * s * b)


def modern_counted_and_formula(b: int, s: int, h: int, a: int, kv: int, f: int) -> tuple[int, float]:
    """现代层数到的字节与 activation_memory.decoder_items 之和。

    CPU 上的 RMSNorm 逐算子执行，每个留下两份 fp32 的 (b, s, h)，共 8h 字节每 token，而不是融合核的 2h；
    两个 RMSNorm 多出 12h 字节每 token，其余逐项相同。

    >>> counted, formula = modern_counted_and_formula(b=2, s=128, h=256, a=8, kv=2, f=704)
    >>> counted - formula == 12 * 256 * 2 * 128
    True
    """
    x = torch.zeros(b, s, h, dtype=torch.bfloat16, requires_grad=True)
    items = decoder_items(Decoder(h=h, a=a, kv=kv, f=f, layers=1, vocabulary=1))
    return saved_bytes(ModernLayer(h, a, kv, f), x), sum(size for _, size in items) * b * s


def full_recompute_bytes(b: int, s: int, h: int, a: int) -> int:
    """整层放进 checkpoint 后还留多少：只有输入，2sbh。

    >>> full_recompute_bytes(b=2, s=256, h=512, a=8) == 2 * 2 * 256 * 512
    True
    """
    x = torch.zeros(b, s, h, dtype=torch.bfloat16, requires_grad=True)
    return saved_bytes(ClassicLayer(h, a), x, lambda layer, y: checkpoint(layer, y, use_reentrant=False))


# --8<-- [end:compare]
