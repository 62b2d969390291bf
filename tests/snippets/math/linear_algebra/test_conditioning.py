"""Rates against brute force over step sizes, rounding against torch casts, κ against its definition, torch layers against the table."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.linear_algebra.conditioning import (
    condition_number,
    correlated_features,
    determinant_is_not_conditioning,
    elementwise_problem,
    error_amplification,
    errors,
    final_loss,
    heavy_ball_radius,
    input_standardization,
    kappa_is_not_a_rate,
    kronecker_problem,
    nonzero_condition,
    normalization_table,
    optimizer_table,
    rate_table,
    round_significand,
    worst_case_amplification,
)
from snippets.math.optimization.second_order import newton_schulz

kappas = st.floats(1.5, 1e4)


def random_matrix(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_condition_number_against_norms_of_the_inverse(n, seed):
    a = random_matrix(n, n, seed=seed)
    assert condition_number(a) == pytest.approx(np.linalg.norm(a, 2) * np.linalg.norm(np.linalg.inv(a), 2), rel=1e-6)
    assert condition_number(3 * a) == pytest.approx(condition_number(a), rel=1e-6)
    assert condition_number(a) >= 1


def test_condition_number_of_singular_and_rectangular_matrices():
    assert condition_number(np.zeros((2, 2))) == math.inf
    assert condition_number(np.array([[3.0], [4.0]])) == 1.0
    x = random_matrix(50, 4)
    assert condition_number(x.T @ x) == pytest.approx(condition_number(x) ** 2)


def test_determinant_says_nothing():
    (small_det, well), (one, ill) = ((det, kappa) for _, det, kappa in determinant_is_not_conditioning())
    assert small_det < 1e-90
    assert well == pytest.approx(1)
    assert one == pytest.approx(1)
    assert ill == pytest.approx(1e12)


@pytest.mark.parametrize(("bits", "dtype"), [(8, torch.bfloat16), (11, torch.float16), (24, torch.float32)])
def test_rounding_against_torch_in_the_normal_range(bits, dtype):
    x = random_matrix(1000) * 10
    x = x[np.abs(x) > 1e-3]
    np.testing.assert_array_equal(round_significand(x, bits), torch.tensor(x).to(dtype).double().numpy())
    ties = np.array([1 + 2.0**-bits, 1 + 3 * 2.0**-bits, -1 - 2.0**-bits, 0.0])
    np.testing.assert_array_equal(round_significand(ties, bits), torch.tensor(ties).to(dtype).double().numpy())


@settings(deadline=None, max_examples=20)
@given(st.floats(1, 1e5), st.sampled_from([8, 11, 24]))
def test_amplification_never_exceeds_kappa(kappa, bits):
    assert error_amplification(kappa, bits, n=8, runs=5) <= kappa * 1.001


@given(st.floats(1, 1e8))
def test_the_bound_is_attained(kappa):
    assert worst_case_amplification(kappa) == pytest.approx(kappa, rel=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.floats(1.5, 50))
def test_gradient_descent_rate_is_optimal_over_the_step_size(kappa):
    theory = (kappa - 1) / (kappa + 1)
    history = errors(kappa, 40, False)
    assert history[-1] / history[-2] == pytest.approx(theory, rel=1e-6)
    radii = [max(abs(1 - eta), abs(1 - eta * kappa)) for eta in np.linspace(0, 2 / kappa, 2001)]
    assert min(radii) >= theory - 1e-12
    assert min(radii) == pytest.approx(theory, abs=2e-3)


@settings(deadline=None, max_examples=20)
@given(st.floats(1.5, 300))
def test_heavy_ball_radius_is_optimal_and_matches_the_eigenvalues(kappa):
    theory = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    assert heavy_ball_radius(kappa) == pytest.approx(theory, abs=1e-6)
    for eta in np.linspace(0.1, 4, 15) / kappa:
        for beta in np.linspace(0, 0.99, 15):
            assert heavy_ball_radius(kappa, eta, beta) >= theory - 1e-9
            explicit = max(
                np.abs(np.linalg.eigvals(np.array([[1 + beta - eta * lam, -beta], [1.0, 0.0]]))).max()
                for lam in (1, (1 + kappa) / 2, kappa)
            )
            assert explicit <= heavy_ball_radius(kappa, eta, beta) + 1e-6


def test_heavy_ball_contracts_at_the_square_root_rate_in_the_long_run():
    for kappa in (10, 100, 1000):
        history = errors(kappa, int(40 * math.sqrt(kappa)), True)
        half = len(history) // 2
        measured = (history[-1] / history[half - 1]) ** (1 / (len(history) - half))
        assert measured == pytest.approx(heavy_ball_radius(kappa), rel=0.02)


def test_rate_table_agrees_with_the_theory():
    for kappa, measured, theory, steps, ball, ball_steps, peak in rate_table():
        assert measured == pytest.approx(theory, abs=1e-9)
        assert steps == pytest.approx(kappa / 2 * math.log(1e6), rel=0.02)
        assert ball_steps < 0.4 * steps
        assert ball_steps > math.log(1e6) / -math.log(ball)  # k·ρᵏ, not ρᵏ
        assert peak > 1


@given(kappas)
def test_step_larger_than_two_over_l_diverges(kappa):
    x = np.ones(2)
    for _ in range(200):
        x = x - 2.2 / kappa * np.array([1.0, kappa]) * x
    assert np.linalg.norm(x) > 1e6


def test_the_printed_claim_allows_growth():
    allowed, measured = kappa_is_not_a_rate(50)
    assert allowed > 1 > measured == pytest.approx(49 / 51)


def test_normalization_table_against_torch_layers():
    rng = np.random.default_rng(0)
    n, width = 4096, 64
    x, w = rng.standard_normal((n, width)), rng.standard_normal((width, width)) / math.sqrt(width)
    f = torch.tensor(np.maximum(x @ w + rng.standard_normal(width), 0))
    layers = {
        "不归一化": torch.nn.Identity(),
        "BatchNorm": torch.nn.BatchNorm1d(width, eps=1e-12, affine=False, dtype=torch.float64),
        "LayerNorm": torch.nn.LayerNorm(width, eps=0, elementwise_affine=False, dtype=torch.float64),
        "RMSNorm": torch.nn.RMSNorm(width, eps=0, elementwise_affine=False, dtype=torch.float64),
    }
    for name, value in normalization_table(1.0).items():
        assert nonzero_condition(layers[name](f).numpy()) == pytest.approx(value, rel=1e-6)


def test_second_moment_is_the_gauss_newton_block_of_a_linear_layer():
    """The Hessian of the mean of ½‖y − Wf‖² in one row of W is FᵀF/n."""
    f = torch.tensor(random_matrix(20, 4))
    hessian = torch.autograd.functional.hessian(lambda row: ((f @ row - 1) ** 2).sum() / (2 * len(f)), torch.zeros(4, dtype=torch.float64))
    values = torch.linalg.eigvalsh(hessian)
    assert nonzero_condition(f.numpy()) == pytest.approx((values[-1] / values[0]).item())


def test_scale_invariance_divides_the_hessian_by_the_square_of_the_scale():
    """What a norm after the layer does: f(cW) = f(W), so ∇ ∝ 1/c and H ∝ 1/c²; the gradient is orthogonal to W."""
    x = torch.tensor(random_matrix(30, 5))
    target = torch.tensor(random_matrix(30, seed=1))

    def loss(w):
        z = x @ w
        return ((z / z.pow(2).mean().sqrt() - target) ** 2).mean()

    w = torch.tensor(random_matrix(5, seed=2), requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(w), w)
    assert abs((gradient @ w).item()) < 1e-9
    h1, h3 = (torch.autograd.functional.hessian(loss, c * w.detach()) for c in (1, 3))
    torch.testing.assert_close(h1 / 9, h3)


def test_standardization_and_correlation():
    raw, standardized = input_standardization()
    assert raw > 5000
    assert standardized < 2
    for rho in (0.0, 0.5, 0.99):
        assert correlated_features(rho) == pytest.approx(condition_number(np.array([[1, rho], [rho, 1]])))


@pytest.mark.parametrize("rotated", [False, True])
def test_kronecker_problem_has_the_promised_hessian(rotated):
    g, n = kronecker_problem(100, rotated, n=4), 4
    basis = np.eye(n * n).reshape(-1, n, n)
    hessian = np.array([g(e).ravel() for e in basis])
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)
    assert condition_number(hessian) == pytest.approx(100)
    diagonal = np.diag(np.diag(hessian))
    assert bool(np.allclose(hessian, diagonal)) is not rotated
    assert condition_number(np.diag(elementwise_problem(100, n)(np.ones((n, n))).ravel())) == pytest.approx(100)


def test_momentum_and_adam_against_torch():
    g = kronecker_problem(100, True)
    e0 = np.random.default_rng(1).standard_normal((16, 16))
    for method, make in (
        ("动量 0.9", lambda p: torch.optim.SGD([p], lr=0.5, momentum=0.9)),
        ("Adam", lambda p: torch.optim.Adam([p], lr=0.5, eps=1e-12)),
    ):
        p = torch.nn.Parameter(torch.tensor(e0))
        optimizer = make(p)
        for t in range(50):
            optimizer.param_groups[0]["lr"] = 0.5 * (1 - t / 50)
            p.grad = torch.tensor(g(p.detach().numpy()))
            optimizer.step()
        e = p.detach().numpy()
        ratio = float(np.sum(e * g(e))) / float(np.sum(e0 * g(e0)))
        # Momentum's buffer carries no learning rate in torch either; both agree step by step.
        assert final_loss(g, method, 0.5, steps=50) == pytest.approx(ratio, rel=1e-6)


def test_what_the_page_says_about_the_optimizers():
    table = dict(optimizer_table())
    aligned, rotated, free = table["κ = 10⁴，主轴对齐坐标"], table["κ = 10⁴，主轴旋转"], table["κ = 10⁴，逐元素、无行列结构"]
    assert rotated["Adam"] > 1e4 * aligned["Adam"]  # Adam loses its advantage
    assert 0.05 < rotated["Muon"] / aligned["Muon"] < 20  # Muon does not notice
    assert rotated["Muon"] < rotated["Adam"] / 50
    assert free["Muon"] > 1e3 * free["Adam"]  # without row/column structure Muon has nothing to use
    mild = table["κ = 100，主轴旋转"]
    assert mild["动量 0.9"] < mild["Muon"]


def test_the_muon_step_does_not_shrink_with_the_gradient():
    """Why Muon (like Adam) needs a decaying learning rate even without noise."""
    g = random_matrix(16, 16)
    np.testing.assert_allclose(newton_schulz(g), newton_schulz(1e-5 * g), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: condition_number(np.ones(3)), "二维"),
        (lambda: condition_number(np.array([[np.nan]])), "有限"),
        (lambda: round_significand(np.ones(1), 0), "bits"),
        (lambda: error_amplification(0.5, 8), "条件数"),
        (lambda: errors(math.inf, 1, False), "条件数"),
        (lambda: correlated_features(1.0), "rho"),
        (lambda: kronecker_problem(0.1, True), "条件数"),
        (lambda: final_loss(elementwise_problem(10), "SGD", 0.1), "不认识"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
