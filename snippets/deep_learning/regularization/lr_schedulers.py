"""学习率调度器的工程：组合预热与衰减、按 token 计进度、续训不跳变、按 batch 缩放（只用标准库）。"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from snippets.math.linear_algebra.schedules import cosine, linear, wsd


# --8<-- [start:scheduler]
@dataclass(frozen=True)
class Scheduler:
    """线性预热 warmup 步，然后按 shape 走到 total 步；没有内部状态，第 step 次更新（从 0 数）的学习率只由 step 决定。

    shape(t, total) 是 Q003 的形状函数（峰值的倍数）。预热从 1/warmup 起，第一步就不是 0。

    >>> s = Scheduler(peak=3e-4, warmup=2000, total=100_000, shape=lambda t, n: cosine(t, n, end=0.1))
    >>> [f"{s(step):.2e}" for step in (0, 1999, 2000, 51_000, 100_000)]
    ['1.50e-07', '3.00e-04', '3.00e-04', '1.65e-04', '3.00e-05']
    """

    peak: float
    warmup: int
    total: int
    shape: Callable[[float, float], float]

    def __post_init__(self) -> None:
        if not 0 < self.peak < math.inf or not 0 <= self.warmup < self.total:
            raise ValueError(f"须 peak > 0 且 0 ≤ warmup < total，收到 {self.peak}、{self.warmup}、{self.total}")

    def __call__(self, step: int) -> float:
        if step < 0:
            raise ValueError(f"step 不能为负，收到 {step}")
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        return self.peak * self.shape(step - self.warmup, self.total - self.warmup)


# --8<-- [end:scheduler]


# --8<-- [start:endpoints]
def endpoints(total: int = 10_000, warmup: int = 500) -> list[str]:
    """四种常用组合在预热末、中点、终点的学习率（峰值的倍数），与全程平均。

    >>> print(*endpoints(), sep="\\n")
    余弦到 10%：预热末 1.00  中点 0.59  终点 0.10  平均 0.55
    线性到 0：预热末 1.00  中点 0.53  终点 0.00  平均 0.50
    平方根倒数：预热末 1.00  中点 0.32  终点 0.22  平均 0.37
    WSD，末 20%：预热末 1.00  中点 1.00  终点 0.00  平均 0.88
    """
    shapes: dict[str, Callable[[float, float], float]] = {
        "余弦到 10%": lambda t, n: cosine(t, n, end=0.1),
        "线性到 0": linear,
        "平方根倒数": lambda t, n: math.sqrt(warmup / (t + warmup)),
        "WSD，末 20%": lambda t, n: wsd(t, n, decay=0.2),
    }
    rows = []
    for name, shape in shapes.items():
        s = Scheduler(1.0, warmup, total, shape)
        mean = math.fsum(map(s, range(total))) / total
        rows.append(f"{name}：预热末 {s(warmup):.2f}  中点 {s(total // 2):.2f}  终点 {s(total):.2f}  平均 {mean:.2f}")
    return rows


# --8<-- [end:endpoints]


# --8<-- [start:traps]
def extended_midway(step: int = 800, total: int = 1000, new_total: int = 2000) -> tuple[float, float]:
    """余弦到 0 训到 step，忽然把总步数改成 new_total：学习率（峰值的倍数）从多少跳到多少。

    >>> [round(v, 2) for v in extended_midway()]
    [0.1, 0.65]
    """
    return tuple(cosine(step, n, end=0.0) for n in (total, new_total))


def stepped_per_micro_batch(total: int = 1000, accumulation: int = 8) -> int:
    """每个 micro-batch 都调一次 scheduler.step()：余弦到 0 在第几次更新就走完了。

    >>> stepped_per_micro_batch()
    125
    """
    if total < 1 or accumulation < 1:
        raise ValueError(f"total 与 accumulation 须为正，收到 {total}、{accumulation}")
    return next(update for update in range(total + 1) if cosine(update * accumulation, total, end=0.0) == 0)


def progress_by_tokens(ramp: tuple[tuple[int, int], ...], total_tokens: int) -> list[tuple[int, float, float]]:
    """batch 逐段变大：ramp 是（这段走多少步，每步多少 token）。返回各段末尾的（步数，按步的进度，按 token 的进度）。

    >>> ramp = ((10_000, 1_000_000), (10_000, 2_000_000), (10_000, 4_000_000))
    >>> [(n, round(a, 2), round(b, 2)) for n, a, b in progress_by_tokens(ramp, 70_000_000_000)]
    [(10000, 0.33, 0.14), (20000, 0.67, 0.43), (30000, 1.0, 1.0)]
    """
    if not ramp or any(steps < 1 or tokens < 1 for steps, tokens in ramp):
        raise ValueError("至少一段，每段的步数与每步 token 数都须为正")
    if total_tokens < sum(steps * tokens for steps, tokens in ramp):
        raise ValueError(f"各段合计超过总 token 数 {total_tokens}")
    total_steps = sum(steps for steps, _ in ramp)
    rows, done_steps, done_tokens = [], 0, 0
    for steps, tokens in ramp:
        done_steps += steps
        done_tokens += steps * tokens
        rows.append((done_steps, done_steps / total_steps, done_tokens / total_tokens))
    return rows


# --8<-- [end:traps]


# --8<-- [start:batch]
def scaled_lr(lr: float, batch: float, new_batch: float, rule: str) -> float:
    """batch 变了，学习率怎么变：SGD 用 linear（乘 k），Adam 用 sqrt（乘 √k）。都只在临界批大小以下成立。

    >>> [f"{scaled_lr(3e-4, 4e6, 16e6, rule):.1e}" for rule in ("linear", "sqrt")]
    ['1.2e-03', '6.0e-04']
    """
    if not all(0 < x < math.inf for x in (lr, batch, new_batch)):
        raise ValueError(f"lr 与两个 batch 须为正，收到 {lr}、{batch}、{new_batch}")
    powers = {"linear": 1.0, "sqrt": 0.5}
    if rule not in powers:
        raise ValueError(f"rule 须为 linear 或 sqrt，收到 {rule!r}")
    return lr * (new_batch / batch) ** powers[rule]


# --8<-- [end:batch]
