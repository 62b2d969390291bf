"""Directions by brute force, estimators against exact sums, the distillation gradient against torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.probability.cross_entropy import kl
from snippets.math.probability.kl_divergence import (
    distillation_gradient,
    estimator_table,
    estimators,
    fit_gaussian_to_two_modes,
    kl_is_not_symmetric,
    soften,
)

distributions = st.lists(st.floats(1e-3, 1), min_size=3, max_size=3).map(lambda w: [x / math.fsum(w) for x in w])


@given(distributions, distributions)
def test_k1_and_k3_are_exactly_unbiased_and_k3_is_not_negative(q, p):
    """Expectation over x ~ q by summing over all outcomes."""
    values = [estimators(math.log(b / a)) for a, b in zip(q, p, strict=True)]
    exact = kl(q, p)
    for index in (0, 2):
        assert math.fsum(a * value[index] for a, value in zip(q, values, strict=True)) == pytest.approx(exact, abs=1e-9)
    assert all(value[2] >= -1e-12 for value in values)
    assert all(value[1] >= 0 for value in values)


def test_k2_is_biased_when_the_distributions_differ():
    _, rows = estimator_table(1.0)
    assert rows[1][1] == pytest.approx(0.25, abs=0.03)  # E[k2] = (s² + s⁴/4)/2, true s²/2, at s = 1: +25 %


def test_k3_has_far_less_variance_than_k1_for_near_distributions():
    _, rows = estimator_table(0.1)
    assert rows[0][2] > 10 * rows[2][2]


def test_forward_covers_and_reverse_seeks():
    mean, std, _ = fit_gaussian_to_two_modes("forward")
    assert abs(mean) < 0.5
    assert std > 2.5
    mean, std, _ = fit_gaussian_to_two_modes("reverse")
    assert abs(abs(mean) - 3) < 0.5
    assert std < 1.3


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=3, max_size=3), st.lists(st.floats(-10, 10), min_size=3, max_size=3), st.floats(0.5, 20))
def test_distillation_gradient_equals_torch(student, teacher, temperature):
    z = torch.tensor(student, dtype=torch.float64, requires_grad=True)
    target = (torch.tensor(teacher, dtype=torch.float64) / temperature).softmax(-1)
    loss = torch.nn.functional.kl_div((z / temperature).log_softmax(-1), target, reduction="sum") * temperature**2
    loss.backward()
    assert distillation_gradient(student, teacher, temperature) == pytest.approx(z.grad.tolist(), rel=1e-6, abs=1e-9)


def test_high_temperature_limit_is_matching_centred_logits():
    """T → ∞: T²·gradient → (z_s − mean − (z_t − mean)) / n (Hinton 2015, Sec. 2.1)."""
    student, teacher = [1.0, 0.0, -1.0], [2.0, 1.0, -3.0]
    expected = [(s - t) / 3 for s, t in zip(student, teacher, strict=True)]
    assert distillation_gradient(student, teacher, 1e5) == pytest.approx(expected, abs=1e-4)


def test_not_symmetric():
    forward, reverse = kl_is_not_symmetric()
    assert forward != pytest.approx(reverse, rel=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_gaussian_to_two_modes("x"), "direction"),
        (lambda: estimators(math.nan), "NaN"),
        (lambda: estimator_table(1.0, 1), "samples"),
        (lambda: soften([1.0], 0.0), "temperature"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_gradients_of_the_estimators_used_as_a_loss():
    """Samples fixed, differentiated through ln q: k1 gives 0, k2 the gradient of KL(q‖p), k3 that of KL(p‖q)."""
    z = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    log_p = torch.tensor([0.1, 0.8, -0.5], dtype=torch.float64).log_softmax(-1)

    def gradient(value):
        return torch.autograd.grad(value, z)[0]

    def as_loss(k):
        log_q = z.log_softmax(-1)
        return gradient((log_q.exp().detach() * k(log_p - log_q)).sum())

    log_q = z.log_softmax(-1)
    reverse = gradient((log_q.exp() * (log_q - log_p)).sum())
    forward = gradient((log_p.exp() * (log_p - z.log_softmax(-1))).sum())
    torch.testing.assert_close(as_loss(lambda r: -r), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(as_loss(lambda r: 0.5 * r**2), reverse)
    torch.testing.assert_close(as_loss(lambda r: r.exp() - 1 - r), forward)
