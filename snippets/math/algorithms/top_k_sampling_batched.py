"""批量采样：每行有自己的 temperature / top-k / top-p / min-p，一次排序，指数竞赛代替 multinomial（PyTorch）。"""

import torch
from torch import Tensor


# --8<-- [start:batched]
def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """按“温度 → min-p → top-k → top-p”截断，返回 (b, V) 的 fp32 logits，被截掉的位置为 −inf。

    logits: (b, V)，任意浮点类型；其余参数: (b,)。temperature 为正且有限；top_k ≥ V 表示不限；top_p = 1、min_p = 0 表示不限。
    返回值每行已减去最大值再除温度（不影响 softmax，温度很小时也不溢出）。
    top-p 作用在 top-k 之后**重新归一化**的分布上；第 k 名并列时取词表里靠前的，恰好留 k 个。

    >>> row = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    >>> one = torch.ones(1)
    >>> truncate(row, one, torch.tensor([3]), 0.7 * one, 0 * one).softmax(-1)    # 0.5/0.9 = 0.56 不够 0.7，加上 0.25 才够
    tensor([[0.6667, 0.3333, 0.0000, 0.0000]])
    """
    if logits.dim() != 2 or logits.size(1) == 0:
        raise ValueError(f"logits 的形状须为 (b, V) 且 V ≥ 1，收到 {tuple(logits.shape)}")
    if logits.isnan().any() or (logits == torch.inf).any():
        raise ValueError("logits 里有 NaN 或 +inf")
    if (logits == -torch.inf).all(dim=-1).any():
        raise ValueError("有一行全是 −inf，没有可采样的 token")
    if not ((temperature > 0) & temperature.isfinite()).all() or not (top_k >= 1).all() or not ((top_p > 0) & (top_p <= 1)).all():
        raise ValueError("须有 0 < temperature < inf、top_k ≥ 1、0 < top_p ≤ 1")
    if not ((min_p >= 0) & (min_p <= 1)).all():
        raise ValueError("须有 0 ≤ min_p ≤ 1")
    # 半精度里十几万个小概率累加不起来，先转 fp32。
    scaled = logits.float()
    scaled = (scaled - scaled.amax(dim=-1, keepdim=True)) / temperature.float().clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    values, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(values.size(1), device=values.device)
    keep = (values >= values[:, :1] + min_p.float().log()[:, None]) & (rank < top_k[:, None])
    probs = values.masked_fill(~keep, -torch.inf).softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # 排在自己前面的累计概率：还没到 p 就留下
    keep &= (before < top_p.float()[:, None]) | (top_p[:, None] == 1)
    keep[:, 0] = True  # 最大的一个总要留下，不受舍入影响
    return torch.full_like(scaled, -torch.inf).scatter(1, order, values.masked_fill(~keep, -torch.inf))


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, generator: torch.Generator) -> Tensor:
    """每行采一个 token，返回 (b,)。temperature 为 0 的行取 argmax。

    argmax(p_i / E_i)，E_i 独立服从指数分布，等价于按 p 采样（与 Gumbel-max 同理），不用前缀和。

    >>> logits = torch.zeros(2, 128_256)
    >>> logits[:, 7] = 1.0
    >>> one = torch.ones(2)
    >>> sample(logits, torch.tensor([0.0, 1.0]), torch.tensor([50, 1]), one, 0 * one, torch.Generator().manual_seed(0))
    tensor([7, 7])
    """
    greedy = temperature == 0
    kept = truncate(logits, temperature.masked_fill(greedy, 1.0), top_k, top_p, min_p)
    noise = torch.empty_like(kept).exponential_(generator=generator).clamp_min(torch.finfo(kept.dtype).tiny)
    drawn = (kept.softmax(dim=-1) / noise).argmax(dim=-1)
    return torch.where(greedy, logits.argmax(dim=-1), drawn)


# --8<-- [end:batched]


# --8<-- [start:half]
def half_precision_cumsum_stalls(vocabulary: int = 128_256) -> tuple[float, float]:
    """反例：“top-p 在 bf16 里累加就行”。均匀分布逐个累加到头，返回 (bf16 的和, fp32 的和)。

    bf16 只有 8 位有效数：累计值到 1/256 后，相邻两数相差 2⁻¹⁵，加 1/128256（不到它的一半）就被舍掉。

    >>> bf16, fp32 = half_precision_cumsum_stalls()
    >>> bf16, round(fp32, 3)
    (0.00390625, 1.001)
    """

    def accumulate(dtype: torch.dtype) -> float:
        step = torch.tensor(1 / vocabulary, dtype=dtype)
        total = torch.zeros((), dtype=dtype)
        for _ in range(vocabulary):
            total = total + step
        return total.item()

    return accumulate(torch.bfloat16), accumulate(torch.float32)


# --8<-- [end:half]
