"""FLOPs against torch's own counter on a real layer, bytes against a walk over the tensors, limits of the roofline."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from snippets.infra.mfu.layer_roofline import Op, backward_ops, by_bound, layer_ops, table
from snippets.tools.presets import GPUS, MODELS, Model

H100 = GPUS["H100 80GB SXM"]
TINY = Model("tiny", 2, 64, 4, 2, 16, 176, 100, "none")


def total(ops, *kinds, field="flops"):
    return math.fsum(getattr(op, field) for op in ops if op.kind in kinds)


class Layer(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        linear = lambda k, n: torch.nn.Linear(k, n, bias=False)  # noqa: E731
        self.qkv, self.out = linear(model.h, (model.a + 2 * model.kv) * model.d), linear(model.a * model.d, model.h)
        self.gate_up, self.down = linear(model.h, 2 * model.f), linear(model.f, model.h)

    def forward(self, x):
        m, (b, s, _) = self.model, x.shape
        q, k, v = self.qkv(F.rms_norm(x, (m.h,))).view(b, s, -1, m.d).transpose(1, 2).split([m.a, m.kv, m.kv], dim=1)
        k, v = (y.repeat_interleave(m.a // m.kv, dim=1) for y in (k, v))
        x = x + self.out((q @ k.transpose(-1, -2)).softmax(-1).matmul(v).transpose(1, 2).reshape(b, s, -1))
        gate, up = self.gate_up(F.rms_norm(x, (m.h,))).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


@pytest.mark.parametrize(("b", "s"), [(1, 32), (3, 17)])
def test_flops_are_those_torch_counts(b, s):
    layer, x = Layer(TINY), torch.randn(b, s, TINY.h, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        loss = layer(x).sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    square = 4 * b * s * s * TINY.a * TINY.d  # torch multiplies the whole square
    ops, back = layer_ops(TINY, b, s), backward_ops(TINY, b, s)
    assert forward.get_total_flops() == total(ops, "gemm") + square
    assert backward.get_total_flops() == total(back, "gemm") + 2 * square
    assert total(ops, "attention") == square * (s + 1) / (2 * s)
    assert total(back, "attention") == 2 * total(ops, "attention")


def test_bytes_of_each_operator_by_listing_its_tensors():
    b, s = 2, 8
    h, a, kv, d, f = TINY.h, TINY.a, TINY.kv, TINY.d, TINY.f
    tensor = lambda *shape: torch.empty(shape, dtype=torch.bfloat16).nbytes  # noqa: E731
    x, wide, q, k = tensor(b, s, h), tensor(b, s, f), tensor(b, s, a, d), tensor(b, s, kv, d)
    expected = {
        "归一化 1": 2 * x,
        "QKV": x + tensor(h, (a + 2 * kv) * d) + q + 2 * k,
        "RoPE": 2 * (q + k),
        "注意力": q + 2 * k + q,
        "out": q + tensor(a * d, h) + x,
        "残差 1": 3 * x,
        "归一化 2": 2 * x,
        "gate_up": x + tensor(h, 2 * f) + 2 * wide,
        "SwiGLU": 3 * wide,
        "down": wide + tensor(f, h) + x,
        "残差 2": 3 * x,
    }
    assert {op.name: op.size for op in layer_ops(TINY, b, s)} == expected
    fused = sum(op.size for op in layer_ops(TINY, b, s, fused=True))
    saved = 2 * (q + k) + (2 * wide + 2 * wide) - (4 + 4 - 2 * 5) * x  # RoPE; gate and up; the sum is not read back
    assert sum(expected.values()) - fused == saved


def test_decode_reads_the_whole_cache_for_one_token():
    model = MODELS["Llama-3-8B"]
    for b in (1, 16):
        ops = {op.name: op for op in layer_ops(model, b, 4096, decode=True)}
        cache = 2 * b * 4096 * 8 * 128 * 2
        assert ops["注意力"].size == cache + 2 * b * 4096 * 2
        assert ops["注意力"].flops == 4 * b * 4096 * 32 * 128
        assert ops["gate_up"].size == pytest.approx(2 * 4096 * 2 * 14336, rel=0.02), "the weights are read once"
    assert layer_ops(model, 64, 4096, decode=True)[3].intensity == pytest.approx(4, rel=0.01), "a / kv, whatever the batch"


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 300), st.sampled_from([1, 2, 4, 8]), st.booleans(), st.booleans())
def test_invariants(b, s, t, decode, fused):
    model = MODELS["Llama-3-8B"]
    ops, whole = layer_ops(model, b, s, t=t, decode=decode, fused=fused), layer_ops(model, b, s, decode=decode, fused=fused)
    assert total(ops, "gemm", "attention") == pytest.approx(total(whole, "gemm", "attention") / t)
    assert total(ops, "pointwise", field="size") == pytest.approx(total(whole, "pointwise", field="size") / t)
    for op in ops:
        assert op.seconds(H100) == max(op.flops / 989e12, op.size / 3350e9)
        assert (op.bound(H100) == "算力") == (op.intensity >= 989e12 / 3350e9)
    assert math.fsum(by_bound(ops, H100).values()) == pytest.approx(sum(op.seconds(H100) for op in ops))
    assert sum(op.size for op in layer_ops(model, b, s, fused=True)) < sum(op.size for op in layer_ops(model, b, s))


def test_backward_moves_what_the_gradients_need():
    forward = {op.name: op.size for op in layer_ops(TINY, 2, 8)}
    backward = {op.name: op.size for op in backward_ops(TINY, 2, 8)}
    tokens, h, q, k, f = 2 * 8, TINY.h, TINY.a * TINY.d, TINY.kv * TINY.d, TINY.f
    elements = {
        "归一化 1 bwd": 3 * h,  # x, dy -> dx
        "RoPE bwd": 2 * (q + k),
        "注意力 bwd": (q + k + k + q + q) + (q + k + k),  # Q K V O dO -> dQ dK dV
        "残差 1 bwd": 3 * h,
        "SwiGLU bwd": 5 * f,  # gate, up, dy -> both gradients
    }
    assert {name: backward[name] for name in elements} == {name: pytest.approx(2 * tokens * n) for name, n in elements.items()}
    for name in ("QKV", "out", "gate_up", "down"):
        assert backward[f"{name} dgrad"] == backward[f"{name} wgrad"] == forward[name]


def test_the_table_has_a_row_per_operator():
    rows = table(layer_ops(MODELS["Llama-3-70B"], 1, 2048), H100)
    assert len(rows) == 11
    assert sum(float(row.split("µs")[1].split("%")[0]) for row in rows) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layer_ops(TINY, 0, 8), "b 须"),
        (lambda: layer_ops(TINY, 1, 8.5), "s 须"),
        (lambda: layer_ops(TINY, True, 8), "b 须"),
        (lambda: layer_ops(TINY, 1, 8, t=4), "整除"),
        (lambda: layer_ops(TINY, 1, 8, element_bytes=0), "element_bytes"),
        (lambda: backward_ops(TINY, 1, 8, element_bytes=math.nan), "element_bytes"),
        (lambda: layer_ops(MODELS["Mixtral 8x7B"], 1, 8), "稠密"),
        (lambda: layer_ops(MODELS["GPT-3 175B"], 1, 8), "SwiGLU"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_op_is_plain_arithmetic():
    op = Op("x", "gemm", 10.0, 4.0)
    assert op.intensity == 2.5
