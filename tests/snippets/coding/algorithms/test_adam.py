"""Adam and AdamW against torch.optim over many steps, saved and restored, and the bugs that people make."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.coding.algorithms import adam as module
from snippets.coding.algorithms.adam import Adam, half_precision_step, step_cost
from tests.snippets.coding.bugs import with_bug

SHAPES = [(3, 4), (5,), (), (0,)]


def run(cls, *, steps=200, seed=0, scale=1.0, **options):
    """Both optimizers over the same gradients; the largest difference of a parameter."""
    rng = np.random.default_rng(seed)
    start = [rng.standard_normal(shape) for shape in SHAPES]
    mine = [np.array(p) for p in start]
    theirs = [torch.tensor(p, dtype=torch.float64, requires_grad=True) for p in start]
    torchs = torch.optim.AdamW if options.get("decoupled", True) else torch.optim.Adam
    options_of_torch = {name: value for name, value in options.items() if name != "decoupled"}
    options_of_torch.setdefault("weight_decay", 0.0)
    optimizer, reference = cls(mine, **options), torchs(theirs, **options_of_torch)
    for _ in range(steps):
        grads = [scale * np.array(rng.standard_normal(shape)) for shape in SHAPES]
        kept = [g.copy() for g in grads]
        optimizer.step(grads)
        assert all(np.array_equal(a, b) for a, b in zip(grads, kept, strict=True)), "the caller's gradients were changed"
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.tensor(g, dtype=torch.float64)
        reference.step()
    return max(np.abs(a - b.detach().numpy()).max() for a, b in zip(mine, theirs, strict=True) if a.size)


def check(m):
    """What a module like adam.py must satisfy."""
    assert run(m.Adam) < 1e-12
    assert run(m.Adam, lr=0.01, weight_decay=0.1) < 1e-12
    assert run(m.Adam, lr=0.01, weight_decay=0.1, decoupled=False) < 1e-12
    assert run(m.Adam, betas=(0.9, 0.95), eps=1e-2, scale=1e-3) < 1e-12


def test_module_satisfies_the_check():
    check(module)


BUGS = {
    "no bias correction": ("correction1, correction2 = 1 - beta1**self.t, 1 - beta2**self.t", "correction1 = correction2 = 1.0"),
    "clock counts parameters": ("            m *= beta1\n", "            self.t += 1\n            m *= beta1\n"),
    "eps inside the root": ("(np.sqrt(v / correction2) + self.eps)", "np.sqrt(v / correction2 + self.eps)"),
    "eps before the correction": ("(np.sqrt(v / correction2) + self.eps)", "((np.sqrt(v) + self.eps) / np.sqrt(correction2))"),
    "decay into the gradient": ("p *= 1 - self.lr * self.weight_decay", "g = g + self.weight_decay * p"),
    "decay without the rate": ("p *= 1 - self.lr * self.weight_decay", "p *= 1 - self.weight_decay"),
    "β1 in the second moment": ("v += (1 - beta2) * g * g", "v += (1 - beta1) * g * g"),
    "one array for all moments": ("self.v = [np.zeros_like(p) for p in params]", "self.v = self.m"),
    "gradient changed in place": ("g = g + self.weight_decay * p", "g += self.weight_decay * p"),
}  # fmt: skip


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
@pytest.mark.filterwarnings("ignore:invalid value")
def test_every_bug_is_caught(change):
    with pytest.raises(AssertionError):
        check(with_bug(module, change))


@settings(deadline=None, max_examples=25)
@given(st.floats(0, 0.99), st.floats(0, 0.9999), st.floats(1e-10, 1), st.floats(0, 0.5), st.booleans(), st.integers(0, 99))
def test_any_setting_equals_torch(beta1, beta2, eps, decay, decoupled, seed):
    difference = run(Adam, steps=20, seed=seed, lr=0.1, betas=(beta1, beta2), eps=eps, weight_decay=decay, decoupled=decoupled)
    assert difference < 1e-10


def test_restored_state_continues_exactly_and_without_the_clock_it_does_not():
    rng = np.random.default_rng(1)
    grads = [[rng.standard_normal(3)] for _ in range(20)]
    whole, first = [np.zeros(3)], [np.zeros(3)]
    optimizer = Adam(whole)
    for g in grads:
        optimizer.step(g)
    optimizer = Adam(first)
    for g in grads[:10]:
        optimizer.step(g)
    saved = optimizer.state()
    optimizer.step(grads[0])  # what happens later does not change what was saved
    for clock in (10, 0):
        second = [np.array(p) for p in first]
        second[0][:] = _after(grads[:10])
        resumed = Adam(second)
        resumed.restore({**saved, "t": clock})
        for g in grads[10:]:
            resumed.step(g)
        assert np.array_equal(second[0], whole[0]) == (clock == 10)


def _after(grads):
    p = [np.zeros(3)]
    optimizer = Adam(p)
    for g in grads:
        optimizer.step(g)
    return p[0]


def test_updates_are_in_place_and_steps_do_not_depend_on_the_gradients_scale():
    p = np.zeros(4)
    view = p[:2]
    Adam([p], lr=0.01).step([np.array([1e-4, -1e-4, 1e8, -1e8])])
    np.testing.assert_allclose(p, [-0.01, 0.01, -0.01, 0.01], rtol=1e-3)
    assert view[0] == p[0] != 0


def test_a_zero_gradient_moves_nothing_but_the_decay():
    p = np.ones(2)
    Adam([p], lr=0.1, weight_decay=0.5).step([np.zeros(2)])
    np.testing.assert_allclose(p, 0.95)


def test_bad_gradients_change_nothing():
    p = [np.ones(2), np.ones(3)]
    optimizer = Adam(p)
    for grads in ([np.ones(2), np.array([1.0, np.nan, 1.0])], [np.ones(2)], [np.ones(2), np.ones(2)], [np.full(2, np.inf), np.ones(3)]):
        with pytest.raises(ValueError, match=r"NaN|形状"):
            optimizer.step(grads)
    assert optimizer.t == 0
    assert all((x == 1).all() for x in p)
    assert not any(m.any() for m in optimizer.m)


def test_half_precision():
    assert half_precision_step(1e-4) == np.inf
    with pytest.raises(ValueError, match="主权重"):
        Adam([np.zeros(2, dtype=np.float16)])


def test_rejects():
    for options in ({"lr": np.nan}, {"eps": -1e-8}, {"betas": (1.0, 0.9)}, {"betas": (0.9, -0.1)}, {"weight_decay": np.inf}):
        with pytest.raises(ValueError, match="非负有限"):
            Adam([np.zeros(1)], **options)
    with pytest.raises(ValueError, match="不符"):
        Adam([np.zeros(1)]).restore(Adam([np.zeros(2)]).state())
    for call in (lambda: step_cost(0), lambda: step_cost(1, np.nan), lambda: half_precision_step(0)):
        with pytest.raises(ValueError, match="为正"):
            call()
