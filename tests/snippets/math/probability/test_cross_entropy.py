"""Loss and gradient against torch and finite differences; identities; invariances; the conventions of averaging."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.probability.cross_entropy import (
    cross_entropy,
    drift_costs_precision,
    entropy,
    exp_limits,
    gradient_at_margin,
    kl,
    log_of_softmax_in_fp16,
    logits_gigabytes,
    logsumexp,
    next_token_loss,
    softmax_cross_entropy,
    to_bf16,
    to_fp16,
    token_mean_or_mean_of_means,
    token_weights,
    vocabulary_parallel_loss,
    z_loss,
    zero_is_not_the_floor,
)

logits_lists = st.lists(st.floats(-80, 80), min_size=1, max_size=12)
distributions = st.lists(st.floats(1e-3, 1), min_size=2, max_size=8).map(lambda w: [x / math.fsum(w) for x in w])


@settings(deadline=None)
@given(logits_lists, st.data())
def test_loss_and_gradient_equal_torch(logits, data):
    target = data.draw(st.integers(0, len(logits) - 1))
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    reference = torch.nn.functional.cross_entropy(x[None], torch.tensor([target]))
    reference.backward()
    loss, grad = softmax_cross_entropy(logits, target)
    assert loss == pytest.approx(reference.item(), rel=1e-9, abs=1e-12)
    assert grad == pytest.approx(x.grad.tolist(), rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0, 0.1))
def test_z_loss_gradient_by_finite_differences(logits, coefficient):
    _, grad = z_loss(logits, 0, coefficient)
    h = 1e-6
    for i in range(len(logits)):
        up, down = ([z + (h if j == i else 0) * sign for j, z in enumerate(logits)] for sign in (1, -1))
        numeric = (z_loss(up, 0, coefficient)[0] - z_loss(down, 0, coefficient)[0]) / (2 * h)
        assert grad[i] == pytest.approx(numeric, abs=1e-6)


@given(distributions, st.data())
def test_cross_entropy_is_entropy_plus_kl_and_kl_is_not_negative(p, data):
    weights = data.draw(st.lists(st.floats(1e-3, 1), min_size=len(p), max_size=len(p)))
    q = [w / math.fsum(weights) for w in weights]
    assert cross_entropy(p, q) == pytest.approx(entropy(p) + kl(p, q), rel=1e-9, abs=1e-12)
    assert kl(p, q) >= -1e-12


@given(logits_lists, st.floats(-1e3, 1e3))
def test_adding_a_constant_changes_neither_loss_nor_gradient(logits, shift):
    loss, grad = softmax_cross_entropy(logits, 0)
    moved, moved_grad = softmax_cross_entropy([z + shift for z in logits], 0)
    assert moved == pytest.approx(loss, rel=1e-6, abs=1e-9)
    assert moved_grad == pytest.approx(grad, rel=1e-6, abs=1e-9)


def test_z_loss_pins_the_constant_direction():
    positive, negative = ([z + shift for z in (2.0, 1.0, 0.0)] for shift in (50.0, -50.0))
    assert math.fsum(z_loss(positive, 0)[1]) > 0 > math.fsum(z_loss(negative, 0)[1])


def test_fp16_softmax_needs_the_shift():
    """e¹² overflows fp16; the shifted form does not."""
    z = torch.tensor([12.0, 0.0], dtype=torch.float16)
    assert z.exp().isinf().any()
    assert (z - z.max()).exp().isfinite().all()


def test_maximum_likelihood_is_minimum_cross_entropy():
    """On counts, the empirical frequencies beat every other distribution of a grid."""
    frequencies = [0.6, 0.3, 0.1]
    best = min((cross_entropy(frequencies, [a / 20, b / 20, (20 - a - b) / 20]), a, b) for a in range(1, 19) for b in range(1, 20 - a))
    assert best[1:] == (12, 6)


def test_equal_lengths_make_the_conventions_agree():
    assert token_mean_or_mean_of_means([[1.0, 2.0], [3.0, 4.0]]) == (2.5, 2.5)


def test_masked_logits():
    assert logsumexp([-math.inf, 0.0]) == 0.0
    assert softmax_cross_entropy([-math.inf, 0.0], 1) == (0.0, [0.0, 0.0])
    assert math.isinf(softmax_cross_entropy([-math.inf, 0.0], 0)[0])


@pytest.mark.parametrize(("name", "bits"), [("float16", (5, 10)), ("bfloat16", (8, 7)), ("float32", (8, 23))])
def test_limits_of_exp_are_those_of_torch(name, bits):
    """Round the exact exponential to the format: infinite just above the limit, zero just below the other."""
    over, under = exp_limits(*bits)
    dtype = getattr(torch, name)
    exp = lambda z: torch.tensor(z, dtype=torch.float64).exp().to(dtype)  # noqa: E731
    assert exp(over + 1e-6).isinf()
    assert exp(over - 1e-6).isfinite()
    assert exp(under + 1e-4) > 0
    assert exp(under - 1e-4) == 0


@given(st.floats(-1e5, 1e5) | st.floats(-1e-6, 1e-6))
def test_rounding_equals_torch(x):
    assert to_fp16(x) == torch.tensor(x, dtype=torch.float64).to(torch.float16).item()
    single = torch.tensor(x, dtype=torch.float64).to(torch.float32)  # bf16 is rounded from fp32, as on the GPU
    assert to_bf16(x) == single.to(torch.bfloat16).item()


def test_softmax_then_log_in_fp16_as_torch_does_it():
    z = torch.tensor([0.0, -18.0], dtype=torch.float16)
    assert z.softmax(0).log()[1] == -math.inf
    assert z.log_softmax(0)[1] == -18
    assert math.isinf(log_of_softmax_in_fp16(18.0)[0])
    assert log_of_softmax_in_fp16(0.0)[0] == pytest.approx(math.log(2), abs=1e-3)


def test_drift_of_logits_costs_bf16_precision_and_nothing_else():
    means = [drift_costs_precision(offset)[0] for offset in (0, 10, 30, 100, 300)]
    assert means == sorted(means)
    assert means[-1] > 100 * means[0]


def test_z_loss_has_its_minimum_at_the_same_distribution():
    """Shift any logits by −ln Z: the z-loss is 0 and the cross-entropy unchanged, so the best distribution stays the best."""
    logits = [0.3, -1.2, 2.0]
    plain = softmax_cross_entropy(logits, 1)[0]
    centred = [z - logsumexp(logits) for z in logits]
    assert z_loss(centred, 1)[0] == pytest.approx(plain, abs=1e-12)
    assert z_loss(logits, 1)[0] > plain


@given(st.lists(st.lists(st.floats(-50, 50), min_size=1, max_size=4), min_size=1, max_size=5), st.data())
def test_vocabulary_parallel_equals_the_whole(shards, data):
    whole = [z for shard in shards for z in shard]
    target = data.draw(st.integers(0, len(whole) - 1))
    loss, grads = vocabulary_parallel_loss(shards, target)
    reference, grad = softmax_cross_entropy(whole, target)
    assert loss == pytest.approx(reference, rel=1e-9, abs=1e-9)
    assert [g for part in grads for g in part] == pytest.approx(grad, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_next_token_loss_equals_the_shifted_torch_loss(s, seed):
    torch.manual_seed(seed)
    logits, labels = torch.randn(s, 7, dtype=torch.float64), torch.randint(7, (s,))
    labels[torch.rand(s) < 0.3] = -100
    total, count = next_token_loss(logits.tolist(), labels.tolist())
    assert total == pytest.approx(torch.nn.functional.cross_entropy(logits[:-1], labels[1:], reduction="sum").item())
    assert count == (labels[1:] != -100).sum()


@given(st.lists(st.lists(st.floats(0, 9), min_size=1, max_size=6), min_size=1, max_size=5))
def test_weights_explain_the_mean_of_means(losses):
    right, wrong = token_mean_or_mean_of_means(losses)
    weights = token_weights([len(batch) for batch in losses])
    tokens = sum(map(len, losses))
    assert math.fsum(w * math.fsum(b) for w, b in zip(weights, losses, strict=True)) / tokens == pytest.approx(wrong)
    assert math.fsum(w * len(b) for w, b in zip(weights, losses, strict=True)) == pytest.approx(tokens)
    if len(set(map(len, losses))) == 1:
        assert right == pytest.approx(wrong)


def test_accumulated_sums_over_the_global_count_equal_one_big_batch():
    torch.manual_seed(0)
    w = torch.randn(5, 3, requires_grad=True)
    batches = [(torch.randn(n, 3), torch.randint(5, (n,))) for n in (4, 1, 7)]
    tokens = sum(len(y) for _, y in batches)
    big = torch.nn.functional.cross_entropy(torch.cat([x for x, _ in batches]) @ w.T, torch.cat([y for _, y in batches]))
    expected = torch.autograd.grad(big, w)[0]
    losses = [torch.nn.functional.cross_entropy(x @ w.T, y, reduction="sum") / tokens for x, y in batches]
    torch.testing.assert_close(sum(torch.autograd.grad(loss, w)[0] for loss in losses), expected)
    means = [torch.nn.functional.cross_entropy(x @ w.T, y) / len(batches) for x, y in batches]
    assert not torch.allclose(sum(torch.autograd.grad(loss, w)[0] for loss in means), expected, rtol=0.05)


@given(st.floats(-20, 20))
def test_gradients_at_a_margin_by_finite_differences(margin):
    def losses(m):
        q = 1 / (1 + math.exp(-m))
        return -math.log(q), 0.5 * (1 - q) ** 2

    h = 1e-4
    for index, grad in enumerate(gradient_at_margin(margin)):
        assert (losses(margin - h)[index] - losses(margin + h)[index]) / (2 * h) == pytest.approx(grad, abs=1e-6)


def test_floor_is_the_entropy():
    exact, floor, confident = zero_is_not_the_floor()
    assert exact == floor > 0
    assert confident > exact


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entropy([0.5, 0.6]), "分布"),
        (lambda: cross_entropy([1.0], [0.9]), "q 须"),
        (lambda: logsumexp([]), "不能为空"),
        (lambda: logsumexp([math.nan]), "NaN"),
        (lambda: softmax_cross_entropy([0.0], 1), "target"),
        (lambda: softmax_cross_entropy([-math.inf], 0), "全是"),
        (lambda: z_loss([0.0], 0, -1.0), "coefficient"),
        (lambda: z_loss([0.0], 0, math.nan), "coefficient"),
        (lambda: cross_entropy([1.0], [0.5, 0.5]), "类数"),
        (lambda: log_of_softmax_in_fp16(-1.0), "gap"),
        (lambda: vocabulary_parallel_loss([[0.0], [1.0, math.nan]], 0), "NaN"),
        (lambda: vocabulary_parallel_loss([[math.inf]], 0), "inf"),
        (lambda: token_mean_or_mean_of_means([[]]), "至少一个"),
        (lambda: entropy([math.nan, 1.0]), "分布"),
        (lambda: exp_limits(1, 1), "exponent_bits"),
        (lambda: drift_costs_precision(1.0, 1), "vocabulary"),
        (lambda: next_token_loss([], []), "等长"),
        (lambda: next_token_loss([[0.0]], [0, 0]), "等长"),
        (lambda: token_weights([3, 0]), "counts"),
        (lambda: vocabulary_parallel_loss([[0.0], []], 0), "每段"),
        (lambda: vocabulary_parallel_loss([[0.0]], 1), "target"),
        (lambda: vocabulary_parallel_loss([[-math.inf]], 0), "全是"),
        (lambda: logits_gigabytes(0, 1), "≥ 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
