"""在 CPU 上把参数、梯度、优化器状态、临时张量的字节真的数出来：清单不是背的，是量的（PyTorch）。"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from snippets.infra.memory.saved_tensors import LiveStorages, storage_key


def _mlp(h: int, dtype: torch.dtype) -> nn.Module:
    if isinstance(h, bool) or not isinstance(h, int) or h < 1:
        raise ValueError(f"h 须为正整数，收到 {h!r}")
    return nn.Sequential(nn.Linear(h, 4 * h, bias=False), nn.GELU(), nn.Linear(4 * h, h, bias=False)).to(dtype)


def _bytes(tensors) -> int:
    """去重后的存储字节。"""
    return sum({storage_key(t): t.untyped_storage().nbytes() for t in tensors if isinstance(t, Tensor)}.values())


# --8<-- [start:states]
def adamw_bytes(dtype: torch.dtype = torch.float32, h: int = 64) -> dict[str, float]:
    """训一步之后，每参数的字节：参数、梯度、优化器状态；step 另列（每个张量一个 fp32 标量，CPU 上）。

    >>> adamw_bytes()
    {'参数': 4.0, '梯度': 4.0, 'm 与 v': 8.0, 'step 合计': 8}
    >>> adamw_bytes(torch.bfloat16)                        # 参数是 bf16，m、v 也跟着是 bf16，没有主权重
    {'参数': 2.0, '梯度': 2.0, 'm 与 v': 4.0, 'step 合计': 8}
    """
    model = _mlp(h, dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, h, dtype=dtype)).square().mean().backward()
    optimizer.step()
    params = list(model.parameters())
    psi = sum(p.numel() for p in params)
    states = optimizer.state.values()
    moments = _bytes(t for state in states for name, t in state.items() if name != "step")
    return {
        "参数": _bytes(params) / psi,
        "梯度": _bytes(p.grad for p in params) / psi,
        "m 与 v": moments / psi,
        "step 合计": _bytes(state["step"] for state in states),
    }


def state_appears_late(h: int = 64) -> list[float]:
    """每参数的字节：建好模型、建好优化器、反向之后、第一次 step 之后、set_to_none 之后。

    >>> state_appears_late()
    [4.0, 4.0, 8.0, 16.0, 12.0]
    """
    model = _mlp(h, torch.float32)
    psi = sum(p.numel() for p in model.parameters())
    seen: list[float] = []

    def look(optimizer=None) -> None:
        tensors = [t for p in model.parameters() for t in (p, p.grad)]
        if optimizer:
            tensors += [t for state in optimizer.state.values() for name, t in state.items() if name != "step"]
        seen.append(_bytes(tensors) / psi)

    look()
    optimizer = torch.optim.AdamW(model.parameters())
    look(optimizer)
    model(torch.randn(4, h)).square().mean().backward()
    look(optimizer)
    optimizer.step()
    look(optimizer)
    optimizer.zero_grad()  # 默认 set_to_none=True
    look(optimizer)
    return seen


# --8<-- [end:states]


# --8<-- [start:temporaries]
def step_temporaries(how: str, layers: int = 8, h: int = 64) -> float:
    """第二次 AdamW.step 里临时张量的峰值，字节每参数（fp32，layers 个同样大的矩阵）。

    foreach 一次为所有参数造出分母 √v̂ + ε，多一整份参数；for-loop 逐个更新，只多同一个张量的三份临时，与层数无关；
    fused 一个核做完，没有整张量的临时。

    >>> [step_temporaries(how) for how in ("foreach", "for-loop", "fused")]
    [4.0, 1.5, 0.0]
    >>> step_temporaries("foreach", layers=32), step_temporaries("for-loop", layers=32)     # 12 ÷ 层数
    (4.0, 0.4)
    """
    if how not in ("foreach", "for-loop", "fused"):
        raise ValueError(f"how 须为 foreach、for-loop 或 fused，收到 {how!r}")
    params = [nn.Parameter(torch.randn(h, h)) for _ in range(layers)]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(params, foreach=how == "foreach", fused=how == "fused")
    optimizer.step()
    with LiveStorages() as live:
        optimizer.step()
    return round(live.peak / (layers * h * h), 1)


def norm_temporaries(cast: bool, layers: int = 8, h: int = 64) -> float:
    """求全局梯度范数时的临时，字节每参数（bf16 梯度）。torch 的实现只留每个张量一个标量；先全部转 fp32 就是 4。

    >>> norm_temporaries(False), norm_temporaries(True)
    (0.0, 4.0)
    """
    grads = [torch.randn(h, h).bfloat16() for _ in range(layers)]
    with LiveStorages() as live:
        torch.nn.utils.get_total_norm([g.float() for g in grads] if cast else grads, foreach=False)
    return round(live.peak / (layers * h * h), 1)


def autocast_cached(cache: bool, layers: int = 4, h: int = 64) -> float:
    """fp32 权重在 autocast 下前向之后，还活着的 bf16 副本，字节每参数（no_grad，所以不是反向留住的，是 autocast 的缓存）。

    >>> autocast_cached(False), autocast_cached(True)
    (0.0, 2.0)
    """
    linears = [nn.Linear(h, h, bias=False) for _ in range(layers)]
    x = torch.randn(1, h)
    with LiveStorages() as live, torch.autocast("cpu", torch.bfloat16, cache_enabled=cache), torch.no_grad():
        for linear in linears:
            x = F.linear(x, linear.weight)
        return round(live.now() / (layers * h * h), 1)


# --8<-- [end:temporaries]
