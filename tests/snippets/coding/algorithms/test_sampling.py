"""The sampler against brute force, the batched PyTorch one and frequencies, and the bugs that people make."""

import itertools
import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.coding.algorithms import sampling as module
from snippets.coding.algorithms.sampling import candidates, kept_by_threshold, nucleus_below, sample
from snippets.math.algorithms.top_k_sampling_batched import truncate
from tests.snippets.coding.bugs import with_bug

LOGITS = [1.0, 3.0, 2.0, 2.0, -1.0, 0.5, -math.inf, 2.5]


ONE_LOGIT = st.one_of(st.integers(-60, 60).map(lambda n: n / 2), st.just(-math.inf))
SOME_LOGITS = st.lists(ONE_LOGIT, min_size=1, max_size=30).filter(lambda logits: max(logits) > -math.inf)


def softmax(logits, temperature=1.0):
    top = max(logits)
    weights = [math.exp((x - top) / temperature) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def smallest_set(probs, p):
    """Brute force over all subsets: the fewest tokens with at least p; of those, the likeliest."""
    for size in range(1, len(probs) + 1):
        best = max(itertools.combinations(range(len(probs)), size), key=lambda tokens: math.fsum(probs[i] for i in tokens))
        if math.fsum(probs[i] for i in best) >= p - 1e-12:
            return set(best)
    return set(range(len(probs)))


class Always:
    """A source of one fixed uniform number."""

    def __init__(self, u):
        self.u = u

    def random(self):
        return self.u


def check(m):
    """What a module like sampling.py must satisfy."""
    finite = [x for x in LOGITS if x > -math.inf]
    for temperature, p in itertools.product((0.5, 1.0, 2.0), (0.1, 0.35, 0.6, 0.9, 1.0)):
        probs = softmax(finite, temperature)
        kept = m.candidates(finite, temperature, top_p=p)
        assert {token for token, _ in kept} == smallest_set(probs, p)
        mass = math.fsum(probs[token] for token, _ in kept)
        assert [q for _, q in kept] == pytest.approx([probs[token] / mass for token, _ in kept])
    for k in (1, 3, 4, 100):
        kept = m.candidates(LOGITS, top_k=k)
        assert [token for token, _ in kept] == [1, 7, 2, 3, 0, 5, 4][:k]
    both = m.candidates(LOGITS, top_k=3, top_p=0.65)  # of the three, renormalized: 0.506, 0.307, 0.186
    assert [token for token, _ in both] == [1, 7]
    assert m.candidates([1000.0, 999.0, -1e5], 0.5)[0][1] == pytest.approx(1 / (1 + math.exp(-2)))
    assert m.candidates(LOGITS, temperature=0) == [(1, 1.0)]
    edges = list(itertools.accumulate(q for _, q in m.candidates(LOGITS, top_k=3)))
    for u, expected in ((0.0, 1), (edges[0] - 1e-9, 1), (edges[0] + 1e-9, 7), (edges[1] + 1e-9, 2), (1 - 2**-53, 2)):
        assert m.sample(LOGITS, Always(u), top_k=3) == expected


def test_module_satisfies_the_check():
    check(module)


EVERYTHING = "math.fsum(math.exp((x - max(logits)) / (temperature or 1.0)) for x in logits)"
BUGS = {
    "prefix below p": ("and mass < top_p * total:", "and mass + weights[kept] <= top_p * total:"),
    "p against unnormalized weights": ("mass < top_p * total", "mass < top_p"),
    "no maximum subtracted": ("(logits[i] - logits[order[0]]) / (temperature or 1.0)", "logits[i] / (temperature or 1.0)"),
    "temperature multiplied": ("logits[order[0]]) / (temperature or 1.0)", "logits[order[0]]) * (temperature or 1.0)"),
    "not renormalized": ("(token, weight / mass)", "(token, weight / total)"),
    "ascending": ("key=lambda i: (-logits[i], i)", "key=lambda i: (logits[i], i)"),
    "p of what top-k cut off too": ("total, mass, kept = math.fsum(weights)", f"total, mass, kept = {EVERYTHING}"),
    "first token never ends": ("        if u < 0:\n            return token", "        if u > 0:\n            return token"),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises((AssertionError, OverflowError)):
        check(with_bug(module, change))


@settings(deadline=None, max_examples=60)
@given(
    SOME_LOGITS,
    st.floats(0.05, 5), st.integers(0, 40), st.floats(0.01, 1),
)  # fmt: skip
def test_same_candidates_as_the_batched_one(logits, temperature, top_k, top_p):
    mine = dict(candidates(logits, temperature, top_k, top_p))
    row = truncate(
        torch.tensor([logits], dtype=torch.float64),
        torch.tensor([temperature]),
        torch.tensor([top_k or 99]),
        torch.tensor([top_p]),
        torch.zeros(1),
    )
    theirs = {i: p for i, p in enumerate(row.softmax(-1)[0].tolist()) if p > 1e-6}
    # fp32 may place one borderline token otherwise; the rest agrees
    assert len(set(theirs) ^ {i for i, p in mine.items() if p > 1e-6}) <= 1
    for token in set(theirs) & set(mine):
        assert mine[token] == pytest.approx(theirs[token], abs=0.02 if len(theirs) != len(mine) else 1e-4)


def test_frequencies():
    """χ² over 20 000 draws: the 99.9 % point of 3 degrees of freedom is 16.3."""
    random, n = Random(0), 20_000
    kept = candidates(LOGITS, 0.8, top_k=4)
    counts = dict.fromkeys((token for token, _ in kept), 0)
    for _ in range(n):
        counts[sample(LOGITS, random, 0.8, top_k=4)] += 1
    assert math.fsum((counts[token] - n * p) ** 2 / (n * p) for token, p in kept) < 16.3


def test_low_temperature_approaches_the_maximum_and_never_overflows():
    assert candidates([0.0, 1.0, 1.0], 1e-300) == [(1, 0.5), (2, 0.5)]
    assert sample([1e308, -1e308], Random(0), 5e-324) == 0
    assert candidates([7.0], 3.0, 5, 0.1) == [(0, 1.0)]


def test_wrong_sets():
    assert kept_by_threshold([2.0, 1.0, 1.0], 2) == 3
    assert nucleus_below([0.95, 0.05], 0.9) == 0
    with pytest.raises(ValueError, match="k 须在"):
        kept_by_threshold([1.0], 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ([],), ([math.nan, 1.0],), ([math.inf],), ([-math.inf],), ([1.0], -1.0), ([1.0], math.nan), ([1.0], math.inf),
        ([1.0], 1.0, -1), ([1.0], 1.0, True), ([1.0], 1.0, 0, 1.1), ([1.0], 1.0, 0, -0.1), ([1.0], 1.0, 0, math.nan),
    ],
)  # fmt: skip
def test_rejects(arguments):
    with pytest.raises(ValueError, match=r"不能为空|要求"):
        candidates(*arguments)
