"""What autograd really keeps, against the formulas, over several shapes; both instruments on known operators."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from snippets.infra.memory.activation_memory import LOSS, RECOMPUTE, Decoder, Shape, decoder_items
from snippets.infra.memory.saved_tensors import (
    MODES,
    ClassicLayer,
    FusedRMSNorm,
    FusedSwiGLU,
    LiveStorages,
    ModernLayer,
    autocast_copies,
    classic_difference,
    live_bytes,
    loss_peak,
    modern_difference,
    operator_saves,
    pinned_by_view,
    saved_bytes,
    selective,
    selective_per_token,
)

SHAPES = [Shape(s=16, b=1, h=64, a=8), Shape(s=64, b=2, h=128, a=8), Shape(s=40, b=3, h=96, a=4)]
MODELS = [Decoder(64, 4, 4, 176, 1, 1), Decoder(128, 8, 2, 352, 1, 1), Decoder(256, 8, 1, 704, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_every_row_of_the_table_up_to_layernorm_statistics(shape, t, sequence_parallel, recompute):
    _, extra = classic_difference(shape, t, sequence_parallel, recompute)
    rows = shape.b * shape.s / (t if sequence_parallel else 1)
    assert extra == (0 if recompute == "full" else 8 * rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_real_tensors_agree_with_fake_ones(dtype):
    shape = SHAPES[1]
    x = torch.randn(shape.b, shape.s, shape.h, dtype=dtype, requires_grad=True)
    assert saved_bytes(ClassicLayer(shape.h, shape.a, dtype=dtype), x) == classic_difference(shape)[0]


def test_both_instruments_agree_on_the_classic_layer():
    shape = SHAPES[1]
    x = torch.randn(shape.b, shape.s, shape.h, dtype=torch.bfloat16, requires_grad=True)
    layer = ClassicLayer(shape.h, shape.a)
    assert live_bytes(layer, x) == saved_bytes(layer, x)
    assert live_bytes(lambda y: layer(y, True), x) == saved_bytes(layer, x, lambda layer, y: layer(y, True))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", RECOMPUTE)
def test_modern_layer_equals_the_items_up_to_the_unfused_rmsnorm(model, mode):
    assert modern_difference(model, 64, mode)[1] == (12 * model.h if mode == "none" else 0)


@pytest.mark.parametrize("mode", ["fused", "swiglu", "swiglu+norm"])
def test_both_instruments_agree_on_the_modern_layer(mode):
    recompute = MODES[mode].get("recompute", frozenset())
    layer, x = ModernLayer(64, 4, 2, 176), torch.randn(2, 32, 64, dtype=torch.bfloat16, requires_grad=True)
    assert live_bytes(lambda y: layer(y, recompute), x) == saved_bytes(layer, x, lambda layer, y: layer(y, recompute))


def test_sdpa_has_no_quadratic_term():
    model = MODELS[0]
    assert modern_difference(model, 512)[0] == modern_difference(model, 64)[0]
    classic = [classic_difference(Shape(s=s, b=1, h=64, a=4))[0] / s for s in (64, 512)]
    assert classic[1] - classic[0] == 5 * 4 * (512 - 64)


def test_fused_operators_have_the_gradients_of_the_unfused():
    x = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(16, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(3, 5, 16, dtype=torch.float64)
    expected = torch.autograd.grad(F.rms_norm(x, (16,), weight, 1e-5), (x, weight), cotangent)
    got = torch.autograd.grad(FusedRMSNorm.apply(x, weight, 1e-5), (x, weight), cotangent)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)  # the fused one computes in fp32
    assert torch.autograd.gradcheck(FusedSwiGLU.apply, (x,))
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(FusedSwiGLU.apply(x), F.silu(gate) * up)


def gradients(layer, x, call):
    """Of the input and of every parameter."""
    return torch.autograd.grad(call(layer, x).square().sum(), (x, *layer.parameters()))


@pytest.mark.parametrize("recompute", [{"swiglu"}, {"norm"}, {"swiglu", "norm"}, "selective"])
def test_recomputation_does_not_change_gradients(recompute):
    torch.manual_seed(0)
    layer = ModernLayer(64, 4, 2, 176, dtype=torch.float32)
    x = torch.randn(2, 16, 64, requires_grad=True)
    call = (lambda layer, x: selective(layer, x)) if recompute == "selective" else (lambda layer, x: layer(x, frozenset(recompute)))
    torch.testing.assert_close(gradients(layer, x, call), gradients(layer, x, lambda layer, x: layer(x)))


def test_attention_recomputation_restores_the_dropout_mask():
    layer = ClassicLayer(64, 4, p=0.5, dtype=torch.float32)
    x = torch.randn(2, 16, 64, requires_grad=True)

    def seeded(recompute):
        def call(layer, x):
            torch.manual_seed(0)
            return layer(x, recompute)

        return call

    torch.testing.assert_close(gradients(layer, x, seeded(True)), gradients(layer, x, seeded(False)))


class CountMatmuls(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
        return func(*args, **(kwargs or {}))


def backward_matmuls(layer, x, call):
    loss = call(layer, x).sum()
    with CountMatmuls() as mode:
        loss.backward()
    return mode.count


def test_wrapping_the_linear_layer_behind_costs_no_matrix_product():
    layer, x = ModernLayer(64, 4, 2, 176), torch.zeros(2, 16, 64, dtype=torch.bfloat16, requires_grad=True)
    plain = backward_matmuls(layer, x, lambda layer, x: layer(x))
    assert plain == 8, "four linear layers, two products each"
    for recompute in ({"swiglu"}, {"norm"}, {"swiglu", "norm"}):
        assert backward_matmuls(layer, x, lambda layer, x, r=frozenset(recompute): layer(x, r)) == plain
    assert backward_matmuls(layer, x, selective) == plain
    full = backward_matmuls(layer, x, lambda layer, x: checkpoint(layer, x, use_reentrant=False))
    assert full == plain + 3, "the recomputation stops before the last linear layer"


def test_recomputing_swiglu_alone_leaves_its_output_saved():
    layer, f = ModernLayer(64, 4, 2, 176, fused=False), 176
    x = torch.zeros(2, 16, 64, dtype=torch.bfloat16, requires_grad=True)

    def plain(layer, x):
        return layer.down(layer.swiglu(layer.gate_up(x)))

    def activation_only(layer, x):
        return layer.down(checkpoint(layer.swiglu, layer.gate_up(x), use_reentrant=False))

    def with_down(layer, x):
        return checkpoint(lambda y: layer.down(layer.swiglu(y)), layer.gate_up(x), use_reentrant=False)

    sizes = [saved_bytes(layer, x, call) / 32 for call in (plain, activation_only, with_down)]
    assert [sizes[0] - size for size in sizes] == [0, 2 * f, 4 * f]


@pytest.mark.parametrize("model", MODELS)
def test_selective_checkpoint_keeps_one_useless_output(model):
    hooks, live = selective_per_token(2, 64, model.h, model.a, model.kv, model.f)
    assert hooks == 2 * model.h
    assert live == sum(size for _, size in decoder_items(model, "swiglu+norm")) + 2 * model.h


def test_loss_peak_is_what_the_formula_module_uses():
    assert loss_peak() == (LOSS["forward"], LOSS["backward"])
    assert loss_peak(hold_logits=True) == (LOSS["forward"], LOSS["held"])


@pytest.mark.parametrize("h", [256, 1024])
def test_autocast_keeps_a_copy_of_the_weight(h):
    assert autocast_copies(h) == 2


def test_a_view_pins_the_whole_projection():
    counted, expected = pinned_by_view(h=128, a=4, kv=1, tokens=32)
    assert counted - expected == 2 * (128 + 32)


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


def test_live_storages_follow_the_references():
    x = torch.ones(8)
    with LiveStorages() as live:
        y = x + 1
        z = y.view(2, 4)
        assert live.now() == 32, "a view is the same storage; x came from outside"
        del y
        assert live.now() == 32
        del z
        assert (live.now(), live.peak) == (0, 32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: saved_bytes(ModernLayer(64, 4, 2, 128), torch.zeros(1, 4, 64, dtype=torch.bfloat16)), "requires_grad"),
        (lambda: ClassicLayer(64, 4, t=3), "整数倍"),
        (lambda: operator_saves("conv"), "conv"),
        (lambda: modern_difference(MODELS[0], 8, "some"), "recompute"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
