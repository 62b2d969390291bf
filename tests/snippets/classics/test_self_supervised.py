"""Targets come from the input alone; the contrastive loss against torch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.classics.self_supervised import alignment_only, info_nce, masked_token, next_token

words = st.lists(st.sampled_from("abcdef"), max_size=10)


@given(words)
def test_next_token_rebuilds_the_text(tokens):
    pairs = next_token(tokens)
    assert len(pairs) == max(0, len(tokens) - 1)
    assert all([*prefix, label] == tokens[: len(prefix) + 1] for prefix, label in pairs)


@given(words, st.data())
def test_masking_is_reversible(tokens, data):
    at = data.draw(st.sets(st.integers(0, max(0, len(tokens) - 1)))) if tokens else set()
    masked, labels = masked_token(tokens, sorted(at))
    assert [labels.get(i, t) for i, t in enumerate(masked)] == tokens


@given(st.integers(1, 6), st.floats(0.05, 5), st.integers(0, 99))
def test_info_nce_is_cross_entropy_on_the_diagonal(n, temperature, seed):
    similarity = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(similarity / temperature, torch.arange(n))
    assert info_nce(similarity.tolist(), temperature) == pytest.approx(expected.item())


@pytest.mark.parametrize(("rho", "n"), [(0.9, 64), (0.9999, 8)])
def test_bound_stays_below_the_mutual_information_and_below_log_n(rho, n):
    """Correlated Gaussian pairs with the optimal critic ln p(y|x) - ln p(y); the true value is -ln(1 - rho²)/2."""
    information, generator, spread = -0.5 * math.log(1 - rho**2), torch.Generator().manual_seed(0), math.sqrt(1 - rho**2)
    losses = []
    for _ in range(200):
        x = torch.randn(n, generator=generator, dtype=torch.float64)
        y = rho * x + spread * torch.randn(n, generator=generator, dtype=torch.float64)
        critic = -((y[None] - rho * x[:, None]) ** 2) / (2 * spread**2) - math.log(spread) + y[None] ** 2 / 2
        losses.append(info_nce(critic.tolist(), 1.0))
    bound = math.log(n) - sum(losses) / len(losses)
    ceiling = min(information, math.log(n))
    assert ceiling - 0.15 < bound < ceiling + 0.02


def test_collapse():
    spreads = [alignment_only(steps=steps)[1] for steps in (0, 10, 50, 200)]
    assert spreads[0] == 1.0
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[2] < 0.1
    assert spreads[3] < 1e-3


def test_rejects():
    for call in (
        lambda: info_nce([]),
        lambda: info_nce([[1.0, 2.0]]),
        lambda: info_nce([[1.0]], 0),
        lambda: info_nce([[1.0]], math.nan),
        lambda: info_nce([[math.nan]]),
        lambda: info_nce([[1.0, -math.inf], [0.0, 1.0]]),
        lambda: info_nce([[1e308]], 0.07),
        lambda: masked_token(["a"], [1]),
        lambda: masked_token(["a"], [-1]),
        lambda: masked_token(["a"], [0, 0]),
        lambda: masked_token(["a"], [False]),
        lambda: alignment_only(-1),
        lambda: alignment_only(lr=math.nan),
    ):
        with pytest.raises(ValueError, match=r"方阵|温度|位置|steps"):
            call()
