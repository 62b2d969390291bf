"""Expectation and variance against theory and torch; the two data regimes over seeds."""

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.deep_learning.regularization.dropout import dropout, layer_bytes_per_sbh, relative_noise
from snippets.infra.memory.activation_memory import CLASSIC_LAYER, GPT3


@given(st.lists(st.floats(-1e6, 1e6), max_size=20), st.floats(0, 0.99), st.integers(0, 9))
def test_values_are_zero_or_scaled(x, p, seed):
    for kept, v in zip(dropout(x, p, Random(seed)), x, strict=True):
        assert kept in (0.0, v / (1 - p))


def test_expectation_and_variance():
    p, n = 0.3, 200_000
    out = dropout([2.0] * n, p, Random(1))
    mean = math.fsum(out) / n
    variance = math.fsum((v - mean) ** 2 for v in out) / n
    assert mean == pytest.approx(2, rel=0.01)
    assert variance == pytest.approx(4 * p / (1 - p), rel=0.02)


def test_same_law_as_torch():
    torch.manual_seed(0)
    theirs = torch.nn.functional.dropout(torch.ones(200_000), 0.25)
    ours = torch.tensor(dropout([1.0] * 200_000, 0.25, Random(0)))
    assert theirs.unique().tolist() == pytest.approx(ours.unique().tolist())
    assert (theirs == 0).float().mean().item() == pytest.approx((ours == 0).float().mean().item(), abs=0.005)


def test_relative_noise_is_measured():
    random, n, p = Random(0), 64, 0.2
    sums = [math.fsum(dropout([1.0] * n, p, random)) for _ in range(4000)]
    mean = math.fsum(sums) / len(sums)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in sums) / len(sums))
    assert std / mean == pytest.approx(relative_noise(p, n), rel=0.05)


def test_forgetting_the_scale_shifts_the_mean():
    x = [1.0] * 100_000
    unscaled = [v * 0.9 for v in dropout(x, 0.1, Random(0))]  # 1 / (1 − p) undone
    assert math.fsum(unscaled) / len(x) == pytest.approx(0.9, abs=0.005)


def test_memory_is_the_list_without_the_dropout_lines():
    linear = sum(a for name, a, _ in CLASSIC_LAYER if "dropout 的掩码" not in name and "后 dropout" not in name)
    square = sum(b for name, _, b in CLASSIC_LAYER if "dropout" not in name)
    assert layer_bytes_per_sbh(dropout=False) == linear + square * GPT3.a * GPT3.s / GPT3.h


def test_bad_input():
    for call in (
        lambda: dropout([1.0], 1.0, Random(0)),
        lambda: dropout([1.0], -0.1, Random(0)),
        lambda: relative_noise(0.1, 0),
        lambda: relative_noise(0.1, float("nan")),
    ):
        with pytest.raises(ValueError, match="p"):
            call()
    assert dropout([], 0.5, Random(0)) == []
    assert dropout([math.inf], 0.0, Random(0)) == [math.inf]
