"""The batched sampler against the list version, row by row, and against exact distributions."""

import math

import pytest
import torch

from snippets.math.algorithms.top_k_sampling import min_p_filter, softmax, top_k_filter, top_p_filter
from snippets.math.algorithms.top_k_sampling_batched import sample, truncate


def rows(b: int, v: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(b, v, generator=generator)
    temperature = 0.3 + 2 * torch.rand(b, generator=generator)
    top_k = torch.randint(1, v + 10, (b,), generator=generator)
    top_p = 0.05 + 0.95 * torch.rand(b, generator=generator)
    min_p = 0.5 * torch.rand(b, generator=generator)
    return logits, temperature, top_k, top_p, min_p


@pytest.mark.parametrize("v", [1, 2, 7, 100])
def test_every_row_equals_the_list_version(v):
    arguments = rows(32, v, seed=v)
    result = truncate(*arguments).softmax(-1)
    for row in range(32):
        logits, temperature, top_k, top_p, min_p = (argument[row].tolist() for argument in arguments)
        probs = softmax(logits, temperature)
        probs = top_p_filter(top_k_filter(min_p_filter(probs, min_p), top_k), top_p)
        torch.testing.assert_close(result[row], torch.tensor(probs), atol=2e-6, rtol=1e-4)


def test_ties_at_the_boundary_keep_exactly_k():
    one = torch.ones(1)
    kept = truncate(torch.zeros(1, 10), one, torch.tensor([3]), one, 0 * one)
    assert kept.isfinite().nonzero()[:, 1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_extremes(dtype):
    one = torch.ones(1)
    logits = torch.full((1, 1000), torch.finfo(dtype).min, dtype=dtype)
    logits[0, 3], logits[0, 5] = torch.finfo(dtype).max, -torch.inf
    probs = truncate(logits, one, torch.tensor([1000]), one, 0 * one).softmax(-1)
    assert probs[0, 3] == 1
    assert probs.isfinite().all()


def test_top_p_reaches_across_a_large_flat_vocabulary():
    one = torch.ones(1)
    logits = torch.zeros(1, 128_256, dtype=torch.bfloat16)
    kept = truncate(logits, one, torch.tensor([200_000]), 0.9 * one, 0 * one).isfinite().sum().item()
    assert kept == pytest.approx(0.9 * 128_256, rel=1e-3)


def test_top_p_of_one_keeps_the_tail_that_rounds_away():
    one = torch.ones(1)
    kept = truncate(torch.tensor([[0.0, -20.0, -30.0]]), one, torch.tensor([3]), one, 0 * one)
    assert kept.isfinite().all()


@pytest.mark.parametrize("temperature", [0.5, 1e-30, 1e-45])
def test_small_temperature_neither_overflows_nor_yields_nan(temperature):
    one = torch.ones(1)
    logits = torch.tensor([[3e38, -3e38, 2e38, -torch.inf]])
    arguments = temperature * one, torch.tensor([4]), one, 0 * one
    assert truncate(logits, *arguments).softmax(-1).tolist() == [[1, 0, 0, 0]]
    assert sample(logits, *arguments, torch.Generator().manual_seed(0)).item() == 0


def test_samples_follow_the_distribution():
    n, weights = 60_000, torch.tensor([0.5, 0.3, 0.15, 0.05])
    one = torch.ones(n)
    drawn = sample(weights.log().expand(n, 4), one, 4 * one.long(), one, 0 * one, torch.Generator().manual_seed(0))
    counts = drawn.bincount(minlength=4)
    chi2 = ((counts - n * weights) ** 2 / (n * weights)).sum().item()
    assert chi2 < 16.3  # 99.9 % quantile with 3 degrees of freedom


def test_same_seed_same_tokens_and_greedy_rows_ignore_the_seed():
    arguments = rows(8, 50, seed=3)
    arguments[1][::2] = 0.0
    first, again, other = (sample(*arguments, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first[::2], other[::2])
    assert torch.equal(first[::2], arguments[0][::2].argmax(-1))


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(3), "形状"),
        (torch.zeros(2, 0), "形状"),
        (torch.full((1, 3), math.nan), "NaN"),
        (torch.full((1, 3), -math.inf), "没有可采样"),
    ],
)
def test_bad_logits(logits, message):
    one = torch.ones(1)
    with pytest.raises(ValueError, match=message):
        truncate(logits, one, one.long(), one, 0 * one)


@pytest.mark.parametrize(
    ("temperature", "k", "p", "min_p"), [(0, 1, 1, 0), (math.inf, 1, 1, 0), (1, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1.1, 0), (1, 1, 1, -0.1)]
)
def test_bad_parameters(temperature, k, p, min_p):
    one = torch.ones(1)
    with pytest.raises(ValueError, match="须有"):
        truncate(torch.zeros(1, 3), temperature * one, torch.tensor([k]), p * one, min_p * one)
