"""Planning against a closed form, learning against planning, the baseline against theory."""

import itertools
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


def test_q_learning_is_off_policy():
    """Acting at random all the time, it still learns the values of the greedy policy, not those of the random walk."""
    q = q_learning(explore=1.0)
    assert [max(row) for row in q] == pytest.approx(value_iteration(), abs=1e-4)


def test_no_episodes_no_knowledge():
    assert q_learning(0) == [[0.0] * 4] * 16


@pytest.mark.parametrize("group", [2, 4])
def test_a_group_mean_that_includes_the_own_reward_shrinks_the_gradient(group):
    """Exact expectation over every group of equally likely actions: (G - 1)/G of the true 1/3; leave-one-out gives 1/3."""
    own = left = 0.0
    for actions in itertools.product(range(3), repeat=group):
        rewards = [10 + a for a in actions]
        score = (actions[0] == 2) - 1 / 3
        own += (rewards[0] - sum(rewards) / group) * score / 3**group
        left += (rewards[0] - sum(rewards[1:]) / (group - 1)) * score / 3**group
    assert own == pytest.approx((group - 1) / group / 3)
    assert left == pytest.approx(1 / 3)


def test_walls_and_the_goal():
    assert step(0, 0) == (0, -1.0)
    assert step(0, 3) == (1, -1.0)
    assert step(GOAL, 2) == (GOAL, 0.0)
    with pytest.raises(ValueError, match="状态"):
        step(16, 0)
    assert step(12, 2) == (12, -1.0)
    for call in (lambda: step(-1, 0), lambda: step(0, 4), lambda: step(1.5, 0), lambda: step(True, 0)):
        with pytest.raises(ValueError, match="状态"):
            call()
    for call in (lambda: q_learning(1, lr=0), lambda: q_learning(1, lr=math.nan), lambda: q_learning(-1)):
        with pytest.raises(ValueError, match=r"lr.*episodes"):
            call()
    with pytest.raises(ValueError, match="sweeps"):
        value_iteration(-1)
    for baseline, samples in ((math.nan, 10), (math.inf, 10), (0.0, 0)):
        with pytest.raises(ValueError, match="baseline"):
            policy_gradient_variance(baseline, samples)


@pytest.mark.parametrize("baseline", [0.0, 5.0, 11.0])
def test_baseline_changes_the_variance_and_not_the_mean(baseline):
    rewards = (10, 11, 12)
    terms = [(r - baseline) * ((a == 2) - 1 / 3) for a, r in enumerate(rewards)]
    mean = sum(terms) / 3
    std = math.sqrt(sum((t - mean) ** 2 for t in terms) / 3)
    got = policy_gradient_variance(baseline)
    assert mean == pytest.approx(1 / 3)
    assert got == (pytest.approx(mean, abs=5 * std / math.sqrt(20_000) + 1e-3), pytest.approx(std, rel=0.03))
