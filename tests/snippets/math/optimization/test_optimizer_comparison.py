"""Update rules against torch, state sizes measured in torch, the symmetry reduction against the full softmax problem."""

import math
import random

import pytest
import torch

from snippets.math.optimization.optimizer_comparison import (
    METHODS,
    best_loss_ratio,
    class_losses,
    loss_ratio,
    rare_class_loss,
    state_gigabytes,
    zipf,
)

TORCH = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "Momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
}


@pytest.mark.parametrize("name", METHODS)
def test_update_rules_equal_torch(name):
    rng = random.Random(0)
    params = [rng.gauss(0, 1) for _ in range(5)]
    reference = torch.tensor(params, dtype=torch.float64, requires_grad=True)
    optimizer, step = TORCH[name]([reference], 0.01), METHODS[name](0.01)
    for _ in range(50):
        grads = [rng.gauss(0, 3) for _ in params]
        params = step(params, grads)
        reference.grad = torch.tensor(grads, dtype=torch.float64)
        optimizer.step()
    assert params == pytest.approx(reference.tolist(), rel=1e-9)


@pytest.mark.parametrize(("name", "values"), [("SGD", 0), ("Momentum", 1), ("Adam", 2)])
def test_state_sizes_are_those_of_torch(name, values):
    weight = torch.zeros(1000, requires_grad=True)
    optimizer = TORCH[name]([weight], 0.1)
    weight.grad = torch.ones(1000)
    optimizer.step()
    tensors = [t for t in optimizer.state[weight].values() if torch.is_tensor(t) and t.numel() == 1000]
    assert len(tensors) == values
    assert state_gigabytes(1e9)[name] == 4 * values


def test_sgd_is_rotation_invariant_and_adam_is_not():
    for method, lr in (("SGD", 0.01), ("Momentum", 0.001)):
        assert loss_ratio(method, lr, 100, 0.0) == pytest.approx(loss_ratio(method, lr, 100, 0.7), rel=1e-6)
    assert best_loss_ratio("Adam", 1000, math.pi / 4) > 100 * best_loss_ratio("Adam", 1000)


def test_sgd_diverges_above_two_over_the_curvature():
    assert loss_ratio("SGD", 1.9 / 100, 100) < 1
    assert math.isinf(loss_ratio("SGD", 2.5 / 100, 100))


@pytest.mark.parametrize("name", METHODS)
def test_the_two_number_reduction_equals_the_full_softmax_regression(name):
    frequencies = zipf(6)
    weights = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
    optimizer = TORCH[name]([weights], 0.5)
    targets = torch.arange(6)
    pi = torch.tensor(frequencies, dtype=torch.float64)
    for _ in range(30):
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(weights.T, targets, reduction="none")  # row c: logits for input e_c
        (pi * losses).sum().backward()
        optimizer.step()
    losses = torch.nn.functional.cross_entropy(weights.T, targets, reduction="none")
    assert class_losses(name, 0.5, frequencies, 30) == pytest.approx(losses.tolist(), rel=1e-6, abs=1e-9)


def test_adam_treats_all_frequencies_alike():
    losses = class_losses("Adam", 0.01, zipf(50))
    assert max(losses) - min(losses) < 0.05
    assert rare_class_loss("SGD", 50) > 10 * rare_class_loss("Adam", 50)


def test_zipf():
    assert math.fsum(zipf(100)) == pytest.approx(1)
    assert zipf(4)[0] == pytest.approx(4 * zipf(4)[3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: state_gigabytes(0), "psi"),
        (lambda: loss_ratio("SGD", 0, 10), "lr"),
        (lambda: loss_ratio("SGD", 1, 0.5), "kappa"),
        (lambda: class_losses("SGD", 1, (1.0,)), "frequencies"),
        (lambda: class_losses("SGD", 1, (0.5, 0.6)), "frequencies"),
        (lambda: rare_class_loss("SGD", 10, 5.0), "target"),
        (lambda: loss_ratio("SGD", 0.1, math.nan), "kappa"),
        (lambda: loss_ratio("Lion", 0.1, 2.0), "method"),
        (lambda: class_losses("SGD", 1, (math.nan, 0.5)), "frequencies"),
        (lambda: state_gigabytes(math.nan), "psi"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
