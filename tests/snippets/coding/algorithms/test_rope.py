"""RoPE's properties, complex numbers as the reference, and the bugs that people make."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.coding.algorithms import rope as module
from snippets.coding.algorithms.rope import apply_rope, convert_projection, rope_table, table_error, to_half_layout
from tests.snippets.coding.bugs import with_bug


def by_complex_numbers(x, positions, base=10_000.0):
    """Adjacent pairs of the whole head as complex numbers times e^{i·m·θ}."""
    d = x.shape[-1]
    theta = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), positions.double()[..., None] * theta)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn.unsqueeze(-3)).flatten(-2).to(x.dtype)


def check(m, *, seed=0):
    """What a module like rope.py must satisfy."""
    torch.manual_seed(seed)
    b, a, s, d = 2, 3, 12, 16
    x = torch.randn(b, a, s, d)
    positions = torch.arange(s)
    cos, sin = m.rope_table(positions, d)
    torch.testing.assert_close(m.apply_rope(x, cos, sin, True), by_complex_numbers(x, positions))
    order = m.to_half_layout(d)
    torch.testing.assert_close(m.apply_rope(x[..., order], cos, sin), by_complex_numbers(x, positions)[..., order])
    for interleaved in (False, True):
        turned = m.apply_rope(x, cos, sin, interleaved)
        torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
        # the score depends on the distance alone
        late = m.apply_rope(x, *m.rope_table(positions + 1000, d), interleaved)
        torch.testing.assert_close(turned @ turned.transpose(-1, -2), late @ late.transpose(-1, -2), atol=1e-4, rtol=1e-4)
        # a part of the head: the rest passes through, the first part is a smaller head
        part = m.apply_rope(x, *m.rope_table(positions, 6), interleaved)
        assert torch.equal(part[..., 6:], x[..., 6:])
        torch.testing.assert_close(part[..., :6], m.apply_rope(x[..., :6], *m.rope_table(positions, 6), interleaved))


def test_module_satisfies_the_check():
    check(module)


BUGS = {
    "exponent without the 2": (
        "torch.arange(0, rotary, 2, dtype=torch.float64, device=positions.device) / rotary",
        "torch.arange(rotary // 2, dtype=torch.float64) / rotary",
    ),
    "not a rotation": ("second * cos + first * sin", "second * cos - first * sin"),
    "turned the other way": (
        "first * cos - second * sin, second * cos + first * sin",
        "first * cos + second * sin, second * cos - first * sin",
    ),
    "pairs of one layout, joined in the other": (
        "if interleaved else torch.cat((first, second), dim=-1)",
        "if not interleaved else torch.cat((first, second), dim=-1)",
    ),
    "the second half passes through": (
        "turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]",
        "turned, rest = x[..., -2 * half :].float(), x[..., : -2 * half]",
    ),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises(AssertionError):
        check(with_bug(module, change))


def test_decoding_with_an_offset_equals_the_whole_pass():
    torch.manual_seed(1)
    q, k = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    whole = apply_rope(q, *rope_table(torch.arange(9), 8)) @ apply_rope(k, *rope_table(torch.arange(9), 8)).transpose(-1, -2)
    cached = apply_rope(k[:, :, :8], *rope_table(torch.arange(8), 8))
    at = rope_table(torch.tensor([8]), 8)
    keys = torch.cat((cached, apply_rope(k[:, :, 8:], *at)), dim=2)
    torch.testing.assert_close(apply_rope(q[:, :, 8:], *at) @ keys.transpose(-1, -2), whole[:, :, 8:])
    forgot = rope_table(torch.tensor([0]), 8)  # the position starts again at 0
    wrong = torch.cat((cached, apply_rope(k[:, :, 8:], *forgot)), dim=2)
    assert not torch.allclose(apply_rope(q[:, :, 8:], *forgot) @ wrong.transpose(-1, -2), whole[:, :, 8:], atol=1e-2)


def test_positions_of_their_own_for_every_sequence():
    """Left padding: each sequence of the batch counts from its first real token."""
    torch.manual_seed(2)
    x = torch.randn(1, 1, 3, 8)
    padded = torch.cat((torch.randn(1, 1, 2, 8), x), dim=2)
    positions = torch.tensor([[0, 0, 0, 1, 2]])
    torch.testing.assert_close(apply_rope(padded, *rope_table(positions, 8))[:, :, 2:], apply_rope(x, *rope_table(torch.arange(3), 8)))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(0, 100_000), st.integers(0, 100_000), st.booleans(), st.integers(0, 99))
def test_two_rotations_add_up(half, m, n, interleaved, seed):
    torch.manual_seed(seed)
    x = torch.randn(1, 1, 1, 2 * half)
    twice = apply_rope(
        apply_rope(x, *rope_table(torch.tensor([m]), 2 * half), interleaved), *rope_table(torch.tensor([n]), 2 * half), interleaved
    )
    torch.testing.assert_close(twice, apply_rope(x, *rope_table(torch.tensor([m + n]), 2 * half), interleaved), atol=1e-5, rtol=1e-5)


def test_the_gradient_is_the_inverse_rotation():
    torch.manual_seed(3)
    x, upstream = torch.randn(1, 2, 5, 8, requires_grad=True), torch.randn(1, 2, 5, 8)
    cos, sin = rope_table(torch.arange(5), 8)
    (gradient,) = torch.autograd.grad(apply_rope(x, cos, sin), x, upstream)
    torch.testing.assert_close(gradient, apply_rope(upstream, cos, -sin))


def test_converted_weights_give_the_same_scores():
    """Trained with adjacent pairs, run with halves: wrong as it is, right after the rows are exchanged."""
    torch.manual_seed(4)
    heads, d, h, s = 3, 8, 10, 6
    wq, wk, x = torch.randn(heads * d, h), torch.randn(heads * d, h), torch.randn(1, s, h)
    cos, sin = rope_table(torch.arange(s), d)

    def scores(wq, wk, interleaved):
        q, k = ((x @ w.T).view(1, s, heads, d).transpose(1, 2) for w in (wq, wk))
        return apply_rope(q, cos, sin, interleaved) @ apply_rope(k, cos, sin, interleaved).transpose(-1, -2)

    trained = scores(wq, wk, True)
    torch.testing.assert_close(scores(convert_projection(wq, heads), convert_projection(wk, heads), False), trained, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(scores(wq, wk, False), trained, atol=0.1)
    torch.testing.assert_close(scores(wq, wk, False)[..., 0, 0], trained[..., 0, 0])  # position 0 does not turn: a test there sees nothing


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_and_out(dtype):
    x = torch.randn(1, 1, 4, 8)
    cos, sin = rope_table(torch.tensor([0, 1, 100_000, 131_071]), 8)
    out = apply_rope(x.to(dtype), cos, sin)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), apply_rope(x, cos, sin), atol=0.02, rtol=0.02)
    assert table_error(8191, dtype) > 1


def test_position_zero_one_token_and_no_token():
    x = torch.randn(2, 1, 1, 4)
    assert torch.equal(apply_rope(x, *rope_table(torch.tensor([0]), 4)), x)
    assert apply_rope(x[:, :, :0], *rope_table(torch.arange(0), 4)).shape == (2, 1, 0, 4)


def test_rejects():
    cos, sin = rope_table(torch.arange(3), 4)
    calls = [
        lambda: rope_table(torch.arange(3), 0),
        lambda: rope_table(torch.arange(3), 5),
        lambda: rope_table(torch.arange(3), 4, 1.0),
        lambda: rope_table(torch.arange(3), 4, float("nan")),
        lambda: rope_table(torch.arange(3).float(), 4),
        lambda: rope_table(torch.tensor([-1]), 4),
        lambda: rope_table(torch.tensor([True]), 4),
        lambda: apply_rope(torch.zeros(1, 1, 2, 4), cos, sin),
        lambda: apply_rope(torch.zeros(1, 1, 3, 2), cos, sin),
        lambda: apply_rope(torch.zeros(1, 1, 3, 4), cos, sin[:2]),
        lambda: to_half_layout(3),
        lambda: convert_projection(torch.zeros(6, 2), 2),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="须是"):
            call()
