"""Properties of the KL divergence on random distributions: Gibbs, chain rule, data processing, convexity, Fisher, Pinsker, estimators."""

import itertools
import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from snippets.derivations.probability.elbo import gaussian_kl
from snippets.derivations.probability.kl_properties import (
    chain_rule,
    code_lengths,
    log_likelihood_ratio,
    merge,
    pinsker,
    second_order,
    sequence_kl,
    top_k_divergences,
    triangle,
)
from snippets.math.probability.cross_entropy import kl
from snippets.math.probability.kl_divergence import estimators

SEEDS = st.integers(0, 10_000)


def dirichlet(seed, *shape):
    rng = np.random.default_rng(seed)
    x = rng.exponential(size=shape) + 1e-3
    return x / x.sum(axis=-1, keepdims=True)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 8))
def test_gibbs(seed, n):
    p, q = dirichlet(seed, 2, n).tolist()
    assert kl(p, q) >= 0
    assert kl(p, p) == pytest.approx(0, abs=1e-12)
    assert all(a * math.log(a / b) >= a - b - 1e-15 for a, b in zip(p, q, strict=True))  # the step ln x ≤ x − 1, term by term
    reference = torch.nn.functional.kl_div(torch.tensor(q).double().log(), torch.tensor(p).double(), reduction="sum")
    assert kl(p, q) == pytest.approx(reference.item(), abs=1e-6)


def test_missing_support():
    assert kl([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert kl([1.0, 0.0], [0.5, 0.5]) == pytest.approx(math.log(2))
    assert log_likelihood_ratio([1.0, 0.0], [0.5, 0.5], 10, Random(0)) == pytest.approx(math.log(2))
    assert math.isfinite(log_likelihood_ratio([0.5, 0.5], [1.0, 5e-324], 10, Random(0)))  # p/q overflows, the logarithms do not
    rows = sequence_kl([[0.5, 0.5], [0.9, 0.1]], [[0.5, 0.5], [1.0, 0.0]], [1.0, 0.0], [1.0, 0.0])
    assert rows == {"整条": 0.0, "前缀来自 p": 0.0, "前缀来自 q": 0.0}  # an infinite row that is never visited


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_the_mean_log_ratio_converges(seed):
    p, q = dirichlet(seed, 2, 4)
    samples = 4000
    spread = math.sqrt(np.dot(p, np.log(p / q) ** 2) - kl(p.tolist(), q.tolist()) ** 2)
    measured = log_likelihood_ratio(p.tolist(), q.tolist(), samples, Random(seed))
    assert abs(measured - kl(p.tolist(), q.tolist())) < 5 * spread / math.sqrt(samples) + 1e-9


def test_code_lengths_of_a_real_prefix_code():
    """Dyadic q: the lengths −log₂q are integers, and the mean length under p is H(p) + KL."""
    p, q = [0.4, 0.3, 0.2, 0.1], [0.5, 0.25, 0.125, 0.125]
    own, paid, extra = code_lengths(p, q)
    assert paid == pytest.approx(sum(a * n for a, n in zip(p, (1, 2, 3, 3), strict=True)))
    assert extra == pytest.approx(paid - own)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 4), st.integers(1, 4))
