import math

import pytest

from snippets.tools.checks import choice, divides, number, whole


@pytest.mark.parametrize("value", [0, 11, 1.5, -1, math.nan, math.inf, -math.inf])
def test_whole_rejects(value):
    with pytest.raises(ValueError, match=r"^x: 须是 1 到 10 的整数$"):
        whole("x", value, 1, 10)


@pytest.mark.parametrize("value", [1, 10, 5.0])
def test_whole_accepts(value):
    whole("x", value, 1, 10)


@pytest.mark.parametrize("value", [0.4, 10.1, math.nan, math.inf])
def test_number_rejects(value):
    with pytest.raises(ValueError, match=r"^x: 须是 0.5 到 10 的数$"):
        number("x", value, 0.5, 10)


def test_divides():
    divides("x", 8, 64, "no")
    with pytest.raises(ValueError, match=r"^x: no$"):
        divides("x", 7, 64, "no")


def test_choice():
    choice("x", 2, [1, 2])
    with pytest.raises(ValueError, match=r"^x: "):
        choice("x", 3, [1, 2])
