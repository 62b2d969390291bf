"""The planned peak, the number of forward passes and the gradients on real autograd."""

import pytest
import torch
from torch import nn

from snippets.deep_learning.training.activation_checkpointing import (
    MODES,
    Block,
    forward_in_segments,
    gradient_gap,
    measure,
    measure_mode,
)
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


def test_selective_keeps_matmul_outputs_and_repeats_none_of_them():
    rows = {mode: measure_mode(mode, n=5, h=48, b=4096) for mode in MODES}
    kept, _, matmuls = ({mode: row[i] for mode, row in rows.items()} for i in range(3))
    assert kept == {"不重算": pytest.approx(10, abs=0.1), "选择性": 6, "全重算": 1}
    assert matmuls == {"不重算": 9 * 5, "选择性": 9 * 5, "全重算": 9 * 5 + 2 * 5}  # early stop skips the last one of each layer
    assert rows["不重算"][1] > rows["选择性"][1] > rows["全重算"][1]
    assert all(torch.equal(row[3], rows["不重算"][3]) for row in rows.values())
    for bad in (lambda: measure_mode("some"), lambda: measure_mode("全重算", n=0), lambda: measure(0, 0)):
        with pytest.raises(ValueError, match="正"):
            bad()


def test_segments_reject_negative():
    with pytest.raises(ValueError, match="k"):
        forward_in_segments(nn.Sequential(Block(2)), torch.zeros(1, 2), -1)
