"""3Ψ against the bytes that FSDP2 really sends, in every arrangement of recomputation; the break-even against a direct division."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.common.processes import launch
from snippets.infra.memory.gradient_volume import sent
from snippets.infra.memory.tiny_llama import build
from snippets.infra.zero.zero3_volume import across_nodes_gb, breakeven_gb_per_s, exposed_seconds, fsdp2_steps, zero3_elements

MODEL = build()
PSI = sum(p.numel() for p in MODEL.parameters())
BLOCKS = sum(p.numel() for p in MODEL.blocks.parameters())


@cache
def measured(world):
    return launch(world, fsdp2_steps)


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_of_fsdp2(world):
    ring = lambda numel, n=world: numel * 4 * (n - 1) // n  # noqa: E731
    for rank in measured(world):
        sent_bytes, calls = rank["plain"]
        assert sent_bytes == {"all_gather": ring(PSI) + ring(BLOCKS), "reduce_scatter": ring(PSI)}  # the root is gathered once
        assert calls == 1 + 2 * len(MODEL.blocks)
        kept, calls = rank["keep"]
        assert kept == {"all_gather": ring(PSI), "reduce_scatter": ring(PSI)}
        assert calls == 1 + len(MODEL.blocks)


def test_resharding_to_half_the_ranks_gathers_over_half_of_them():
    moved, calls = measured(4)[0]["half"]
    assert moved["all_gather"] == PSI * 4 * 3 // 4 + BLOCKS * 4 * 1 // 2  # forward over four ranks, backward over two
    assert calls == 9


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("arrangement", ["inside", "outside", "pairs"])
def test_recomputation_gathers_nothing_more(world, arrangement):
    for rank in measured(world):
        assert rank[arrangement] == rank["plain"]


@settings(deadline=None, max_examples=60)
@given(st.floats(1e6, 1e12), st.integers(1, 4096), st.integers(1, 64))
def test_elements(psi, n, m):
    every = zero3_elements(psi, n, m)
    assert sum(every.values()) == pytest.approx(3 * m * psi * (n - 1) / n)
    once = zero3_elements(psi, n, m, sync_every=False)
    assert sum(once.values()) == pytest.approx((2 * m + 1) * psi * (n - 1) / n)
    assert sum(zero3_elements(psi, n, m, reshard=False).values()) == pytest.approx(2 * m * psi * (n - 1) / n)
    assert 2 * sum(once.values()) / 1e9 == pytest.approx(sent("ZeRO-3", psi, n, m))


@settings(deadline=None, max_examples=60)
@given(st.floats(1e9, 1e12), st.integers(1, 100_000), st.floats(0.05, 1))
def test_break_even_does_not_depend_on_the_model(psi, tokens, mfu):
    bandwidth = breakeven_gb_per_s(tokens, mfu=mfu)
    compute, exposed = exposed_seconds(psi, 10**9, tokens, bandwidth, mfu=mfu)
    assert exposed <= 1e-6 * compute
    assert exposed_seconds(psi, 10**9, tokens, bandwidth / 2, mfu=mfu)[1] == pytest.approx(compute, rel=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 64), st.integers(1, 16))
def test_links_are_ordered(nodes, local):
    flat, hierarchical, hsdp, plus = (across_nodes_gb(1e9, nodes, local, scheme) for scheme in ("flat", "hierarchical", "HSDP", "ZeRO++"))
    assert flat >= hierarchical > hsdp > plus > 0
    assert hierarchical == pytest.approx(4 * plus)  # 3Ψ to 0.75Ψ
    assert across_nodes_gb(1e9, 1, local, "flat") == across_nodes_gb(1e9, 1, local, "HSDP") == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zero3_elements(0, 2), "psi、n、m"),
        (lambda: zero3_elements(1, 0), "psi、n、m"),
        (lambda: across_nodes_gb(1, 0, 8, "flat"), "nodes"),
        (lambda: across_nodes_gb(1, 2, 8, "ring"), "scheme 须是"),
        (lambda: breakeven_gb_per_s(0), "tokens"),
        (lambda: breakeven_gb_per_s(1, mfu=40), "mfu 在"),
        (lambda: exposed_seconds(1e9, 8, 1, 0), "带宽"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
