"""Counts against torch, the two-places claim by exhaustive search, KV bytes against real caches."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.deep_learning.neural_networks.multi_head import (
    TABLE_3A,
    attention_parameters,
    kv_bytes_per_token,
    read_two_places,
    score_flops,
    softmax,
)
from snippets.tools.presets import MODELS


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_parameters_are_torchs(heads):
    module = torch.nn.MultiheadAttention(64, heads, bias=False)
    assert attention_parameters(64, heads) == sum(p.numel() for p in module.parameters())


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 100))
def test_neither_parameters_nor_flops_depend_on_the_heads(heads, d, s):
    h = heads * d
    assert attention_parameters(h, heads) == attention_parameters(h, 1) == 4 * h * h
    assert score_flops(s, h, heads) == 4 * s * s * h


def test_one_softmax_cannot_tell_two_places_apart():
    """Whatever the scores, moving (w4, −w1) along the two values leaves what one head reads unchanged."""
    for scores in itertools.product((-5.0, 0.0, 5.0, 20.0), repeat=4):
        weights = softmax(scores)
        first, last = 3.0 + weights[3], 5.0 - weights[0]
        assert weights[0] * first + weights[3] * last == pytest.approx(weights[0] * 3 + weights[3] * 5)
    one, other = read_two_places(2.0, 6.0), read_two_places(3.5, 4.5)
    assert one["单头"] == other["单头"]
    assert one["两个头"] == pytest.approx((2, 6), abs=1e-5)
    assert other["两个头"] == pytest.approx((3.5, 4.5), abs=1e-5)


def test_table_says_too_many_heads_hurt_too():
    assert TABLE_3A[1] < TABLE_3A[32] < TABLE_3A[8]


@pytest.mark.parametrize(("name", "published"), [("Llama-3-8B", 131_072), ("Llama-3-405B", 516_096)])
def test_gqa_bytes_are_those_of_the_configuration(name, published):
    model = MODELS[name]
    assert kv_bytes_per_token(model.a, model.d, model.layers, "GQA", groups=model.kv) == published


def test_a_real_cache_has_those_bytes():
    layers, heads, groups, d, tokens = 3, 8, 2, 16, 5
    cache = [torch.zeros(2, 1, groups, tokens, d, dtype=torch.bfloat16) for _ in range(layers)]
    held = sum(t.numel() * t.element_size() for t in cache)
    assert held == tokens * kv_bytes_per_token(heads, d, layers, "GQA", groups=groups)


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 40))
def test_order(groups, d, layers):
    heads = 8 * groups
    mha, gqa, mqa = (kv_bytes_per_token(heads, d, layers, kind, groups) for kind in ("MHA", "GQA", "MQA"))
    assert mha == 8 * gqa
    assert mqa * groups == gqa


def test_rejects():
    for call in (
        lambda: attention_parameters(10, 3),
        lambda: score_flops(4, 10, 3),
        lambda: score_flops(-4, 8, 2),
        lambda: score_flops(4, 8, 0),
        lambda: softmax([]),
        lambda: softmax([float("-inf")] * 2),
        lambda: read_two_places(float("nan"), 1.0),
        lambda: kv_bytes_per_token(8, 4, 1, "XXX"),
        lambda: kv_bytes_per_token(8, 4, 1, "GQA", groups=3),
        lambda: kv_bytes_per_token(8, 4, 1, "MLA"),
    ):
        with pytest.raises(ValueError, match=r"整除|kind|尺寸|有限"):
            call()
