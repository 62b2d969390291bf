"""Collectives against a plain sum, byte counts against closed forms, convergence claims against direct simulation."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.math.algorithms.parameter_sync import (
    all_reduce_seconds,
    bytes_per_step,
    gossip_contraction,
    local_sgd_fixed_point,
    parameter_server,
    reduce_to_rank0_and_broadcast,
    ring_all_reduce,
    stale_step_limit,
    tree_all_reduce,
)

ALGORITHMS = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "parameter server": parameter_server,
    "rank 0": reduce_to_rank0_and_broadcast,
}
integers = st.integers(-1000, 1000).map(float)  # sums of small integers are exact: equality without tolerance


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_all_ranks_end_with_the_sum(name, data):
    n, length = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 23))
    vectors = [data.draw(st.lists(integers, min_size=length, max_size=length)) for _ in range(n)]
    expected = [math.fsum(column) for column in zip(*vectors, strict=True)]
    result, _ = ALGORITHMS[name](vectors)
    assert result == [expected] * n


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_ring_counts(n):
    length = 24 * n
    _, net = ring_all_reduce([[1.0] * length for _ in range(n)])
    assert net.sent == net.received == [2 * (n - 1) * length // n] * n
    assert net.rounds == 2 * (n - 1)


def test_ring_ranks_agree_bit_for_bit_although_the_order_of_addition_differs_from_a_plain_sum():
    vectors = [[0.1 * (rank + 1) * (i + 1) for i in range(17)] for rank in range(7)]
    result, _ = ring_all_reduce(vectors)
    assert all(row == result[0] for row in result)
    plain = [sum(column) for column in zip(*vectors, strict=True)]
    assert result[0] != plain
    assert result[0] == pytest.approx(plain, rel=1e-14)


@pytest.mark.parametrize("servers", [1, 3, 8])
def test_parameter_server_counts(servers):
    n, length = 8, 24
    _, net = parameter_server([[1.0] * length for _ in range(n)], servers)
    assert net.received[n:] == net.sent[n:] == [n * length // servers] * servers
    assert net.sent[:n] == [length] * n


@pytest.mark.parametrize("n", [1, 2, 5, 8, 13])
def test_tree_rounds(n):
    _, net = tree_all_reduce([[1.0] for _ in range(n)])
    assert net.rounds == 2 * math.ceil(math.log2(n))


def test_ring_is_slower_for_small_and_faster_for_large_messages():
    ratio = [all_reduce_seconds("ring", 256, size, 50e9, 5e-6) / all_reduce_seconds("tree", 256, size, 50e9, 5e-6) for size in (1e3, 1e12)]
    assert ratio[0] > 10
    assert ratio[1] < 1


def test_volume_limits():
    assert all_reduce_seconds("ring", 1, 1e9, 1e9, 1e-6) == 0
    assert all_reduce_seconds("ring", 10**6, 1e9, 1e9, 0) == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize("n", [8, 16, 100])  # fewer ranks contract so fast that 50 rounds end in rounding errors
def test_gossip_rate_is_the_second_eigenvalue(n):
    measured, eigenvalue = gossip_contraction(n)
    assert measured == pytest.approx(eigenvalue, rel=1e-9)


def test_local_sgd_with_one_step_is_exact_and_drifts_monotonically():
    points = [local_sgd_fixed_point(h) for h in (1, 2, 4, 8, 16, 64)]
    assert points[0] == pytest.approx(0.9)
    assert points == sorted(points, reverse=True)
    assert points[-1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("delay", [0, 1, 4, 9])
def test_stale_gradients_diverge_just_above_the_limit(delay):
    def final(step: float) -> float:
        x = [1.0] * (delay + 1)
        for _ in range(6_000):
            x.append(x[-1] - step * x[-1 - delay])
        return max(map(abs, x[-50:]))

    limit = stale_step_limit(delay)
    assert final(0.97 * limit) < 1e-3
    assert final(1.03 * limit) > 1e3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ring_all_reduce([]), "等长"),
        (lambda: ring_all_reduce([[1.0], [1.0, 2.0]]), "等长"),
        (lambda: parameter_server([[1.0]], 0), "server 数"),
        (lambda: all_reduce_seconds("star", 2, 1, 1, 1), "ring 或 tree"),
        (lambda: all_reduce_seconds("ring", 2, 1, 0, 1), "bandwidth"),
        (lambda: bytes_per_step(0, 2), "psi"),
        (lambda: gossip_contraction(2), "至少 3"),
        (lambda: local_sgd_fixed_point(0), "local_steps"),
        (lambda: local_sgd_fixed_point(1, lr=0.5), "lr"),
        (lambda: stale_step_limit(-1), "不能为负"),
        (lambda: all_reduce_seconds("ring", 2, math.nan, 1, 1), "payload"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