def test_chain_rule_both_ways(seed, rows, columns):
    p, q = dirichlet(seed, 2, rows * columns).reshape(2, rows, columns)
    joint, marginal, conditional = chain_rule(p.tolist(), q.tolist())
    assert joint == pytest.approx(marginal + conditional)
    _, other, rest = chain_rule(p.T.tolist(), q.T.tolist())
    assert joint == pytest.approx(other + rest)
    assert joint >= max(marginal, other) - 1e-12  # data processing: forgetting a coordinate


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 4))
def test_independent_copies_add(seed, n):
    p, q = dirichlet(seed, 2, 3)
    product = [[math.prod(d[i] for i in s) for s in itertools.product(range(3), repeat=n)] for d in (p, q)]
    assert kl(*product) == pytest.approx(n * kl(p.tolist(), q.tolist()))


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_channels_and_merging_lose(seed):
    p, q = dirichlet(seed, 2, 5)
    channel = dirichlet(seed + 1, 5, 4)
    assert kl((p @ channel).tolist(), (q @ channel).tolist()) <= kl(p.tolist(), q.tolist()) + 1e-12
    groups = [[0, 3], [1], [4, 2]]
    assert kl(merge(p.tolist(), groups), merge(q.tolist(), groups)) <= kl(p.tolist(), q.tolist()) + 1e-12


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.floats(0, 1))
def test_joint_convexity(seed, mix):
    p1, q1, p2, q2 = dirichlet(seed, 4, 4)
    mixed = kl((mix * p1 + (1 - mix) * p2).tolist(), (mix * q1 + (1 - mix) * q2).tolist())
    assert mixed <= mix * kl(p1.tolist(), q1.tolist()) + (1 - mix) * kl(p2.tolist(), q2.tolist()) + 1e-12


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 4))
def test_a_bucket_for_the_tail_is_a_lower_bound_and_renormalizing_splits_off(seed, k):
    p, q = dirichlet(seed, 2, 5).tolist()
    found = top_k_divergences(p, q, k)
    assert found["尾部并成一类"] <= found["完整"] + 1e-12
    order = sorted(range(5), key=lambda i: -p[i])
    head, rest = order[:k], order[k:]
    z, w = sum(p[i] for i in head), sum(q[i] for i in head)
    assert found["尾部并成一类"] == pytest.approx(kl([*(p[i] for i in head), 1 - z], [*(q[i] for i in head), 1 - w]))
    tail = kl([p[i] / (1 - z) for i in rest], [q[i] / (1 - w) for i in rest])
    whole = kl([z, 1 - z], [w, 1 - w]) + z * found["丢尾再归一"] + (1 - z) * tail
    assert whole == pytest.approx(found["完整"])


def test_renormalizing_the_kept_classes_goes_either_way():
    p = [0.3, 0.3, 0.2, 0.2]
    above, below = top_k_divergences(p, [0.1, 0.5, 0.2, 0.2], 2), top_k_divergences(p, [0.1, 0.05, 0.05, 0.8], 2)
    assert above["丢尾再归一"] > above["完整"] + 0.1
    assert below["丢尾再归一"] < below["完整"] - 0.5


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_prefixes_must_come_from_p(seed):
    p, q = dirichlet(seed, 2, 3, 4)
    first_p, first_q = dirichlet(seed + 1, 2, 3)
    rows = sequence_kl(p.tolist(), q.tolist(), first_p.tolist(), first_q.tolist())
    assert rows["前缀来自 p"] == pytest.approx(rows["整条"])
    joint = kl((first_p[:, None] * p).ravel().tolist(), (first_q[:, None] * q).ravel().tolist())
    assert rows["整条"] == pytest.approx(joint)
    expected = sum(w * kl(a, b) for w, a, b in zip(first_q, p.tolist(), q.tolist(), strict=True)) + kl(first_p.tolist(), first_q.tolist())
    assert rows["前缀来自 q"] == pytest.approx(expected)


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_fisher_is_the_hessian(seed):
    rng = np.random.default_rng(seed)
    z, v = rng.standard_normal((2, 5))
    assume(np.ptp(v) > 0.5)
    logits = torch.tensor(z)

    def divergence(delta):
        p = torch.softmax(logits, 0)
        return (p * (torch.log_softmax(logits, 0) - torch.log_softmax(logits + delta, 0))).sum()

    zero = torch.zeros(5, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(divergence, zero)
    p = torch.softmax(logits, 0)
    assert torch.allclose(hessian, torch.diag(p) - torch.outer(p, p), atol=1e-12)
    one, other, half = second_order(z.tolist(), v.tolist(), 0.01)
    assert half == pytest.approx(0.5e-4 * float(v @ hessian.numpy() @ v), rel=1e-9)
    assert one == pytest.approx(half, rel=0.06)
    assert other == pytest.approx(half, rel=0.06)


def test_the_two_directions_part_at_third_order():
    gaps = []
    for step in (0.02, 0.01):
        one, other, _ = second_order([2.0, 0.0, -1.0], [1.0, -1.0, 0.5], step)
        gaps.append(one - other)
    assert gaps[0] / gaps[1] == pytest.approx(8, rel=0.02)
    assert second_order([2.0, 0.0, -1.0], [1.0, 1.0, 1.0], 0.5) == pytest.approx((0, 0, 0), abs=1e-15)  # F has the null vector 1


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(2, 6))
def test_pinsker(seed, n):
    p, q = dirichlet(seed, 2, n).tolist()
    nudged = [x * (1 + 1e-9 * (-1) ** i) for i, x in enumerate(p)]
    assert pinsker(p, [x / math.fsum(nudged) for x in nudged])[1] < 1e-6  # rounding may make the KL negative
    variation, bound = pinsker(p, q)
    assert variation <= bound + 1e-12
    assert variation == pytest.approx(max(sum(p[i] - q[i] for i in s) for k in range(n + 1) for s in itertools.combinations(range(n), k)))


