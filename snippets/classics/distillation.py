"""蒸馏的损失、梯度与 T² 的来历（只用标准库）。"""

import math
from collections.abc import Sequence


def _log_softmax(z: Sequence[float], temperature: float) -> list[float]:
    if not 0 < temperature <= 1e6:
        raise ValueError(f"温度必须为正且不超过 1e6，收到 {temperature}")
    if not z or not all(map(math.isfinite, z)):
        raise ValueError("logits 须非空且有限")
    top = max(z)
    scaled = [(v - top) / temperature for v in z]
    log_total = math.log(math.fsum(map(math.exp, scaled)))
    return [s - log_total for s in scaled]


# --8<-- [start:loss]
def soft_labels(teacher: Sequence[float], temperature: float) -> list[float]:
    """教师的软标签。温度越高，非正确类之间的差别越看得见。

    >>> for t in (1.0, 4.0, 20.0):
    ...     print(t, [round(p, 3) for p in soft_labels([8.0, 5.0, -2.0], t)])
    1.0 [0.953, 0.047, 0.0]
    4.0 [0.643, 0.304, 0.053]
    20.0 [0.405, 0.349, 0.246]
    """
    return [math.exp(v) for v in _log_softmax(teacher, temperature)]


def distillation(student: Sequence[float], teacher: Sequence[float], temperature: float) -> tuple[float, list[float]]:
    """T²·KL(p_T ‖ q_T) 与它对学生 logits 的梯度 T·(q_T − p_T)；p 是教师，q 是学生。

    >>> loss, grad = distillation([1.0, 0.0, 0.0], [2.0, 1.0, 0.0], 2.0)
    >>> round(loss, 4), [round(g, 4) for g in grad]
    (0.0838, [-0.1092, -0.0663, 0.1755])
    """
    if len(student) != len(teacher):
        raise ValueError(f"学生 {len(student)} 类，教师 {len(teacher)} 类")
    log_p, log_q = _log_softmax(teacher, temperature), _log_softmax(student, temperature)
    kl = math.fsum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True) if math.exp(a))
    if not math.isfinite(kl):
        raise ValueError("学生给教师支持的类的概率是 0，KL 为无穷")
    return temperature**2 * kl, [temperature * (math.exp(b) - math.exp(a)) for a, b in zip(log_p, log_q, strict=True)]


# --8<-- [end:loss]


# --8<-- [start:scale]
def gradient_without_t2(temperature: float) -> float:
    """不乘 T² 时，软标签这一项梯度的大小（最大分量）。T 大时趋于 (v − z)/(K·T²)，所以要乘回 T²。

    >>> [f"{gradient_without_t2(t):.1e}" for t in (1.0, 2.0, 10.0, 100.0)]
    ['2.0e-01', '7.9e-02', '3.5e-03', '3.3e-05']
    """
    student, teacher = [1.0, 0.0, -1.0], [2.0, 0.0, -2.0]
    _, grad = distillation(student, teacher, temperature)
    return max(map(abs, grad)) / temperature**2


# --8<-- [end:scale]
