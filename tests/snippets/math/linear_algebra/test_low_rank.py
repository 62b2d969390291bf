"""Low rank against torch autograd, brute force over competitors, and the definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.linear_algebra.low_rank import (
    break_even_rank,
    compression_table,
    kv_elements_per_layer,
    lora_forward,
    lora_gradients,
    lora_limit,
    lora_parameters,
    low_rank_weights_keep_scores_square,
    mla_scores,
    quantize,
    quarter_size,
    relative_error,
    softmax_restores_rank,
    spectra,
    whitened_truncation,
)
from snippets.math.linear_algebra.svd import truncated

seeds = st.integers(0, 1000)


def random_matrix(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_break_even_rank_balances_the_parameters(m, n):
    r = break_even_rank(m, n)
    assert r * (m + n) == pytest.approx(m * n)
    assert r <= min(m, n)


def test_lora_parameters_of_published_models():
    assert lora_parameters([(4096, 4096)] * 2, r=8, layers=32) == 4_194_304  # Llama-7B, q and v
    assert lora_parameters([(12288, 12288)] * 2, r=4, layers=96) == 18_874_368  # GPT-3, q and v


def test_kv_elements_against_the_deepseek_v3_config():
    sizes = dict(kv_elements_per_layer(128, 8, 128, 512, 64))
    assert sizes["MLA"] * 61 * 2 == 70_272  # bytes per token in bf16
    assert sizes["MLA"] / (2 * 128) == 2.25  # GQA groups


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.data())
def test_relative_error_is_the_error_of_the_truncated_matrix(sigma, data):
    r = data.draw(st.integers(0, len(sigma)))
    a = np.diag(sigma)
    u, s, vt = truncated(a, r)
    assert relative_error(np.array(sigma), r) == pytest.approx(np.linalg.norm(a - (u * s) @ vt) / np.linalg.norm(a), abs=1e-12)


def test_gaussian_error_follows_from_its_own_spectrum_and_half_rank_saves_nothing():
    assert spectra(64)["高斯"].shape == (64,)
    kept, errors = compression_table(64)[-1]
    assert kept == 1.0
    assert errors["高斯"] > 0.25


@given(st.integers(2, 8), seeds)
def test_quantization_error_is_at_most_half_a_step(bits, seed):
    w = random_matrix(4, 128, seed=seed)
    step = np.abs(w).reshape(-1, 128).max(axis=1) / (2 ** (bits - 1) - 1)
    assert (np.abs(w - quantize(w, bits)).max(axis=1) <= step / 2 + 1e-12).all()


def test_quantize_keeps_zeros_and_extremes():
    assert not quantize(np.zeros((2, 128)), 4).any()
    huge = np.full((1, 128), 1e300)
    np.testing.assert_allclose(quantize(huge, 4), huge)


def test_int4_beats_low_rank_on_a_flat_spectrum_by_a_wide_margin():
    low_rank, int4 = quarter_size(256)
    assert low_rank > 5 * int4


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(1, 5))
def test_whitened_truncation_beats_random_competitors_of_the_same_rank(seed, r):
    w, x = random_matrix(6, 8, seed=seed), random_matrix(40, 8, seed=seed + 1) * np.geomspace(5, 0.2, 8)
    best = whitened_truncation(w, x, r)
    assert np.linalg.matrix_rank(best, tol=1e-8) <= r
    error = np.linalg.norm(x @ (w - best).T)
    u, s, vt = truncated(w, r)
    assert error <= np.linalg.norm(x @ (w - (u * s) @ vt).T) + 1e-9
    rng = np.random.default_rng(seed)
    u, s, vt = truncated(best, r)
    for size in (1e-3, 1e-1, 1.0):  # perturbed factors are of rank r too
        other = (u * s + size * rng.standard_normal(u.shape)) @ (vt + size * rng.standard_normal(vt.shape))
        assert error <= np.linalg.norm(x @ (w - other).T) + 1e-9


def test_whitening_is_plain_truncation_for_isotropic_inputs():
    w, x = random_matrix(6, 8), np.vstack([np.eye(8)] * 3)
    u, s, vt = truncated(w, 3)
    np.testing.assert_allclose(whitened_truncation(w, x, 3), (u * s) @ vt, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(1, 4), st.floats(0.5, 64))
def test_lora_forward_and_gradients_against_autograd(seed, r, alpha):
    x, w0, a, b, dy = (random_matrix(*shape, seed=seed + i) for i, shape in enumerate(((5, 6), (4, 6), (r, 6), (4, r), (5, 4))))
    tensors = [torch.tensor(v) for v in (x, w0, a, b)]
    for t in tensors[2:]:
        t.requires_grad_()
    y = torch.nn.functional.linear(tensors[0], tensors[1] + alpha / r * tensors[3] @ tensors[2])
    y.backward(torch.tensor(dy))
    np.testing.assert_allclose(lora_forward(x, w0, a, b, alpha), y.detach().numpy(), atol=1e-9)
    for ours, t in zip(lora_gradients(x, dy, a, b, alpha), tensors[2:], strict=True):
        np.testing.assert_allclose(ours, t.grad.numpy(), atol=1e-9)


@settings(deadline=None, max_examples=5)
@given(st.integers(1, 6))
def test_lora_never_beats_eckart_young_and_reaches_it(r):
    error, limit, rank = lora_limit(np.linspace(1, 0.3, 8), r, steps=3000)
    assert rank == r
    assert error >= limit - 1e-9
    assert error == pytest.approx(limit, abs=2e-3)


@given(seeds, st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(1, 7))
def test_absorption_changes_nothing(seed, heads, d, c, t):
    q, latent, w_uk = random_matrix(heads, d, seed=seed), random_matrix(t, c, seed=seed + 1), random_matrix(heads, d, c, seed=seed + 2)
    np.testing.assert_allclose(mla_scores(q, latent, w_uk, True), mla_scores(q, latent, w_uk, False), atol=1e-9)


def test_rope_on_the_expanded_key_defeats_absorption():
    """With a position-dependent rotation between W_UK and q there is no single absorbed query for all positions."""
    latent, w_uk, q = random_matrix(64, 4), random_matrix(8, 4, seed=1), random_matrix(8, seed=2)

    def rotate(v, position):
        angles = position * 10000.0 ** (-np.arange(4) / 4)
        first, second = v[:4], v[4:]
        return np.concatenate([first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)])

    plain = latent @ w_uk.T @ q
    rotated = np.array([rotate(w_uk @ c, t) @ q for t, c in enumerate(latent)])
    for scores, fits in ((plain, True), (rotated, False)):
        absorbed = np.linalg.lstsq(latent, scores, rcond=None)[0]
        residual = np.linalg.norm(latent @ absorbed - scores) / np.linalg.norm(scores)
        assert bool(residual < 1e-9) is fits
        assert fits or residual > 0.3


def test_scores_shapes_and_rank():
    shapes = low_rank_weights_keep_scores_square(s=20, h=6, k=3)
    assert list(shapes.values()) == [(20, 20), (20, 3)]
    assert softmax_restores_rank(16, 4) == (4, 16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: break_even_rank(0, 1), "m、n"),
        (lambda: lora_parameters([], 1, 1), "至少一个"),
        (lambda: lora_parameters([(1, 1)], 0, 1), "r ≥ 1"),
        (lambda: kv_elements_per_layer(6, 4, 1, 1, 1), "整除"),
        (lambda: relative_error(np.zeros(3), 1), "不全为 0"),
        (lambda: relative_error(np.ones(3), 4), "3"),
        (lambda: quantize(np.ones(5), 4), "倍数"),
        (lambda: quantize(np.ones(128), 1), "bits"),
        (lambda: whitened_truncation(np.eye(3), np.ones((2, 4)), 1), "不合"),
        (lambda: whitened_truncation(np.eye(3), np.ones((2, 3)), 1), "不正定"),
        (lambda: lora_forward(np.eye(3), np.eye(3), np.ones((2, 3)), np.ones((3, 1)), 1), "不合"),
        (lambda: mla_scores(np.ones((2, 3)), np.ones((4, 5)), np.ones((2, 3, 4)), True), "不合"),
        (lambda: relative_error(np.array([np.nan, 1.0]), 1), "有限"),
        (lambda: relative_error(np.array([-1.0, 1.0]), 1), "非负"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
