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


def test_rotation_keeps_norms():
    x = torch.randn(1, 2, 16, 8, dtype=torch.float64)
    torch.testing.assert_close(rotate(x, 1e4).norm(dim=-1), x.norm(dim=-1))


def test_rejects():
    with pytest.raises(ValueError, match="整数倍"):
        BlockToday(32, 6, 4, 8, 48)
