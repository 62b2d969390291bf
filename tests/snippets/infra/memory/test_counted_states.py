"""Bytes counted on real torch tensors; the page's inventory must be what torch allocates."""

import pytest
import torch

from snippets.infra.memory import counted_states as cs


@pytest.mark.parametrize("h", [16, 48])
def test_fp32_adamw_is_sixteen_bytes_plus_step(h):
    counted = cs.adamw_bytes(h=h)
    assert counted["参数"] + counted["梯度"] + counted["m 与 v"] == 16
    assert counted["step 合计"] == 4 * 2  # one fp32 scalar per tensor, two tensors


def test_bf16_parameters_get_no_master_weights():
    """Counter-example: "AdamW keeps fp32 states for bf16 parameters"."""
    counted = cs.adamw_bytes(torch.bfloat16)
    assert counted["参数"] + counted["梯度"] + counted["m 与 v"] == 8


def test_states_are_lazy():
    """Counter-example: "if the first forward and backward fit, training fits"."""
    built, with_optimizer, after_backward, after_step, cleared = cs.state_appears_late()
    assert with_optimizer == built
    assert after_step == 2 * after_backward
    assert cleared == after_step - 4


@pytest.mark.parametrize("layers", [4, 16])
def test_step_temporaries(layers):
    assert cs.step_temporaries("foreach", layers) == 4
    assert cs.step_temporaries("for-loop", layers) == pytest.approx(12 / layers, abs=0.06)
    assert cs.step_temporaries("fused", layers) == 0


def test_norm_and_autocast():
    assert cs.norm_temporaries(False) == 0
    assert cs.norm_temporaries(True) == 4
    assert cs.autocast_cached(True) == 2
    assert cs.autocast_cached(False) == 0


@pytest.mark.parametrize("call", [lambda: cs.adamw_bytes(h=0), lambda: cs.state_appears_late(True), lambda: cs.step_temporaries("x")])
def test_rejects(call):
    with pytest.raises(ValueError, match=r"须|没有|已在用"):
        call()
