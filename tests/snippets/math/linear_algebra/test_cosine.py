"""Cosine against torch and exact cases; ranking equivalences; InfoNCE's floor against the simplex and random batches."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.linear_algebra.cosine import (
    cosine_gradient,
    cosine_matrix,
    cosine_similarity,
    eps_placements,
    half_precision_norms,
    infonce_floor,
    inner_product_as_cosine,
    mean_cosine,
    negative_weights,
    rogue_dimension,
    scaled_dot_is_not_cosine,
    scan_milliseconds,
    standardize,
    storage_error,
    three_winners,
    top_k,
)

seeds = st.integers(0, 1000)
vectors = st.lists(st.floats(-1e3, 1e3).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=1, max_size=8)


def random_matrix(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def torch_cosine(a, b):
    return F.cosine_similarity(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64), dim=0).item()


@given(vectors, st.data())
def test_against_torch_and_within_bounds(a, data):
    b = data.draw(st.lists(st.floats(-1e3, 1e3), min_size=len(a), max_size=len(a)))
    if not any(a) or max(map(abs, b)) < 1e-3:
        return
    value = cosine_similarity(a, b)
    assert -1 <= value <= 1
    assert value == pytest.approx(torch_cosine(a, b), abs=1e-9)
    assert value == pytest.approx(cosine_similarity(b, a))


@given(vectors.filter(any), st.floats(1e-250, 1e250), st.floats(1e-250, 1e250))
def test_scale_does_not_matter_and_self_similarity_is_one(a, p, q):
    scaled = [p * x for x in a], [q * x for x in a]
    if all(any(v) and all(map(math.isfinite, v)) for v in scaled):
        assert cosine_similarity(*scaled) == pytest.approx(1.0)
        math.acos(cosine_similarity(*scaled))  # never a domain error


@settings(deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_matrix_against_the_scalar(seed, q, n, d):
    queries, documents = random_matrix(q, d, seed=seed), random_matrix(n, d, seed=seed + 1)
    result = cosine_matrix(queries, documents)
    for i in range(q):
        for j in range(n):
            assert result[i, j] == pytest.approx(cosine_similarity(queries[i].tolist(), documents[j].tolist()), abs=1e-9)


@pytest.mark.parametrize("scale", [1e-7, 6e-5, 1.0, 60000.0])
def test_matrix_survives_the_range_of_half_precision(scale):
    x = np.array([[1.0, 0.5, -0.25]]) * scale
    half = x.astype(np.float16)
    expected = cosine_similarity(half[0].astype(float).tolist(), [1.0, 0.5, -0.25])
    assert cosine_matrix(half, np.array([[1.0, 0.5, -0.25]])).item() == pytest.approx(expected, abs=1e-6)


def test_zero_rows_give_zero_and_nothing_is_nan():
    result = cosine_matrix(np.zeros((2, 3), np.float16), np.vstack([np.zeros(3), np.ones(3)]))
    assert result.tolist() == [[0, 0], [0, 0]]
    assert cosine_matrix(np.full((1, 2), 1e30, np.float32), np.full((1, 2), 1e-30, np.float32)).item() == pytest.approx(1)


def test_what_torch_does_at_the_extremes():
    """The page's statements about torch.nn.functional.cosine_similarity, as of 2.13 on the CPU."""
    zero, tiny, huge = torch.zeros(4), torch.full((2,), 1e-9), torch.full((4,), 1e20)
    assert F.cosine_similarity(zero, zero, dim=0) == 0
    assert F.cosine_similarity(zero.half(), zero.half(), dim=0).isnan()  # eps = 1e-8 is 0 in fp16
    assert F.normalize(zero.half(), dim=0).isnan().all()
    assert F.cosine_similarity(tiny, tiny, dim=0).item() == pytest.approx(0.02, rel=1e-3)  # ‖tiny‖ = 1.4e-9 < eps
    assert F.cosine_similarity(huge, huge, dim=0) == 0  # the norm overflows fp32: 1/inf
    x = torch.randn(10_000, 64, generator=torch.Generator().manual_seed(0))
    assert F.cosine_similarity(x, 3 * x).max() > 1  # rounding: clamp before acos
    half = torch.full((4096,), 300.0).half()
    assert F.cosine_similarity(half, half, dim=0) == 1  # norms are accumulated in fp32 inside the operator
    assert (half * half).sum().isinf()  # by hand they are not


