"""The optimal discriminator and the value of the game against brute force and scipy-free references."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from snippets.classics.gan import apart, generator_gradients, js, optimal_discriminator, value

mass = st.just(0.0) | st.floats(0.01, 10)
weights = st.lists(mass, min_size=2, max_size=6).filter(any)


def normalized(raw):
    total = math.fsum(raw)
    return [v / total for v in raw]


@given(weights, st.data())
def test_no_discriminator_beats_the_optimal_one(raw, data):
    p = normalized(raw)
    g = normalized(data.draw(st.lists(mass, min_size=len(p), max_size=len(p)).filter(any)))
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


def test_minus_log_d_has_the_gradient_of_reverse_kl_minus_two_js_but_not_its_value():
    """Arjovsky & Bottou 2017, theorem 2.5: with the optimal discriminator held fixed; the values differ by more than a constant."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(5, generator=generator, dtype=torch.float64)
    p /= p.sum()
    gaps = []
    for _ in range(3):
        z = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
        g = z.softmax(0)
        m = (p + g) / 2
        kl = (g * (g / p).log()).sum()
        divergence = 0.5 * (p * (p / m).log()).sum() + 0.5 * (g * (g / m).log()).sum()
        assert divergence.item() == pytest.approx(js(p.tolist(), g.tolist()))
        d = torch.tensor(optimal_discriminator(p.tolist(), g.tolist()), dtype=torch.float64)
        loss, target = -(g * d.log()).sum(), kl - 2 * divergence
        torch.testing.assert_close(torch.autograd.grad(loss, z, retain_graph=True)[0], torch.autograd.grad(target, z, retain_graph=True)[0])
        assert loss.item() == pytest.approx((math.log(2) + kl - (g * (g / m).log()).sum()).item())
        gaps.append((loss - target).item())
    assert max(gaps) - min(gaps) > 0.01


def test_js_saturates_and_wasserstein_does_not():
    values = [apart(k) for k in (1, 5, 19)]
    assert [w for _, w in values] == [1, 5, 19]
    assert {round(j, 12) for j, _ in values} == {round(math.log(2), 12)}


def test_rejects():
    half, nan = [0.5, 0.5], math.nan
    for bad in ([0.5, 0.6], [], [-1.0, 2.0], [nan, 1.0], [1.0, nan], [math.inf, 0.0]):
        for call in (js, optimal_discriminator, lambda p, g: value(p, g, half)):
            for pair in ((bad, half), (half, bad)):
                with pytest.raises(ValueError, match="概率分布"):
                    call(*pair)
    with pytest.raises(ValueError, match="长度"):
        js([1.0], half)
    for bad in ([0.5], [0.5, 1.1], [-0.1, 0.5], [0.5, nan]):
        with pytest.raises(ValueError, match="d 须"):
            value(half, half, bad)
    assert value(half, half, [0.0, 0.5]) == value(half, half, [1.0, 0.5]) == -math.inf
    for bad in (30, -1, 1.5, True):
        with pytest.raises(ValueError, match="distance"):
            apart(bad)
    with pytest.raises(ValueError, match="NaN"):
        generator_gradients(nan)
