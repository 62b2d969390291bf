"""FLOPs against torch's counter on the real blocks, widths against published configurations."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from snippets.deep_learning.neural_networks.blocks import Block2017, BlockToday
from snippets.deep_learning.neural_networks.layer_cost import forward_flops, model_table, swiglu_width


@pytest.mark.parametrize(
    ("block", "shape", "gated"), [(Block2017(32, 4, 64), (32, 4, 4, 8, 64), False), (BlockToday(32, 4, 2, 8, 48), (32, 4, 2, 8, 48), True)]
)
def test_matmul_flops_are_counted_by_torch(block, shape, gated):
    s = 16
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # two visible matmuls, the mask not skipped
        block(torch.randn(1, s, 32))
    got = forward_flops(*shape, gated=gated, s=s)
    assert counter.get_total_flops() == s * sum(got.values())


def test_swiglu_has_the_parameters_of_a_4h_mlp():
    for h in (1536, 3072, 6144):
        assert 3 * h * swiglu_width(h, 1) == pytest.approx(8 * h * h, rel=1e-3)


def test_published_widths():
    assert swiglu_width(5120) == 13824  # LLaMA 13B
    assert swiglu_width(16384, 4096, 1.2) == 53248  # Llama 3 405B


def test_table_and_rejects():
    assert len(model_table()) == 7
    for call in (lambda: forward_flops(8, 3, 2, 4, 8, gated=True, s=1), lambda: swiglu_width(0), lambda: swiglu_width(8, 8, float("nan"))):
        with pytest.raises(ValueError, match="须为正"):
            call()
