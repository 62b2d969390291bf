"""The top-p distribution against brute force, scipy-free divergences, torch, sampling and enumeration of whole sequences."""

import itertools
import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from snippets.derivations.probability.nucleus import (
    at_most_p,
    by_rejection,
    kl_to_original,
    local_is_not_global,
    nucleus,
    rounding_keeps_one_more,
    sequence_bounds,
    sizes_by_temperature,
    threshold_of,
)
from snippets.math.algorithms.top_k_sampling import softmax, top_k_filter, top_p_filter

PROBS = st.lists(st.integers(1, 40), min_size=1, max_size=7).map(lambda ws: [w / sum(ws) for w in ws])
P = st.floats(0.01, 0.99)


def clear_of_ties(probs, p):
    """No partial sum within 1e-9 of p, where rounding decides."""
    assume(all(abs(s - p) > 1e-9 for s in np.cumsum(sorted(probs, reverse=True))))


@settings(deadline=None, max_examples=40)
@given(PROBS, P)
def test_no_smaller_set_reaches_p_and_none_as_small_holds_more(probs, p):
    clear_of_ties(probs, p)
    found = nucleus(probs, p)
    sets = [s for n in range(1, len(probs) + 1) for s in itertools.combinations(range(len(probs)), n)]
    mass = {s: math.fsum(probs[i] for i in s) for s in sets}
    smallest = min(len(s) for s in sets if mass[s] >= p)
    assert found["k"] == smallest
    assert found["Z"] == pytest.approx(max(mass[s] for s in sets if len(s) == smallest))


@settings(deadline=None, max_examples=40)
@given(PROBS, P)
def test_mass_bounds_and_the_exclusive_sum_rule(probs, p):
    clear_of_ties(probs, p)
    found, order = nucleus(probs, p), sorted(probs, reverse=True)
    last = order[int(found["k"]) - 1]
    assert p - 1e-12 <= found["Z"] < p + last + 1e-12
    assert last <= found["Z"] / found["k"] + 1e-12
    before = np.cumsum(order) - order  # mass ranked above each token: kept iff it is still below p
    assert int((before < p - 1e-12).sum()) == found["k"]


@settings(deadline=None, max_examples=40)
@given(PROBS, P)
def test_distances_to_the_original(probs, p):
    found, q = nucleus(probs, p), top_p_filter(probs, p)
    assert found["TV"] == pytest.approx(1 - found["Z"], abs=1e-12)
    assert found["TV"] <= 1 - p + 1e-12
    assert found["KL"] == pytest.approx(-math.log(found["Z"]), abs=1e-12)
    worst_event = max(
        abs(math.fsum(q[i] - probs[i] for i in s)) for n in range(len(q) + 1) for s in itertools.combinations(range(len(q)), n)
    )
    assert worst_event == pytest.approx(found["TV"], abs=1e-12)
    reference = torch.nn.functional.kl_div(torch.tensor(probs).double().log(), torch.tensor(q).double(), reduction="sum")
    assert found["KL"] == pytest.approx(reference.item(), abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(PROBS, P, st.integers(0, 1000))
def test_the_renormalized_distribution_is_the_kl_projection(probs, p, seed):
    q = np.array(top_p_filter(probs, p))
    candidate = np.where(q > 0, np.random.default_rng(seed).random(len(q)) + 1e-3, 0)
    candidate /= candidate.sum()
    left, right = kl_to_original(candidate.tolist(), probs, p)
    assert left == pytest.approx(right, abs=1e-9)
    assert left >= nucleus(probs, p)["KL"] - 1e-12
    tv = np.abs(candidate - probs).sum() / 2
    assert tv >= nucleus(probs, p)["TV"] - 1e-12
    only_up = np.where(q > 0, probs, 0) + (1 - nucleus(probs, p)["Z"]) * candidate  # total variation has other minimizers
    assert np.abs(only_up - probs).sum() / 2 == pytest.approx(nucleus(probs, p)["TV"], abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(PROBS, P)
def test_entropy_splits_and_falls(probs, p):
    found, z = nucleus(probs, p), nucleus(probs, p)["Z"]
    tail = [x for x, q in zip(probs, top_p_filter(probs, p), strict=True) if q == 0]
    binary = -sum(x * math.log(x) for x in (z, 1 - z) if x > 1e-15)
    rest = -math.fsum(x / math.fsum(tail) * math.log(x / math.fsum(tail)) for x in tail) if tail else 0.0
    assert found["H(P)"] == pytest.approx(binary + z * found["H(q)"] + (1 - z) * rest, abs=1e-7)
    assert found["H(q)"] <= min(found["H(P)"], math.log(found["k"])) + 1e-9
    kept = np.cumsum(sorted(top_p_filter(probs, p), reverse=True))
    assert (kept >= np.cumsum(sorted(probs, reverse=True)) - 1e-12).all()  # majorization


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), P)
def test_hotter_never_keeps_fewer(logits, p):
    temperatures = (0.1, 0.5, 1.0, 2.0, 10.0)
    for t in temperatures:
        clear_of_ties(softmax(logits, t), p)
    sizes = sizes_by_temperature(logits, p, temperatures)
    assert sizes == sorted(sizes)


