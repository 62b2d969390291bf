"""Perplexity against torch's cross-entropy, tokenization invariance of bits per byte, windows against the exact chain rule."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.math.probability.perplexity import (
    bits_per_byte,
    compute_multiple,
    mean_of_means,
    per_unit,
    perplexity,
    perplexity_base2,
    same_model_two_tokenizers,
    windowed_perplexity,
)

logprob_lists = st.lists(st.floats(-50, 0), min_size=1, max_size=50)


def test_equals_exp_of_torchs_cross_entropy_with_ignored_positions():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 17, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 17, (40,), generator=generator)
    mask = torch.rand(40, generator=generator) < 0.7
    reference = torch.nn.functional.cross_entropy(logits, targets.masked_fill(~mask, -100), ignore_index=-100).exp().item()
    logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].tolist()
    assert perplexity(logprobs, mask.int().tolist()) == pytest.approx(reference)


@given(logprob_lists)
def test_bounds_and_base(logprobs):
    value = perplexity(logprobs)
    assert value * (1 + 1e-12) >= 1
    assert math.exp(-max(logprobs)) <= value * (1 + 1e-9)
    assert value <= math.exp(-min(logprobs)) * (1 + 1e-9)
    assert perplexity_base2(logprobs) == pytest.approx(value, rel=1e-9)


@given(st.integers(1, 200_000))
def test_uniform_model(vocabulary):
    assert perplexity([-math.log(vocabulary)] * 3) == pytest.approx(vocabulary)


def test_masked_positions_may_hold_anything():
    assert perplexity([math.nan, 0.0], mask=[0, 1]) == 1.0


@given(st.floats(0.01, 20), st.integers(1, 10**6))
def test_bits_per_byte_ignores_the_number_of_tokens(nats_per_byte, n_bytes):
    rows = same_model_two_tokenizers(nats_per_byte * n_bytes, n_bytes)
    assert len({bpb for _, _, bpb in rows}) == 1
    ppls = [ppl for _, ppl, _ in rows]
    assert ppls == sorted(ppls, reverse=True)


def test_averaging_perplexities_overweights_short_hard_sequences():
    pooled, averaged = mean_of_means([[math.log(0.5)] * 90, [math.log(0.01)] * 10])
    assert averaged > 10 * pooled
    pooled, averaged = mean_of_means([[-1.0, -1.0], [-1.0]])
    assert pooled == pytest.approx(averaged)


def test_whole_sequence_in_one_window_is_the_chain_rule():
    rng = random.Random(1)
    bits = [rng.randint(0, 1) for _ in range(50)]
    logprobs, ones = [], 0
    for n, bit in enumerate(bits):
        p_one = (ones + 0.5) / (n + 1)
        logprobs.append(math.log(p_one if bit else 1 - p_one))
        ones += bit
    assert windowed_perplexity(bits, window=50, stride=50)[0] == pytest.approx(perplexity(logprobs))


@pytest.mark.parametrize(("length", "window", "stride"), [(100, 16, 16), (100, 16, 5), (3, 16, 4), (17, 16, 1)])
def test_every_token_is_scored_once(length, window, stride):
    """With all bits equal the model's probabilities depend on the context only; the product over tokens must have `length` factors."""
    value, _ = windowed_perplexity([1] * length, window, stride)
    assert 1 < value < 2


def test_smaller_strides_help_on_average():
    rng = random.Random(0)
    bits = [int(rng.random() < 0.9) for _ in range(8192)]
    values = [windowed_perplexity(bits, 64, stride)[0] for stride in (64, 32, 16)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: perplexity([]), "没有有效"),
        (lambda: perplexity([0.1]), "≤ 0"),
        (lambda: perplexity([math.nan]), "≤ 0"),
        (lambda: bits_per_byte(1.0, 0), "n_bytes"),
        (lambda: bits_per_byte(math.nan, 1), "total_nats"),
        (lambda: same_model_two_tokenizers(1.0, 0), "n_bytes"),
        (lambda: perplexity_base2([]), "非空"),
        (lambda: perplexity_base2([math.nan]), "NaN"),
        (lambda: per_unit(0.5, 1, 1), "≥ 1"),
        (lambda: per_unit(2.0, 1, 0), "≥ 1"),
        (lambda: compute_multiple(2.0, 0.4), "1.69"),
        (lambda: compute_multiple(2.0, 0.0), "drop"),
        (lambda: mean_of_means([[]]), "至少一个"),
        (lambda: windowed_perplexity([], 4, 1), "非空"),
        (lambda: windowed_perplexity([1], 4, 5), "stride"),
        (lambda: windowed_perplexity([2], 4, 1), "0/1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("mask", [[1, 1], []])
def test_mask_of_another_length_is_refused(mask):
    """The empty mask must not be taken for no mask."""
    with pytest.raises(ValueError, match="长度不同"):
        perplexity([0.0], mask=mask)


def test_beyond_double_precision():
    assert perplexity([-1000.0]) == math.inf == perplexity_base2([-1000.0])
    assert perplexity([-700.0]) == pytest.approx(math.exp(700))


@given(st.floats(1, 1e3), st.integers(1, 500), st.integers(50, 500))
def test_changing_the_unit_keeps_the_total(value, tokens, units):
    assert math.log(per_unit(value, tokens, units)) * units == pytest.approx(math.log(value) * tokens, abs=1e-9)


def test_compute_multiple_is_the_inverse_of_the_laws():
    """Multiply the compute back and the loss comes down to the target."""
    kaplan, chinchilla = compute_multiple(2.5, 0.1)
    assert 2.5 * kaplan**-0.050 == pytest.approx(2.4)
    best = lambda c: min(1.69 + 406.4 / n**0.34 + 410.7 / (c / 6 / n) ** 0.28 for n in (10 ** (8 + i / 2000) for i in range(8000)))  # noqa: E731
    start = best(1e21)
    factor = compute_multiple(start, 0.05)[1]
    assert best(1e21 * factor) == pytest.approx(start - 0.05, abs=1e-4)
    assert chinchilla > kaplan
