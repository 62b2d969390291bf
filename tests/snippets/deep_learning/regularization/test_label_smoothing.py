"""Against torch's label_smoothing, finite differences and a numerical minimum."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.regularization.label_smoothing import (
    conservative_dpo,
    likelihood_cost,
    loss_and_gradient,
    loss_floor,
    optimal_gap,
    smooth,
)

logits = st.lists(st.floats(-500, 500), min_size=2, max_size=12)
epsilons = st.floats(0, 0.9)


@settings(deadline=None)
@given(logits, epsilons, st.data())
def test_loss_and_gradient_are_torchs(z, epsilon, data):
    y = data.draw(st.integers(0, len(z) - 1))
    tensor = torch.tensor([z], dtype=torch.float64, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(tensor, torch.tensor([y]), label_smoothing=epsilon)
    expected.backward()
    loss, grad = loss_and_gradient(z, y, epsilon)
    assert loss == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    assert grad == pytest.approx(tensor.grad[0].tolist(), abs=1e-9)
    assert math.fsum(grad) == pytest.approx(0, abs=1e-12)


@given(st.integers(2, 50), epsilons)
def test_smoothed_labels_are_a_distribution(k, epsilon):
    assert math.fsum(smooth(0, k, epsilon)) == pytest.approx(1)


@given(st.integers(2, 200), st.floats(1e-3, 0.9))
def test_optimum_is_where_the_gradient_vanishes_and_the_loss_is_the_floor(k, epsilon):
    loss, grad = loss_and_gradient([optimal_gap(k, epsilon)] + [0.0] * (k - 1), 0, epsilon)
    assert grad == pytest.approx([0.0] * k, abs=1e-12)
    assert loss == pytest.approx(loss_floor(k, epsilon), rel=1e-9)


def test_without_smoothing_larger_is_always_better():
    losses = [loss_and_gradient([gap, 0.0], 0, 0.0)[0] for gap in (1, 10, 100)]
    assert losses == sorted(losses, reverse=True)
    assert loss_and_gradient([100.0, 0.0], 0, 0.1)[0] > loss_and_gradient([3.0, 0.0], 0, 0.1)[0]


@given(st.integers(1, 100), st.integers(2, 100), st.floats(0.01, 0.5))
def test_cost_is_the_kl_of_the_mixture(n, k, epsilon):
    n = min(n, k)
    truth = torch.tensor([1 / n] * n + [0.0] * (k - n), dtype=torch.float64)
    mixture = (1 - epsilon) * truth + epsilon / k
    expected = (torch.special.xlogy(truth, truth) - torch.special.xlogy(truth, mixture)).sum().item()
    assert likelihood_cost(n, k, epsilon) == pytest.approx(expected, rel=1e-7, abs=1e-12)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=30), st.floats(0.01, 0.9))
def test_no_truth_costs_more_than_a_certain_one(weights, epsilon):
    k = len(weights)
    truth = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    cost = -(truth * (1 - epsilon + epsilon / (k * truth)).log()).sum().item()
    assert -1e-12 <= cost <= -math.log(1 - epsilon)


def test_the_smoothed_optimum_is_the_mixture():
    """Gradient descent on the expected smoothed loss ends at (1 − ε)·truth + ε/K."""
    truth, epsilon = [0.7, 0.2, 0.1, 0.0], 0.2
    z = [0.0] * 4
    for _ in range(3000):
        gradients = [loss_and_gradient(z, y, epsilon)[1] for y in range(4)]
        z = [v - sum(p * g[i] for p, g in zip(truth, gradients, strict=True)) for i, v in enumerate(z)]
    q = torch.tensor(z, dtype=torch.float64).softmax(0).tolist()
    assert q == pytest.approx([(1 - epsilon) * p + epsilon / 4 for p in truth], abs=1e-6)


def test_bank_formula_is_not_a_distribution():
    assert pytest.approx(0.81) == (1 - 0.1) * (1 - 0.1)
    assert smooth(1, 2, 0.1)[1] == pytest.approx(0.95)


@given(st.floats(-50, 50), st.floats(0.01, 0.49))
def test_conservative_dpo_has_its_minimum_at_the_log_odds(margin, epsilon):
    best = conservative_dpo(math.log((1 - epsilon) / epsilon), epsilon)
    assert conservative_dpo(margin, epsilon) >= best - 1e-12
    m = torch.tensor(margin, dtype=torch.float64)
    log_sigmoid = torch.nn.functional.logsigmoid
    expected = -(1 - epsilon) * log_sigmoid(m) - epsilon * log_sigmoid(-m)
    assert conservative_dpo(margin, epsilon) == pytest.approx(expected.item(), rel=1e-9)


def test_bad_input():
    for call in (
        lambda: smooth(0, 1, 0.1),
        lambda: smooth(5, 3, 0.1),
        lambda: smooth(0, 3, 1.0),
        lambda: loss_and_gradient([0.0, -math.inf], 0, 0.1),
        lambda: loss_and_gradient([0.0, math.nan], 0, 0.1),
        lambda: loss_and_gradient([], 0, 0.1),
        lambda: smooth(0.5, 3, 0.1),
        lambda: likelihood_cost(0, 10, 0.1),
        lambda: likelihood_cost(11, 10, 0.1),
        lambda: conservative_dpo(math.inf, 0.0),
        lambda: conservative_dpo(math.nan, 0.1),
        lambda: conservative_dpo(0.0, 0.5),
    ):
        with pytest.raises(ValueError, match=r"epsilon|至少|类别|有限|n 须"):
            call()
