"""The SVD by hand against LAPACK and torch, Eckart–Young against competitors, Halko's bound, PCA against the covariance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.linear_algebra.svd import (
    eckart_young_check,
    excess_error,
    gram_loses_small_values,
    pca,
    randomized_flops,
    randomized_svd,
    range_basis,
    rank_for_energy,
    rows_of_v_are_not_singular_vectors,
    svd_by_eigen,
    truncated,
    uncentered_first_direction,
    with_spectrum,
)

seeds = st.integers(0, 1000)
shapes = st.tuples(st.integers(1, 12), st.integers(1, 12))


def random_matrix(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@settings(deadline=None)
@given(shapes, seeds)
def test_svd_by_eigen_is_an_svd(shape, seed):
    a = random_matrix(shape, seed)
    u, s, vt = svd_by_eigen(a)
    np.testing.assert_allclose((u * s) @ vt, a, atol=1e-6)
    np.testing.assert_allclose(vt @ vt.T, np.eye(len(s)), atol=1e-9)
    np.testing.assert_allclose(u.T @ u, np.eye(len(s)), atol=1e-4)  # loses digits where σ is small: the price of AᵀA
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False)[: len(s)], atol=1e-6)


def test_svd_by_eigen_of_a_rank_deficient_matrix():
    u, s, vt = svd_by_eigen(np.outer([1.0, 2.0, 3.0], [4.0, 5.0]))
    assert s.shape == (1,)
    np.testing.assert_allclose(s[0], np.sqrt(14 * 41))
    np.testing.assert_allclose((u * s) @ vt, np.outer([1.0, 2.0, 3.0], [4.0, 5.0]))


@pytest.mark.parametrize("delta", [1e-1, 1e-4, 1e-6])
def test_gram_is_right_while_delta_squared_survives(delta):
    direct, via_gram = gram_loses_small_values(delta)
    assert direct == pytest.approx(delta, rel=1e-6)
    assert via_gram == pytest.approx(delta, rel=1e-3)


@settings(deadline=None)
@given(shapes, seeds, st.data())
def test_eckart_young_holds_with_equality_and_nothing_beats_it(shape, seed, data):
    a = random_matrix(shape, seed)
    k = data.draw(st.integers(0, min(shape)))
    check = eckart_young_check(a, k)
    for _, error, theorem in check:
        assert error == pytest.approx(theorem, abs=1e-9)
    for trial in range(5):
        other = random_matrix((shape[0], k), trial) @ random_matrix((k, shape[1]), trial + 1)
        best = truncated(a, k)
        near = (best[0] * best[1] + 0.1 * random_matrix((shape[0], k), trial)) @ (best[2] + 0.1 * random_matrix((k, shape[1]), trial))
        for rival in (other, near):
            assert np.linalg.norm(a - rival, 2) >= check[0][2] - 1e-9
            assert np.linalg.norm(a - rival) >= check[1][2] - 1e-9


def test_truncated_against_torch():
    a = random_matrix((7, 5))
    u, s, vt = torch.linalg.svd(torch.tensor(a), full_matrices=False)
    ours = truncated(a, 3)
    np.testing.assert_allclose((ours[0] * ours[1]) @ ours[2], (u[:, :3] * s[:3] @ vt[:3]).numpy(), atol=1e-10)


def test_spectral_optimum_is_not_unique_where_singular_values_tie():
    """All of I's rank-1 projections are optimal: σ_1 = σ_2, so A_1 depends on the basis chosen."""
    for angle in (0.0, 0.3, 1.0):
        v = np.array([np.cos(angle), np.sin(angle)])
        assert np.linalg.norm(np.eye(2) - np.outer(v, v)) == pytest.approx(1.0)


def test_rows_of_v_are_worse():
    best, columns, rows = rows_of_v_are_not_singular_vectors()
    assert columns == pytest.approx(best)
    assert rows > 1.2 * best


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 30), st.integers(1, 6), seeds)
def test_pca_against_the_covariance(n, d, seed):
    x = random_matrix((n, d), seed) + 7
    k = min(n, d)
    mean, directions, scores, ratio = pca(x, k)
    covariance = np.atleast_2d(np.cov(x.T))
    values = np.linalg.eigvalsh(covariance)[::-1][:k]
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), values, atol=1e-9)
    np.testing.assert_allclose(ratio, values / np.trace(covariance), atol=1e-9)
    np.testing.assert_allclose((x - mean) @ directions.T, scores, atol=1e-9)
    np.testing.assert_allclose(scores.T @ scores, np.diag(np.diag(scores.T @ scores)), atol=1e-7)  # uncorrelated


def test_pca_of_constant_data_has_no_variance():
    assert not pca(np.ones((4, 3)), 2)[3].any()


def test_centering_matters_only_with_an_offset():
    assert uncentered_first_direction(50.0)[1] < 0.01
    assert uncentered_first_direction(0.0)[1] > 0.99


def test_range_basis_meets_halkos_expected_frobenius_bound():
    """E‖A − QQᵀA‖_F ≤ √(1 + k/(p−1)) · (Σ_{j>k} σ_j²)^½ (Halko 2009, Thm 10.5)."""
    sigma = 1 / np.sqrt(np.arange(1, 61))
    a, k, p = with_spectrum(sigma, 80), 8, 5
    errors = []
    for seed in range(100):
        q = range_basis(a, k + p, seed=seed + 1)
        errors.append(np.linalg.norm(a - q @ q.T @ a))
    assert np.mean(errors) <= np.sqrt(1 + k / (p - 1)) * np.linalg.norm(sigma[k:])


