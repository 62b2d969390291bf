"""Shapes, causality and equalities of the two blocks."""

import pytest
import torch

from snippets.deep_learning.neural_networks.blocks import Block2017, BlockToday, parameters, rotate


def blocks(dtype=torch.float64):
    torch.manual_seed(0)
    old = Block2017(32, 4, 64)
    return [block.to(dtype) for block in (old, BlockToday(32, 4, 2, 8, 48), BlockToday(32, 4, 4, 8, 48, qk_norm=True))]


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("s", [1, 2, 9])
def test_shape_and_causality(index, s):
    block = blocks()[index]
    x = torch.randn(2, s, 32, dtype=torch.float64)
    out = block(x)
    assert out.shape == x.shape
    changed = x.clone()
    changed[:, -1] += 1
    torch.testing.assert_close(block(changed)[:, :-1], out[:, :-1], rtol=0, atol=0)


def test_old_block_is_torchs_encoder_layer_with_a_causal_mask():
    old = blocks()[0]
    theirs = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, dtype=torch.float64)
    state = {
        "self_attn.in_proj_weight": old.qkv.weight,
        "self_attn.in_proj_bias": old.qkv.bias,
        "self_attn.out_proj.weight": old.out.weight,
        "self_attn.out_proj.bias": old.out.bias,
        "linear1.weight": old.up.weight,
        "linear1.bias": old.up.bias,
        "linear2.weight": old.down.weight,
        "linear2.bias": old.down.bias,
        "norm1.weight": old.norm1.weight,
        "norm1.bias": old.norm1.bias,
        "norm2.weight": old.norm2.weight,
        "norm2.bias": old.norm2.bias,
    }
    theirs.load_state_dict(state)
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    torch.testing.assert_close(old(x), theirs(x, src_mask=mask))
    assert parameters(old) == parameters(theirs)


def test_gqa_is_mha_with_repeated_heads():
    grouped = blocks()[1]
    full = BlockToday(32, 4, 4, 8, 48).double()
    state = grouped.state_dict()
    for name in ("k.weight", "v.weight"):
        state[name] = state[name].unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    torch.testing.assert_close(full(x), grouped(x))


def test_zeroed_branches_leave_the_residual_stream_alone():
    """The identity path of the modern block; the 2017 block normalizes it away."""
    old, today, _ = blocks()
    for block in (old, today):
        for layer in (block.out, block.down):
            torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(old.out.bias)
    torch.nn.init.zeros_(old.down.bias)
    x = 3 * torch.randn(1, 4, 32, dtype=torch.float64)
    assert torch.equal(today(x), x)
    assert not torch.allclose(old(x), x)


def test_qk_norm_makes_the_output_independent_of_the_scale_of_q_and_k():
    block = blocks()[2]
    x = torch.randn(1, 5, 32, dtype=torch.float64)
    before = block(x)
    with torch.no_grad():
        block.q.weight *= 100
        block.k.weight *= 100
    torch.testing.assert_close(block(x), before, rtol=1e-4, atol=1e-4)  # up to the eps inside the norm


@pytest.mark.parametrize("index", [1, 2])
def test_modern_block_is_the_formula(index):
    """Written out again with complex RoPE, repeated KV heads and an explicit mask."""
    block, s = blocks()[index], 7
    x = torch.randn(2, s, 32, dtype=torch.float64)
    rms = torch.nn.functional.rms_norm
    turn = torch.polar(torch.ones(s, 4, dtype=torch.float64), torch.arange(s)[:, None] * 5e5 ** (-torch.arange(4, dtype=torch.float64) / 4))

    def heads(linear, norm, rotated):
        t = linear(rms(x, (32,), eps=1e-5)).unflatten(-1, (-1, 8)).transpose(1, 2)
        if norm:
            t = rms(t, (8,), eps=block.norm_q.eps)
        if rotated:
            z = torch.complex(*t.chunk(2, dim=-1)) * turn
            t = torch.cat([z.real, z.imag], dim=-1)
        return t.repeat_interleave(4 // t.shape[1], dim=1)

    q, k, v = heads(block.q, index == 2, True), heads(block.k, index == 2, True), heads(block.v, False, False)
    scores = (q @ k.mT / 8**0.5).masked_fill(torch.ones(s, s).triu(1).bool(), -torch.inf)
    y = x + block.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    z = rms(y, (32,), eps=1e-5)
    expected = y + block.down(torch.nn.functional.silu(block.gate(z)) * block.up(z))
    torch.testing.assert_close(block(x), expected, rtol=1e-5, atol=1e-5)


def test_rotation_keeps_norms():
    x = torch.randn(1, 2, 16, 8, dtype=torch.float64)
    torch.testing.assert_close(rotate(x, 1e4).norm(dim=-1), x.norm(dim=-1))


def test_rejects():
    for call in (lambda: BlockToday(32, 6, 4, 8, 48), lambda: BlockToday(32, 4, 0, 8, 48), lambda: BlockToday(32, 4, 2, 7, 48)):
        with pytest.raises(ValueError, match="整数倍"):
            call()
    with pytest.raises(ValueError, match="整数倍"):
        Block2017(10, 4, 16)
    for block in (Block2017(8, 1, 16), BlockToday(8, 1, 1, 8, 16)):
        for shape in ((5, 8), (2, 3, 5, 8), (2, 5, 7)):  # (s, h) with one head would broadcast to (s, s, h)
            with pytest.raises(ValueError, match="输入须是"):
                block(torch.zeros(shape))
