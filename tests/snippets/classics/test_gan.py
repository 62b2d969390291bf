"""The optimal discriminator and the value of the game against brute force and scipy-free references."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from snippets.classics.gan import apart, generator_gradients, js, optimal_discriminator, value

weights = st.lists(st.floats(0.01, 10), min_size=2, max_size=6)


def normalized(raw):
    total = math.fsum(raw)
    return [v / total for v in raw]


@given(weights, st.data())
def test_no_discriminator_beats_the_optimal_one(raw, data):
    p = normalized(raw)
    g = normalized(data.draw(st.lists(st.floats(0.01, 10), min_size=len(p), max_size=len(p))))
    other = data.draw(st.lists(st.floats(0.001, 0.999), min_size=len(p), max_size=len(p)))
    best = value(p, g, optimal_discriminator(p, g))
    assert value(p, g, other) <= best + 1e-12
    assert best == pytest.approx(-math.log(4) + 2 * js(p, g), abs=1e-9)
    assert -1e-12 <= js(p, g) <= math.log(2) + 1e-12


@given(weights)
def test_equal_distributions_are_the_only_zero(raw):
    p = normalized(raw)
    assert js(p, p) == pytest.approx(0, abs=1e-12)
    q = normalized(list(reversed(raw)))
    assume(max(abs(a - b) for a, b in zip(p, q, strict=True)) > 1e-3)
    assert js(p, q) > 0


@given(st.floats(-30, 30))
def test_generator_gradients_are_autograds(logit):
    z = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
    log_sigmoid = torch.nn.functional.logsigmoid
    saturating = torch.autograd.grad(log_sigmoid(-z), z)[0].item()  # ln(1 − σ(z))
    other = torch.autograd.grad(-log_sigmoid(z), z)[0].item()
    assert generator_gradients(logit) == (pytest.approx(saturating, abs=1e-12), pytest.approx(other, abs=1e-12))


def test_js_saturates_and_wasserstein_does_not():
    values = [apart(k) for k in (1, 5, 19)]
    assert [w for _, w in values] == [1, 5, 19]
    assert {round(j, 12) for j, _ in values} == {round(math.log(2), 12)}


def test_rejects():
    for call in (lambda: js([0.5, 0.6], [0.5, 0.5]), lambda: js([], []), lambda: apart(30), lambda: optimal_discriminator([1.0], [-1.0])):
        with pytest.raises(ValueError, match=r"概率分布|distance"):
            call()
