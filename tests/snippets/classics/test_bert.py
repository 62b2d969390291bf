"""Parameter count against a module built from torch's layers, and what each position sees."""

import pytest
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
    assert sum(visible(length, causal=False)) == length**2
    assert sum(visible(length, causal=True)) == length * (length + 1) // 2


def test_rejects():
    with pytest.raises(ValueError, match="为正"):
        parameters(0, 768)
    with pytest.raises(ValueError, match="负"):
        visible(-1, causal=True)
