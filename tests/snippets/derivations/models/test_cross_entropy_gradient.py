"""The gradient of cross-entropy against torch, autograd and finite differences; its Hessian; the output layer; half precision."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.derivations.models.cross_entropy_gradient import (
    by_chain_rule,
    curvature,
    diagonal_only,
    distillation_gradient,
    finite_difference,
    fisher,
    hessian,
    inverse_temperature_gradient,
    linear_cross_entropy,
    loss_and_gradient,
    mask_then_mean,
    mean_loss,
    output_layer,
    rounded_before_subtracting,
    softmax,
    softmax_jacobian,
    stored_in_fp16,
    temperature_is_not_a_factor,
    vocabulary_parallel_dx,
)

rows = st.integers(2, 7).flatmap(lambda n: st.lists(st.floats(-8, 8), min_size=n, max_size=n))
EXTREME = [-1e4, -65504.0, 0.0, 65504.0, 1e4]


def one_hot(y, n):
    return [float(k == y) for k in range(n)]


@settings(deadline=None, max_examples=40)
@given(rows)
def test_jacobian_is_torchs_and_its_rows_sum_to_zero(z):
    ours = np.array(softmax_jacobian(z))
    theirs = torch.autograd.functional.jacobian(lambda v: v.softmax(-1), torch.tensor(z, dtype=torch.float64))
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    np.testing.assert_allclose(ours.sum(0), 0, atol=1e-12)
    np.testing.assert_allclose(ours, ours.T, atol=1e-15)


@settings(deadline=None, max_examples=40)
@given(rows, st.integers(0, 99), st.floats(0.2, 20), st.sampled_from([0.0, 1e-4, 0.1]))
def test_gradient_is_autograds_for_any_weights_temperature_and_z_loss(z, seed, temperature, c):
    p = np.random.default_rng(seed).standard_normal(len(z)).tolist()  # weights of either sign: an advantage may be negative
    v = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    expected = -(torch.tensor(p, dtype=torch.float64) * (v / temperature).log_softmax(-1)).sum() + c * (v / temperature).logsumexp(-1) ** 2
    loss, gradient = loss_and_gradient(z, p, temperature, c)
    assert loss == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(gradient, torch.autograd.grad(expected, v)[0], rtol=1e-9, atol=1e-10)
    numeric = finite_difference(lambda x: loss_and_gradient(x, p, temperature, c)[0], z, 1e-5)
    np.testing.assert_allclose(gradient, numeric, atol=1e-6 * (1 + abs(loss)))


@settings(deadline=None, max_examples=40)
@given(rows, st.data())
def test_one_hot_gradient_sums_to_zero_and_is_at_most_two_in_l1(z, data):
    y = data.draw(st.integers(0, len(z) - 1))
    gradient = loss_and_gradient(z, one_hot(y, len(z)))[1]
    assert math.fsum(gradient) == pytest.approx(0, abs=1e-12)
    assert math.fsum(map(abs, gradient)) == pytest.approx(2 * (1 - softmax(z)[y]), abs=1e-12)
    assert math.hypot(*gradient) <= math.sqrt(2) + 1e-12
    np.testing.assert_allclose(by_chain_rule(z, y), gradient, atol=1e-12)
    shifted = loss_and_gradient([v + 30 for v in z], one_hot(y, len(z)))[1]
    np.testing.assert_allclose(shifted, gradient, atol=1e-12)


def test_extremes():
    for y in range(len(EXTREME)):
        loss, gradient = loss_and_gradient(EXTREME, one_hot(y, 5))
        assert math.isfinite(loss)
        np.testing.assert_allclose(gradient, np.array(one_hot(3, 5)) - one_hot(y, 5), atol=0)
    with pytest.raises(ValueError, match="下溢"):
        by_chain_rule(EXTREME, 0)  # dividing by q is what fails
    assert loss_and_gradient([3.0], [1.0]) == (0.0, [0.0])
    assert loss_and_gradient([1.0, -math.inf], [1.0, 0.0]) == (0.0, [0.0, 0.0])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(2, 9), st.integers(0, 999), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([-100, -1, 0]))
def test_mean_over_valid_tokens_is_torchs(n, v, seed, epsilon, ignore):
    rng = np.random.default_rng(seed)
    z, labels = 3 * rng.standard_normal((n, v)), rng.integers(0, v, n)
    labels[rng.random(n) < 0.3] = ignore
    if (labels == ignore).all():
        with pytest.raises(ValueError, match="没有有效"):
            mean_loss(z.tolist(), labels.tolist(), ignore, epsilon)
        return
    t = torch.tensor(z, requires_grad=True)
    expected = F.cross_entropy(t, torch.tensor(labels), ignore_index=ignore, label_smoothing=epsilon)
    loss, gradient = mean_loss(z.tolist(), labels.tolist(), ignore, epsilon)
    assert loss == pytest.approx(expected.item())
    np.testing.assert_allclose(gradient, torch.autograd.grad(expected, t)[0], atol=1e-12)
    assert not np.any(np.array(gradient)[labels == ignore])


@settings(deadline=None, max_examples=40)
@given(rows, st.sampled_from([0.0, 1e-4, 0.3]), st.integers(0, 99))
def test_hessian_is_autograds_and_differences_of_the_gradient(z, c, seed):
    y, n = seed % len(z), len(z)
    v = torch.tensor(z, dtype=torch.float64)
    expected = torch.autograd.functional.hessian(lambda x: -x.log_softmax(-1)[y] + c * x.logsumexp(-1) ** 2, v)
    ours = np.array(hessian(z, c))
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-10)
    for j in range(n):
        numeric = finite_difference(lambda x, j=j: loss_and_gradient(x, one_hot(y, n), 1.0, c)[1][j], z)
        np.testing.assert_allclose(ours[j], numeric, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(rows, st.integers(0, 99))
def test_hessian_is_the_fisher_matrix_psd_and_at_most_a_half(z, seed):
    matrix = hessian(z)
    np.testing.assert_allclose(matrix, fisher(z), atol=1e-12)
    values = np.linalg.eigvalsh(matrix)
    assert values[0] >= -1e-12
    assert values[-1] <= 0.5 + 1e-12
    np.testing.assert_allclose(np.array(matrix) @ np.ones(len(z)), 0, atol=1e-12)  # the direction of a common shift
    v = np.random.default_rng(seed).standard_normal(len(z))
    q = np.array(softmax(z))
    assert curvature(matrix, v.tolist()) == pytest.approx(q @ v**2 - (q @ v) ** 2, abs=1e-12)


def test_fisher_by_sampled_labels():
    z, n = [1.0, 0.0, -1.0], 40_000
    q = np.array(softmax(z))
    labels = np.random.default_rng(0).choice(3, n, p=q)
    g = q - np.eye(3)[labels]
    np.testing.assert_allclose(g.T @ g / n, hessian(z), atol=5 / math.sqrt(n))


def test_z_loss_curvature_turns_negative_only_far_below_zero():
    for shift, sign in ((0.0, 1), (-4000.0, 1), (-6000.0, -1)):  # 1 + 2c·ln Z changes sign at ln Z = −5000 for c = 1e-4
        assert sign * curvature(hessian([shift + 1, shift], 1e-4), [1.0, -1.0]) > 0


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(2, 6), st.integers(1, 10), st.integers(0, 999))
def test_through_the_output_layer_for_any_chunk(n, h, v, chunk, seed):
    rng = np.random.default_rng(seed)
    x, w, y = rng.standard_normal((n, h)), rng.standard_normal((v, h)), rng.integers(0, v, n)
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    expected = F.cross_entropy(tx @ tw.T, torch.tensor(y))
    loss, dx, dw = linear_cross_entropy(x.tolist(), w.tolist(), y.tolist(), chunk)
    assert loss == pytest.approx(expected.item())
    for ours, theirs in zip((dx, dw), torch.autograd.grad(expected, (tx, tw)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda s: sum(s) > 1), st.integers(0, 999))
def test_vocabulary_shards_sum_to_the_whole(h, sizes, seed):
    rng = np.random.default_rng(seed)
    x, w, y = rng.standard_normal(h), rng.standard_normal((sum(sizes), h)), int(rng.integers(sum(sizes)))
    shards = [part.tolist() for part in np.split(w, np.cumsum(sizes)[:-1])]
    loss, partial, dx = vocabulary_parallel_dx(x.tolist(), shards, y)
    whole_loss, whole_dx, _ = linear_cross_entropy([x.tolist()], w.tolist(), [y], 1)
    assert loss == pytest.approx(whole_loss)
    np.testing.assert_allclose(dx, whole_dx[0], atol=1e-12)
    if len(sizes) > 1:
        assert not np.allclose(partial[0], dx)


@settings(deadline=None, max_examples=40)
@given(rows, st.integers(0, 99))
def test_hot_distillation_matches_centred_logits(z, seed):
    v = np.random.default_rng(seed).standard_normal(len(z))
    limit = (np.array(z) - np.mean(z) - v + v.mean()) / len(z)
    np.testing.assert_allclose(distillation_gradient(z, v.tolist(), 1e5), limit, atol=2e-3)
    np.testing.assert_allclose(distillation_gradient(v.tolist(), v.tolist(), 2.0), 0, atol=1e-12)


def test_temperature_does_more_than_scale_the_gradient():
    z, p = [4.0, 0.0, 0.0], [1.0, 0.0, 0.0]
    at_one, at_four = (loss_and_gradient(z, p, t)[1] for t in (1.0, 4.0))
    assert temperature_is_not_a_factor() == pytest.approx((at_one[0], at_one[0] / 4, at_four[0]))
    assert abs(at_four[0]) > abs(at_one[0])  # 1/T alone would say four times smaller: the softened q leaves a larger error


@settings(deadline=None, max_examples=40)
@given(rows, st.floats(0.1, 3))
def test_gradient_of_the_scale(z, scale):
    p = one_hot(0, len(z))
    numeric = finite_difference(lambda s: loss_and_gradient([s[0] * v for v in z], p)[0], [scale])[0]
    assert inverse_temperature_gradient(z, p, scale) == pytest.approx(numeric, abs=1e-6)


def test_half_precision_is_torchs():
    for tokens, vocabulary, scale in ((8192, 128_256, 1.0), (8192, 128_256, 65536.0), (16, 100, 1.0)):
        true = [1 / vocabulary / tokens, (1 / vocabulary - 1) / tokens]
        stored = (torch.tensor(true, dtype=torch.float64) * scale).half().double() / scale
        assert stored_in_fp16(tokens, vocabulary, scale) == pytest.approx((stored / torch.tensor(true, dtype=torch.float64)).tolist())
    for q in (0.5, 0.99, 0.997, 0.999, 1.0):
        low = torch.tensor(q, dtype=torch.float32).bfloat16().float() - 1
        assert rounded_before_subtracting(q)[0] == low.item()
        assert rounded_before_subtracting(q)[1] == torch.tensor(q - 1).bfloat16().item()
    assert rounded_before_subtracting(0.997)[0] < 0 == rounded_before_subtracting(0.999)[0]


def test_output_layer_costs():
    costs = output_layer(8192, 4096, 128_256)
    assert costs["反向 TFLOP"] == pytest.approx(2 * costs["前向 TFLOP"], abs=0.02)
    assert output_layer(1000, 1000, 1000)["G 的 GB"] == 0.0


def test_diagonal_only_loses_every_other_class():
    z, y = [2.0, 1.0, 0.0], 1
    right, wrong = loss_and_gradient(z, one_hot(y, 3))[1], diagonal_only(z, y)
    assert wrong[y] == pytest.approx(right[y])
    assert [g for k, g in enumerate(wrong) if k != y] == [0, 0]
    assert all(g > 0 for k, g in enumerate(right) if k != y)


def test_masking_then_averaging_scales_by_the_share_of_valid_tokens():
    naive, right = mask_then_mean([3.0, 1.0, 7.0], [1, 1, 0])
    assert (naive, right) == (pytest.approx(4 / 3), 2.0)


def test_a_right_prediction_still_has_a_gradient():
    gradient = loss_and_gradient([math.log(0.6), math.log(0.4)], [1.0, 0.0])[1]
    assert gradient == pytest.approx([-0.4, 0.4])


def test_rejects():
    calls = [
        lambda: softmax([]),
        lambda: softmax([math.nan, 0.0]),
        lambda: softmax([math.inf, 0.0]),
        lambda: softmax([-math.inf]),
        lambda: by_chain_rule([1.0, 2.0], -1),
        lambda: loss_and_gradient([1.0, 2.0], [1.0]),
        lambda: loss_and_gradient([1.0, 2.0], [math.nan, 1.0]),
        lambda: loss_and_gradient([1.0, -math.inf], [0.0, 1.0]),
        lambda: loss_and_gradient([1.0], [1.0], 0.0),
        lambda: loss_and_gradient([1.0], [1.0], math.nan),
        lambda: loss_and_gradient([1.0], [1.0], 1.0, -1.0),
        lambda: finite_difference(sum, [1.0], 0.0),
        lambda: distillation_gradient([1.0], [1.0], 0.0),
        lambda: inverse_temperature_gradient([math.inf], [1.0], 1.0),
        lambda: mean_loss([], []),
        lambda: mean_loss([[1.0, 2.0]], [2]),
        lambda: mean_loss([[1.0, 2.0]], [True]),
        lambda: hessian([1.0, 2.0], math.nan),
        lambda: linear_cross_entropy([[1.0]], [[1.0, 2.0]], [0], 1),
        lambda: linear_cross_entropy([[1.0]], [[1.0], [2.0]], [0], 0),
        lambda: output_layer(0, 1, 1),
        lambda: stored_in_fp16(1, 1),
        lambda: rounded_before_subtracting(math.nan),
        lambda: mask_then_mean([1.0], [0]),
        lambda: mask_then_mean([1.0], [0.5]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|不能|必须|没有|至少"):
            call()
