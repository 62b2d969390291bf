"""Perplexity's identities, a code whose length is the cross-entropy, and segmentations by enumeration."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.derivations.probability.perplexity_identity import (
    decode,
    decomposition,
    encode,
    log_probabilities,
    perplexities,
    what_a_loss_drop_means,
)
from snippets.math.probability.perplexity import perplexity

probabilities = st.lists(st.floats(1e-3, 1), min_size=1, max_size=40)


@given(probabilities)
def test_four_ways_are_one(probs):
    values = list(perplexities(probs).values())
    assert values == pytest.approx([values[0]] * 4, rel=1e-9)
    assert values[0] == pytest.approx(perplexity([math.log(p) for p in probs]))
    assert 1 / max(probs) - 1e-9 <= values[0] <= 1 / min(probs) + 1e-9


def test_it_is_exp_of_torchs_loss():
    torch.manual_seed(0)
    logits, targets = torch.randn(50, 11, dtype=torch.float64), torch.randint(0, 11, (50,))
    probs = logits.softmax(-1)[torch.arange(50), targets].tolist()
    expected = math.exp(torch.nn.functional.cross_entropy(logits, targets).item())
    assert perplexities(probs)["e^nat"] == pytest.approx(expected)


def test_arithmetic_mean_of_the_inverses_is_another_number():
    probs = [0.5, 0.01]
    assert sum(1 / p for p in probs) / 2 == 51
    assert perplexities(probs)["几何平均"] == pytest.approx(math.sqrt(200))


def test_a_long_text_underflows_but_its_logarithms_do_not():
    with pytest.raises(ValueError, match="下溢"):
        perplexities([0.1] * 400)
    assert perplexity([math.log(0.1)] * 400) == pytest.approx(10)


@st.composite
def two_distributions(draw):
    size = draw(st.integers(1, 12))
    raw = [draw(st.lists(st.floats(0.01, 1), min_size=size, max_size=size)) for _ in range(2)]
    return [[x / math.fsum(row) for x in row] for row in raw]


@given(two_distributions())
def test_entropy_times_divergence(pair):
    p, q = pair
    floor, excess, ppl = decomposition(p, q)
    assert floor * excess == pytest.approx(ppl)
    assert 1 - 1e-9 <= floor <= len(p) * (1 + 1e-9)
    assert excess >= 1 - 1e-9
    assert decomposition(p, p)[1] == pytest.approx(1)


def test_missing_support_is_infinite_and_unused_support_is_not():
    assert decomposition([0.5, 0.5], [1.0, 0.0])[2] == math.inf
    assert decomposition([1.0, 0.0], [0.5, 0.5])[2] == pytest.approx(2)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_code_length_is_the_cross_entropy_and_it_decodes(data):
    length, size = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 6))
    model = []
    for _ in range(length):
        weights = data.draw(st.lists(st.integers(1, 50), min_size=size, max_size=size))
        model.append([Fraction(w, sum(weights)) for w in weights])
    symbols = [data.draw(st.integers(0, size - 1)) for _ in range(length)]
    code = encode(symbols, model)
    assert decode(code, model) == symbols
    bits = -math.fsum(math.log2(q[s]) for s, q in zip(symbols, model, strict=True))
    assert bits - 1e-6 <= len(code) <= bits + 2 + 1e-6


def test_a_thousand_symbols_cost_their_entropy():
    """Two bits a symbol against the uniform code, 1.75 by the right model: the excess is the KL divergence."""
    p = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 8)]
    symbols = [0, 0, 0, 0, 1, 1, 2, 3] * 125
    assert len(encode(symbols, [p] * 1000)) == 1751
    assert len(encode(symbols, [[Fraction(1, 4)] * 4] * 1000)) == 2001


def _segmentations(text, vocabulary):
    if not text:
        return [[]]
    return [[t, *rest] for t in vocabulary if text.startswith(t) for rest in _segmentations(text[len(t) :], vocabulary)]


@given(st.text("ab", min_size=1, max_size=9))
def test_segmentations_by_enumeration(text):
    vocabulary = {"a": 0.3, "b": 0.3, "ab": 0.2, "aba": 0.1, "bb": 0.1}
    scores = [math.prod(vocabulary[t] for t in tokens) for tokens in _segmentations(text, vocabulary)]
    one, every = log_probabilities(text, vocabulary)
    assert one == pytest.approx(math.log(max(scores)))
    assert every == pytest.approx(math.log(math.fsum(scores)))


def test_a_loss_drop():
    assert what_a_loss_drop_means(0.0) == {"困惑度乘": 1.0, "每千 token 更可能": 1.0, "少 GB": 0.0}
    assert what_a_loss_drop_means(math.log(2), 8e9)["少 GB"] == 1.0


def test_rejects():
    half = Fraction(1, 2)
    calls = [
        lambda: perplexities([]),
        lambda: perplexities([0.0]),
        lambda: perplexities([1.1]),
        lambda: decomposition([0.5, 0.6], [0.5, 0.5]),
        lambda: decomposition([0.5, 0.5], [1.0]),
        lambda: decomposition([math.nan, 1.0], [0.5, 0.5]),
        lambda: encode([0], []),
        lambda: encode([2], [[half, half]]),
        lambda: encode([0], [[Fraction(0), Fraction(1)]]),
        lambda: encode([0], [[half, Fraction(1, 3)]]),
        lambda: log_probabilities("", {"a": 1.0}),
        lambda: log_probabilities("c", {"a": 1.0}),
        lambda: what_a_loss_drop_means(math.nan),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|不同|切不出|码长"):
            call()
