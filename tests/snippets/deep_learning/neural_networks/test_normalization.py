"""Against torch's operators, with half precision, ties, empty batches and the wrong versions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from snippets.deep_learning.neural_networks.normalization import batch_norm, invariances, layer_norm, rms_norm

rows = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-1e3, 1e3))


@settings(deadline=None)
@given(rows)
def test_layer_and_rms_norm_are_torchs(x):
    h = x.shape[-1]
    tensor = torch.tensor(x)
    np.testing.assert_allclose(layer_norm(x), torch.nn.functional.layer_norm(tensor, (h,)), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(rms_norm(x), torch.nn.functional.rms_norm(tensor, (h,), eps=1e-5), rtol=1e-6, atol=1e-8)


@settings(deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(2, 5), st.integers(1, 4)), elements=st.floats(-1e3, 1e3)))
def test_batch_norm_is_torchs(x):
    expected = torch.nn.functional.batch_norm(torch.tensor(x), None, None, training=True)
    np.testing.assert_allclose(batch_norm(x), expected, rtol=1e-6, atol=1e-8)


def test_half_precision_extremes():
    big = np.full(8, 60000, np.float16)
    assert np.isfinite(rms_norm(big)).all()
    with np.errstate(over="ignore"):
        assert np.isinf(big**2).all()  # the naive square overflows
    assert layer_norm(big).tolist() == [0.0] * 8
    assert layer_norm(big).dtype == np.float16
    assert batch_norm(np.array([[60000], [-60000]], np.float16)).tolist() == [[1.0], [-1.0]]


def test_wrong_versions_differ():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    unbiased = (x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-5)
    assert x.var(ddof=1) / x.var() == pytest.approx(4 / 3)
    assert unbiased / layer_norm(x) == pytest.approx(np.full(4, 0.866), abs=1e-3)  # 13 % smaller
    tiny = np.full(4, 1e-6)
    outside = tiny / (np.sqrt(np.mean(tiny**2)) + 1e-5)
    assert outside[0] > 100 * rms_norm(tiny)[0]  # ε outside the root is another function for small inputs


def test_gain_and_bias():
    x, gain, bias = np.array([[1.0, -1.0]]), np.array([2.0, 3.0]), np.array([0.5, 0.5])
    assert layer_norm(x, gain, bias, eps=0.0).tolist() == [[2.5, -2.5]]


def test_invariances_and_rejects():
    assert invariances()["RMSNorm"] == (True, False, True)
    assert layer_norm(np.zeros((0, 4))).shape == (0, 4)
    nan, inf = float("nan"), float("inf")
    for call, message in (
        (lambda: layer_norm(np.zeros((3, 0))), "不能为空"),
        (lambda: layer_norm(np.array(3.0)), "不能为空"),
        (lambda: rms_norm(np.ones(3), eps=-1), "eps"),
        (lambda: layer_norm(np.ones(3), eps=inf), "eps"),
        (lambda: layer_norm(np.array([1, 2, 3])), "浮点"),  # would be truncated to [-1, 0, 1]
        (lambda: rms_norm(np.array([True, False])), "浮点"),
        (lambda: layer_norm(np.array([1.0, nan])), "有限"),
        (lambda: rms_norm(np.array([1.0, inf])), "有限"),  # would be [0, nan]
        (lambda: rms_norm(np.ones((2, 1)), np.ones(3)), "增益"),  # would broadcast to (2, 3)
        (lambda: layer_norm(np.zeros(3), eps=0.0), "同时为 0"),
        (lambda: rms_norm(np.array([1e30, -1e30], np.float32)), "平方的均值"),  # would be [0, -0]
        (lambda: rms_norm(np.array([1.0, -1.0], np.float16), 1e6), "范围"),
        (lambda: batch_norm(np.ones((1, 2))), "n ≥ 2"),
        (lambda: batch_norm(np.zeros((0, 2))), "n ≥ 2"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
