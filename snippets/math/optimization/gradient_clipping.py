"""梯度裁剪：按全局范数、按值、分片参数的范数、与 loss scaling 和梯度累积的次序（只用标准库）。"""

import math
from collections.abc import Sequence

from snippets.math.optimization.adam import Adam

Vector = list[float]


# --8<-- [start:clip]
def global_norm(grads: Sequence[Sequence[float]]) -> float:
    """所有参数的梯度拼成一个长向量的 L2 范数。先除以最大值再平方，避免溢出；含 NaN 或 inf 时返回 NaN 或 inf。

    >>> global_norm([[3.0], [4.0]])
    5.0
    >>> global_norm([[1e200, 1e200]]) == math.sqrt(2) * 1e200       # 直接平方会溢出
    True
    >>> global_norm([])
    0.0
    """
    flat = [abs(g) for grad in grads for g in grad]
    top = max(flat, default=0.0)
    if any(math.isnan(g) for g in flat):
        return math.nan
    if top == 0 or math.isinf(top):
        return top
    return top * math.sqrt(math.fsum((g / top) ** 2 for g in flat))


def clip_by_global_norm(grads: Sequence[Sequence[float]], max_norm: float, eps: float = 1e-6) -> tuple[list[Vector], float]:
    """g ← g · min(1, max_norm/(‖g‖ + eps))，与 torch.nn.utils.clip_grad_norm_ 相同。返回 (裁剪后, 裁剪前的范数)。

    所有参数乘同一个系数，方向不变。范数是 NaN 或 inf 时抛错：inf 的系数是 0，0 × inf = NaN 会毁掉参数。

    >>> clipped, norm = clip_by_global_norm([[3.0], [4.0]], max_norm=1.0)
    >>> norm, [round(g, 4) for grad in clipped for g in grad]
    (5.0, [0.6, 0.8])
    >>> clip_by_global_norm([[math.inf]], 1.0)
    Traceback (most recent call last):
    ...
    ValueError: 梯度范数是 inf：应跳过这一步，而不是裁剪
    """
    if not 0 < max_norm < math.inf:
        raise ValueError(f"max_norm 必须为正且有限，收到 {max_norm}")
    norm = global_norm(grads)
    if not math.isfinite(norm):
        raise ValueError(f"梯度范数是 {norm}：应跳过这一步，而不是裁剪")
    coefficient = min(1.0, max_norm / (norm + eps))
    return [[coefficient * g for g in grad] for grad in grads], norm


def clip_by_value(grads: Sequence[Sequence[float]], limit: float) -> list[Vector]:
    """逐元素截到 [−limit, limit]；会改变方向。

    >>> clip_by_value([[3.0, 0.1]], 1.0)
    [[1.0, 0.1]]
    """
    if not limit > 0:
        raise ValueError(f"limit 必须为正，收到 {limit}")
    if any(math.isnan(g) for grad in grads for g in grad):
        raise ValueError("梯度里有 NaN：应跳过这一步，而不是裁剪")
    return [[min(limit, max(-limit, g)) for g in grad] for grad in grads]


# --8<-- [end:clip]


# --8<-- [start:sharded]
def sharded_norm(shards: Sequence[Sequence[float]], replicated: Sequence[float] = ()) -> float:
    """参数分在各 rank 上时的全局范数：各自的平方和 all-reduce 后再开方；每个 rank 都有一份的参数只计一次。

    >>> sharded_norm([[3.0], [4.0]])
    5.0
    """
    return global_norm([*shards, replicated])


def naive_sharded_norms(shards: Sequence[Sequence[float]], replicated: Sequence[float]) -> dict[str, float]:
    """反例：几种常见的错误汇总。两个 TP rank 各持一片，LayerNorm 的增益每个 rank 都有一份。

    >>> shards, gain = [[3.0, 0.0], [0.0, 4.0]], [12.0]
    >>> round(sharded_norm(shards, gain), 3)
    13.0
    >>> {name: round(norm, 3) for name, norm in naive_sharded_norms(shards, gain).items()}
    {'各裁各的（rank 0 自己的范数）': 12.369, '范数相加': 25.018, '复制的参数数了两次': 17.692}
    """
    own = [math.sqrt(math.fsum(g * g for g in (*shard, *replicated))) for shard in shards]
    return {
        "各裁各的（rank 0 自己的范数）": own[0],
        "范数相加": math.fsum(own),
        "复制的参数数了两次": math.sqrt(math.fsum(norm * norm for norm in own)),
    }


# --8<-- [end:sharded]


# --8<-- [start:order]
def clip_before_unscale(norm: float, scale: float, max_norm: float = 1.0) -> tuple[float, float]:
    """loss scaling 下的次序：返回 (先除回 scale 再裁剪, 反例：先裁剪再除回) 得到的梯度范数。

    >>> clip_before_unscale(norm=0.5, scale=65536.0)           # 本来不该裁的梯度被裁掉 32768 倍
    (0.5, 1.52587890625e-05)
    """
    if not norm >= 0 or not scale > 0 or not max_norm > 0:
        raise ValueError(f"须有 norm ≥ 0、scale > 0、max_norm > 0，收到 {norm, scale, max_norm}")
    return min(norm, max_norm), min(norm * scale, max_norm) / scale


def clip_each_micro_batch(micro_grads: Sequence[float], max_norm: float = 1.0) -> tuple[float, float]:
    """梯度累积：返回 (先平均再裁剪, 反例：每个 micro-batch 先裁剪再平均)；标量梯度。

    >>> clip_each_micro_batch([-8.0, 1.0, 1.0, 1.0, 1.0])      # 平均是 −0.8，逐个裁剪后方向都反了
    (-0.8, 0.6)
    """
    if not micro_grads or not max_norm > 0 or not all(map(math.isfinite, micro_grads)):
        raise ValueError("须至少有一个 micro-batch，梯度有限，且 max_norm > 0")
    n = len(micro_grads)
    mean = math.fsum(micro_grads) / n
    return max(-max_norm, min(max_norm, mean)), math.fsum(max(-max_norm, min(max_norm, g)) for g in micro_grads) / n


# --8<-- [end:order]


# --8<-- [start:adam]
def steps_after_a_spike(spike: float, max_norm: float | None, beta2: float = 0.999) -> list[float]:
    """梯度一直是 1，第 2001 步来一次 spike，Adam 之后第 0、1、10、100、1000 步走的距离（单位 lr）。

    >>> [round(x, 3) for x in steps_after_a_spike(1000.0, max_norm=None)]
    [2.966, 2.674, 1.059, 0.031, 0.051]
    >>> [round(x, 3) for x in steps_after_a_spike(1000.0, max_norm=1.0)]
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    if not spike > 0 or (max_norm is not None and not max_norm > 0):
        raise ValueError(f"spike 与 max_norm 必须为正，收到 {spike, max_norm}")
    adam, x, moved = Adam(lr=1.0, beta2=beta2), [0.0], []
    for t in range(3_001):
        grads = [[spike if t == 2_000 else 1.0]]
        if max_norm is not None:
            grads, _ = clip_by_global_norm(grads, max_norm, eps=0.0)
        new = adam.step(x, grads[0])
        moved.append(abs(new[0] - x[0]))
        x = new
    return [moved[2_000 + after] for after in (0, 1, 10, 100, 1000)]


# --8<-- [end:adam]
