"""Loss and gradient against torch and finite differences; identities; invariances; the conventions of averaging."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.probability.cross_entropy import (
    cross_entropy,
    entropy,
    kl,
    logits_gigabytes,
    logsumexp,
    naive_loss_overflows,
    softmax_cross_entropy,
    token_mean_or_mean_of_means,
    z_loss,
)

logits_lists = st.lists(st.floats(-80, 80), min_size=1, max_size=12)
distributions = st.lists(st.floats(1e-3, 1), min_size=2, max_size=8).map(lambda w: [x / math.fsum(w) for x in w])


@settings(deadline=None)
@given(logits_lists, st.data())
def test_loss_and_gradient_equal_torch(logits, data):
    target = data.draw(st.integers(0, len(logits) - 1))
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    reference = torch.nn.functional.cross_entropy(x[None], torch.tensor([target]))
    reference.backward()
    loss, grad = softmax_cross_entropy(logits, target)
    assert loss == pytest.approx(reference.item(), rel=1e-9, abs=1e-12)
    assert grad == pytest.approx(x.grad.tolist(), rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0, 0.1))
def test_z_loss_gradient_by_finite_differences(logits, coefficient):
    _, grad = z_loss(logits, 0, coefficient)
    h = 1e-6
    for i in range(len(logits)):
        up, down = ([z + (h if j == i else 0) * sign for j, z in enumerate(logits)] for sign in (1, -1))
        numeric = (z_loss(up, 0, coefficient)[0] - z_loss(down, 0, coefficient)[0]) / (2 * h)
        assert grad[i] == pytest.approx(numeric, abs=1e-6)


@given(distributions, st.data())
def test_cross_entropy_is_entropy_plus_kl_and_kl_is_not_negative(p, data):
    weights = data.draw(st.lists(st.floats(1e-3, 1), min_size=len(p), max_size=len(p)))
    q = [w / math.fsum(weights) for w in weights]
    assert cross_entropy(p, q) == pytest.approx(entropy(p) + kl(p, q), rel=1e-9, abs=1e-12)
    assert kl(p, q) >= -1e-12


@given(logits_lists, st.floats(-1e3, 1e3))
def test_adding_a_constant_changes_neither_loss_nor_gradient(logits, shift):
    loss, grad = softmax_cross_entropy(logits, 0)
    moved, moved_grad = softmax_cross_entropy([z + shift for z in logits], 0)
    assert moved == pytest.approx(loss, rel=1e-6, abs=1e-9)
    assert moved_grad == pytest.approx(grad, rel=1e-6, abs=1e-9)


def test_z_loss_pins_the_constant_direction():
    positive, negative = ([z + shift for z in (2.0, 1.0, 0.0)] for shift in (50.0, -50.0))
    assert math.fsum(z_loss(positive, 0)[1]) > 0 > math.fsum(z_loss(negative, 0)[1])


def test_fp16_softmax_needs_the_shift():
    """e¹² overflows fp16; the shifted form does not."""
    z = torch.tensor([12.0, 0.0], dtype=torch.float16)
    assert z.exp().isinf().any()
    assert (z - z.max()).exp().isfinite().all()
    assert naive_loss_overflows()[0]


def test_maximum_likelihood_is_minimum_cross_entropy():
    """On counts, the empirical frequencies beat every other distribution of a grid."""
    frequencies = [0.6, 0.3, 0.1]
    best = min((cross_entropy(frequencies, [a / 20, b / 20, (20 - a - b) / 20]), a, b) for a in range(1, 19) for b in range(1, 20 - a))
    assert best[1:] == (12, 6)


def test_equal_lengths_make_the_conventions_agree():
    assert token_mean_or_mean_of_means([[1.0, 2.0], [3.0, 4.0]]) == (2.5, 2.5)


def test_masked_logits():
    assert logsumexp([-math.inf, 0.0]) == 0.0
    assert softmax_cross_entropy([-math.inf, 0.0], 1) == (0.0, [0.0, 0.0])
    assert math.isinf(softmax_cross_entropy([-math.inf, 0.0], 0)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entropy([0.5, 0.6]), "分布"),
        (lambda: cross_entropy([1.0], [0.9]), "q 须"),
        (lambda: logsumexp([]), "不能为空"),
        (lambda: logsumexp([math.nan]), "NaN"),
        (lambda: softmax_cross_entropy([0.0], 1), "target"),
        (lambda: softmax_cross_entropy([-math.inf], 0), "全是"),
        (lambda: z_loss([0.0], 0, -1.0), "coefficient"),
        (lambda: token_mean_or_mean_of_means([[]]), "至少一个"),
        (lambda: logits_gigabytes(0, 1), "≥ 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
