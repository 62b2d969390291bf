"""Preconditioners against their definitions, Newton–Schulz against the SVD and torch.optim.Muon, QK-clip on random heads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.optimization.second_order import (
    inverse_root,
    kfac_step,
    muon_update,
    newton_schulz,
    newton_schulz_overhead,
    newton_step,
    qk_clip,
    shampoo_direction,
    shampoo_floats_per_parameter,
    state_per_parameter,
)

shapes = st.tuples(st.integers(1, 24), st.integers(1, 24))


def random_matrix(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_newton_lands_on_the_minimum_whatever_the_condition_number():
    for kappa in (1.0, 1e3, 1e8):
        h = np.diag([kappa, 1.0, 3.0])
        x = np.array([1.0, -2.0, 0.5])
        assert np.abs(x + newton_step(h @ x, h)).max() < 1e-9


def test_newton_is_attracted_by_a_saddle_and_damping_repels_it():
    h, x = np.diag([1.0, -1.0]), np.array([0.0, 0.1])
    assert abs((x + newton_step(h @ x, h))[1]) < 1e-12
    assert (x + newton_step(h @ x, h, damping=2.0))[1] > 0.1


def test_kfac_is_the_kronecker_inverse():
    """−S⁻¹GA⁻¹ is −(A ⊗ S)⁻¹ applied to the column-stacked gradient."""
    x, dy = random_matrix((50, 4)), random_matrix((50, 3), 1)
    g = dy.T @ x / 50
    a, s = x.T @ x / 50 + 0.1 * np.eye(4), dy.T @ dy / 50 + 0.1 * np.eye(3)
    explicit = -np.linalg.solve(np.kron(a, s), g.flatten(order="F")).reshape((3, 4), order="F")
    np.testing.assert_allclose(kfac_step(g, x, dy, 0.1), explicit, rtol=1e-9)


@given(st.integers(1, 10), st.sampled_from([1, 2, 4]))
def test_inverse_root(n, power):
    b = random_matrix((n, n + 3), n)
    matrix = b @ b.T
    root = inverse_root(matrix, power)
    np.testing.assert_allclose(np.linalg.matrix_power(root, power) @ matrix, np.eye(n), atol=1e-6)


@settings(deadline=None)
@given(shapes, st.integers(0, 1000))
def test_one_step_shampoo_is_the_orthogonal_factor(shape, seed):
    g = random_matrix(shape, seed)
    u, _, vt = np.linalg.svd(g, full_matrices=False)
    np.testing.assert_allclose(shampoo_direction([g]), u @ vt, atol=1e-6)


@settings(deadline=None)
@given(shapes, st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_newton_schulz_keeps_singular_vectors_and_ignores_scale(shape, seed, scale):
    g = random_matrix(shape, seed)
    result = newton_schulz(g)
    np.testing.assert_allclose(result, newton_schulz(scale * g), rtol=1e-6, atol=1e-9)
    u, s, vt = np.linalg.svd(g, full_matrices=False)
    core = u.T @ result @ vt.T
    np.testing.assert_allclose(core, np.diag(np.diag(core)), atol=1e-8)
    large = s / np.linalg.norm(s) > 0.05  # directions far below the norm need more steps
    assert (np.diag(core)[large] > 0.3).all()
    assert (np.diag(core) < 1.3).all()


def test_converging_coefficients_reach_one():
    """The textbook quintic (15/8, −10/8, 3/8) converges to UVᵀ; Muon's coefficients trade that for speed."""
    g = random_matrix((16, 32))
    s = np.linalg.svd(newton_schulz(g, steps=40, coefficients=(15 / 8, -10 / 8, 3 / 8)), compute_uv=False)
    np.testing.assert_allclose(s, 1, atol=1e-9)