@settings(deadline=None, max_examples=30)
@given(shapes, seeds, st.integers(0, 3), st.integers(0, 3), st.data())
def test_randomized_svd_is_a_factorization_and_never_beats_the_optimum(shape, seed, p, q, data):
    a = random_matrix(shape, seed)
    k = data.draw(st.integers(1, min(shape)))
    u, s, vt = randomized_svd(a, k, p, q, seed)
    np.testing.assert_allclose(u.T @ u, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(vt @ vt.T, np.eye(k), atol=1e-9)
    assert (np.diff(s) <= 1e-12).all()
    tail = np.linalg.svd(a, compute_uv=False)[k:]
    assert np.linalg.norm(a - (u * s) @ vt) >= np.linalg.norm(tail) - 1e-9
    if k + p >= min(shape):  # the basis spans the whole range: exact
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False)[:k], atol=1e-8)


def test_oversampling_and_power_iterations_both_help():
    sigma = 1 / np.arange(1, 101)
    plain, oversampled, powered = (excess_error(sigma, 10, p, q, runs=10)[0] for p, q in ((0, 0), (10, 0), (10, 2)))
    assert plain > oversampled > powered
    assert powered < 1.02


def test_torch_svd_lowrank_is_as_good():
    sigma = 1 / np.arange(1, 101)
    a = torch.tensor(with_spectrum(sigma, 150))
    torch.manual_seed(0)
    u, s, v = torch.svd_lowrank(a, q=20, niter=2)  # q counts the oversampling in, and V is returned, not Vᵀ
    u, s, v = u[:, :10], s[:10], v[:, :10]
    assert torch.linalg.norm(a - u * s @ v.T).item() == pytest.approx(np.linalg.norm(sigma[10:]), rel=0.01)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20).filter(any), st.floats(0.05, 1))
def test_rank_for_energy_is_minimal(sigma, energy):
    sigma = np.sort(sigma)[::-1]
    r = rank_for_energy(sigma, energy)
    energies = (sigma / sigma[0]) ** 2
    share = np.cumsum(energies) / np.sum(energies)
    assert share[r - 1] >= energy - 1e-9
    assert r == 1 or share[r - 2] < energy


@pytest.mark.parametrize("shape", [(400, 400), (800, 200)])
def test_edge_of_the_noise_spectrum(shape):
    largest = np.linalg.norm(0.3 * random_matrix(shape), 2)
    assert largest == pytest.approx(0.3 * (np.sqrt(shape[0]) + np.sqrt(shape[1])), rel=0.03)


def test_error_of_the_range_basis_is_known_afterwards():
    a = random_matrix((30, 20))
    q = range_basis(a, 7)
    assert np.linalg.norm(a - q @ q.T @ a) ** 2 == pytest.approx(np.linalg.norm(a) ** 2 - np.linalg.norm(q.T @ a) ** 2)


def test_flops_without_power_iterations_are_two_products():
    assert randomized_flops(40, 30, 5, oversample=2, power=0) == 2 * (2 * 40 * 30 * 7)
    assert randomized_flops(40, 30, 5, oversample=2, power=3) == 8 * (2 * 40 * 30 * 7)


@pytest.mark.parametrize("gap", [1e-2, 1e-4])
def test_gradient_through_singular_vectors_grows_like_one_over_the_gap(gap):
    a = torch.diag(torch.tensor([1.0 + gap, 1.0, 0.5], dtype=torch.float64)).requires_grad_()
    vt = torch.linalg.svd(a).Vh
    vt[0, 1].backward()  # a component of the first right singular vector
    assert a.grad.abs().max().item() * gap == pytest.approx(0.5, rel=0.02)
    b = a.detach().clone().requires_grad_()
    torch.linalg.svdvals(b).sum().backward()  # singular values alone stay harmless
    assert b.grad.abs().max().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: svd_by_eigen(np.ones(3)), "二维"),
        (lambda: svd_by_eigen(np.ones((0, 3))), "非空"),
        (lambda: truncated(np.array([[np.nan]]), 1), "NaN"),
        (lambda: truncated(np.eye(2), -1), "k"),
        (lambda: gram_loses_small_values(0), "delta"),
        (lambda: pca(np.ones((1, 3)), 1), "两个样本"),
        (lambda: range_basis(np.eye(2), 3), "width"),
        (lambda: randomized_svd(np.eye(2), 3), "k"),
        (lambda: randomized_svd(np.eye(2), 1, oversample=-1), "oversample"),
        (lambda: randomized_flops(0, 1, 1), "m、n、k"),
        (lambda: with_spectrum(np.ones(3), 2), "rows"),
        (lambda: rank_for_energy(np.zeros(2), 0.5), "不全为 0"),
        (lambda: rank_for_energy(np.array([np.nan, 1.0]), 0.5), "有限"),
        (lambda: rank_for_energy(np.array([]), 0.5), "不全为 0"),
        (lambda: with_spectrum(np.array([np.nan]), 2), "sigma"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
