"""Directions by brute force, estimators against exact sums, the distillation gradient against torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.probability.cross_entropy import kl
from snippets.math.probability.kl_divergence import (
    distillation_gradient,
    estimator_moments,
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
    assert all(value[2] >= 0 for value in values)
    assert all(value[1] >= 0 for value in values)


def test_k2_is_biased_when_the_distributions_differ():
    rows = estimator_table(1.0)
    assert rows[1][1] == pytest.approx(0.25, abs=0.03)  # E[k2] = (s² + s⁴/4)/2, true s²/2, at s = 1: +25 %


def test_k3_has_far_less_variance_than_k1_for_near_distributions():
    rows = estimator_table(0.1)
    assert rows[0][2] > 10 * rows[2][2]


def test_the_closed_form_moments_are_the_measured_ones():
    for shift in (0.1, -0.7, 1.0):
        for (name, bias, std), (same, exact_bias, exact_std) in zip(estimator_table(shift), estimator_moments(shift), strict=True):
            assert name == same
            assert bias == pytest.approx(exact_bias, abs=4 * exact_std / math.sqrt(100_000))  # four standard errors
            assert std == pytest.approx(exact_std, rel=0.05)


def test_far_apart_k3_is_noisier_than_k1():
    """Equal where e^d = 1 + 2d, d = 1.256, KL = 0.628 nat."""
    for d, k3_is_better in ((1.2, True), (1.3, False)):
        k1, _, k3 = (std for _, _, std in estimator_moments(math.sqrt(d)))
        assert (k3 < k1) == k3_is_better


@given(st.floats(-30, 30) | st.floats(-1e-6, 1e-6))
def test_k3_is_never_negative_and_keeps_its_digits_near_zero(log_ratio):
    k3 = estimators(log_ratio)[2]
    assert k3 >= 0
    if abs(log_ratio) < 1e-4:
        assert k3 == pytest.approx(log_ratio**2 / 2, rel=1e-3, abs=1e-20)


def test_extreme_ratios():
    assert estimators(-math.inf) == (math.inf, math.inf, math.inf)
    assert estimators(800.0)[2] == math.inf
    with pytest.raises(ValueError, match=r"\+inf"):
        estimators(math.inf)


def test_torch_mean_is_not_the_kl():
    """reduction="mean" divides by batch × classes, "batchmean" by the batch."""
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 1000).log_softmax(-1), torch.randn(4, 1000).softmax(-1)
    batchmean = torch.nn.functional.kl_div(student, teacher, reduction="batchmean")
    with pytest.warns(UserWarning, match="batchmean"):
        mean = torch.nn.functional.kl_div(student, teacher, reduction="mean")
    torch.testing.assert_close(batchmean, mean * 1000)
    exact = (teacher * (teacher.log() - student)).sum(-1).mean()
    torch.testing.assert_close(batchmean, exact)


def test_masked_classes_stay_masked():
    assert soften([0.0, -math.inf], 2.0) == [1.0, 0.0]


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
        (lambda: estimator_table(0.0), "shift"),
        (lambda: estimator_moments(0.0), "shift"),
        (lambda: estimator_moments(math.nan), "shift"),
        (lambda: soften([1.0], 0.0), "temperature"),
        (lambda: soften([1.0], math.inf), "temperature"),
        (lambda: soften([], 1.0), "logits"),
        (lambda: soften([math.nan], 1.0), "logits"),
        (lambda: soften([-math.inf, -math.inf], 1.0), "logits"),
        (lambda: distillation_gradient([0.0], [0.0, 1.0], 1.0), "类数"),
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