def test_equals_torch_muon():
    weight = torch.nn.Parameter(torch.from_numpy(random_matrix((32, 64))).float())
    before = weight.detach().clone()
    gradient = random_matrix((32, 64), 7)
    weight.grad = torch.from_numpy(gradient).float()
    optimizer = torch.optim.Muon([weight], lr=0.1, weight_decay=0.0, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw")
    optimizer.step()
    moved = (weight.detach() - before).numpy()
    np.testing.assert_allclose(moved, muon_update(gradient, 0.1), atol=0.03 * np.abs(moved).max())  # torch iterates in bf16


def test_rank_deficient_and_zero_gradients():
    g = np.outer(np.ones(5), np.arange(4.0))
    assert np.isfinite(newton_schulz(g)).all()
    assert np.linalg.matrix_rank(newton_schulz(g), tol=1e-6) == 1
    assert np.isfinite(shampoo_direction([np.zeros((3, 2))])).all()


@given(st.floats(0.1, 100), st.integers(0, 100))
def test_qk_clip_caps_the_largest_logit_and_nothing_else(tau, seed):
    x, w_q, w_k = random_matrix((8, 6), seed), random_matrix((6, 4), seed + 1), random_matrix((6, 4), seed + 2)
    w_q2, w_k2, before = qk_clip(w_q, w_k, x, tau)
    after = qk_clip(w_q2, w_k2, x, 1e9)[2]
    assert after == pytest.approx(min(before, tau) if before > 0 else before, rel=1e-9)
    np.testing.assert_allclose(w_q2 / w_q, w_k2 / w_k)


@pytest.mark.parametrize("g", [1e200 * np.eye(3), np.full((8, 16), 1000.0, np.float16)])
def test_newton_schulz_does_not_overflow_to_a_zero_update(g):
    update = newton_schulz(g)
    assert np.isfinite(update).all()
    assert np.linalg.norm(update, 2) > 0.5


def test_costs():
    assert shampoo_floats_per_parameter(12288, 49152) == 4.25
    assert dict(state_per_parameter(1, 1))["K-FAC / Shampoo 的统计量"] == 2
    assert newton_schulz_overhead(768, 524_288) == pytest.approx(0.0073, abs=1e-4)  # Jordan 2024: 0.7 % for NanoGPT


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: state_per_parameter(0, 1), "m、n"),
        (lambda: newton_schulz_overhead(0, 1), "d_model"),
        (lambda: newton_step(np.ones(2), np.eye(3)), "不合"),
        (lambda: kfac_step(np.ones((2, 3)), np.ones((4, 3)), np.ones((4, 2)), 0.0), "damping"),
        (lambda: shampoo_direction([]), "至少一个"),
        (lambda: newton_schulz(np.ones(3)), "二维"),
        (lambda: newton_schulz(np.array([[np.nan, 1.0]])), "NaN"),
        (lambda: qk_clip(np.eye(2), np.eye(2), np.full((2, 2), np.inf), 1.0), "NaN"),
        (lambda: qk_clip(1e200 * np.eye(2), 1e200 * np.eye(2), np.eye(2), 1.0), "溢出"),
        (lambda: qk_clip(np.eye(2), np.eye(2), np.eye(2), np.nan), "tau"),
        (lambda: newton_step(np.ones(2), np.zeros((2, 2))), "奇异"),
        (lambda: newton_step(np.array([np.nan, 1.0]), np.eye(2)), "NaN"),
        (lambda: kfac_step(np.ones((2, 3)), np.ones((0, 3)), np.ones((0, 2)), 1.0), "样本"),
        (lambda: kfac_step(np.ones((2, 3)), np.ones((8, 3)), np.ones((4, 2)), 1.0), "样本"),
        (lambda: inverse_root(np.diag([1.0, -1.0]), 4), "半正定"),
        (lambda: inverse_root(np.array([[1.0, 2.0], [0.0, 1.0]]), 4), "对称"),
        (lambda: inverse_root(np.eye(2), 0), "power"),
        (lambda: qk_clip(np.eye(2), np.eye(2), np.eye(2), 0.0), "tau"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
