"""Hand-written backward against autograd; the path count against enumeration; the claims over seeds."""

from itertools import product

import numpy as np
import pytest
import torch

from snippets.deep_learning.neural_networks.residual import (
    after_deleting,
    backward,
    first_over_last,
    forward,
    path_lengths,
    relu_placements,
)


@pytest.mark.parametrize("skip", [False, True])
def test_backward_is_autograds(skip):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((5, 5)) for _ in range(4)]
    x, grad = rng.standard_normal((5, 3)), rng.standard_normal((5, 3))
    ours = backward(forward(x, weights, skip=skip), weights, grad, skip=skip)
    states = [torch.tensor(x, requires_grad=True)]
    for w in weights:
        branch = (torch.tensor(w) @ states[-1]).tanh()
        states.append(states[-1] + branch if skip else branch)
    theirs = torch.autograd.grad((states[-1] * torch.tensor(grad)).sum(), states[:-1])
    assert ours == pytest.approx([g.norm().item() for g in theirs])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_plain_networks_vanish_and_residual_ones_do_not(seed):
    assert first_over_last(40, skip=False, gain=0.5, seed=seed) < 1e-9
    assert 1 < first_over_last(40, skip=True, gain=0.5, seed=seed) < 1e3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_deleting_a_block_hurts_the_plain_network_more(seed):
    plain, residual = (after_deleting(10, skip=skip, seed=seed) for skip in (False, True))
    assert plain > 1  # as far as an unrelated vector of the same length
    assert residual < 0.7


@pytest.mark.parametrize("depth", [0, 1, 5, 8])
def test_paths_are_subsets_of_the_blocks(depth):
    counts = np.bincount([sum(choice) for choice in product((0, 1), repeat=depth)], minlength=depth + 1)
    assert path_lengths(depth) == pytest.approx(list(counts / 2**depth))


def test_zero_branches_are_the_identity():
    x = np.ones((3, 2))
    states = forward(x, [np.zeros((3, 3))] * 5, skip=True)
    assert all(np.array_equal(state, x) for state in states)
    assert backward(states, [np.zeros((3, 3))] * 5, x, skip=True) == pytest.approx([np.linalg.norm(x)] * 5)


@pytest.mark.parametrize("seed", [1, 2])
def test_relu_clips_the_stream_after_the_addition_and_only_grows_it_at_the_end_of_the_branch(seed):
    places = relu_placements(blocks=8, seed=seed)
    negative, shrank = places["相加之后"]
    assert negative == 0  # clipped, yet not monotone: the branch may be negative
    assert shrank > 0.1
    assert places["分支末尾"][1] == 0
    assert min(places["分支开头"]) > 0.2


def test_residual_networks_explode_too():
    assert first_over_last(50, skip=True, gain=1.5) > 4 * first_over_last(50, skip=False, gain=1.5) > 40


def test_rejects():
    for call in (
        lambda: first_over_last(0, skip=True),
        lambda: first_over_last(5, skip=True, gain=float("nan")),
        lambda: first_over_last(2000, skip=False, gain=0.5),  # underflows to 0
        lambda: forward(np.ones((3, 2)), [np.ones((1, 3))], skip=True),
        lambda: after_deleting(20, skip=True),
        lambda: path_lengths(-1),
    ):
        with pytest.raises(ValueError, match=r"须|不能"):
            call()
