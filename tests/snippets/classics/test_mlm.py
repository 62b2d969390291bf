"""80/10/10 as a law: proportions, independence from special tokens, labels only where chosen."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snippets.classics.mlm import IGNORE, mask_tokens, trained_positions


@given(st.lists(st.integers(2, 99), max_size=60), st.floats(0, 1), st.integers(0, 99))
def test_unchosen_tokens_are_untouched_and_labels_are_the_originals(tokens, rate, seed):
    inputs, labels = mask_tokens(tokens, Random(seed), vocabulary=100, mask_id=1, special=frozenset({2}), rate=rate)
    assert len(inputs) == len(labels) == len(tokens)
    for token, new, label in zip(tokens, inputs, labels, strict=True):
        if label == IGNORE:
            assert new == token
        else:
            assert label == token != 2
            assert 0 <= new < 100


def test_proportions():
    n = 200_000
    inputs, labels = mask_tokens([5] * n, Random(3), vocabulary=1000, mask_id=1)
    chosen = [new for new, label in zip(inputs, labels, strict=True) if label != IGNORE]
    assert len(chosen) / n == pytest.approx(0.15, abs=0.003)
    assert chosen.count(1) / len(chosen) == pytest.approx(0.8, abs=0.01)
    assert chosen.count(5) / len(chosen) == pytest.approx(0.1, abs=0.01)
    others = [token for token in chosen if token not in (1, 5)]
    assert len(others) / len(chosen) == pytest.approx(0.1, abs=0.01)
    assert len(set(others)) > 900  # from the whole vocabulary


def test_only_the_chosen_positions_reach_the_loss():
    """The labels go straight into cross_entropy: unchanged but chosen positions count, the others do not."""
    inputs, labels = mask_tokens([5] * 2000, Random(0), vocabulary=10, mask_id=1)
    logits = torch.randn(2000, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels), ignore_index=IGNORE)
    chosen = [i for i, label in enumerate(labels) if label != IGNORE]
    assert loss.item() == pytest.approx(-logits.log_softmax(1)[chosen, 5].mean().item())
    loss.backward()
    reached = logits.grad.abs().sum(1).nonzero().flatten().tolist()
    assert reached == chosen
    assert any(inputs[i] == labels[i] for i in reached)


def test_rate_one_chooses_everything_and_zero_nothing():
    assert mask_tokens([7, 8], Random(0), vocabulary=10, mask_id=0, rate=1.0)[1] == [7, 8]
    assert mask_tokens([7, 8], Random(0), vocabulary=10, mask_id=0, rate=0.0) == ([7, 8], [IGNORE, IGNORE])
    assert mask_tokens([], Random(0), vocabulary=10, mask_id=0) == ([], [])


def test_rejects():
    with pytest.raises(ValueError, match="rate"):
        mask_tokens([1], Random(0), vocabulary=10, mask_id=0, rate=1.5)
    with pytest.raises(ValueError, match="mask_id"):
        mask_tokens([1], Random(0), vocabulary=10, mask_id=10)
    for token in (10, -100, 1.5, True):
        with pytest.raises(ValueError, match="token"):
            mask_tokens([1, token], Random(0), vocabulary=10, mask_id=0)
    with pytest.raises(ValueError, match="rate"):
        mask_tokens([1], Random(0), vocabulary=10, mask_id=0, rate=float("nan"))
    with pytest.raises(ValueError, match="objective"):
        trained_positions(8, "PLM")
    with pytest.raises(ValueError, match="length"):
        trained_positions(0, "CLM")
