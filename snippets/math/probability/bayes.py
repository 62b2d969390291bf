"""贝叶斯在大模型里能算的几处：上下文学习的精确版与它的判据、噪声信道、校准、胜率的后验、基率、朴素贝叶斯（只用标准库）。"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from snippets.common.chart import lines


# --8<-- [start:posterior]
def posterior(prior: Mapping[str, float], likelihoods: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """P(概念 | 证据) ∝ P(概念)·∏ P(证据_i | 概念)，在对数域里算。likelihoods[i][概念] 是第 i 条证据的似然。

    >>> post = posterior({"a": 0.5, "b": 0.5}, [{"a": 0.9, "b": 0.1}] * 3)
    >>> round(post["a"], 4)
    0.9986
    >>> posterior({"a": 1.0}, [{"a": 0.0}])
    Traceback (most recent call last):
    ...
    ValueError: 所有概念的似然都是 0：证据不在模型族之内
    """
    if not prior or not min(prior.values()) >= 0 or not abs(math.fsum(prior.values()) - 1) <= 1e-9:
        raise ValueError("prior 须非空、非负且和为 1")
    if any(not 0 <= likelihood[concept] < math.inf for likelihood in likelihoods for concept in prior):
        raise ValueError("似然须非负且有限")
    logs = {}
    for concept, weight in prior.items():
        factors = [weight, *(likelihood[concept] for likelihood in likelihoods)]
        logs[concept] = -math.inf if min(factors) <= 0 else math.fsum(map(math.log, factors))
    top = max(logs.values())
    if top == -math.inf:
        raise ValueError("所有概念的似然都是 0：证据不在模型族之内")
    weights = {concept: math.exp(log - top) for concept, log in logs.items()}
    total = math.fsum(weights.values())
    return {concept: weight / total for concept, weight in weights.items()}


def noisy_channel(prior: Mapping[str, float], channel: Mapping[str, float]) -> list[tuple[str, float]]:
    """P(原文 | 观测) ∝ P(原文)·P(观测 | 原文)，从大到小。prior 是语言模型，channel 是反向模型给这个观测的似然。

    >>> heard = {"wreck a nice beach": 0.30, "recognize speech": 0.25}           # 声学上前者略像
    >>> language_model = {"wreck a nice beach": 0.001, "recognize speech": 0.999}
    >>> [(text, round(p, 4)) for text, p in noisy_channel(language_model, heard)]
    [('recognize speech', 0.9988), ('wreck a nice beach', 0.0012)]
    """
    return sorted(posterior(prior, [channel]).items(), key=lambda item: -item[1])


# --8<-- [end:posterior]


# --8<-- [start:icl]
CONCEPTS = {f"{a}x+{b}": [(a * x + b) % 10 for x in range(10)] for a in range(10) for b in range(10)}  # 100 条规则，互不相同
UNIFORM = dict.fromkeys(CONCEPTS, 1 / len(CONCEPTS))
Example = tuple[int, int]


def predict_next(
    examples: Sequence[Example], query: int, prior: Mapping[str, float] = UNIFORM, noise: float = 0.1, decay: float = 1.0
) -> list[float]:
    """“上下文学习”的精确版：看过 examples 之后，query 的输出是 0–9 的预测概率 = 按后验加权的混合。

    规则是 y = ax + b mod 10，示例的 y 以 noise 的概率换成均匀随机的数字。decay = 1 是贝叶斯；
    decay < 1 时越早的示例打折越多（似然取 decay^距离 次方），模仿偏重近处的模型，不再是贝叶斯。

    >>> shown = [(1, 5), (4, 4), (7, 3), (2, 8)]                            # 规则 3x+2；最后一个示例的 x = 2 也合
    >>> [round(predict_next(shown[:n], query=5)[7], 3) for n in range(5)]   # 3·5+2 = 17 → 7
    [0.1, 0.181, 0.764, 0.907, 0.909]
    """
    if not 0 < noise <= 1 or not 0 < decay <= 1 or not 0 <= query <= 9:
        raise ValueError(f"须有 noise、decay 在 (0, 1]，query 在 0–9，收到 {noise, decay, query}")
    if not all(0 <= x <= 9 and 0 <= y <= 9 for x, y in examples):
        raise ValueError("examples 里的 x、y 都须在 0–9 内")
    hit, miss = 1 - noise + noise / 10, noise / 10
    powers = [decay ** (len(examples) - 1 - i) for i in range(len(examples))]
    evidence = [{c: (hit if f[x] == y else miss) ** k for c, f in CONCEPTS.items()} for (x, y), k in zip(examples, powers, strict=True)]
    post = posterior(prior, evidence)
    mass = Counter()
    for concept, weight in post.items():
        mass[CONCEPTS[concept][query]] += weight
    return [miss + (hit - miss) * mass[y] for y in range(10)]


def learning_curve(truth: Sequence[int], prior: Mapping[str, float], random_labels: bool = False) -> list[tuple[float, float]]:
    """看过 0–8 个示例后，400 次平均的 (给 truth[query] 的概率, 预测里最大的概率，即模型自报的把握)。

    示例 10% 有噪声，random_labels 则标签全随机。与逐次调用 predict_next 相同，只是后验递推：新 ∝ 旧 × 新示例的似然。
    """
    totals = [(0.0, 0.0)] * 9
    for seed in range(400):
        rng = random.Random(seed)
        query, weights = rng.randrange(10), [prior[c] for c in CONCEPTS]
        for n in range(9):
            mass, total = [0.0] * 10, math.fsum(weights)
            for w, f in zip(weights, CONCEPTS.values(), strict=True):
                mass[f[query]] += w / total
            right, top = (0.01 + 0.9 * m for m in (mass[truth[query]], max(mass)))
            totals[n] = totals[n][0] + right / 400, totals[n][1] + top / 400
            x = rng.randrange(10)
            y = rng.randrange(10) if random_labels or rng.random() < 0.1 else truth[x]
            weights = [w * (0.91 if f[x] == y else 0.01) for w, f in zip(weights, CONCEPTS.values(), strict=True)]
    return totals


def learning_curves() -> dict[str, list[tuple[float, float]]]:
    """四种情形：先验均匀；真规则的先验只有百万分之一；真规则不在族里（y = x² mod 10）；示例标签随机。

    >>> for name, curve in learning_curves().items():
    ...     print(*(f"{right:.2f}" for right, _ in curve), f"自报 {curve[-1][1]:.2f}", name)
    0.10 0.23 0.54 0.71 0.81 0.86 0.88 0.90 0.90 自报 0.90 先验均匀
    0.09 0.17 0.26 0.31 0.37 0.46 0.57 0.67 0.76 自报 0.82 先验百万分之一
    0.10 0.23 0.30 0.33 0.35 0.35 0.37 0.38 0.40 自报 0.72 不在族里
    0.10 0.11 0.11 0.11 0.11 0.10 0.10 0.10 0.10 自报 0.60 标签随机
    """
    rule = "3x+2"
    rare = {c: 1e-6 if c == rule else (1 - 1e-6) / 99 for c in CONCEPTS}
    return {
        "先验均匀": learning_curve(CONCEPTS[rule], UNIFORM),
        "先验百万分之一": learning_curve(CONCEPTS[rule], rare),
        "不在族里": learning_curve([x * x % 10 for x in range(10)], UNIFORM),
        "标签随机": learning_curve(CONCEPTS[rule], UNIFORM, random_labels=True),
    }


# --8<-- [end:icl]


# --8<-- [start:martingale]
def bayesian_checks(decay: float) -> tuple[float, float]:
    """不看内部、只看预测就能查的两条必要条件，各返回最大的违背量：(鞅性质, 示例次序)；精确贝叶斯两项都是 0。

    鞅：先想象下一个示例的标签、再按它的预测概率平均，对 query 的预测应当不变。次序：把示例倒过来，预测应当不变。

    >>> for decay in (1.0, 0.8, 0.5):
    ...     print(decay, *(f"{gap:.3f}" for gap in bayesian_checks(decay)))
    1.0 0.000 0.000
    0.8 0.111 0.464
    0.5 0.218 0.441
    """
    shown = [(1, 5), (4, 4), (7, 0)]  # 第三个示例带噪声
    martingale = order = 0.0
    for query in (0, 3, 5):
        now = predict_next(shown, query, decay=decay)
        back = predict_next(shown[::-1], query, decay=decay)
        order = max(order, max(abs(a - b) for a, b in zip(now, back, strict=True)))
        for x in range(10):
            weights = predict_next(shown, x, decay=decay)
            later = [predict_next([*shown, (x, y)], query, decay=decay) for y in range(10)]
            mixed = [math.fsum(w * p[k] for w, p in zip(weights, later, strict=True)) for k in range(10)]
            martingale = max(martingale, max(abs(a - b) for a, b in zip(now, mixed, strict=True)))
    return martingale, order


# --8<-- [end:martingale]


# --8<-- [start:calibration]
def expected_calibration_error(confidences: Sequence[float], correct: Sequence[int], bins: int = 15) -> float:
    """ECE = Σ (桶内样本占比)·|桶内正确率 − 桶内平均置信度|，等宽分桶（Guo 2017）。

    >>> round(expected_calibration_error([0.9] * 10, [1] * 6 + [0] * 4), 3)       # 说九成把握，只对六成
    0.3
    """
    if not confidences or len(confidences) != len(correct) or bins < 1:
        raise ValueError("须有等长、非空的 confidences 与 correct，且 bins ≥ 1")
    if not all(0 <= c <= 1 for c in confidences):
        raise ValueError("confidences 须在 [0, 1] 内")
    if set(correct) - {0, 1}:
        raise ValueError("correct 须是 0 或 1")
    hits, total = [0.0] * bins, [0.0] * bins
    for confidence, hit in zip(confidences, correct, strict=True):
        index = min(bins - 1, int(confidence * bins))
        hits[index] += hit
        total[index] += confidence
    return math.fsum(abs(h - c) for h, c in zip(hits, total, strict=True)) / len(confidences)


Question = tuple[list[float], int]


def questions(n: int, scale: float, seed: int) -> list[Question]:
    """n 道四选一：真实的 logits 独立服从 N(0, 1.5²)，答案按其 softmax 抽；模型报出的是真实 logits × scale（2 就是过度自信）。"""
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        z = [rng.gauss(0, 1.5) for _ in range(4)]
        (answer,) = rng.choices(range(4), weights=[math.exp(v) for v in z])
        out.append(([scale * v for v in z], answer))
    return out


def evaluate(data: Sequence[Question], temperature: float = 1.0) -> tuple[float, float, float]:
    """返回 (正确率, ECE, 负对数似然)；置信度是除以温度后的最大概率。"""
    if not data or not temperature > 0:
        raise ValueError(f"data 不能为空，temperature 必须为正，收到 {len(data), temperature}")
    confidences, correct, nll = [], [], []
    for z, answer in data:
        top = max(z)
        weights = [math.exp((v - top) / temperature) for v in z]
        total = math.fsum(weights)
        confidences.append(1 / total)
        correct.append(int(z.index(top) == answer))
        nll.append(math.log(total) - (z[answer] - top) / temperature)
    return sum(correct) / len(data), expected_calibration_error(confidences, correct), math.fsum(nll) / len(data)


def fit_temperature(data: Sequence[Question]) -> float:
    """温度缩放：在验证集上找使负对数似然最小的 T（在 ln T 上三分；它对 1/T 是凸的）。"""
    low, high = math.log(0.05), math.log(20)
    for _ in range(40):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if evaluate(data, math.exp(a))[2] < evaluate(data, math.exp(b))[2]:
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)


def calibration_table() -> list[tuple[str, float, float, float]]:
    """(情形, 正确率, ECE, 负对数似然)；测试集 20000 题，温度在另外 1000 题上拟合。

    >>> for name, accuracy, ece, nll in calibration_table():
    ...     print(f"{name}  正确率 {accuracy:.3f}  ECE {ece:.3f}  负对数似然 {nll:.3f}")
    校准  正确率 0.608  ECE 0.010  负对数似然 0.935
    过度自信（logits × 2）  正确率 0.608  ECE 0.168  负对数似然 1.110
    过度自信，再除以拟合的 T = 1.96  正确率 0.608  ECE 0.014  负对数似然 0.936
    永远选 A、说 1/4  正确率 0.255  ECE 0.004  负对数似然 1.386
    校准，但只测 200 题  正确率 0.630  ECE 0.079  负对数似然 0.939
    """
    test = questions(20_000, 2.0, seed=0)
    temperature = fit_temperature(questions(1000, 2.0, seed=1))
    blind = [int(answer == 0) for _, answer in test]
    return [
        ("校准", *evaluate(test, 2.0)),
        ("过度自信（logits × 2）", *evaluate(test)),
        (f"过度自信，再除以拟合的 T = {temperature:.2f}", *evaluate(test, temperature)),
        ("永远选 A、说 1/4", sum(blind) / len(blind), expected_calibration_error([0.25] * len(blind), blind), math.log(4)),
        ("校准，但只测 200 题", *evaluate(test[:200], 2.0)),
    ]


# --8<-- [end:calibration]


# --8<-- [start:winrate]
def beta_tail(a: int, b: int, x: float) -> float:
    """P(θ > x)，θ ~ Beta(a, b)，a、b 为正整数：恰等于 P(Bin(a + b − 1, x) ≤ a − 1)，逐项相加，没有数值积分。"""
    if a < 1 or b < 1 or not 0 <= x <= 1:
        raise ValueError(f"须有正整数 a、b 与 [0, 1] 内的 x，收到 {a, b, x}")
    if x in (0.0, 1.0):
        return 1.0 - x
    n = a + b - 1
    terms = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(x) + (n - i) * math.log1p(-x) for i in range(a)
    )
    return min(1.0, math.fsum(map(math.exp, terms)))


def probability_better(wins: int, losses: int, prior: int = 1) -> float:
    """成对比较的胜率 θ 取先验 Beta(prior, prior)（1 是均匀），返回 P(θ > ½ | 数据)。平局各记半局后取整，或丢弃。

    >>> for wins, losses in ((6, 4), (60, 40), (220, 180), (600, 400)):
    ...     print(f"{wins:3} 胜 {losses:3} 负", *(f"Beta({k}, {k}) {probability_better(wins, losses, k):.3f}" for k in (1, 50)))
      6 胜   4 负 Beta(1, 1) 0.726 Beta(50, 50) 0.576
     60 胜  40 负 Beta(1, 1) 0.977 Beta(50, 50) 0.922
    220 胜 180 负 Beta(1, 1) 0.977 Beta(50, 50) 0.963
    600 胜 400 负 Beta(1, 1) 1.000 Beta(50, 50) 1.000
    """
    if wins < 0 or losses < 0 or prior < 1:
        raise ValueError(f"须有 wins、losses ≥ 0，prior ≥ 1，收到 {wins, losses, prior}")
    return beta_tail(prior + wins, prior + losses, 0.5)


def credible_interval(wins: int, losses: int, level: float = 0.95) -> tuple[float, float]:
    """均匀先验下 θ 的等尾可信区间，二分求分位数。

    >>> for wins, losses in ((6, 4), (10, 0)):                                 # 对照：p ± 1.96·√(p(1−p)/n)
    ...     p, n = wins / (wins + losses), wins + losses
    ...     half = 1.96 * math.sqrt(p * (1 - p) / n)
    ...     print([round(x, 3) for x in credible_interval(wins, losses)], [round(p - half, 3), round(p + half, 3)])
    [0.308, 0.833] [0.296, 0.904]
    [0.715, 0.998] [1.0, 1.0]
    """
    if wins < 0 or losses < 0 or not 0 < level < 1:
        raise ValueError(f"须有 wins、losses ≥ 0，level 在 (0, 1)，收到 {wins, losses, level}")

    def quantile(above: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if beta_tail(1 + wins, 1 + losses, middle) > above else (low, middle)
        return low

    return quantile((1 + level) / 2), quantile((1 - level) / 2)


def detector_precision(base_rate: float, recall: float, false_positive_rate: float) -> float:
    """P(真是 | 报了) = 召回·基率 / (召回·基率 + 误报率·(1 − 基率))。

    >>> [round(detector_precision(rate, 0.95, 0.05), 3) for rate in (0.01, 0.1, 0.3)]
    [0.161, 0.679, 0.891]
    """
    if not all(0 <= x <= 1 for x in (base_rate, recall, false_positive_rate)):
        raise ValueError("三个比率都须在 [0, 1] 内")
    flagged = recall * base_rate + false_positive_rate * (1 - base_rate)
    if flagged == 0:
        raise ValueError("检测器从不报，精确率没有定义")
    return recall * base_rate / flagged


# --8<-- [end:winrate]


# --8<-- [start:naive]
def log_odds(words: Sequence[str], good: Mapping[str, int], bad: Mapping[str, int], smoothing: float = 1.0) -> float:
    """朴素贝叶斯：ln P(词 | 好) − ln P(词 | 坏)，词袋多项式、加一平滑、两类先验相等。good、bad 是两类语料的词频。"""
    vocabulary = {*good, *bad}
    if not vocabulary or smoothing <= 0:
        raise ValueError("词频不能为空，smoothing 必须为正")
    a, b = (sum(counts.values()) + smoothing * len(vocabulary) for counts in (good, bad))
    return math.fsum(
        math.log((good.get(w, 0) + smoothing) / a) - math.log((bad.get(w, 0) + smoothing) / b) for w in words if w in vocabulary
    )


def repetition_is_not_evidence() -> list[tuple[int, float]]:
    """反例：“朴素贝叶斯给出的概率可以直接当质量分用”。同一句话重复几遍，没有新信息，后验却冲向 1：(遍数, P(好 | 文本))。

    >>> [(times, round(p, 4)) for times, p in repetition_is_not_evidence()]
    [(1, 0.6667), (3, 0.8889), (10, 0.999)]
    """
    good = Counter({"theorem": 3, "click": 1, "the": 10})
    bad = Counter({"theorem": 1, "click": 3, "the": 10})
    sentence = ["the", "theorem", "the", "theorem", "click"]
    odds = [(times, log_odds(sentence * times, good, bad)) for times in (1, 3, 10)]
    return [(times, 1 / (1 + math.exp(-x))) for times, x in odds]


# --8<-- [end:naive]


# --8<-- [start:tilt]
def rlhf_optimum(reference: Sequence[float], rewards: Sequence[float], beta: float) -> list[float]:
    """max E_π[r] − β·KL(π‖π_ref) 的解 π* ∝ π_ref·e^{r/β}：形式上是先验乘似然。

    >>> [round(p, 3) for p in rlhf_optimum([0.7, 0.2, 0.1], [0.0, 0.0, 1.0], beta=0.25)]     # 似然比 e⁴
    [0.11, 0.031, 0.858]
    """
    if len(reference) != len(rewards) or not beta > 0:
        raise ValueError(f"reference 与 rewards 须等长，beta 必须为正，收到 {len(reference), len(rewards), beta}")
    if not all(r < math.inf for r in rewards) or max(rewards, default=-math.inf) == -math.inf:
        raise ValueError("rewards 须非空、不含 NaN 或 +inf，且至少一个有限")
    top = max(rewards)
    names = [str(i) for i in range(len(reference))]
    evidence = {name: math.exp((r - top) / beta) for name, r in zip(names, rewards, strict=True)}
    return list(posterior(dict(zip(names, reference, strict=True)), [evidence]).values())


# --8<-- [end:tilt]


def figure_in_context() -> str:
    """四种情形的学习曲线。"""
    return lines(
        {name: [(n, right) for n, (right, _) in enumerate(curve)] for name, curve in learning_curves().items()},
        title="精确的贝叶斯预测：给正确答案的概率随示例数的变化",
        x_label="示例数",
        y_label="给正确答案的概率",
        y_range=(0, 1),
        y_refs={"噪声决定的上限 0.91": 0.91},
        markers=True,
    )
