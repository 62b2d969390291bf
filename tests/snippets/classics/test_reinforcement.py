"""Planning against a closed form, learning against planning, the baseline against theory."""

import math

import pytest

from snippets.classics.reinforcement import GAMMA, GOAL, SIZE, policy_gradient_variance, q_learning, step, value_iteration


def test_values_are_discounted_distances():
    for state, value in enumerate(value_iteration()):
        distance = (SIZE - 1 - state // SIZE) + (SIZE - 1 - state % SIZE)
        assert value == pytest.approx(-(1 - GAMMA**distance) / (1 - GAMMA))


@pytest.mark.parametrize("seed", [1, 2])
def test_q_learning_finds_the_optimal_values(seed):
    q = q_learning(seed=seed)
    assert [max(row) for row in q] == pytest.approx(value_iteration(), abs=1e-4)


def test_without_exploration_it_may_not():
    """Greedy from zero still explores here, because every step costs; with a learning rate of 1 and no episodes it knows nothing."""
    assert q_learning(0) == [[0.0] * 4] * 16


def test_walls_and_the_goal():
    assert step(0, 0) == (0, -1.0)
    assert step(0, 3) == (1, -1.0)
    assert step(GOAL, 2) == (GOAL, 0.0)
    with pytest.raises(ValueError, match="状态"):
        step(16, 0)
    with pytest.raises(ValueError, match="lr"):
        q_learning(1, lr=0)


@pytest.mark.parametrize("baseline", [0.0, 5.0, 11.0])
def test_baseline_changes_the_variance_and_not_the_mean(baseline):
    rewards = (10, 11, 12)
    terms = [(r - baseline) * ((a == 2) - 1 / 3) for a, r in enumerate(rewards)]
    mean = sum(terms) / 3
    std = math.sqrt(sum((t - mean) ** 2 for t in terms) / 3)
    got = policy_gradient_variance(baseline)
    assert mean == pytest.approx(1 / 3)
    assert got == (pytest.approx(mean, abs=5 * std / math.sqrt(20_000) + 1e-3), pytest.approx(std, rel=0.03))
