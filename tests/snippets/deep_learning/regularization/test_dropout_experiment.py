"""The two data regimes over seeds, and the noise of the labels."""

import pytest
import torch

from snippets.deep_learning.regularization.dropout_experiment import held_out_loss, sample


@pytest.mark.parametrize("seed", [1, 2])
def test_dropout_helps_repeated_data_and_hurts_fresh_data(seed):
    repeated = [held_out_loss(p, repeated=True, seed=seed) for p in (0.0, 0.5)]
    fresh = [held_out_loss(p, repeated=False, seed=seed) for p in (0.0, 0.5)]
    assert repeated[1] < 0.7 * repeated[0]
    assert fresh[1] > fresh[0] + 0.03
    assert min(repeated + fresh) > 0.5  # nothing beats the entropy of the label noise


def test_label_noise_is_what_it_says():
    x, y = sample(20_000, torch.Generator().manual_seed(0))
    clean = (x[:, :5].square().sum(1) > x[:, 5:10].square().sum(1)).long()
    assert (clean != y).float().mean().item() == pytest.approx(0.2, abs=0.01)