def test_truncating_first_keeps_the_nucleus_and_heating_first_does_not():
    logits, p, t = [3.0, 2.0, 1.0, 0.0, -1.0], 0.8, 3.0
    probs = np.array(softmax(logits))
    truncated = np.array(top_p_filter(probs.tolist(), p))
    late = truncated ** (1 / t) / (truncated ** (1 / t)).sum()
    early = np.array(top_p_filter(softmax(logits, t), p))
    assert (late > 0).sum() == 2 < (early > 0).sum()
    kept = late > 0
    assert late[kept] == pytest.approx(probs[kept] ** (1 / t) / (probs[kept] ** (1 / t)).sum())


def test_temperature_limits_and_flat_distributions():
    assert sizes_by_temperature([3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0], 0.85, (1e-3, 1e9)) == [1, math.ceil(0.85 * 7)]
    flat = nucleus([0.01] * 100, 0.855)
    assert (flat["k"], flat["H(q)"]) == (86, pytest.approx(math.log(86)))
    assert nucleus([1.0, 0.0], 1.0)["k"] == 1


@settings(deadline=None, max_examples=40)
@given(PROBS, P)
def test_all_rules_are_thresholds(probs, p):
    clear_of_ties(probs, p)
    for rule, value in (("top-k", min(2, len(probs))), ("top-p", p), ("min-p", p)):
        tau, k, lost = threshold_of(probs, rule, value)
        above, at_least = sum(x > tau for x in probs), sum(x >= tau for x in probs)
        assert above < k <= at_least
        assert 0 <= lost < 1
    tau, k, _ = threshold_of(probs, "top-p", p)
    assert top_k_filter(probs, k) == top_p_filter(probs, p)


def test_min_p_has_no_bound_on_the_lost_mass_and_top_p_has():
    spread = [0.01] + [0.99 / 99_000] * 99_000
    assert threshold_of(spread, "min-p", 0.1)[2] == pytest.approx(0.99)
    assert threshold_of(spread, "top-p", 0.9)[2] <= 0.1 + 1e-9


def test_truncating_each_step_is_not_truncating_sequences():
    """Enumerate two-step sequences: the local product differs from the conditional, and the bounds hold."""
    rows = {name: (original, local, conditional) for name, original, local, conditional in local_is_not_global()}
    after = {"A": [0.5, 0.2, 0.12, 0.1, 0.08], "B": [0.99, 0.01]}
    joint = {(a, i): rows[a][0] * x for a in after for i, x in enumerate(after[a])}
    local = {(a, i): rows[a][1] * x for a in after for i, x in enumerate(top_p_filter(after[a], 0.9))}
    kept = {s for s, x in local.items() if x > 0}
    total = sum(joint[s] for s in kept)
    for name in after:
        assert sum(joint[s] for s in kept if s[0] == name) / total == pytest.approx(rows[name][2])
    assert rows["B"][2] > rows["B"][1] + 0.01
    variation = sum(abs(joint[s] - local[s]) for s in joint) / 2
    divergence = sum(x * math.log(x / joint[s]) for s, x in local.items() if x > 0)
    assert variation == pytest.approx(1 - total)  # exactly the probability of leaving the nucleus at some step
    assert 0 < variation <= sequence_bounds(0.9, 2)[0]
    assert 0 < divergence <= sequence_bounds(0.9, 2)[1]


