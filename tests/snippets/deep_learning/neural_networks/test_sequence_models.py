"""Scans against each other, counts against torch modules, limits of the table."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from snippets.deep_learning.neural_networks.sequence_models import (
    LAYERS,
    comparison,
    hybrid_cache,
    parallel_scan,
    sequential_scan,
)

numbers = st.floats(-2, 2)


@given(st.lists(st.tuples(numbers, numbers), max_size=40))
def test_parallel_scan_is_the_recurrence_in_log_rounds(pairs):
    decay, inputs = [a for a, _ in pairs], [b for _, b in pairs]
    got, rounds = parallel_scan(decay, inputs)
    expected = sequential_scan(decay, inputs)
    assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert rounds == (max(0, len(pairs) - 1)).bit_length()


def test_linear_attention_has_both_forms():
    """Parallel (masked scores without softmax) and recurrent (a d×d state) give the same outputs."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(12, 4, dtype=torch.float64) for _ in range(3))
    parallel = ((q @ k.T) * torch.ones(12, 12, dtype=torch.float64).tril()) @ v
    state, outputs = torch.zeros(4, 4, dtype=torch.float64), []
    for t in range(12):
        state = state + torch.outer(k[t], v[t])
        outputs.append(q[t] @ state)
    torch.testing.assert_close(torch.stack(outputs), parallel)
    softmax = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert not torch.allclose(softmax, parallel)


@pytest.mark.parametrize(("name", "module"), [("RNN", torch.nn.RNNCell), ("LSTM", torch.nn.LSTMCell)])
def test_recurrent_flops_are_counted_by_torch(name, module):
    h, s = 128, 3
    cell = module(h, h, bias=False)
    with FlopCounterMode(display=False) as counter:
        state = None
        for _ in range(s):
            out = cell(torch.randn(1, h), state)
            state = out
    assert LAYERS[name].train_flops(s, h) == counter.get_total_flops()


def test_attention_catches_up_in_cost_at_two_h():
    h = 512
    attention = LAYERS["注意力"]
    assert attention.train_flops(2 * h, h) == 2 * (8 * 2 * h * h * h)  # scores and weighted sum equal the projections


def test_decoding_every_token_costs_what_training_does():
    """Projections exactly; attention reads a growing cache, so its decode sum is about half of the uncut s² term."""
    s, h = 256, 256
    for name, layer in LAYERS.items():
        total = sum(layer.decode_flops(t, h) for t in range(1, s + 1))
        cut = 4 * h * s * (s - 1) // 2 if name == "注意力" else 0
        assert total == layer.train_flops(s, h) - cut


def test_attention_state_passes_the_linear_one_at_half_a_head():
    assert LAYERS["注意力"].state(64, 4096) == LAYERS["线性递归"].state(64, 4096)


def test_rejects():
    assert len(comparison(1, 128)) == 4
    for call in (
        lambda: comparison(0),
        lambda: comparison(8, 200),
        lambda: hybrid_cache(30, 4, 1.0),
        lambda: hybrid_cache(4, 2, float("nan")),
        lambda: sequential_scan([1.0], []),
        lambda: parallel_scan([1.0], []),
        lambda: parallel_scan([float("nan")], [1.0]),  # the sequential form would give NaN, the tree 1.0
        lambda: parallel_scan([0.0, 1e200, 1e200, 1e200], [0.0] * 4),  # inf·0 in the tree, 0 step by step
    ):
        with pytest.raises(ValueError, match="须"):
            call()
