"""Parallel and cached decoding agree; causality by perturbation; the FLOPs share by counting."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from snippets.classics.transformer import Block, attention_share, decode


@pytest.mark.parametrize(("b", "s", "heads"), [(1, 1, 1), (2, 7, 4), (3, 16, 8)])
def test_decoding_is_the_parallel_pass(b, s, heads):
    torch.manual_seed(s)
    block, x = Block(32, heads).double(), torch.randn(b, s, 32, dtype=torch.float64)
    torch.testing.assert_close(decode(block, x), block(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 4])
def test_the_block_is_the_formula_with_torchs_attention(heads):
    torch.manual_seed(0)
    block, x = Block(32, heads).double(), torch.randn(2, 6, 32, dtype=torch.float64)
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (block.norm1(x) @ block.qkv.weight.T).split(32, dim=-1))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    middle = x + mixed @ block.out.weight.T
    torch.testing.assert_close(block(x), middle + block.mlp(block.norm2(middle)))


def test_decoding_takes_one_pass_per_position():
    block, calls = Block(16, 2), []
    block.register_forward_hook(lambda _module, inputs, _output: calls.append(inputs[0].shape[1]))
    x = torch.randn(1, 5, 16)
    block(x)
    assert calls == [5]
    decode(block, x)
    assert calls == [5] + [1] * 5


def test_later_positions_cannot_change_earlier_outputs():
    torch.manual_seed(0)
    block, x = Block(32, 4), torch.randn(1, 8, 32)
    changed = x.clone()
    changed[:, 5:] += 1
    before, after = block(x), block(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize(("s", "h"), [(8, 16), (64, 16), (96, 16)])
def test_share_is_what_torch_counts(s, h):
    block, x = Block(h, 2), torch.randn(1, s, h)
    with FlopCounterMode(display=False) as counter:
        block(x)
    total = counter.get_total_flops()
    assert total == 24 * s * h * h + 4 * s * s * h
    assert attention_share(s, h) == pytest.approx(4 * s * s * h / total)


def test_rejects():
    for h, heads in ((30, 4), (32, 0), (32, -4), (0, 1), (32, 2.0)):
        with pytest.raises(ValueError, match="整除"):
            Block(h, heads)
    for bad in (0, -1, 2.5, float("nan"), True):
        with pytest.raises(ValueError, match="必须为正"):
            attention_share(bad, 8)
    block = Block(8, 2)
    for shape in ((2, 8), (1, 0, 8), (1, 2, 4)):
        with pytest.raises(ValueError, match="x 须是"):
            block(torch.zeros(shape))
        with pytest.raises(ValueError, match="x 须是"):
            decode(block, torch.zeros(shape))
    with pytest.raises(ValueError, match="一个位置"):  # two at once would see each other without a mask
        block(torch.zeros(1, 2, 8), [])
