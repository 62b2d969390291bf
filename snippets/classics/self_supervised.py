"""自监督：标签从输入自己造出来。三种造法与对比学习的损失（只用标准库）。"""

import math
from collections.abc import Sequence
from random import Random


# --8<-- [start:targets]
def next_token(tokens: Sequence[str]) -> list[tuple[list[str], str]]:
    """自回归：每个前缀预测下一个，n 个 token 得 n − 1 个样本。

    >>> next_token("我 爱 自 监 督".split())[-1]
    (['我', '爱', '自', '监'], '督')
    """
    return [(list(tokens[:i]), tokens[i]) for i in range(1, len(tokens))]


def masked_token(tokens: Sequence[str], at: Sequence[int]) -> tuple[list[str], dict[int, str]]:
    """掩码：挖掉 at 里的位置，标签是被挖掉的词。

    >>> masked_token("我 爱 自 监 督".split(), [1, 3])
    (['我', '[MASK]', '自', '[MASK]', '督'], {1: '爱', 3: '监'})
    """
    if any(not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < len(tokens) for i in at) or len(set(at)) < len(at):
        raise ValueError(f"位置 {list(at)} 须为互不相同的整数，且小于长度 {len(tokens)}")
    return ["[MASK]" if i in at else t for i, t in enumerate(tokens)], {i: tokens[i] for i in at}


# --8<-- [end:targets]


# --8<-- [start:contrastive]
def info_nce(similarities: Sequence[Sequence[float]], temperature: float = 0.07) -> float:
    """对比学习：第 i 行是样本 i 与 batch 里每个候选的相似度，对角线是正样本对。返回平均交叉熵（nat）。

    全都分不开时是 ln n；它给互信息一个下界 ln n − loss，所以下界最多 ln n（van den Oord 2018）。

    >>> n = 4
    >>> round(info_nce([[0.0] * n for _ in range(n)]), 3), round(math.log(n), 3)
    (1.386, 1.386)
    >>> round(info_nce([[1.0 if i == j else 0.0 for j in range(n)] for i in range(n)]), 6)
    2e-06
    """
    n = len(similarities)
    if n == 0 or any(len(row) != n for row in similarities):
        raise ValueError("相似度须是非空方阵")
    if not 0 < temperature < math.inf:
        raise ValueError(f"温度必须为正且有限，收到 {temperature}")
    if not all(math.isfinite(s / temperature) for row in similarities for s in row):
        raise ValueError("相似度除以温度后须有限")
    losses = []
    for i, row in enumerate(similarities):
        scaled = [s / temperature for s in row]
        top = max(scaled)
        losses.append(top + math.log(math.fsum(math.exp(s - top) for s in scaled)) - scaled[i])
    return math.fsum(losses) / n


# --8<-- [end:contrastive]


# --8<-- [start:collapse]
def alignment_only(steps: int = 200, lr: float = 0.1, seed: int = 0) -> tuple[float, float]:
    """只拉近正样本对、没有负样本也没有别的约束：两个视图各是 w·x 与 w·(x + 噪声)，最小化差的平方。

    x 的标准差是 1，返回（开始时、结束时）表示 w·x 的标准差 |w|：一路缩到 0，所有样本变成同一点，即坍缩。

    >>> tuple(round(s, 3) for s in alignment_only())
    (1.0, 0.0)
    """
    if steps < 0 or not 0 < lr <= 1:
        raise ValueError(f"须 steps ≥ 0、0 < lr ≤ 1，收到 {steps}、{lr}")
    random = Random(seed)
    noise = [random.gauss(0, 0.5) for _ in range(256)]
    w = start = 1.0
    for _ in range(steps):
        w -= lr * math.fsum(2 * w * e * e for e in noise) / len(noise)
    return start, abs(w)


# --8<-- [end:collapse]
