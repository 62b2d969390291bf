"""Byte counts against the states that torch's optimizers really allocate; low-bit states against brute force."""

import math

import pytest
import torch

from snippets.deep_learning.regularization.optimizer_design import (
    LLAMA3_8B,
    STATES,
    parameters,
    state_table,
    update_milliseconds,
    worst_update,
)
from snippets.math.optimization.adam import step_bound


def allocated(optimizer) -> int:
    """Bytes of the state tensors, without the scalar step counters."""
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.numel() > 1
    )


def stepped(kind, shape, **options):
    weight = torch.nn.Parameter(torch.randn(shape))
    optimizer = kind([weight], **options)
    weight.grad = torch.randn(shape)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("name", "kind"), [("AdamW，fp32", torch.optim.AdamW), ("Muon，fp32", torch.optim.Muon), ("Adafactor，无动量", torch.optim.Adafactor)]
)
def test_state_bytes_are_what_torch_allocates(name, kind):
    rows, cols = 48, 80
    assert allocated(stepped(kind, (rows, cols))) == STATES[name](rows, cols, True)


def test_a_vector_is_not_factored():
    assert allocated(stepped(torch.optim.Adafactor, (64,))) == STATES["Adafactor，无动量"](1, 64, False)


def test_shapes_make_the_published_model():
    assert parameters() == 8_030_261_248
    hidden_parameters = sum(count * rows * cols for count, rows, cols, hidden in LLAMA3_8B if hidden)
    assert hidden_parameters == 32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 4096 * 14336)


def test_order_of_the_table():
    table = {name: size for name, size, _ in state_table()}
    assert table["Adafactor，无动量"] < 0.01
    assert table["Shampoo，fp32"] > 3 * table["AdamW，fp32"]
    assert 4 < table["Muon，fp32"] < 8


def test_linear_int8_second_moment_explodes_and_a_float_code_does_not():
    assert worst_update("int8") > 1000
    assert worst_update("e5m2") < 1.07  # half a step of two mantissa bits, under the root
    assert worst_update("fp32") == 1
    with pytest.raises(ValueError, match="scheme"):
        worst_update("int4")


def test_int8_rounds_everything_below_half_a_unit_to_zero():
    """Where the explosion comes from: v below max/510 becomes 0 and ε is all that is left."""
    v, top = 1e-9, 1e-6
    assert round(v / (top / 255)) == 0
    assert math.sqrt(v) / 1e-8 > 1000


def test_update_time():
    assert update_milliseconds(30, shards=8) == pytest.approx(update_milliseconds(30) / 8)
    for arguments in ((0,), (math.nan,), (30, 1.5), (30, 0), (30, 1, math.inf)):
        with pytest.raises(ValueError, match="须为正"):
            update_milliseconds(*arguments)
    with pytest.raises(ValueError, match="size"):
        worst_update("fp32", 0)


def test_a_spike_after_calm_and_the_bound_over_all_sequences():
    """The step after a lone large gradient is (1 − β1)/√(1 − β2); no sequence exceeds the bound of Q011."""
    for beta2 in (0.999, 0.95):
        spike, bound = step_bound(0.9, beta2)
        m = v = 0.0
        for g in [1e-6] * 1000 + [1.0]:
            m, v = 0.9 * m + 0.1 * g, beta2 * v + (1 - beta2) * g * g
        assert m / math.sqrt(v) == pytest.approx(spike, rel=1e-2)
        assert bound > spike


def test_l2_is_not_decoupled_decay():
    """Two coordinates with gradients 10 and 0.01: L2 inside Adam decays them by amounts that depend on the gradient."""
    results = {}
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = kind([weight], lr=1e-3, weight_decay=0.1)
        torch.manual_seed(0)
        for _ in range(300):
            weight.grad = torch.tensor([10.0, 0.01]) * torch.randn(2)
            optimizer.step()
        results[kind.__name__] = weight.tolist()
    adam, adamw = results["Adam"], results["AdamW"]
    assert adam[0] - adam[1] > 0.2  # the coordinate with small gradients is decayed far more
    assert abs(adamw[0] - adamw[1]) < abs(adam[0] - adam[1]) / 2
