"""LayerNorm's and RMSNorm's backward against torch and finite differences; the identities with ε; the kernel form."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.neural_networks.normalization import layer_norm, rms_norm
from snippets.derivations.models.layernorm_gradient import (
    amplification,
    backward,
    bill,
    blocked_backward,
    difference_error,
    inner_products,
    normalize,
    spectrum,
    statistics_as_constants,
    unbiased_variance_backward,
    variance_by_moments,
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 5), min_size=0, max_size=3),
    st.integers(1, 9),
    st.sampled_from([1e-6, 1e-5, 0.1]),
    st.sampled_from([1e-4, 1.0, 1e3]),
    st.booleans(),
    st.integers(0, 999),
)
def test_every_gradient_is_torchs(lead, h, eps, size, centre, seed):
    rng = np.random.default_rng(seed)
    x, dy = size * rng.standard_normal((*lead, h)), rng.standard_normal((*lead, h))
    gain, bias = rng.standard_normal((2, h))
    kept = normalize(x, eps, centre=centre)
    reference = layer_norm(x, gain, bias, eps) if centre else rms_norm(x, gain, eps)
    np.testing.assert_allclose(gain * kept[0] + (bias if centre else 0), reference, rtol=1e-9, atol=1e-9)
    tensors = [torch.tensor(t, requires_grad=True) for t in (x, gain, bias)]
    if centre:
        expected = F.layer_norm(tensors[0], (h,), tensors[1], tensors[2], eps)
    else:
        expected = F.rms_norm(tensors[0], (h,), tensors[1], eps) + tensors[2]
    theirs = torch.autograd.grad(expected, tensors, torch.tensor(dy))
    scale = amplification(0.0, eps)
    for ours, their in zip(backward(dy, *kept, gain, centre=centre), theirs, strict=True):
        np.testing.assert_allclose(ours, their, rtol=1e-7, atol=1e-9 * scale)


def test_every_coordinate_by_finite_differences():
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 6)), rng.standard_normal((2, 6))
    gain = rng.standard_normal(6)
    for centre in (True, False):
        dx = backward(dy, *normalize(x, centre=centre), gain, centre=centre)[0]
        for position in np.ndindex(x.shape):
            values = []
            for sign in (1, -1):
                moved = x.copy()
                moved[position] += sign * 1e-5
                values.append(np.sum(dy * gain * normalize(moved, centre=centre)[0]))
            assert dx[position] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("centre", [True, False])
def test_the_check_is_second_order(centre):
    assert difference_error(1e-2, centre=centre) / difference_error(1e-3, centre=centre) == pytest.approx(100, rel=0.05)
    assert difference_error(1e-5, centre=centre, seed=4) < 1e-7


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-4, 1e3), st.sampled_from([0.0, 1e-6, 1e-5, 0.1]), st.integers(2, 300), st.integers(0, 999))
def test_identities_with_eps(sigma, eps, h, seed):
    total, ratio = inner_products(sigma, eps, h, seed)
    assert total == pytest.approx(0, abs=1e-10 * h * amplification(sigma, eps))
    assert ratio == pytest.approx(eps / (sigma**2 + eps), abs=1e-8)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 12), st.sampled_from([0.0, 1e-5, 1.0]), st.integers(0, 999))
def test_rmsnorm_is_orthogonal_to_x_up_to_eps_and_its_sum_is_not_zero(h, eps, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal((2, h))
    x_hat, inverse = normalize(x, eps, centre=False)
    dx = backward(g, x_hat, inverse, np.ones(h), centre=False)[0]
    assert x @ dx == pytest.approx((g @ x_hat) * eps * inverse.item() ** 2, abs=1e-9)
    total = inverse.item() * (g.sum() - x_hat.sum() * np.mean(g * x_hat))
    assert dx.sum() == pytest.approx(total, abs=1e-9)


def test_rmsnorm_sum_is_far_from_zero_in_an_example():
    dx = backward(np.array([1.0, 0, 0, 0]), *normalize(np.array([1.0, 2, 3, 4]), centre=False), np.ones(4), centre=False)[0]
    assert dx.sum() > 0.2


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.sampled_from([1e-5, 0.5]), st.booleans(), st.integers(0, 999))
def test_spectrum_is_the_jacobians(h, eps, centre, seed):
    x = np.random.default_rng(seed).standard_normal(h)

    def norm(v):
        return F.layer_norm(v, (h,), eps=eps) if centre else F.rms_norm(v, (h,), eps=eps)

    jacobian = torch.autograd.functional.jacobian(norm, torch.tensor(x)).numpy()
    x_hat, inverse = normalize(x, eps, centre=centre)
    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-8 / eps)
    np.testing.assert_allclose(spectrum(x, eps, centre=centre), np.linalg.eigvalsh(jacobian) / inverse.item(), atol=1e-7)
    second = eps * inverse.item() ** 2  # the eigenvalue along x̂
    assert min(abs(np.array(spectrum(x, eps, centre=centre)) - second)) < 1e-9 or h == 1
    assert len(x_hat) == h


def test_constant_rows_and_the_limit_of_zero_variance():
    rng = np.random.default_rng(1)
    g = rng.standard_normal(8)
    dx = backward(g, *normalize(np.full(8, 7.0), 1e-5), np.ones(8))[0]
    np.testing.assert_allclose(dx, (g - g.mean()) / math.sqrt(1e-5), rtol=1e-9)
    dx = backward(g, *normalize(np.zeros(8), 1e-6, centre=False), np.ones(8), centre=False)[0]
    np.testing.assert_allclose(dx, 1000 * g, rtol=1e-9)
    assert backward(np.ones(1), *normalize(np.array([5.0])), np.ones(1))[0].tolist() == [0.0]  # h = 1


@settings(deadline=None, max_examples=40)
@given(st.floats(0.01, 100), st.sampled_from([1e-6, 1e-5]), st.integers(3, 50), st.integers(0, 999))
def test_amplification_is_attained_and_never_exceeded(sigma, eps, h, seed):
    rng = np.random.default_rng(seed)
    x, g = rng.standard_normal((2, h))
    x = sigma * (x - x.mean()) / x.std()
    kept = normalize(x, eps)
    bound = amplification(sigma, eps)
    assert np.linalg.norm(backward(g, *kept, np.ones(h))[0]) <= bound * np.linalg.norm(g) * (1 + 1e-9)
    basis = np.linalg.qr(np.stack([np.ones(h), x, g], axis=1))[0]
    free = basis[:, 2]  # orthogonal to 1 and to x̂: passes untouched
    np.testing.assert_allclose(backward(free, *kept, np.ones(h))[0], bound * free, atol=1e-7 * bound)


@pytest.mark.parametrize("sigma", [1e-3, 0.1, 2.0])
def test_amplification_with_eps_outside_the_root(sigma):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(9)
    x = torch.tensor(sigma * (x - x.mean()) / x.std())

    def norm(v):
        return (v - v.mean()) / (v.std(correction=0) + 1e-3)

    largest = np.linalg.svd(torch.autograd.functional.jacobian(norm, x).numpy(), compute_uv=False)[0]
    assert largest == pytest.approx(amplification(sigma, 1e-3, outside=True), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 10), st.integers(1, 8), st.integers(0, 999))
def test_the_kernel_form_for_any_blocks(n, h, block, rows, seed):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, n, h))
    gain = rng.standard_normal(h)
    x_hat, inverse = normalize(x)
    ours = blocked_backward(dy, x, gain, x.mean(axis=1), inverse[:, 0], block, rows)
    for a, b in zip(ours, backward(dy, x_hat, inverse, gain), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_a_weight_before_the_norm_is_orthogonal_to_its_gradient():
    torch.manual_seed(0)
    w, x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.randn(9, 4, dtype=torch.float64)
    target = torch.randn(9, 6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(((F.rms_norm(x @ w.T, (6,), eps=0.0) - target) ** 2).sum(), w)
    assert (w * gradient).sum().item() == pytest.approx(0, abs=1e-10)
    for scale in (2.0, 10.0):
        (scaled,) = torch.autograd.grad(((F.rms_norm(x @ (scale * w).T, (6,), eps=0.0) - target) ** 2).sum(), w)
        np.testing.assert_allclose(scaled, gradient, atol=1e-9)  # d/dw of f(scale·w) is scale · (1/scale) · gradient


def test_gradients_of_the_broadcast_parameters_are_sums_not_means():
    dy = np.ones((3, 4, 2))
    x_hat, inverse = normalize(np.random.default_rng(0).standard_normal((3, 4, 2)))
    assert backward(dy, x_hat, inverse, np.ones(2))[2].tolist() == [12.0, 12.0]


def test_statistics_are_not_constants():
    rng = np.random.default_rng(2)
    x, dy = rng.standard_normal((2, 8))
    x_hat, inverse = normalize(x)
    naive = statistics_as_constants(dy, inverse, np.ones(8))
    right = backward(dy, x_hat, inverse, np.ones(8))[0]
    assert not np.allclose(naive, right)
    detached = torch.tensor(x, requires_grad=True)
    mean, variance = detached.mean().detach(), detached.var(correction=0).detach()
    ((detached - mean) / (variance + 1e-5).sqrt()).backward(torch.tensor(dy))
    np.testing.assert_allclose(naive, detached.grad)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 9), st.integers(0, 999))
def test_unbiased_variance_has_its_own_gradient(h, seed):
    rng = np.random.default_rng(seed)
    x, dy = 3 * rng.standard_normal((2, h))
    t = torch.tensor(x, requires_grad=True)
    ((t - t.mean()) / t.std()).backward(torch.tensor(dy))
    right = unbiased_variance_backward(dy, x)
    np.testing.assert_allclose(right, t.grad, rtol=1e-6, atol=1e-8)
    biased = backward(dy, *normalize(x, 0.0), np.ones(h))[0]
    np.testing.assert_allclose(biased, right * math.sqrt(h / (h - 1)), rtol=1e-6, atol=1e-7)  # a constant factor, taken up by γ


def test_variance_by_moments_is_lost_far_from_zero():
    for offset in (0.0, 1000.0, 10_000.0, 100_000.0):
        bad, good = variance_by_moments(offset)
        assert good == 1.25
        assert (bad == 1.25) == (offset <= 1000)


def test_bill():
    values = bill(8192, 4096, 65)
    assert values["反向读写 MB"] == pytest.approx(3 * values["存 x MB"], abs=0.1)
    assert values["统计量 KB"] * 1e3 == pytest.approx(4 * 8192, rel=1e-2)


def test_rejects():
    x, nan = np.ones((2, 3)), np.array([1.0, np.nan])
    kept = normalize(x)
    calls = [
        lambda: normalize(np.array([])),
        lambda: normalize(nan),
        lambda: normalize(np.array([True, False])),
        lambda: normalize(np.array([1, 2])),
        lambda: normalize(x, -1.0),
        lambda: normalize(x, math.nan),
        lambda: normalize(x, 0.0),
        lambda: backward(x, *kept, np.ones(2)),
        lambda: backward(np.ones((3, 3)), *kept, np.ones(3)),
        lambda: difference_error(0.0),
        lambda: inner_products(0.0, 1e-5),
        lambda: spectrum(x, 1e-5),
        lambda: amplification(0.0, 0.0),
        lambda: amplification(math.inf, 0.0),
        lambda: blocked_backward(x, x, np.ones(3), np.ones(2), np.ones(2), 0, 1),
        lambda: blocked_backward(x, x, np.ones(3), np.ones(1), np.ones(2), 1, 1),
        lambda: bill(0, 1, 1),
        lambda: unbiased_variance_backward(np.ones(1), np.ones(1)),
        lambda: unbiased_variance_backward(np.ones(2), np.ones(2)),
        lambda: variance_by_moments(math.nan),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|不合|无穷"):
            call()