def test_the_constant_in_pinsker_cannot_be_smaller():
    variation, bound = pinsker([0.5 + 1e-3, 0.5 - 1e-3], [0.5, 0.5])
    assert variation / bound == pytest.approx(1, abs=1e-5)


def test_not_a_distance():
    direct, detour = triangle()
    assert direct > detour
    assert gaussian_kl(0, 1, 0, 2) != pytest.approx(gaussian_kl(0, 2, 0, 1), rel=0.1)


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_k3_is_unbiased_and_not_negative(seed):
    """Expectation over q of k1 and k3 is KL(q‖p) exactly; k3 = (r − 1) − ln r adds a term of mean 0."""
    p, q = dirichlet(seed, 2, 6)
    k1, _, k3 = np.array([estimators(float(x)) for x in np.log(p / q)]).T
    assert np.dot(q, k1) == pytest.approx(kl(q.tolist(), p.tolist()))
    assert np.dot(q, k3) == pytest.approx(kl(q.tolist(), p.tolist()))
    assert (k3 >= 0).all()


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_k3_needs_q_to_cover_p_and_k1_does_not(seed):
    p, q = dirichlet(seed, 2, 6)
    q[0], p_kept = 0, p[1:]
    q /= q.sum()
    log_r = np.log(p_kept / q[1:])
    exact = -np.dot(q[1:], log_r)
    assert exact == pytest.approx(kl(q.tolist(), p.tolist()))
    k3 = np.array([estimators(float(x))[2] for x in log_r])
    assert np.dot(q[1:], k3) == pytest.approx(exact - p[0])  # low by the mass that q never visits


def test_rejects():
    half = [0.5, 0.5]
    calls = [
        lambda: log_likelihood_ratio(half, half, 0, Random(0)),
        lambda: log_likelihood_ratio(half, [0.5, 0.4], 5, Random(0)),
        lambda: log_likelihood_ratio([math.nan, 1.0], half, 5, Random(0)),
        lambda: log_likelihood_ratio(half, half, 2.5, Random(0)),
        lambda: sequence_kl([half, half], [half], half, half),
        lambda: merge([math.nan, 1.0], [[0], [1]]),
        lambda: top_k_divergences([0.5, 0.3, 0.2], [0.5, 0.3, 0.2], 1.5),
        lambda: pinsker([0.5, math.nan], half),
        lambda: code_lengths([], []),
        lambda: chain_rule([half], [half, half]),
        lambda: chain_rule([half], [[1.0, 0.0]]),
        lambda: chain_rule([[]], [[]]),
        lambda: merge(half, [[0]]),
        lambda: merge(half, [[0, 1], [1]]),
        lambda: top_k_divergences(half, half, 2),
        lambda: top_k_divergences(half, half, True),
        lambda: top_k_divergences([0.6, 0.4], [0.0, 1.0], 1),
        lambda: second_order([0.0, 1.0], [1.0], 0.1),
        lambda: second_order([0.0, math.inf], [1.0, 1.0], 0.1),
        lambda: second_order([0.0, 1.0], [1.0, 1.0], 0.0),
        lambda: second_order([], [], 0.1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|无穷"):
            call()
