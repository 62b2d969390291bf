"""The formula's rows against each other and the published figures; bad input."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.infra.memory.activation_memory import (
    GPT3,
    LLAMA3_8B,
    LLAMA3_70B,
    LOSS,
    RECOMPUTE,
    Decoder,
    Shape,
    classic_coefficients,
    decoder_bytes,
    decoder_items,
    ends_share,
    first_stage_gb,
    layer_bytes,
    logits_bytes,
    pipeline_layers_in_flight,
    selective_overhead,
    selective_saving,
)

shapes = st.builds(Shape, s=st.integers(1, 8192), b=st.integers(1, 8), h=st.integers(64, 16384), a=st.integers(1, 128))


@given(shapes)
def test_without_parallelism_all_rows_are_the_same_sum(shape):
    linear, square = classic_coefficients()
    expected = linear * shape.sbh + square * shape.a * shape.s**2 * shape.b
    assert layer_bytes(shape) == pytest.approx(expected)
    assert layer_bytes(shape, sequence_parallel=True) == pytest.approx(expected)


@given(shapes, st.integers(1, 64))
def test_every_measure_saves(shape, t):
    plain = layer_bytes(shape)
    tp, sp = layer_bytes(shape, t), layer_bytes(shape, t, True)
    assert sp <= tp * (1 + 1e-12) <= plain * (1 + 1e-12)
    assert sp == pytest.approx(plain / t), "with sequence parallelism everything is split"
    assert layer_bytes(shape, t, True, "selective") == pytest.approx(34 * shape.sbh / t)
    assert layer_bytes(shape, recompute="full") < layer_bytes(shape, recompute="selective")
    assert layer_bytes(shape, t, True, "full") == pytest.approx(2 * shape.sbh / t)


def test_tensor_parallelism_alone_leaves_ten_sbh():
    assert layer_bytes(GPT3, t=10**9) == pytest.approx(10 * GPT3.sbh, rel=1e-6)


def test_published_savings():
    """Korthikanti 2022, Sec. 5: 70 % (GPT-3) and 65 % (MT-NLG) less memory for 2.7 % and 1.6 % more FLOPs."""
    mtnlg = Shape(s=2048, b=1, h=20480, a=128)
    assert selective_saving(GPT3) == pytest.approx(0.70, abs=0.005)
    assert selective_saving(mtnlg) == pytest.approx(0.65, abs=0.005)
    assert selective_overhead(GPT3)[1] == pytest.approx(0.027, abs=0.0005)
    assert selective_overhead(mtnlg)[1] == pytest.approx(0.016, abs=0.0005)


def test_selective_overhead_by_counting_matrix_products():
    s, b, h = GPT3.s, GPT3.b, GPT3.h
    forward = 2 * b * s * h * (3 * h + h + 4 * h + 4 * h) + 2 * (2 * b * s * s * h)
    assert selective_overhead(GPT3)[0] == pytest.approx(2 * (2 * b * s * s * h) / (3 * forward))


def test_published_memory_of_the_175b():
    """Korthikanti 2022, Sec. 6.1 and Fig. 7: both together under 20 % of the tensor-parallel baseline, a factor of 5."""
    baseline = layer_bytes(GPT3, 8)
    assert 0.15 < layer_bytes(GPT3, 8, True, "selective") / baseline < 0.20
    assert layer_bytes(GPT3, recompute="full") / baseline == pytest.approx(0.10, abs=0.02)
    none, selective = first_stage_gb(GPT3, 96, 8, 64, 3)
    assert none == pytest.approx(layer_bytes(GPT3, 8, True) * 96 * (1 + 7 / 24) / 1e9)
    assert selective / none == pytest.approx(34 / (34 + 80))


def test_ends_against_a_count_of_bytes():
    shape, layers, v = Shape(s=2048, b=4, h=6144, a=64), 48, 51_200
    ends = shape.sbh + 2 * shape.sbh + 2 * shape.sbh + 4 * shape.s * shape.b * v  # mask, last norm, its linear layer, fp32 logits
    assert ends_share(shape, layers, v) == pytest.approx(ends / (layers * layer_bytes(shape)))
    assert ends_share(shape, layers, v) > 50 * 0.0001, "the paper prints less than 0.01 %"
    assert ends_share(shape, layers, v, p=2) == pytest.approx(2 * shape.sbh / (layers * layer_bytes(shape)))


def test_pipeline():
    assert pipeline_layers_in_flight(96, 1, 64) == 96
    assert pipeline_layers_in_flight(96, 8, 8) == 96
    assert pipeline_layers_in_flight(96, 8, 64, 2) > pipeline_layers_in_flight(96, 8, 64, 4) > 96
    assert pipeline_layers_in_flight(96, 8, 8, 4) == 96, "no more than all m micro-batches of the stage"


@given(st.integers(1, 64), st.integers(1, 8))
def test_decoder_scales_with_tokens_and_layers(tokens, factor):
    assert decoder_bytes(LLAMA3_8B, tokens * factor) == pytest.approx(factor * decoder_bytes(LLAMA3_8B, tokens))


@pytest.mark.parametrize("model", [LLAMA3_8B, LLAMA3_70B])
def test_every_step_of_recomputation_saves(model):
    sizes = [decoder_bytes(model, 8192, mode) for mode in RECOMPUTE]
    assert sizes == sorted(sizes, reverse=True)
    per_token = [size / 8192 / model.layers for size in sizes]
    assert [a - b for a, b in pairwise(per_token)][:3] == [2 * model.f, 2 * model.f, 4 * model.h + 8]


@pytest.mark.parametrize("mode", RECOMPUTE)
def test_tensor_and_context_parallelism_divide_everything(mode):
    assert decoder_bytes(LLAMA3_70B, 8192, mode, t=8, c=2) == pytest.approx(decoder_bytes(LLAMA3_70B, 8192, mode) / 16)


def test_mha_stores_more_keys_than_gqa():
    mha = Decoder(**{**LLAMA3_8B.__dict__, "kv": 32})
    assert sum(size for _, size in decoder_items(mha)) - sum(size for _, size in decoder_items(LLAMA3_8B)) == 4 * 4096 * 0.75


def test_logits_exceed_several_layers():
    per_layer = decoder_bytes(LLAMA3_8B, 8192) / 32
    assert 7 < logits_bytes(LLAMA3_8B, 8192) / per_layer < 8
    assert [logits_bytes(LLAMA3_8B, 1, phase) / LLAMA3_8B.vocabulary for phase in LOSS] == [10, 12, 14]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Shape(0, 1, 1, 1), "s 必须"),
        (lambda: layer_bytes(GPT3, t=0), "t 必须"),
        (lambda: layer_bytes(GPT3, recompute="x"), "recompute"),
        (lambda: Decoder(64, 4, 3, 10, 1, 1), "整数倍"),
        (lambda: decoder_bytes(LLAMA3_8B, 0), "tokens"),
        (lambda: decoder_bytes(LLAMA3_8B, 1, "x"), "recompute"),
        (lambda: decoder_bytes(LLAMA3_8B, 1, t=16), "KV 头数"),
        (lambda: logits_bytes(LLAMA3_8B, 1, "x"), "phase"),
        (lambda: pipeline_layers_in_flight(1, 0, 1), "p 必须"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
