"""R(m)ᵀR(n) = R(n − m), the general solution, pairings, wavelengths, decay with distance, gradients: against torch and complex numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.coding.algorithms.rope import apply_rope, rope_table, to_half_layout
from snippets.deep_learning.attention.relative_positions import frequencies, rope_score, rotate
from snippets.derivations.models.rope_derivation import (
    angles_of,
    attention_output,
    backward,
    coherence,
    far_peak,
    rotation_matrix,
    score,
    wavelengths,
    with_decay,
)

POSITIONS = st.integers(-5000, 5000)
THETAS = st.lists(st.floats(-3, 3), min_size=1, max_size=5)


def random_orthogonal(rng, d):
    basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
    if np.linalg.det(basis) < 0:
        basis[:, 0] *= -1
    return basis


@settings(deadline=None, max_examples=40)
@given(THETAS, POSITIONS, POSITIONS)
def test_rotations_are_an_orthogonal_homomorphism(theta, m, n):
    rm, rn = rotation_matrix(m, theta), rotation_matrix(n, theta)
    assert np.allclose(rm @ rm.T, np.eye(len(rm)), atol=1e-12)
    assert np.allclose(rm @ rn, rotation_matrix(m + n, theta), atol=1e-9)
    assert np.allclose(rm.T @ rn, rotation_matrix(n - m, theta), atol=1e-9)
    assert np.array_equal(rotation_matrix(0, theta), np.eye(len(rm)))
    assert np.linalg.det(rm) == pytest.approx(1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(0, 3000), st.integers(0, 3000))
def test_the_closed_form_is_the_score(seed, m, n):
    rng, theta = np.random.default_rng(seed), frequencies(16)
    q, k = rng.standard_normal((2, 16))
    rotated = float(rotation_matrix(m, theta) @ q @ (rotation_matrix(n, theta) @ k))
    assert score(q, k, m - n, theta) == pytest.approx(rotated, abs=1e-9)
    assert score(q, k, m - n, theta) == pytest.approx(rope_score(q, k, m, n, theta), abs=1e-9)  # complex numbers
    pairs = np.hypot(*q.reshape(-1, 2).T) @ np.hypot(*k.reshape(-1, 2).T)
    assert abs(rotated) <= pairs + 1e-9


def test_the_matrix_agrees_with_the_coded_rope_in_both_pairings():
    d, m = 16, 37
    x = torch.randn(1, 1, 1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cos, sin = rope_table(torch.tensor([m]), d)
    matrix = rotation_matrix(m, frequencies(d))
    adjacent = apply_rope(x, cos, sin, interleaved=True).flatten()
    assert np.allclose(matrix @ x.flatten().numpy(), adjacent, atol=1e-5)
    assert np.allclose(rotate(x.flatten().tolist(), m, frequencies(d)), adjacent, atol=1e-5)
    order = to_half_layout(d).numpy()
    half = apply_rope(x, cos, sin).flatten()
    permutation = np.eye(d)[order]  # adjacent layout → half layout
    assert np.allclose(permutation @ matrix @ permutation.T @ x.flatten().numpy(), half, atol=1e-5)
    assert not np.allclose(matrix @ x.flatten().numpy(), half, atol=1e-2)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.sampled_from([2, 4, 6, 8]))
def test_every_one_step_matrix_is_hidden_rotations(seed, d):
    """Powers of an arbitrary special orthogonal matrix have relative scores, and it is rotations in some basis."""
    rng = np.random.default_rng(seed)
    step = random_orthogonal(rng, d)
    q, k = rng.standard_normal((2, d))
    power = np.linalg.matrix_power
    assert power(step, 9) @ q @ (power(step, 5) @ k) == pytest.approx(power(step, 14) @ q @ (power(step, 10) @ k))
    angles = angles_of(step)
    assert len(angles) == d // 2
    assert np.trace(step) == pytest.approx(2 * np.sum(np.cos(angles)))
    assert np.trace(power(step, 3)) == pytest.approx(2 * np.sum(np.cos(3 * np.array(angles))))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.lists(st.floats(0.05, 3.0), min_size=1, max_size=4))
def test_angles_are_recovered_in_any_basis(seed, theta):
    basis = random_orthogonal(np.random.default_rng(seed), 2 * len(theta))
    assert angles_of(basis @ rotation_matrix(1, theta) @ basis.T) == pytest.approx(sorted(theta), abs=1e-6)
    assert angles_of(np.eye(4)) == [0.0, 0.0]
    assert angles_of(-np.eye(4)) == pytest.approx([math.pi, math.pi])


def test_a_reflection_is_relative_on_integers_only():
    """diag(1, −1) meets the requirement at integer positions and has no real square root: continuity leaves rotations."""
    flip, power = np.diag([1.0, -1.0]), np.linalg.matrix_power
    q, k = np.array([1.0, 0.5]), np.array([0.3, 1.0])
    scores = {(m, n): power(flip, m) @ q @ (power(flip, n) @ k) for m in range(6) for n in range(6)}
    assert all(s == pytest.approx(scores[abs(m - n), 0]) for (m, n), s in scores.items())
    assert scores[0, 0] != pytest.approx(scores[1, 0])
    with pytest.raises(ValueError, match="行列式"):
        angles_of(flip)


def test_a_qk_norm_gain_commutes_with_permutations_only():
    rng = np.random.default_rng(0)
    x, gain, basis = rng.standard_normal(8), rng.uniform(0.5, 2, 8), random_orthogonal(rng, 8)
    order = rng.permutation(8)

    def norm(x, gain):
        return x / np.sqrt(np.mean(x**2)) * gain

    assert np.allclose(norm(x[order], gain[order]), norm(x, gain)[order])
    assert not np.allclose(norm(basis @ x, gain), basis @ norm(x, gain), atol=0.05)


def test_other_maps_break_the_relative_property():
    """An angle m²θ keeps norms but is no homomorphism; a map that is not orthogonal and shared by q and k is not relative either."""
    q, k, theta = np.array([1.0, 0.5]), np.array([0.3, 1.0]), np.array([0.2])

    def difference(a):
        return abs(a(5) @ q @ (a(3) @ k) - a(9) @ q @ (a(7) @ k))

    assert difference(lambda m: rotation_matrix(m, theta)) < 1e-12
    assert difference(lambda m: rotation_matrix(m * m, theta)) > 0.1
    assert difference(lambda m: 0.9**m * rotation_matrix(m, theta)) > 0.1
    assert with_decay(q, k, 5, 3, theta, 0.9) == pytest.approx(with_decay(q, k, 9, 7, theta, 0.9))
    assert with_decay(q, k, 9, 7, theta, 0.9) == pytest.approx(0.81 * score(q, k, 2, theta))


def test_wavelengths():
    theta = np.array(frequencies(128, 5e5))
    shortest, longest, ratio, octave = wavelengths(128, 5e5)
    turns = 2 * np.pi / theta
    assert (shortest, longest) == (pytest.approx(turns[0]), pytest.approx(turns[-1]))
    assert turns[1:] / turns[:-1] == pytest.approx(ratio)
    counts = [np.sum((turns >= lo) & (turns < 2 * lo)) for lo in 2.0 ** np.arange(3, 20)]
    assert np.mean(counts) == pytest.approx(octave, abs=0.1)


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_the_mean_score_falls_like_a_logarithm(base):
    offsets = np.unique(np.geomspace(5, base / 20, 400).astype(int))
    exact, approximate = np.array([coherence(int(x), 128, base) for x in offsets]).T
    assert np.abs(exact - approximate).max() < 0.15
    assert abs(np.mean(exact - approximate)) < 0.02
    fine = np.array([coherence(int(x), 4096, base)[0] for x in offsets])  # nearly the integral: less oscillation
    assert np.abs(fine - approximate).max() < 0.05


def test_independent_q_and_k_do_not_decay():
    """Zero-mean independent q and k: the score has mean 0 and the same variance at every distance."""
    rng, theta = np.random.default_rng(0), np.array(frequencies(32))
    q, k = rng.standard_normal((2, 20_000, 32))
    for offset in (0, 10, 1000):
        values = np.einsum("nd,nd->n", q @ rotation_matrix(offset, theta).T, k)
        assert abs(values.mean()) < 4 * math.sqrt(32 / 20_000)
        assert values.var() == pytest.approx(32, rel=0.06)
    q, k = rng.standard_normal((2, 20_000, 2)) * [2, 0.1]  # independent is not enough: isotropy is needed
    spread = [(q @ rotation_matrix(1, [angle]).T * k).sum(1).var() for angle in (0.0, math.pi / 2)]
    assert spread[0] > 50 * spread[1]


def test_energy_in_the_lowest_frequency_hardly_decays():
    theta = np.array(frequencies(128))
    low = np.zeros(128)
    low[-2] = 1
    assert score(low, low, 1000, theta) > 0.99 > 0.2 > coherence(1000, 128, 1e4)[0]


def test_different_maps_for_q_and_k_are_powers_of_any_invertible_matrix():
    """A_m = (Mᵀ)^m, B_n = M^(−n) with an arbitrary invertible M: the score depends on m − n only."""
    rng = np.random.default_rng(0)
    matrix = np.eye(4) + 0.2 * rng.standard_normal((4, 4))
    power = np.linalg.matrix_power
    q, k = rng.standard_normal((2, 4))
    scores = [power(matrix.T, n + 3) @ q @ (power(np.linalg.inv(matrix), n) @ k) for n in (0, 2, 5)]
    assert scores == pytest.approx([scores[0]] * 3)
    assert scores[0] == pytest.approx(q @ power(matrix, 3) @ k)


@pytest.mark.parametrize("peak", [1, 1000, 4000])
def test_the_peak_can_be_anywhere(peak):
    near, top, _ = far_peak(peak)
    assert top == pytest.approx(1)
    assert near == pytest.approx(coherence(peak, 128, 1e4)[0])
    assert near < top


def test_backward_is_autograd_and_keeps_the_norm():
    rng, theta, m = np.random.default_rng(0), frequencies(8), 123
    x, dy = rng.standard_normal((2, 8))
    matrix = torch.tensor(rotation_matrix(m, theta))
    leaf = torch.tensor(x, requires_grad=True)
    (matrix @ leaf).backward(torch.tensor(dy))
    assert np.allclose(backward(dy, m, theta), leaf.grad, atol=1e-12)
    assert np.linalg.norm(backward(dy, m, theta)) == pytest.approx(np.linalg.norm(dy))
    step = 1e-6
    numeric = [
        dy @ (rotation_matrix(m, theta) @ (x + step * e) - rotation_matrix(m, theta) @ (x - step * e)) / (2 * step) for e in np.eye(8)
    ]
    assert np.allclose(backward(dy, m, theta), numeric, atol=1e-7)


def test_the_gradient_by_the_angle_is_a_quarter_turn():
    """∂(R_m x)/∂θ_i = m·J·(R_m x) on pair i: finite differences."""
    x, m, theta = np.array([0.4, -1.2]), 9, 0.3
    numeric = (rotation_matrix(m, [theta + 1e-6]) @ x - rotation_matrix(m, [theta - 1e-6]) @ x) / 2e-6
    assert np.allclose(numeric, m * np.array([[0, -1], [1, 0]]) @ rotation_matrix(m, [theta]) @ x, atol=1e-6)


def test_rotating_values_needs_rotating_back():
    assert np.allclose(attention_output(0, False), attention_output(999, False))
    assert not np.allclose(attention_output(0, True), attention_output(3, True), atol=0.05)
    assert np.allclose(attention_output(0, True, True), attention_output(999, True, True))
    assert not np.allclose(attention_output(0, True, True), attention_output(0, False), atol=0.05)  # relative values, another layer


def test_rejects():
    good, theta = np.ones(4), [1.0, 0.1]
    calls = [
        lambda: rotation_matrix(1, []),
        lambda: rotation_matrix(1, [math.nan]),
        lambda: rotation_matrix(math.inf, theta),
        lambda: rotation_matrix(True, theta),
        lambda: rotation_matrix(np.bool_(True), theta),
        lambda: rotation_matrix(1e20, theta),
        lambda: rotation_matrix(1, [1e308]),
        lambda: score(1e200 * good, good, 1, theta),
        lambda: score(np.ones(3), good, 1, theta),
        lambda: score(np.array([1, 1, 1, math.nan]), good, 1, theta),
        lambda: angles_of(np.eye(3)),
        lambda: angles_of(np.ones((2, 2))),
        lambda: angles_of(np.diag([1.0, -1.0])),
        lambda: with_decay(good, good, 1, 0, theta, 1.5),
        lambda: with_decay(np.ones(3), good, 1, 0, theta, 0.9),
        lambda: with_decay(math.nan * good, good, 1, 0, theta, 0.9),
        lambda: with_decay(good, good, 6000, 5000, theta, 0.5),
        lambda: wavelengths(5, 1e4),
        lambda: wavelengths(4, math.nan),
        lambda: wavelengths(4, math.inf),
        lambda: coherence(0, 128, 1e4),
        lambda: coherence(math.nan, 128, 1e4),
        lambda: coherence(1e5, 128, 1e4),
        lambda: far_peak(3, d=7),
        lambda: backward(np.ones(3), 1, theta),
        lambda: backward(np.array([math.inf, 0, 0, 0]), 1, theta),
        lambda: attention_output(math.nan, True),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="须"):
            call()
