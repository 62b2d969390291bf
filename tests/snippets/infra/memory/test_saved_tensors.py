"""What autograd really keeps, against the formulas, over several shapes; the instrument itself on known operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from snippets.infra.memory.saved_tensors import (
    ClassicLayer,
    ModernLayer,
    classic_counted_and_formula,
    full_recompute_bytes,
    modern_counted_and_formula,
    saved_bytes,
)

SHAPES = [(1, 16, 64, 4), (2, 64, 128, 8), (3, 33, 96, 3), (1, 256, 64, 8)]


@pytest.mark.parametrize(("b", "s", "h", "a"), SHAPES)
@pytest.mark.parametrize("recompute", [False, True])
def test_classic_layer_equals_the_formula_up_to_layernorm_statistics(b, s, h, a, recompute):
    counted, formula = classic_counted_and_formula(b, s, h, a, recompute)
    assert counted == formula + 8 * b * s


@pytest.mark.parametrize(("b", "s", "h", "a"), SHAPES)
def test_full_recompute_keeps_the_input_only(b, s, h, a):
    assert full_recompute_bytes(b, s, h, a) == 2 * b * s * h


@pytest.mark.parametrize(("b", "s", "h", "a", "kv", "f"), [(1, 16, 64, 4, 4, 176), (2, 64, 128, 8, 2, 352), (1, 128, 256, 8, 1, 704)])
def test_modern_layer_equals_the_items_up_to_the_cpu_rmsnorm(b, s, h, a, kv, f):
    counted, formula = modern_counted_and_formula(b, s, h, a, kv, f)
    assert counted == formula + 12 * h * b * s


def test_sdpa_has_no_quadratic_term():
    def per_token(s):
        return modern_counted_and_formula(1, s, 64, 4, 2, 176)[0] / s

    assert per_token(512) == per_token(64)


def test_recomputation_does_not_change_gradients():
    torch.manual_seed(0)
    layer = ClassicLayer(64, 4, p=0.0, dtype=torch.float32)
    gradients = []
    for recompute in (False, True):
        x = torch.linspace(-1, 1, 2 * 16 * 64).reshape(2, 16, 64).requires_grad_()
        layer(x, recompute).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


class CountMatmuls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
        return func(*args, **(kwargs or {}))


def test_recomputing_swiglu_needs_the_down_projection_inside():
    layer, f = ModernLayer(64, 4, 2, 176), 176
    x = torch.zeros(2, 16, 64, dtype=torch.bfloat16, requires_grad=True)

    def plain(layer, x):
        return layer.down(F.silu(layer.gate(x)) * layer.up(x))

    def activation_only(layer, x):
        return layer.down(checkpoint(lambda g, u: F.silu(g) * u, layer.gate(x), layer.up(x), use_reentrant=False))

    def with_down(layer, x):
        return checkpoint(lambda g, u: layer.down(F.silu(g) * u), layer.gate(x), layer.up(x), use_reentrant=False)

    sizes = [saved_bytes(layer, x, call) / 32 for call in (plain, activation_only, with_down)]
    assert [sizes[0] - size for size in sizes] == [0, 2 * f, 4 * f]
    counts = []
    for call in (plain, with_down):
        loss = call(layer, x).sum()
        with CountMatmuls() as mode:
            loss.backward()
        counts.append(mode.count)
    assert counts == [6, 6], "the recomputation stops before the down projection"


def test_a_shared_storage_counts_once_and_parameters_do_not_count():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            y = x * 2
            return (y @ self.weight) * y.sum() + y.t() @ y

    x = torch.ones(4, 4, requires_grad=True)
    counted = saved_bytes(Twice(), x)
    assert counted == 4 * 4 * 4 * 2 + 4  # y, y @ weight, and the scalar sum


def test_needs_a_differentiable_input():
    with pytest.raises(ValueError, match="requires_grad"):
        saved_bytes(ModernLayer(64, 4, 2, 128), torch.zeros(1, 4, 64, dtype=torch.bfloat16))
