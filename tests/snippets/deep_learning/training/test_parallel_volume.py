"""Volumes by what must cancel and by the closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.deep_learning.training.parallel_volume import (
    LLAMA3_8B,
    Model,
    breakeven_tokens,
    communication_over_compute,
    sent_per_step,
)


@given(st.integers(1, 512), st.integers(1, 10**6), st.integers(1, 64))
def test_volumes(n, tokens, m):
    got = sent_per_step(LLAMA3_8B, n, tokens=tokens, micro_batches=m)
    assert got["ZeRO-3"] == pytest.approx(1.5 * m * got["DP"])
    if n == 1:
        assert set(got.values()) == {0.0}
    else:
        assert got["TP"] / got["PP"] == pytest.approx(4 * LLAMA3_8B.layers * (n - 1) / n)


def test_at_the_same_global_batch_tensor_parallel_sends_most():
    """The pages compare equal work: 65536 tokens on 8 cards, counted here collective by collective."""
    psi, layers, h, n, tokens = LLAMA3_8B.psi, LLAMA3_8B.layers, LLAMA3_8B.h, 8, 65536
    reduce_scatter = all_gather = lambda elements: elements * (n - 1) / n  # sent by one rank of a ring
    all_reduce = lambda elements: reduce_scatter(elements) + all_gather(elements)  # noqa: E731
    expected = {
        "DP": all_reduce(psi),
        "ZeRO-3": 2 * all_gather(psi) + reduce_scatter(psi),
        "TP": sum(all_reduce(tokens * h) for _ in range(4 * layers)),
        "PP": 2 * tokens * h,
    }
    got = sent_per_step(LLAMA3_8B, n, tokens=tokens)
    assert got == {name: pytest.approx(2 * elements / 1e9) for name, elements in expected.items()}
    assert got["PP"] < got["DP"] < got["ZeRO-3"] < got["TP"]
    one_card = 6 * psi * tokens / n / (989e12 * 0.4)
    assert communication_over_compute(LLAMA3_8B, n, tokens=tokens, gb_per_s=50)["DP"] == pytest.approx(got["DP"] / 50 / one_card)


def test_breakeven():
    model = Model(12 * 10 * 64**2, 10, 64)
    tokens = breakeven_tokens(model)
    assert tokens == pytest.approx(3 * 64)  # Ψ = 12Lh² gives 3h
    got = sent_per_step(model, 8, tokens=round(tokens))
    assert got["TP"] == pytest.approx(got["DP"])
    with pytest.raises(ValueError, match="tokens"):
        sent_per_step(model, 8, tokens=0)


@given(st.integers(2, 64), st.integers(1, 10**6))
def test_ratio_of_dp_and_pp_does_not_depend_on_what_cancels(n, tokens):
    """DP: the tokens are in the denominator only. TP, PP: they cancel."""
    one, two = (communication_over_compute(LLAMA3_8B, n, tokens=k * tokens, gb_per_s=50) for k in (1, 2))
    assert two["DP"] == pytest.approx(one["DP"] / 2)
    assert two["TP"] == pytest.approx(one["TP"])
    assert two["PP"] == pytest.approx(one["PP"])
    with pytest.raises(ValueError, match="带宽"):
        communication_over_compute(LLAMA3_8B, n, tokens=tokens, gb_per_s=0)
