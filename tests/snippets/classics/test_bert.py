"""Parameter count against a module built from torch's layers, and what each position sees."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from snippets.classics.bert import parameters, visible


@pytest.mark.parametrize(("layers", "h", "heads"), [(2, 64, 4), (3, 48, 6)])
def test_count_is_that_of_torchs_encoder(layers, h, heads):
    vocabulary, positions, segments = 100, 32, 2
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(h, heads, 4 * h, batch_first=True), layers, enable_nested_tensor=False)
    modules = nn.ModuleList([nn.Embedding(n, h) for n in (vocabulary, positions, segments)] + [nn.LayerNorm(h), encoder, nn.Linear(h, h)])
    assert parameters(layers, h, vocabulary, positions, segments)["合计"] == sum(p.numel() for p in modules.parameters())


@given(st.integers(0, 50))
def test_visible(length):
    allowed = torch.ones(length, length)
    assert visible(length, causal=False) == allowed.sum(-1).tolist()
    assert visible(length, causal=True) == allowed.tril().sum(-1).tolist()


def test_rejects():
    for bad in (0, -1, 12.5, math.nan, True):
        with pytest.raises(ValueError, match="正整数"):
            parameters(12, bad)
    for bad in (-1, 2.5, True):
        with pytest.raises(ValueError, match="非负整数"):
            visible(bad, causal=True)