def test_eps_placement_follows_torch():
    for norm in (1.0, 1e-4, 1e-5, 1e-9):
        x = torch.tensor([norm], dtype=torch.float64)
        assert eps_placements(norm)[2] == pytest.approx(F.cosine_similarity(x, x, dim=0).item())


def test_half_precision_table():
    assert half_precision_norms()["[300] × 4"][0] == math.inf
    assert float(torch.tensor(1e-8).half()) == half_precision_norms()["eps = 1e-8"][0] == 0


def test_squares_leave_the_range_of_half_precision_at_256_and_below_1_7e_minus_4():
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(256) * np.float16(256))
        assert np.isfinite(np.float16(255.8) * np.float16(255.8))
    assert np.float16(1.7e-4) * np.float16(1.7e-4) == 0
    assert np.float16(1.8e-4) * np.float16(1.8e-4) > 0


def test_storage_errors_are_far_apart():
    errors = storage_error(256, 50)
    assert 10 * errors["fp16"] < errors["int8"] < errors["随机余弦"] / 20


@given(seeds, st.integers(2, 8))
def test_gradient_against_autograd_and_orthogonality(seed, d):
    a, b = random_matrix(d, seed=seed), random_matrix(d, seed=seed + 1)
    x = torch.tensor(a, requires_grad=True)
    F.cosine_similarity(x, torch.tensor(b), dim=0).backward()
    ours = cosine_gradient(a, b)
    np.testing.assert_allclose(ours, x.grad.numpy(), atol=1e-9)
    assert abs(ours @ a) < 1e-9
    assert np.linalg.norm(a + 0.1 * ours) >= np.linalg.norm(a)  # a step along it never shortens the vector


@given(seeds, st.integers(2, 20), st.integers(1, 6))
def test_three_metrics_rank_alike_on_unit_vectors(seed, n, d):
    x = random_matrix(n + 1, d, seed=seed)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    query, documents = x[0], x[1:]
    dot, squared = documents @ query, np.sum((documents - query) ** 2, axis=1)
    np.testing.assert_allclose(squared, 2 - 2 * dot, atol=1e-12)
    if d > 1:
        assert (np.argsort(-dot) == np.argsort(squared)).all()
        assert (np.argsort(-dot) == np.argsort(-cosine_matrix(query[None], documents)[0])).all()


def test_three_metrics_disagree_without_normalization():
    assert len(set(three_winners().values())) == 3


@given(seeds, st.integers(2, 20), st.integers(1, 6))
def test_inner_product_search_by_cosine(seed, n, d):
    documents, query = random_matrix(n, d, seed=seed) * np.geomspace(0.1, 10, n)[:, None], random_matrix(d, seed=seed + 1)
    by_cosine = cosine_matrix(np.append(query, 0)[None], inner_product_as_cosine(documents))[0]
    assert documents[np.argmax(by_cosine)] @ query == pytest.approx((documents @ query).max())


def test_attention_logits_grow_with_the_norm_and_cosine_does_not():
    result = scaled_dot_is_not_cosine()
    assert result["qk/√d"][1] > 2 * result["qk/√d"][0]
    assert result["余弦 × 10"][0] == pytest.approx(result["余弦 × 10"][1])


@given(seeds, st.integers(2, 10), st.integers(1, 6))
def test_mean_cosine_against_all_pairs(seed, n, d):
    x = random_matrix(n, d, seed=seed)
    pairs = cosine_matrix(x, x)[~np.eye(n, dtype=bool)]
    assert mean_cosine(x) == pytest.approx(pairs.mean(), abs=1e-9)


@pytest.mark.parametrize("d", [16, 256, 1024])
def test_cosine_of_random_vectors_has_standard_deviation_one_over_sqrt_d(d):
    values = cosine_matrix(random_matrix(300, d), random_matrix(300, d, seed=1))
    assert values.std() == pytest.approx(1 / math.sqrt(d), rel=0.05)
    assert abs(values.mean()) < 3 / math.sqrt(d)


@pytest.mark.parametrize("ratio", [0.0, 1.0, 9.0])
def test_a_common_offset_of_squared_norm_r_times_d_gives_mean_cosine_r_over_r_plus_one(ratio):
    x = random_matrix(500, 512)
    x[:, 0] += math.sqrt(ratio * 512)
    assert mean_cosine(x) == pytest.approx(ratio / (ratio + 1), abs=0.01)
    assert abs(mean_cosine(standardize(x, x))) < 0.01


