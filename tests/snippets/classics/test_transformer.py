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
    with pytest.raises(ValueError, match="整除"):
        Block(30, 4)
    with pytest.raises(ValueError, match="必须为正"):
        attention_share(0, 8)
