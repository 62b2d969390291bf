"""BERT 的掩码语言模型：选 15%，其中 80/10/10，损失只算被选中的（只用标准库）。"""

from collections.abc import Sequence
from random import Random

IGNORE = -100  # 不算损失的位置，与 PyTorch 的 ignore_index 一致


# --8<-- [start:mask]
def mask_tokens(
    tokens: Sequence[int],
    random: Random,
    *,
    vocabulary: int,
    mask_id: int,
    special: frozenset[int] = frozenset(),
    rate: float = 0.15,
) -> tuple[list[int], list[int]]:
    """返回（输入，标签）：每个非特殊 token 以 rate 的概率被选中；选中的 80% 换成 mask_id、10% 换成随机词、10% 不变。

    标签在选中的位置是原 token，其余是 −100，不算损失。

    >>> inputs, labels = mask_tokens(range(1000, 101_000), Random(0), vocabulary=200_000, mask_id=0)
    >>> chosen = [i for i, label in enumerate(labels) if label != IGNORE]
    >>> share = lambda test: round(sum(map(test, chosen)) / len(chosen), 2)
    >>> round(len(chosen) / len(labels), 2), share(lambda i: inputs[i] == 0), share(lambda i: inputs[i] == labels[i])
    (0.15, 0.8, 0.1)
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate 必须在 [0, 1] 内，收到 {rate}")
    if not 0 <= mask_id < vocabulary:
        raise ValueError(f"mask_id {mask_id} 不在词表 {vocabulary} 内")
    bad = [t for t in tokens if not isinstance(t, int) or isinstance(t, bool) or not 0 <= t < vocabulary]
    if bad:
        raise ValueError(f"token 须为 [0, {vocabulary}) 内的整数，收到 {bad[0]!r}")
    inputs, labels = list(tokens), [IGNORE] * len(tokens)
    for i, token in enumerate(tokens):
        if token in special or random.random() >= rate:
            continue
        labels[i] = token
        dice = random.random()
        if dice < 0.8:
            inputs[i] = mask_id
        elif dice < 0.9:
            inputs[i] = random.randrange(vocabulary)
    return inputs, labels


# --8<-- [end:mask]


# --8<-- [start:signal]
def trained_positions(length: int, objective: str) -> float:
    """一条长 length 的序列平均有几个位置贡献损失。

    >>> {name: trained_positions(512, name) for name in ("MLM 15%", "MLM 40%", "CLM", "ELECTRA")}
    {'MLM 15%': 76.8, 'MLM 40%': 204.8, 'CLM': 511, 'ELECTRA': 512}
    """
    if length < 1:
        raise ValueError(f"length 须为正，收到 {length}")
    shares = {"MLM 15%": 0.15 * length, "MLM 40%": 0.4 * length, "CLM": length - 1, "ELECTRA": length}
    if objective not in shares:
        raise ValueError(f"objective 须为 {'、'.join(shares)}，收到 {objective!r}")
    return shares[objective]


# --8<-- [end:signal]