def test_rogue_dimension_hurts_by_its_spread_not_by_its_mean():
    shifted, spread = (rogue_dimension(*case, d=256, n=100) for case in ((48.0, 1.0), (0.0, 48.0)))
    assert shifted[0][1] > 0.85
    assert shifted[0][2] == 1.0
    assert abs(spread[0][1]) < 0.05
    assert spread[0][2] < 0.7
    assert spread[2][2] == 1.0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=10), st.floats(0.01, 5))
def test_negative_weights_against_autograd(similarities, temperature):
    s = torch.tensor([1.0, *similarities], dtype=torch.float64, requires_grad=True)
    F.cross_entropy(s[None] / temperature, torch.tensor([0])).backward()
    gradient = s.grad[1:].numpy()
    if gradient.sum() > 1e-200:
        np.testing.assert_allclose(gradient / gradient.sum(), negative_weights(similarities, temperature), rtol=1e-6, atol=1e-9)


def infonce(x, y, temperature):
    return F.cross_entropy(torch.tensor(cosine_matrix(x, y) / temperature), torch.arange(len(x))).item()


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_infonce_floor_is_reached_by_the_simplex_and_by_nothing_lower(n, temperature):
    simplex = np.eye(n) - 1 / n
    floor = infonce_floor(n, temperature)
    assert infonce(simplex, simplex, temperature) == pytest.approx(floor)
    for seed in range(20):
        x = random_matrix(n, n, seed=seed)
        for y in (x, random_matrix(n, n, seed=seed + 100), simplex + 0.3 * x):
            assert infonce(y, x, temperature) >= floor - 1e-9
            assert infonce(y, y, temperature) >= floor - 1e-9


def test_infonce_floor_extremes():
    assert infonce_floor(32_768, 1.0) > 9
    assert infonce_floor(2, 1e-4) == 0
    assert infonce_floor(2, 1e6) == pytest.approx(math.log(2), abs=1e-5)


@settings(deadline=None)
@given(seeds, st.integers(1, 30), st.integers(1, 7), st.data())
def test_top_k_against_a_full_sort(seed, n, chunk, data):
    k = data.draw(st.integers(1, n))
    queries, documents = random_matrix(3, 5, seed=seed), random_matrix(n, 5, seed=seed + 1)
    ids, scores = top_k(queries, documents, k, chunk)
    full = cosine_matrix(queries, documents)
    np.testing.assert_allclose(scores, -np.sort(-full, axis=1)[:, :k], atol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(full, ids, axis=1), scores, atol=1e-12)
    assert all(len(set(row)) == k for row in ids.tolist())


def test_top_k_prefers_the_smaller_index_on_ties():
    documents = np.array([[2.0, 0.0], [1.0, 0.0], [4.0, 0.0], [0.0, 1.0]])
    for chunk in (1, 2, 4):
        assert top_k(np.array([[1.0, 0.0]]), documents, 3, chunk)[0].tolist() == [[0, 1, 2]]


def test_scan_turns_compute_bound_at_the_ridge():
    assert scan_milliseconds(10**6, 512, 290)[1] == "带宽"
    assert scan_milliseconds(10**6, 512, 300)[1] == "算力"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cosine_similarity([], []), "非空"),
        (lambda: cosine_similarity([1], [1, 2]), "等长"),
        (lambda: cosine_similarity([math.nan], [1]), "NaN"),
        (lambda: cosine_matrix(np.ones(3), np.ones((2, 3))), "形状"),
        (lambda: eps_placements(0), "norm"),
        (lambda: cosine_gradient(np.zeros(2), np.ones(2)), "不可微"),
        (lambda: mean_cosine(np.zeros((2, 2))), "零向量"),
        (lambda: negative_weights([0.1], 0), "temperature"),
        (lambda: infonce_floor(1, 1.0), "n ≥ 2"),
        (lambda: top_k(np.ones((1, 2)), np.ones((2, 2)), 3), "k"),
        (lambda: scan_milliseconds(0, 1, 1), "n、d、queries"),
        (lambda: cosine_matrix(np.array([[np.nan, 1.0]]), np.ones((1, 2))), "NaN"),
        (lambda: top_k(np.ones((1, 2)), np.array([[np.nan, 0.0], [1.0, 0.0]]), 1), "NaN"),
        (lambda: negative_weights([math.nan, 1.0], 1.0), "有限"),
        (lambda: infonce_floor(4, math.nan), "temperature"),
        (lambda: cosine_gradient(np.array([np.nan, 1.0]), np.ones(2)), "有限"),
        (lambda: mean_cosine(np.array([[np.nan, 1.0], [1.0, 1.0]])), "有限"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
