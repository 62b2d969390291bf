"""Attention's backward against autograd (masks, GQA, half-masked batches), finite differences, and its identities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.deep_learning.attention.self_attention import attention, causal_mask, multi_head, padding_mask, softmax
from snippets.derivations.models.attention_backward import (
    Weights,
    backward,
    core_backward,
    cost,
    dead_rows,
    directional_check,
    fill_nan_afterwards,
    forward,
    identities,
    softmax_backward,
    without_row_term,
)


def random_layer(rng, h, heads, kv_heads, d):
    shapes = (h, heads * d), (h, kv_heads * d), (h, kv_heads * d), (heads * d, h)
    return Weights(*(rng.standard_normal(n) / math.sqrt(n[0]) for n in shapes))


def torch_layer(x, w, heads, kv_heads, mask):
    """The same layer by torch operators; fully masked rows give 0."""
    b, s, _ = x.shape
    q, k, v = ((x @ m).view(b, s, n, -1).transpose(1, 2) for m, n in zip(w[:3], (heads, kv_heads, kv_heads), strict=True))
    k, v = (y.repeat_interleave(heads // kv_heads, dim=1) for y in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        hidden = ~mask.expand(scores.shape)
        dead = hidden.all(-1, keepdim=True)
        scores = scores.masked_fill(hidden & ~dead, -torch.inf)
        p = scores.softmax(-1).masked_fill(dead, 0)
    else:
        p = scores.softmax(-1)
    return (p @ v).transpose(1, 2).reshape(b, s, -1) @ w[3]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(1, 8),
    st.sampled_from([(1, 1), (4, 4), (4, 2), (4, 1), (6, 3)]),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(["none", "causal", "padding", "both", "random"]),
    st.sampled_from([1.0, 40.0]),
    st.integers(0, 999),
)
def test_every_gradient_is_autograds(b, s, head_counts, d, h, kind, size, seed):
    rng = np.random.default_rng(seed)
    heads, kv_heads = head_counts
    x, w, dy = size * rng.standard_normal((b, s, h)), random_layer(rng, h, heads, kv_heads, d), rng.standard_normal((b, s, h))
    lengths = [int(rng.integers(0, s + 1)) for _ in range(b)]  # length 0 masks every row of that sequence
    mask = {
        "none": None,
        "causal": causal_mask(s),
        "padding": padding_mask(lengths, s),
        "both": causal_mask(s) & padding_mask(lengths, s),
        "random": rng.random((b, heads, s, s)) < 0.5,
    }[kind]
    y, tape = forward(x, w, heads, kv_heads, mask)
    dx, dw = backward(tape, dy)
    tensors = [torch.tensor(t, requires_grad=True) for t in (x, *w)]
    expected = torch_layer(tensors[0], tensors[1:], heads, kv_heads, None if mask is None else torch.tensor(mask))
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-9, atol=1e-9)
    for ours, theirs in zip((dx, *dw), torch.autograd.grad(expected, tensors, torch.tensor(dy)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8 * max(1, size))


def test_forward_is_the_sites_multi_head_and_torchs_sdpa():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 6, 8)), random_layer(rng, 8, 4, 4, 2)
    np.testing.assert_allclose(forward(x, w, 4, 4, causal_mask(6))[0], multi_head(x, *w, 4, causal_mask(6)), atol=1e-12)
    tape = forward(x, random_layer(rng, 8, 4, 2, 2), 4, 2)[1]
    q, k, v = map(torch.tensor, (tape.q, tape.k, tape.v))
    sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    np.testing.assert_allclose(tape.c, sdpa.transpose(1, 2).reshape(2, 6, 8), atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.integers(0, 999))
def test_core_by_finite_differences_for_every_coordinate(s, t, d, dv, seed):
    rng = np.random.default_rng(seed)
    q, k, v, do = (rng.standard_normal(n) for n in ((s, d), (t, d), (t, dv), (s, dv)))
    p = softmax(q @ k.T / math.sqrt(d))
    grads = core_backward(q, k, v, p, do)
    for index, gradient in enumerate(grads):
        for position in np.ndindex(gradient.shape):
            values = []
            for sign in (1, -1):
                moved = [q.copy(), k.copy(), v.copy()]
                moved[index][position] += sign * 1e-5
                values.append(np.sum(do * attention(*moved)))
            assert gradient[position] == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-7)


def test_the_check_itself_is_second_order_and_finds_errors(monkeypatch):
    assert directional_check(1e-2) / directional_check(1e-3) == pytest.approx(100, rel=0.05)
    assert directional_check(1e-5, seed=3) < 1e-7
    from snippets.derivations.models import attention_backward

    monkeypatch.setattr(attention_backward, "softmax_backward", without_row_term)
    assert directional_check(1e-5) > 1e-2


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 999))
def test_identities(s, d, seed):
    assert max(identities(s, d, seed).values()) < 1e-10


def test_the_key_bias_of_torchs_multihead_attention_gets_no_gradient():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(layer.in_proj_bias)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    layer(x, x, x, need_weights=False)[0].square().sum().backward()
    q, k, v = layer.in_proj_bias.grad.chunk(3)
    assert k.abs().max() < 1e-12 < min(q.abs().max(), v.abs().max())


def test_rotating_keys_by_position_breaks_the_key_bias_identity():
    rng = np.random.default_rng(0)
    x, b = torch.tensor(rng.standard_normal((6, 2))), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    angle = torch.arange(6, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], -2)
    q, k = ((turn @ y[:, :, None])[:, :, 0] for y in (x, x + b))
    ((q @ k.T).softmax(-1) @ x).square().sum().backward()
    assert b.grad.abs().max() > 1e-3


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 7), st.integers(0, 999))
def test_causal_gradients_never_flow_to_the_future(s, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((1, s, 4)), random_layer(rng, 4, 2, 1, 2)
    _, tape = forward(x, w, 2, 1, causal_mask(s))
    dy = np.zeros((1, s, 4))
    last = seed % s
    dy[0, last] = 1.0
    dx = backward(tape, dy)[0]
    assert not dx[0, last + 1 :].any()
    assert dx[0, : last + 1].any()


def test_padding_values_have_no_gradient_and_masked_rows_are_zero():
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 5, 4)), random_layer(rng, 4, 2, 2, 2)
    y, tape = forward(x, w, 2, 2, padding_mask([3, 0], 5))
    dy = rng.standard_normal(y.shape)
    dy[0, 3:] = 0  # the loss ignores the padded queries
    dx, _ = backward(tape, dy)
    assert not dx[0, 3:].any()
    assert not y[1].any()
    assert not dx[1].any()


def test_shared_keys_get_the_sum_over_their_group():
    rng = np.random.default_rng(2)
    x, w, dy = rng.standard_normal((1, 5, 6)), random_layer(rng, 6, 4, 2, 3), rng.standard_normal((1, 5, 6))
    wide = [m.reshape(6, 2, 1, 3).repeat(2, axis=2).reshape(6, 12) for m in (w.k, w.v)]
    grouped = backward(forward(x, w, 4, 2, causal_mask(5))[1], dy)[1]
    separate = backward(forward(x, Weights(w.q, *wide, w.o), 4, 4, causal_mask(5))[1], dy)[1]
    for ours, theirs in zip(grouped[1:3], separate[1:3], strict=True):
        np.testing.assert_allclose(ours, theirs.reshape(6, 2, 2, 3).sum(axis=2).reshape(6, 6), atol=1e-12)
        assert not np.allclose(ours, theirs.reshape(6, 2, 2, 3).mean(axis=2).reshape(6, 6))


def test_a_sink_logit_gets_minus_p_times_d():
    rng = np.random.default_rng(3)
    q, k, v, do = (torch.tensor(rng.standard_normal((4, 3))) for _ in range(4))
    sink = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    p = torch.cat([q @ k.T, sink.expand(4, 1)], 1).softmax(-1)
    out = p[:, :4] @ v
    (gradient,) = torch.autograd.grad(out, sink, do)
    assert gradient.item() == pytest.approx(-(p[:, 4] * (do * out).sum(1)).sum().item())


def test_dropout_keeps_d_equal_to_the_product_with_the_output():
    rng = np.random.default_rng(4)
    q, k, v, do = (torch.tensor(rng.standard_normal((5, 3))) for _ in range(4))
    keep = torch.tensor(rng.random((5, 5)) < 0.7) / 0.7
    scores = (q @ k.T).requires_grad_()
    p = scores.softmax(-1)
    out = (p * keep) @ v
    (gradient,) = torch.autograd.grad(out, scores, do)
    ds = p * ((do @ v.T) * keep - (do * out).sum(1, keepdim=True))
    np.testing.assert_allclose(ds.detach(), gradient, atol=1e-12)


def test_the_three_inner_products_agree():
    """Scaling Q, scaling K and scaling S are one direction."""
    q, k, v, do = np.random.default_rng(7).standard_normal((4, 6, 3))
    scores = q @ k.T / math.sqrt(3)
    p = softmax(scores)
    dq, dk, _ = core_backward(q, k, v, p, do)
    assert np.sum(dq * q) == pytest.approx(np.sum(dk * k)) == pytest.approx(np.sum(softmax_backward(p, do @ v.T) * scores))


def test_saturated_rows_stop_learning():
    shares = [dead_rows(scale)[0] for scale in (1.0, 8.0, 64.0, 512.0)]
    assert shares == sorted(shares)
    assert shares[0] == 0 < shares[1]
    assert not softmax_backward(np.eye(3), np.arange(9.0).reshape(3, 3)).any()


def test_costs():
    values = cost(8192, 4096, 32, 8)
    assert values["反向 核心"] == pytest.approx(2 * values["前向 核心"], abs=0.1)
    assert values["反向 投影"] == pytest.approx(2 * values["前向 投影"], abs=0.1)
    assert values["P 的 GB"] * 1e9 == pytest.approx(32 * 8192**2 * 2, rel=1e-2)


def test_backward_costs_twice_the_forward_by_torchs_counter():
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(1, 32, 64, requires_grad=True)
    w = [torch.randn(64, n, requires_grad=True) for n in (64, 16, 16, 64)]
    with FlopCounterMode(display=False) as count:
        y = torch_layer(x, w, 8, 2, torch.ones(32, 32, dtype=torch.bool).tril())
        ahead = count.get_total_flops()
        y.sum().backward()
    assert count.get_total_flops() == 3 * ahead
    assert ahead == 2 * 32 * 64 * (2 * 64 + 2 * 16) + 4 * 32 * 32 * 64


def test_elementwise_softmax_derivative_is_wrong():
    rng = np.random.default_rng(5)
    p, dp = softmax(rng.standard_normal((4, 6))), rng.standard_normal((4, 6))
    assert not np.allclose(without_row_term(p, dp), softmax_backward(p, dp))
    assert abs(without_row_term(p, dp).sum(axis=1)).max() > 1e-2


def test_filling_nan_after_the_fact_leaves_nan_in_torchs_gradients():
    assert fill_nan_afterwards() == (True, False)
    mask = torch.tensor([[False] * 3, [True] * 3, [True] * 3])
    additive = torch.zeros(3, 3, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    for hide, key_survives in ((lambda scores: scores.masked_fill(~mask, -torch.inf), True), (lambda scores: scores + additive, False)):
        rng = np.random.default_rng(6)
        q, k, v = (torch.tensor(rng.standard_normal((3, 2)), requires_grad=True) for _ in range(3))
        out = (hide(q @ k.T).softmax(-1) @ v).nan_to_num(0.0)
        out.sum().backward()
        assert torch.isfinite(out).all()
        assert not torch.isfinite(v.grad).all()
        assert bool(torch.isfinite(k.grad).all()) == key_survives  # masked_fill's own backward writes 0, adding −inf does not


def test_rejects():
    x, w = np.ones((1, 2, 4)), Weights(*(np.ones((4, 4)) for _ in range(4)))
    bad = x.copy()
    bad[0, 0, 0] = np.nan
    tape = forward(x, w, 2, 2)[1]
    calls = [
        lambda: softmax_backward(np.ones((1, 2)), np.ones((2, 1))),
        lambda: softmax_backward(np.array([[np.nan, 1.0]]), np.ones((1, 2))),
        lambda: core_backward(x[0], x[0], x[0], np.ones((2, 3)), x[0]),
        lambda: forward(x[0], w, 2, 2),
        lambda: forward(bad, w, 2, 2),
        lambda: forward(np.ones((1, 0, 4)), w, 2, 2),
        lambda: forward(x, w, 2, 2, np.ones((2, 2))),
        lambda: forward(x, w, 4, 3),
        lambda: forward(x, w, 3, 3),
        lambda: forward(x, w, 4, 2),
        lambda: backward(tape, x[:, :1]),
        lambda: directional_check(0.0),
        lambda: dead_rows(math.inf),
        lambda: cost(8, 10, 4, 4),
        lambda: cost(0, 8, 4, 4),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"须|不合"):
            call()
