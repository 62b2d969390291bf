"""Convolution against torch, equivariance as a property, and the published parameter count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.classics.cnn import conv, receptive_field, resnet50_parameters, shift

small = st.integers(-5, 5).map(float)


def images(rows, cols):
    return st.lists(st.lists(small, min_size=cols, max_size=cols), min_size=rows, max_size=rows)


@settings(deadline=None)
@given(images(6, 8), images(3, 3), st.integers(1, 3))
def test_is_torchs_circular_convolution(image, kernel, stride):
    padded = torch.nn.functional.pad(torch.tensor([[image]]), (1, 1, 1, 1), mode="circular")
    expected = torch.nn.functional.conv2d(padded, torch.tensor([[kernel]]), stride=stride)[0, 0]
    assert conv(image, kernel, stride) == expected.tolist()


@given(images(4, 6), images(3, 3), st.integers(-3, 3))
def test_stride_one_is_equivariant_for_every_shift(image, kernel, by):
    assert conv(shift(image, by), kernel) == shift(conv(image, kernel), by)


@given(images(4, 8), images(3, 3))
def test_stride_two_is_equivariant_for_even_shifts_only_in_general(image, kernel):
    assert conv(shift(image, 2), kernel, 2) == shift(conv(image, kernel, 2), 1)


@given(st.lists(st.tuples(st.sampled_from([1, 3, 5]), st.integers(1, 3)), min_size=1, max_size=4))
def test_receptive_field_is_where_the_gradient_reaches(layers):
    width = 400
    x = torch.zeros(1, 1, width, requires_grad=True)
    out = x
    for kernel, stride in layers:
        out = torch.nn.functional.conv1d(out, torch.ones(1, 1, kernel), stride=stride)
    out[0, 0, 0].backward()
    assert int((x.grad != 0).sum()) <= receptive_field(layers)
    assert int(x.grad[0, 0].nonzero().max()) + 1 == receptive_field(layers)


def test_count_scales_with_the_classes():
    assert resnet50_parameters(1000) - resnet50_parameters(10) == 990 * 2049


def test_rejects():
    for call in (lambda: conv([], [[1]]), lambda: conv([[1]], [[1]], 0), lambda: receptive_field([(0, 1)])):
        with pytest.raises(ValueError, match=r"为空|为正"):
            call()
