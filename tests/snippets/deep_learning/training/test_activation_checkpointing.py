"""The planned peak, the number of forward passes and the gradients on real autograd."""

import pytest
import torch
from torch import nn

from snippets.deep_learning.training.activation_checkpointing import Block, forward_in_segments, gradient_gap, measure
from snippets.deep_learning.training.checkpoint_plan import peak


@pytest.mark.parametrize(("n", "k"), [(16, 0), (16, 1), (16, 4), (12, 3), (16, 16)])
def test_real_autograd_has_the_planned_peak(n, k):
    got, calls = measure(n, k)
    assert got == peak(n, k or n, 2, 1)
    assert calls == (1 if k == 0 else 2)


def test_gradients_are_bitwise_equal_and_rng_matters():
    assert gradient_gap(0.1) == 0
    assert gradient_gap(0.5, preserve_rng_state=False) > 0.1


def test_whole_model_as_one_segment_saves_nothing():
    assert measure(16, 16)[0] == measure(16, 0)[0]


def test_segments_reject_negative():
    with pytest.raises(ValueError, match="k"):
        forward_in_segments(nn.Sequential(Block(2)), torch.zeros(1, 2), -1)
