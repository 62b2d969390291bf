"""Loss and gradient against torch, and the limit that explains T²."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.classics.distillation import distillation, gradient_without_t2, soft_labels

logits = st.lists(st.floats(-20, 20), min_size=2, max_size=6)


@settings(deadline=None)
@given(logits, st.data(), st.floats(0.5, 20))
def test_loss_and_gradient_are_torchs(teacher, data, temperature):
    student = data.draw(st.lists(st.floats(-20, 20), min_size=len(teacher), max_size=len(teacher)))
    z = torch.tensor(student, dtype=torch.float64, requires_grad=True)
    target = (torch.tensor(teacher, dtype=torch.float64) / temperature).log_softmax(0)
    expected = torch.nn.functional.kl_div((z / temperature).log_softmax(0), target, reduction="sum", log_target=True) * temperature**2
    expected.backward()
    loss, grad = distillation(student, teacher, temperature)
    assert loss == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
    assert grad == pytest.approx(z.grad.tolist(), abs=1e-9)


@pytest.mark.parametrize("temperature", [50.0, 500.0])
def test_high_temperature_matches_logits(temperature):
    """T·(q − p) tends to (z − v)/K once both are centred: at high temperature distillation regresses the logits."""
    student, teacher = [1.0, 0.0, -1.0], [2.0, 0.0, -2.0]
    _, grad = distillation(student, teacher, temperature)
    limit = [(z - v) / 3 for z, v in zip(student, teacher, strict=True)]
    assert grad == pytest.approx(limit, rel=2 / temperature, abs=2 / temperature)


def test_without_t2_the_gradient_falls_with_the_square():
    assert gradient_without_t2(50) / gradient_without_t2(100) == pytest.approx(4, rel=0.02)


def test_a_student_far_off_is_a_large_loss_and_not_an_error():
    """exp(-800) is 0 in double precision: the logarithm has to be taken before the exponential."""
    loss, grad = distillation([0.0, -800.0], [0.0, 0.0], 1.0)
    assert loss == pytest.approx(400 - math.log(2))
    assert grad == pytest.approx([0.5, -0.5])


def test_the_numbers_of_the_page():
    assert soft_labels([8.0, 5.0, -2.0], 1.0) == pytest.approx([0.953, 0.047, 0.00004], abs=5e-4)
    assert soft_labels([8.0, 5.0, -2.0], 1.0)[2] == pytest.approx(0.00004, rel=0.1)
    assert gradient_without_t2(100) == pytest.approx(1 / (3 * 100**2), rel=0.01)


def test_labels_get_softer_and_inputs_are_checked():
    tops = [soft_labels([8.0, 5.0, -2.0], t)[0] for t in (0.5, 1, 4, 20)]
    assert tops == sorted(tops, reverse=True)
    assert soft_labels([1e308, -1e308], 1.0) == [1.0, 0.0]
    for call in (
        lambda: soft_labels([1.0], 0),
        lambda: soft_labels([1.0], -1),
        lambda: soft_labels([1.0], float("nan")),
        lambda: soft_labels([1.0], float("inf")),
        lambda: soft_labels([1.0, float("nan")], 1),
        lambda: distillation([1e308, -1e308], [0.0, 0.0], 1),
        lambda: soft_labels([], 1),
        lambda: soft_labels([float("inf"), 0.0], 1),
        lambda: distillation([1.0], [1.0, 2.0], 1),
    ):
        with pytest.raises(ValueError, match=r"温度|有限|类"):
            call()