def test_the_sequence_bound_is_reached_when_every_step_loses_one_minus_p():
    steps, p = 3, 0.75
    step = [0.5, 0.25, 0.25]
    q = top_p_filter(step, p)
    pairs = [(math.prod(step[i] for i in s), math.prod(q[i] for i in s)) for s in itertools.product(range(3), repeat=steps)]
    variation, divergence = sequence_bounds(p, steps)
    assert sum(abs(a - b) for a, b in pairs) / 2 == pytest.approx(variation)
    assert sum(b * math.log(b / a) for a, b in pairs if b > 0) == pytest.approx(divergence)


def test_sampled_frequencies():
    probs, p, draws = [0.3, 0.25, 0.2, 0.15, 0.1], 0.7, 40_000
    frequency, tries = by_rejection(probs, p, draws, Random(1))
    q = top_p_filter(probs, p)
    chi2 = sum(draws * (f - x) ** 2 / x for f, x in zip(frequency, q, strict=True) if x > 0)
    assert chi2 < 13.8  # 2 degrees of freedom, 0.1 %
    assert all(f == 0 for f, x in zip(frequency, q, strict=True) if x == 0)
    assert tries == pytest.approx(1 / 0.75, abs=5 * math.sqrt(0.25 / 0.75**2 / draws))


@settings(deadline=None, max_examples=40)
@given(PROBS, P)
def test_at_most_p_loses_the_guarantee(probs, p):
    clear_of_ties(probs, p)
    kept = at_most_p(probs, p)
    assert math.fsum(probs[i] for i in kept) <= p
    assert len(kept) == nucleus(probs, p)["k"] - 1  # always one short
    assert at_most_p([0.9, 0.1], 0.5) == []
    assert at_most_p([0.5, 0.25, 0.25], 0.75) == [0, 1]  # exactly p: the one case where it agrees
    assert nucleus([0.5, 0.25, 0.25], 0.75)["k"] == 2


def test_rounding():
    assert rounding_keeps_one_more() == [2, 3]
    assert nucleus([0.6, 0.3, 0.1], 0.9 - 1e-12)["k"] == 2


def test_rejects():
    calls = [
        lambda: nucleus([], 0.5),
        lambda: nucleus([0.5, 0.4], 0.5),
        lambda: nucleus([math.nan, 1.0], 0.5),
        lambda: nucleus([-0.5, 1.5], 0.5),
        lambda: nucleus([1.0], 0.0),
        lambda: nucleus([1.0], math.nan),
        lambda: nucleus([1.0], True),
        lambda: kl_to_original([1.0], [0.5, 0.5], 0.5),
        lambda: kl_to_original([0.0, 1.0], [0.9, 0.1], 0.5),
        lambda: threshold_of([1.0], "beam", 1),
        lambda: threshold_of([1.0], "top-k", 1.5),
        lambda: threshold_of([1.0], "top-p", True),
        lambda: threshold_of([0.5, 0.4], "top-p", 0.5),
        lambda: sequence_bounds(0.9, 0),
        lambda: sequence_bounds(0.9, math.nan),
        lambda: sequence_bounds(1.5, 3),
        lambda: local_is_not_global(0.0),
        lambda: by_rejection([1.0], 0.5, 0, Random(0)),
        lambda: by_rejection([1.0], 0.5, 2.5, Random(0)),
        lambda: at_most_p([0.5, 0.5], math.inf),
        lambda: sizes_by_temperature([math.nan], 0.5, (1.0,)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|NaN"):
            call()
