"""梯度体检：逐层记录激活与梯度，按规则给出诊断，并用故意种下的毛病检验规则（PyTorch，CPU）。"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


# --8<-- [start:product]
def product(gain: float, layers: int) -> float:
    """每层把梯度放大 gain 倍，layers 层之后是多少倍。

    >>> [float(f"{product(g, 50):.2g}") for g in (0.25, 0.9, 1.0, 1.1, 2.0)]     # 0.25 是 sigmoid 导数的上界
    [7.9e-31, 0.0052, 1.0, 120.0, 1100000000000000.0]
    """
    if gain < 0 or layers < 0:
        raise ValueError(f"gain 与 layers 不能为负，收到 {gain}、{layers}")
    try:
        return gain**layers
    except OverflowError:
        return math.inf


def adam_first_step(gradient: float, eps: float = 1e-8) -> float:
    """Adam 第一步走学习率的几倍：|g| / (|g| + ε)（偏差修正后 m̂ = g，v̂ = g²）。

    >>> [float(f"{adam_first_step(g):.2g}") for g in (1.0, 1e-6, 1e-8, 1e-12)]
    [1.0, 0.99, 0.5, 0.0001]
    """
    if eps <= 0:
        raise ValueError(f"eps 必须为正，收到 {eps}")
    return abs(gradient) / (abs(gradient) + eps)


# --8<-- [end:product]


# --8<-- [start:probe]
@dataclass
class Layer:
    """一层输出的三个统计量：均方根、恰为零的比例、损失对它的梯度的范数（None：没有梯度流到这里）。"""

    rms: float
    zeros: float
    grad_norm: float | None = None


def probe(layers: Iterable[nn.Module], run: Callable[[], Tensor]) -> list[Layer]:
    """跑一次 run()（前向，返回标量损失）与反向，按执行次序返回各层的统计量。参数的 grad 会照常累加，用完要清。

    统计在 fp64 里算：fp16 的输出一过 255，平方就溢出，那是量尺坏了，不是网络坏了。
    """
    stats: list[Layer] = []

    def record(_module, _inputs, out: Tensor) -> None:
        if not isinstance(out, Tensor):
            raise ValueError(f"每层的输出须是一个张量，收到 {type(out).__name__}")
        layer = Layer(out.detach().double().square().mean().sqrt().item(), (out == 0).float().mean().item())
        stats.append(layer)
        if out.requires_grad:
            out.register_hook(lambda grad: setattr(layer, "grad_norm", grad.double().norm().item()))

    handles = [layer.register_forward_hook(record) for layer in layers]
    try:
        run().backward()
    finally:
        for handle in handles:
            handle.remove()
    return stats


def diagnose(stats: list[Layer], ratio: float = 1e3) -> list[str]:
    """规则，前三条命中即止：非有限 → 溢出；某层没有梯度 → 断开；各层梯度都是零 → 全零。

    再看：首层与末层的梯度差 ratio 倍 → 消失或爆炸；某层 99% 以上恰为零 → 死层。

    >>> diagnose([Layer(1.0, 0.0, None), Layer(1.0, 0.0, 1.0)])     # 中间 detach 过，或忘了接进计算图
    ['断开']
    """
    if not stats or ratio <= 1:
        raise ValueError(f"没有记录到任何一层，或 ratio 不大于 1，收到 {len(stats)} 层、ratio={ratio}")
    grads = [layer.grad_norm for layer in stats]
    if not all(math.isfinite(v) for v in (*(layer.rms for layer in stats), *grads) if v is not None):
        return ["溢出"]
    if None in grads:
        return ["断开"]
    if not any(grads):
        return ["全零"]
    first, last = grads[0], grads[-1]
    found = []
    if first * ratio < last:
        found.append("消失")
    if first > last * ratio:
        found.append("爆炸")
    if any(layer.zeros > 0.99 for layer in stats):
        found.append("死层")
    return found


# --8<-- [end:probe]


class PreNorm(nn.Module):
    """x + W₂·relu(W₁·LN(x))：今天解码器块的骨架。"""

    def __init__(self, h: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(h), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, h))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def _plain(h: int, activation: nn.Module, gain: float, bias: float = 0.0) -> nn.Module:
    linear = nn.Linear(h, h)
    nn.init.normal_(linear.weight, std=gain / math.sqrt(h))
    nn.init.constant_(linear.bias, bias)
    return nn.Sequential(linear, activation)


# --8<-- [start:planted]
HE = math.sqrt(2)  # relu 的增益：方差减半，所以权重方差取 2/h
STACKS = {
    "sigmoid": lambda h: _plain(h, nn.Sigmoid(), 1.0),
    "relu，初始化小一半": lambda h: _plain(h, nn.ReLU(), HE / 2),
    "relu，He 初始化": lambda h: _plain(h, nn.ReLU(), HE),
    "relu，初始化大一倍": lambda h: _plain(h, nn.ReLU(), HE * 2),
    "relu，偏置 −10": lambda h: _plain(h, nn.ReLU(), HE, bias=-10.0),
    "pre-norm 残差": PreNorm,
}


def check(name: str, depth: int = 30, h: int = 128, b: int = 256) -> tuple[float, list[str]]:
    """搭一个 depth 层的网络，返回 (首层与末层梯度范数之比, 诊断)。

    >>> for name in STACKS:
    ...     ratio, found = check(name)
    ...     print(f"{ratio:8.1e}  {name}  {'、'.join(found) or '正常'}")
     8.9e-19  sigmoid  消失
     2.5e-09  relu，初始化小一半  消失
     1.4e+00  relu，He 初始化  正常
     8.6e+08  relu，初始化大一倍  爆炸
     0.0e+00  relu，偏置 −10  消失、死层
     1.6e+00  pre-norm 残差  正常
    """
    if name not in STACKS or min(depth, h, b) < 1:
        raise ValueError(f"name 须是 {list(STACKS)} 之一，depth、h、b 为正，收到 {name!r}、{depth}、{h}、{b}")
    torch.manual_seed(0)
    layers = nn.ModuleList([STACKS[name](h) for _ in range(depth)])
    head = nn.Linear(h, 10)
    x, y = torch.randn(b, h), torch.arange(b) % 10

    def run() -> Tensor:
        out = x
        for layer in layers:
            out = layer(out)
        return nn.functional.cross_entropy(head(out), y)

    stats = probe(layers, run)
    first, last = stats[0].grad_norm, stats[-1].grad_norm
    return (first / last if last else math.nan), diagnose(stats)


# --8<-- [end:planted]


# --8<-- [start:attention]
def attention_health(q: Tensor, k: Tensor) -> tuple[float, float]:
    """注意力分数的最大绝对值，与注意力分布的平均熵除以 ln s（1 是均匀，0 是全押一个）。q、k: (s, d)。

    >>> _ = torch.manual_seed(0)
    >>> q, k = torch.randn(256, 64), torch.randn(256, 64)
    >>> for scale in (1, 4, 16):                                   # q、k 各长大 scale 倍，分数长大 scale² 倍
    ...     print(scale, *(round(v, 2) for v in attention_health(scale * q, scale * k)))
    1 5.86 0.91
    4 93.77 0.06
    16 1500.37 0.0
    >>> normed = [nn.functional.rms_norm(16 * t, (64,)) for t in (q, k)]
    >>> [round(v, 2) for v in attention_health(*normed)]            # QK-norm：长大多少都一样
    [4.39, 0.91]
    """
    if q.ndim != 2 or k.ndim != 2 or q.shape[-1] != k.shape[-1] or not q.numel() or len(k) < 2:
        raise ValueError(f"q、k 须为 (s, d) 且 d 相等，至少一个 q、两个 k，收到 {tuple(q.shape)} 与 {tuple(k.shape)}")
    scores = q.float() @ k.float().T / math.sqrt(q.shape[-1])  # 半精度的分数可能先溢出
    log_p = scores.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    return scores.abs().max().item(), (entropy / math.log(len(k))).item()


# --8<-- [end:attention]


# --8<-- [start:clip]
def clipping_keeps_ratios(max_norm: float = 1e-3) -> tuple[float, float]:
    """30 层 sigmoid：按全局范数裁剪前后，首层与末层权重梯度的范数之比。裁剪只乘一个公共的数，消失的还是消失。

    max_norm 不小于原来的范数时抛 ValueError：那样什么也没裁，比较没有意义。

    >>> before, after = clipping_keeps_ratios()
    >>> f"{before:.0e}", abs(after / before - 1) < 1e-5
    ('8e-19', True)
    """
    torch.manual_seed(0)
    net = nn.Sequential(*[STACKS["sigmoid"](128) for _ in range(30)], nn.Linear(128, 10)).double()
    nn.functional.cross_entropy(net(torch.randn(256, 128).double()), torch.arange(256) % 10).backward()

    def ratio() -> float:
        return (net[0][0].weight.grad.norm() / net[29][0].weight.grad.norm()).item()

    before = ratio()
    total = nn.utils.clip_grad_norm_(net.parameters(), max_norm).item()
    if total <= max_norm:
        raise ValueError(f"max_norm={max_norm} 不小于梯度范数 {total:.2g}，没有裁剪")
    return before, ratio()


# --8<-- [end:clip]
