"""The layer against torch's operators, and the bugs that people make against the same checks."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from snippets.coding.algorithms import self_attention as module
from snippets.coding.algorithms.self_attention import Cache, SelfAttention, attention_to_debug, cost
from tests.snippets.coding.bugs import with_bug


def reference(layer, x, mask=None):
    """The same projections through torch's fused operator; mask (b, 1, s, s) or None for causal."""
    b, s, _ = x.shape

    def heads(projection, n):
        return projection(x).view(b, s, n, layer.d).transpose(1, 2)

    q, k, v = heads(layer.q_proj, layer.heads), heads(layer.k_proj, layer.kv_heads), heads(layer.v_proj, layer.kv_heads)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return layer.o_proj(out.transpose(1, 2).flatten(2))


def check(build, *, seed=0):
    """What any causal self-attention must satisfy. `build` is a class like SelfAttention."""
    torch.manual_seed(seed)
    layer = build(24, heads=6, kv_heads=2).double()
    x = torch.randn(2, 7, 24, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(layer(x), reference(layer, x))
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[0, :3] = False  # left padding: the first rows of this sequence see nothing
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    out = layer(x, padding=padding)
    torch.testing.assert_close(out, reference(layer, x, causal & padding[:, None, None, :]))
    assert torch.equal(out[0, :3], torch.zeros(3, 24, dtype=torch.float64))
    assert torch.autograd.grad(out.square().sum(), x)[0].isfinite().all()
    cache, pieces = Cache(), []
    for piece in x.split((4, 1, 2), dim=1):
        pieces.append(layer(piece, cache=cache))
    torch.testing.assert_close(torch.cat(pieces, dim=1), layer(x))


def test_layer_satisfies_the_check():
    check(SelfAttention)


BUGS = {
    "split by view alone": (
        "self.q_proj(x).view(b, s, self.heads, self.d).transpose(1, 2)",
        "self.q_proj(x).view(b, self.heads, s, self.d)",
    ),
    "merge without transpose": (".transpose(1, 2).reshape(b, s, self.heads * self.d)", ".reshape(b, s, self.heads * self.d)"),
    "GQA groups interleaved": (
        "k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)",
        "k = k.repeat(1, self.heads // self.kv_heads, 1, 1)",
    ),
    "causal mask aligned to the first key": (".tril(t - s)", ".tril()"),
    "scaled by the width": ("math.sqrt(self.d)", "math.sqrt(self.heads * self.d)"),
    "softmax over the queries": ("masked_fill(~seen, -math.inf).softmax(dim=-1)", "masked_fill(~seen, -math.inf).softmax(dim=-2)"),
    "rows without keys": ("weights = weights.masked_fill(~seen.any(dim=-1, keepdim=True), 0)", "pass"),
    "mask of -1e-9": ("weights = scores.masked_fill(~seen, -math.inf)", "weights = scores.masked_fill(~seen, -1e-9)"),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises(AssertionError):
        check(with_bug(module, change).SelfAttention)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
def test_any_shape_equals_the_fused_operator(b, s, kv_heads, group, d, seed):
    torch.manual_seed(seed)
    heads = kv_heads * group
    layer = SelfAttention(heads * d, heads, kv_heads).double()
    x = torch.randn(b, s, heads * d, dtype=torch.float64)
    torch.testing.assert_close(layer(x), reference(layer, x))


def test_gradients_equal_autograd_through_the_fused_operator():
    torch.manual_seed(1)
    layer = SelfAttention(12, 4, 2).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    parameters = [x, *layer.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(layer(x).square().sum(), parameters),
        torch.autograd.grad(reference(layer, x).square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_full_heads_equal_torchs_module_with_its_weights():
    torch.manual_seed(2)
    layer, theirs = SelfAttention(16, 4), nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight)))
        theirs.out_proj.weight.copy_(layer.o_proj.weight)
    x = torch.randn(3, 6, 16)
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)  # this module: True is forbidden
    torch.testing.assert_close(layer(x), theirs(x, x, x, attn_mask=mask, need_weights=False)[0], atol=1e-5, rtol=1e-4)


def test_half_precision_scores_beyond_its_range():
    """q·k of 30 × 30 × 128 = 115 200 is above 65 504; scaling first and multiplying in fp32 keeps it finite."""
    layer = SelfAttention(128, 1).half()
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj):
            projection.weight.copy_(torch.eye(128))
    x = torch.full((1, 3, 128), 30.0, dtype=torch.float16)
    assert not (x @ x.transpose(1, 2)).isfinite().all()
    torch.testing.assert_close(layer(x), x)


def test_padding_cannot_leak():
    torch.manual_seed(3)
    layer = SelfAttention(8, 2)
    x = torch.randn(1, 5, 8)
    padding = torch.tensor([[False, True, True, True, False]])
    changed = x.clone()
    changed[:, [0, 4]] = 1e3
    torch.testing.assert_close(layer(x, padding)[:, 1:4], layer(changed, padding)[:, 1:4])


def test_one_token_attends_to_itself_and_no_sequence_is_empty():
    layer = SelfAttention(8, 2, 1)
    x = torch.randn(1, 1, 8)
    torch.testing.assert_close(layer(x), layer.o_proj(layer.v_proj(x).repeat(1, 1, 2)))
    assert layer(torch.randn(0, 3, 8)).shape == (0, 3, 8)
    assert layer(torch.randn(2, 0, 8)).shape == (2, 0, 8)


FIXES = (
    ("view(b, heads, s, h // heads)", "view(b, s, heads, h // heads).transpose(1, 2)"),
    ("math.sqrt(h)", "math.sqrt(h // heads)"),
    (".triu()", ".tril()"),
    ("softmax(dim=-2)", "softmax(dim=-1)"),
    ("(weights @ v).reshape(b, s, h)", "(weights @ v).transpose(1, 2).reshape(b, s, h)"),
)


def test_the_debugging_task_has_these_five_bugs_and_no_other():
    torch.manual_seed(4)
    layer = SelfAttention(12, 3)
    x = torch.randn(2, 5, 12)
    weights = [p.weight.T for p in (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)]
    with torch.no_grad():
        expected = layer(x)
        torch.testing.assert_close(with_bug(module, *FIXES).attention_to_debug(x, *weights, heads=3), expected)
        for left_out in range(len(FIXES)):
            almost = with_bug(module, *FIXES[:left_out], *FIXES[left_out + 1 :]).attention_to_debug(x, *weights, heads=3)
            assert not torch.allclose(almost, expected, atol=1e-3), FIXES[left_out]
        assert attention_to_debug(x, *weights, heads=3).shape == expected.shape


def test_cost_counts_the_layers_multiplications():
    from torch.utils.flop_counter import FlopCounterMode

    layer, x = SelfAttention(32, 8, 2), torch.randn(1, 6, 32)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    projections, scores = 2 * 6 * 32 * (2 * 32 + 2 * 8), 4 * 6 * 6 * 32
    assert counter.get_total_flops() == projections + scores
    assert math.isclose(cost(10_000, 10_000, 4096, 32, 8)["投影"] * 1e9, 2 * 1e4 * 4096 * (2 * 4096 + 2 * 1024), rel_tol=1e-4)


@pytest.mark.parametrize("arguments", [(0, 1), (8, 3), (8, 4, 3), (8, 2, 0), (8, 2, 4)])
def test_rejects(arguments):
    with pytest.raises(ValueError, match="整除"):
        SelfAttention(*arguments)
    with pytest.raises(ValueError, match="s ≤ t"):
        cost(2, 1, 8, 2, 2)
