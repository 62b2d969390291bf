"""Which schemes see a shift, and which angles training never showed."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.attention.position_comparison import (
    largest_unseen_angle,
    schemes,
    shift_changes,
    sinusoidal,
    unfinished_pairs,
)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 499))
def test_relative_schemes_do_not_see_a_shift_and_absolute_ones_do(by):
    changes = shift_changes(by)
    assert max(changes[name] for name in ("T5 偏置", "ALiBi", "RoPE")) < 1e-3
    assert changes["学习的绝对位置"] > 0
    assert changes["正弦绝对位置"] > 0


def test_position_product_of_the_sinusoids_is_relative_but_the_whole_score_is_not():
    """PE(m)·PE(n) depends on m − n; the cross terms with the content do not."""

    def product(m, n):
        return math.fsum(a * b for a, b in zip(sinusoidal(m, 16), sinusoidal(n, 16), strict=True))

    assert product(7, 3) == pytest.approx(product(107, 103))
    assert shift_changes(100)["正弦绝对位置"] > 1


def test_learned_table_has_an_end():
    with pytest.raises(IndexError):
        schemes()["学习的绝对位置"](512, 0)


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_unseen_angles(base):
    assert largest_unseen_angle(128, 8192, 8192, base) == 0
    angles = [largest_unseen_angle(128, 4096, length, base) for length in (4096, 8192, 32_768, 10**7)]
    assert angles == sorted(angles)
    assert unfinished_pairs(128, 10**9, 1e4) == 0
    assert unfinished_pairs(128, 1, base) == 64


def test_rejects():
    for call in (
        lambda: sinusoidal(-1, 4),
        lambda: shift_changes(500),
        lambda: unfinished_pairs(8, 0, 1e4),
        lambda: largest_unseen_angle(8, 10, 5, 1e4),
    ):
        with pytest.raises(ValueError, match=r"须|不能"):
            call()
