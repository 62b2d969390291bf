"""困惑度与交叉熵：四种等价的算法、熵加 KL 的分解、算术编码的码长、切分的边缘化（只用标准库）。"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction


def _distribution(p: Sequence[float], name: str) -> None:
    if not p or not all(0 <= x <= 1 for x in p) or abs(math.fsum(p) - 1) > 1e-9:
        raise ValueError(f"{name} 须是概率分布，收到 {list(p)}")


# --8<-- [start:identity]
def perplexities(probs: Sequence[float]) -> dict[str, float]:
    """真实 token 各得概率 probs 时，困惑度的四种算法：e 的 nat 次方、2 的 bit 次方、倒数的几何平均、整段概率的 −1/T 次方。

    >>> {name: round(v, 6) for name, v in perplexities([0.5, 0.1, 0.9, 0.25]).items()}
    {'e^nat': 3.07052, '2^bit': 3.07052, '几何平均': 3.07052, '整段': 3.07052}
    """
    if not probs or not all(0 < p <= 1 for p in probs):
        raise ValueError("每个概率须在 (0, 1]")
    if math.prod(probs) == 0:
        raise ValueError("整段概率下溢成 0：所以要在对数里求和")
    count = len(probs)
    nats = -math.fsum(map(math.log, probs)) / count
    bits = -math.fsum(map(math.log2, probs)) / count
    geometric = math.prod((1 / p) ** (1 / count) for p in probs)
    return {"e^nat": math.exp(nats), "2^bit": 2**bits, "几何平均": geometric, "整段": math.prod(probs) ** (-1 / count)}


def decomposition(p: Sequence[float], q: Sequence[float]) -> tuple[float, float, float]:
    """数据分布 p、模型 q：（e^{H(p)}, e^{KL(p‖q)}, e^{CE}），前两个的积是第三个。q 漏掉 p 的支撑时后两个是 inf。

    >>> floor, excess, ppl = decomposition([0.5, 0.25, 0.25], [0.25, 0.25, 0.5])
    >>> round(floor, 4), round(excess, 4), round(ppl, 4), math.isclose(floor * excess, ppl)
    (2.8284, 1.1892, 3.3636, True)
    """
    _distribution(p, "p")
    _distribution(q, "q")
    if len(p) != len(q):
        raise ValueError(f"p 与 q 的长度不同：{len(p)}、{len(q)}")
    entropy = -math.fsum(a * math.log(a) for a in p if a)
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return math.exp(entropy), math.inf, math.inf
    cross = -math.fsum(a * math.log(b) for a, b in zip(p, q, strict=True) if a)
    return math.exp(entropy), math.exp(cross - entropy), math.exp(cross)


# --8<-- [end:identity]


# --8<-- [start:coding]
def _interval(symbols: Sequence[int], model: Sequence[Sequence[Fraction]]) -> tuple[Fraction, Fraction]:
    low, width = Fraction(0), Fraction(1)
    for symbol, q in zip(symbols, model, strict=True):
        low += width * sum(q[:symbol], Fraction(0))
        width *= q[symbol]
    return low, width


def encode(symbols: Sequence[int], model: Sequence[Sequence[Fraction]]) -> str:
    """算术编码：把整段序列变成 0/1 串，长度恰为 ⌈−log₂ P⌉ + 1，P 是模型给整段的概率；model[t] 是第 t 步的分布。

    >>> half, quarter = Fraction(1, 2), Fraction(1, 4)
    >>> model = [[half, quarter, quarter]] * 8
    >>> code = encode([0, 0, 1, 0, 2, 0, 0, 0], model)
    >>> len(code), decode(code, model)                              # 6 个 1 bit、2 个 2 bit，加 1
    (11, [0, 0, 1, 0, 2, 0, 0, 0])
    """
    if len(symbols) != len(model) or any(sum(q) != 1 or min(q) < 0 for q in model):
        raise ValueError("每个符号须有一个分布，各分布的和须恰为 1")
    if any(s not in range(len(q)) or q[s] == 0 for s, q in zip(symbols, model, strict=True)):
        raise ValueError("有的符号概率为 0 或不在分布里，码长无穷")
    low, width = _interval(symbols, model)
    bits = 0
    while Fraction(1, 2**bits) > width:  # 2^−bits ≤ P，再多 1 位，格点宽的区间必落在 [low, low + width) 内
        bits += 1
    bits += 1
    point = -(-low.numerator * 2**bits // low.denominator)  # ⌈low·2^bits⌉
    return format(point, f"0{bits}b")


def decode(code: str, model: Sequence[Sequence[Fraction]]) -> list[int]:
    """还原 encode 的序列；要同一个模型、同样的长度。"""
    value = Fraction(int(code, 2), 2 ** len(code))
    symbols = []
    for q in model:
        edge = Fraction(0)
        for symbol, share in enumerate(q):
            if edge <= value < edge + share:
                symbols.append(symbol)
                value = (value - edge) / share
                break
            edge += share
    return symbols


# --8<-- [end:coding]


# --8<-- [start:segments]
def log_probabilities(text: str, vocabulary: Mapping[str, float]) -> tuple[float, float]:
    """一元的 token 模型（含结束概率，略去）下，同一字符串的 ln p：（最可能的一种切法, 所有切法之和）。后者不小于前者。

    >>> vocabulary = {"a": 0.3, "b": 0.3, "ab": 0.3, "aba": 0.1}
    >>> one, every = log_probabilities("abab", vocabulary)
    >>> round(one, 3), round(every, 3)                              # 只算一种切法，每字符多报 0.18 nat
    (-2.408, -1.703)
    """
    if not text or not vocabulary or not all(token and 0 < p <= 1 for token, p in vocabulary.items()):
        raise ValueError("text、词表与其中的 token 须非空，概率在 (0, 1]")
    best, total = [0.0] + [-math.inf] * len(text), [1.0] + [0.0] * len(text)
    for end in range(1, len(text) + 1):
        for token, p in vocabulary.items():
            start = end - len(token)
            if start >= 0 and text[start:end] == token:
                best[end] = max(best[end], best[start] + math.log(p))
                total[end] += total[start] * p
    if total[-1] == 0:
        raise ValueError(f"词表切不出 {text!r}")
    return best[-1], math.log(total[-1])


# --8<-- [end:segments]


# --8<-- [start:change]
def what_a_loss_drop_means(drop: float, tokens: float = 1e12) -> dict[str, float]:
    """每 token 的损失降了 drop nat：困惑度乘几，文本平均更可能几倍（每 1000 token），tokens 个 token 少多少 GB 的码长。

    >>> what_a_loss_drop_means(0.01)
    {'困惑度乘': 0.99005, '每千 token 更可能': 22026.5, '少 GB': 1.8}
    """
    if not math.isfinite(drop) or not 0 < tokens < math.inf:
        raise ValueError(f"drop 须有限、tokens 须为正，收到 {drop}、{tokens}")
    return {
        "困惑度乘": round(math.exp(-drop), 5),
        "每千 token 更可能": round(math.exp(1000 * drop), 1),
        "少 GB": round(drop / math.log(2) * tokens / 8 / 1e9, 1),
    }


# --8<-- [end:change]
