"""贝叶斯在大模型里能算的几处：概念后验预测下一个 token、校准、胜率的后验、基率与检测器（只用标准库）。"""

import math
from collections.abc import Mapping, Sequence


# --8<-- [start:icl]
def posterior(prior: Mapping[str, float], likelihoods: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """P(概念 | 示例) ∝ P(概念)·∏ P(示例_i | 概念)，在对数域里算。likelihoods[i][概念] 是第 i 个示例的似然。

    >>> post = posterior({"a": 0.5, "b": 0.5}, [{"a": 0.9, "b": 0.1}] * 3)
    >>> round(post["a"], 4)
    0.9986
    >>> posterior({"a": 1.0}, [{"a": 0.0}])
    Traceback (most recent call last):
    ...
    ValueError: 所有概念的似然都是 0：示例不在模型族之内
    """
    if not prior or min(prior.values()) < 0 or abs(math.fsum(prior.values()) - 1) > 1e-9:
        raise ValueError("prior 须非空、非负且和为 1")
    logs = {}
    for concept, weight in prior.items():
        factors = [weight, *(likelihood[concept] for likelihood in likelihoods)]
        logs[concept] = -math.inf if min(factors) <= 0 else math.fsum(map(math.log, factors))
    top = max(logs.values())
    if top == -math.inf:
        raise ValueError("所有概念的似然都是 0：示例不在模型族之内")
    weights = {concept: math.exp(log - top) for concept, log in logs.items()}
    total = math.fsum(weights.values())
    return {concept: weight / total for concept, weight in weights.items()}


RULES = {  # 输入 x（0–9）→ 输出；示例以 10% 的概率被换成均匀随机的数字
    "x+1": lambda x: (x + 1) % 10,
    "x+2": lambda x: (x + 2) % 10,
    "2x": lambda x: 2 * x % 10,
    "9−x": lambda x: 9 - x,
}


def predict_next(examples: Sequence[tuple[int, int]], query: int, noise: float = 0.1) -> tuple[float, dict[str, float]]:
    """“上下文学习”的精确版：看过 examples 之后，对 query 的正确输出（规则 x+2）的预测概率，与规则的后验。

    >>> shown = [(1, 3), (4, 6), (7, 9)]
    >>> for n in range(4):
    ...     probability, post = predict_next(shown[:n], query=5)
    ...     print(n, round(probability, 3), {rule: round(p, 3) for rule, p in post.items()})
    0 0.235 {'x+1': 0.25, 'x+2': 0.25, '2x': 0.25, '9−x': 0.25}
    1 0.881 {'x+1': 0.011, 'x+2': 0.968, '2x': 0.011, '9−x': 0.011}
    2 0.91 {'x+1': 0.0, 'x+2': 1.0, '2x': 0.0, '9−x': 0.0}
    3 0.91 {'x+1': 0.0, 'x+2': 1.0, '2x': 0.0, '9−x': 0.0}
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise 必须在 [0, 1] 内，收到 {noise}")

    def likelihood(rule: str, x: int, y: int) -> float:
        return noise / 10 + (1 - noise) * (RULES[rule](x) == y)

    prior = dict.fromkeys(RULES, 1 / len(RULES))
    post = posterior(prior, [{rule: likelihood(rule, x, y) for rule in RULES} for x, y in examples])
    answer = RULES["x+2"](query)
    return math.fsum(p * likelihood(rule, query, answer) for rule, p in post.items()), post


# --8<-- [end:icl]


# --8<-- [start:calibration]
def expected_calibration_error(confidences: Sequence[float], correct: Sequence[int], bins: int = 10) -> float:
    """ECE = Σ (桶内样本占比)·|桶内正确率 − 桶内平均置信度|，等宽分桶（Guo 2017，式 3）。

    >>> round(expected_calibration_error([0.9] * 10, [1] * 6 + [0] * 4), 3)       # 说九成把握，只对六成
    0.3
    >>> expected_calibration_error([0.6] * 10, [1] * 6 + [0] * 4)
    0.0
    """
    if not confidences or len(confidences) != len(correct) or bins < 1:
        raise ValueError("须有等长、非空的 confidences 与 correct，且 bins ≥ 1")
    if min(confidences) < 0 or max(confidences) > 1:
        raise ValueError("confidences 须在 [0, 1] 内")
    groups: dict[int, list[tuple[float, int]]] = {}
    for confidence, hit in zip(confidences, correct, strict=True):
        groups.setdefault(min(bins - 1, int(confidence * bins)), []).append((confidence, hit))
    n = len(confidences)
    gaps = (abs(math.fsum(hit for _, hit in group) - math.fsum(c for c, _ in group)) / n for group in groups.values())
    return round(math.fsum(gaps), 12)


# --8<-- [end:calibration]


# --8<-- [start:winrate]
def probability_better(wins: int, losses: int, steps: int = 4000) -> float:
    """成对比较的胜率 θ 取均匀先验 Beta(1, 1)，返回 P(θ > ½ | 数据)：Beta(1+胜, 1+负) 的尾概率，数值积分。

    >>> round(probability_better(60, 40), 3), round(probability_better(6, 4), 3)    # 同是 60%，证据强度不同
    (0.977, 0.726)
    >>> round(probability_better(0, 0), 3)
    0.5
    """
    if wins < 0 or losses < 0 or steps < 2:
        raise ValueError(f"须有 wins, losses ≥ 0、steps ≥ 2，收到 {wins, losses, steps}")
    log_norm = math.lgamma(wins + losses + 2) - math.lgamma(wins + 1) - math.lgamma(losses + 1)
    points = (0.5 + 0.5 * (i + 0.5) / steps for i in range(steps))
    return 0.5 / steps * math.fsum(math.exp(log_norm + wins * math.log(t) + losses * math.log1p(-t)) for t in points)


def detector_precision(base_rate: float, recall: float, false_positive_rate: float) -> float:
    """P(真是 | 报了) = 召回·基率 / (召回·基率 + 误报率·(1 − 基率))。

    >>> round(detector_precision(0.01, 0.95, 0.05), 3)         # “准确率 95%”的幻觉检测器，基率 1% 时报的大多是误报
    0.161
    >>> round(detector_precision(0.3, 0.95, 0.05), 3)
    0.891
    """
    if not all(0 <= x <= 1 for x in (base_rate, recall, false_positive_rate)):
        raise ValueError("三个比率都须在 [0, 1] 内")
    flagged = recall * base_rate + false_positive_rate * (1 - base_rate)
    if flagged == 0:
        raise ValueError("检测器从不报，精确率没有定义")
    return recall * base_rate / flagged


# --8<-- [end:winrate]
