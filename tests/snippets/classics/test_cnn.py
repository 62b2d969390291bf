"""Convolution against torch, equivariance as a property, and the published parameter count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.classics.cnn import conv, equivariance, per_pixel, receptive_field, resnet50_parameters, shift

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
def test_stride_two_is_equivariant_for_even_shifts(image, kernel):
    assert conv(shift(image, 2), kernel, 2) == shift(conv(image, kernel, 2), 1)


@pytest.mark.parametrize("by", [1, 3, -1])
def test_stride_two_is_not_equivariant_for_odd_shifts(by):
    """A single bright pixel seen by a 1x1 kernel: the odd shift puts it on a column that is never sampled."""
    image = [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    moved = conv(shift(image, by), [[1.0]], 2)
    assert not any(moved == shift(conv(image, [[1.0]], 2), k) for k in range(3))
    assert equivariance()["步长 2：某个平移能对上"] is False


@pytest.mark.parametrize(("c_in", "c_out", "k"), [(1, 1, 1), (4, 6, 3), (8, 4, 5)])
def test_weights_are_those_of_torch(c_in, c_out, k):
    full = torch.nn.Conv2d(c_in, c_out, k, bias=False)
    depthwise = torch.nn.Conv2d(c_in, c_in, k, groups=c_in, bias=False)
    pointwise = torch.nn.Conv2d(c_in, c_out, 1, bias=False)
    assert per_pixel(c_in, c_out, k) == full.weight.numel()
    assert per_pixel(c_in, c_out, k, separable=True) == depthwise.weight.numel() + pointwise.weight.numel()


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
    one = [[1.0]]
    for image, kernel in (([], one), ([[]], one), (one, []), ([[1.0, 2.0], [3.0]], one), ([[1.0, 2.0]] * 2, [[1.0], [1.0, 2.0]])):
        with pytest.raises(ValueError, match="为空"):
            conv(image, kernel)
    with pytest.raises(ValueError, match="有限"):
        conv([[float("nan")]], one)
    with pytest.raises(ValueError, match="比 image 大"):
        conv(one, [[1.0, 1.0, 1.0]])
    for bad in (0, -1, 1.5, True):
        for call in (lambda n: conv(one, one, n), lambda n: receptive_field([(3, n)]), resnet50_parameters, lambda n: per_pixel(n, 1, 1)):
            with pytest.raises(ValueError, match="正整数"):
                call(bad)
    with pytest.raises(ValueError, match="整数"):
        shift(one, 0.5)
