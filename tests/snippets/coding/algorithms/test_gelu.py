"""GELU against torch and finite differences, its approximations' errors, and the bugs that people make."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from snippets.coding.algorithms import gelu as module
from snippets.coding.algorithms.gelu import gelu, gelu_by_erf, gelu_grad, gelu_sigmoid, gelu_tanh, largest_gap, minimum, silu
from tests.snippets.coding.bugs import with_bug

POINTS = [-30.0, -9.0, -6.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 6.0, 30.0]


def torchs(x, approximate="none"):
    return F.gelu(torch.tensor(x, dtype=torch.float64), approximate=approximate).item()


def check(m):
    """What a module like gelu.py must satisfy."""
    for x in POINTS:
        assert m.gelu(x) == pytest.approx(torchs(x), rel=1e-9, abs=1e-15)
        assert m.gelu_tanh(x) == pytest.approx(torchs(x, "tanh"), rel=1e-9, abs=1e-15)
        step = 1e-6
        assert m.gelu_grad(x) == pytest.approx((m.gelu(x + step) - m.gelu(x - step)) / (2 * step), abs=1e-8)
    assert m.gelu(-12.0) == pytest.approx(-12 * 1.7764821120776e-33, rel=1e-9, abs=0)  # Φ(−12): scipy.stats.norm.cdf
    assert m.gelu(-math.inf) == m.gelu_tanh(-math.inf) == 0
    assert m.gelu(math.inf) == math.inf


def test_module_satisfies_the_check():
    check(module)


BUGS = {
    "1 + erf": ("phi = 0.5 * math.erfc(-x * INV_SQRT2)\n    # --8<-- [end:blank-erfc]", "phi = 0.5 * (1 + math.erf(x * INV_SQRT2))"),
    "cube outside": ("(x + CUBIC * x * x * x)", "(x + CUBIC * x) ** 3"),
    "√2/π for √(2/π)": ("SQRT_2_OVER_PI = math.sqrt(2 / math.pi)", "SQRT_2_OVER_PI = math.sqrt(2) / math.pi"),
    "x·φ left out": ("return phi + x * INV_SQRT_2PI * math.exp(-0.5 * x * x)", "return phi"),
    "−∞ is NaN": ("    if x == -math.inf:\n        return -0.0  # −∞ × 0 是 NaN，极限是 0\n", ""),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises(AssertionError):
        check(with_bug(module, change))


@given(st.floats(-40, 40))
def test_identities(x):
    assert gelu(x) - gelu(-x) == pytest.approx(x, abs=1e-12)  # Φ(x) + Φ(−x) = 1
    assert gelu(x) >= minimum()[1] - 1e-15
    assert abs(gelu(x) - gelu_tanh(x)) < 4.74e-4
    assert silu(x) - silu(-x) == pytest.approx(x, abs=1e-12)


def test_published_error_of_the_approximations():
    assert largest_gap(gelu, gelu_tanh)[1] == pytest.approx(4.732e-4, rel=1e-3)
    assert largest_gap(gelu, gelu_sigmoid)[1] / largest_gap(gelu, gelu_tanh)[1] == pytest.approx(42.9, abs=0.1)


def test_it_is_not_monotone():
    x, lowest = minimum()
    assert gelu(x - 0.5) > lowest < gelu(x + 0.5)
    assert gelu_grad(x) == pytest.approx(0, abs=1e-12)


def test_the_form_with_erf_loses_the_tail():
    assert gelu_by_erf(-9.0) == 0 > gelu(-9.0)
    x = torch.tensor([-6.0])
    assert F.gelu(x).item() == 0 > (0.5 * x * torch.erfc(-x / math.sqrt(2))).item()  # torch's own fp32 form


def test_naive_gradient_of_the_tanh_form_in_fp16_is_nan():
    """(1 − tanh²)·x² is 0 × ∞ once x² overflows; torch's operator computes in fp32."""
    x = torch.tensor([300.0], dtype=torch.float16, requires_grad=True)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    (naive,) = torch.autograd.grad(0.5 * x * (1 + torch.tanh(inner)), x)
    (right,) = torch.autograd.grad(F.gelu(x, approximate="tanh"), x)
    assert naive.isnan().item()
    assert right.item() == 1


def test_variants_differ_by_less_than_the_rounding_of_bf16_near_two():
    """At |y| ≈ 2 neighbours in bf16 are 2⁻⁶ ≈ 0.0156 apart, in fp16 2⁻⁹ ≈ 0.002."""
    x, gap = largest_gap(gelu, gelu_tanh, 0, 8)
    assert 2 < gelu(x) < 4
    assert gap < 2**-9 < 2**-6


def test_nan_passes_and_bad_ranges_do_not():
    assert math.isnan(gelu(math.nan))
    assert math.isnan(gelu_grad(math.nan))
    for low, high in ((1, 1), (0, math.inf), (math.nan, 1)):
        with pytest.raises(ValueError, match="low < high"):
            largest_gap(gelu, gelu_tanh, low, high)
