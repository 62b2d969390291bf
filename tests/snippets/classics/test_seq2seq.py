"""Forcing and free running differ only in what is fed; exposure by simulation."""

from random import Random

import pytest
import torch

from snippets.classics.seq2seq import SYMBOLS, Seq2Seq, train, whole_sequence


@pytest.mark.parametrize("attention", [False, True])
def test_forcing_with_its_own_output_is_free_running(attention):
    torch.manual_seed(0)
    model = Seq2Seq(16, attention=attention)
    source = torch.randint(SYMBOLS, (3, 5))
    free = model(source)
    assert free.shape == (3, 5, SYMBOLS)
    torch.testing.assert_close(model(source, free.argmax(-1)), free)


def test_the_first_step_does_not_depend_on_the_target():
    torch.manual_seed(0)
    model, source = Seq2Seq(16, attention=True), torch.randint(SYMBOLS, (2, 4))
    one, two = model(source, torch.zeros(2, 4).long()), model(source, torch.full((2, 4), 9))
    assert torch.equal(one[:, 0], two[:, 0])
    assert not torch.equal(one[:, 1], two[:, 1])


def test_short_strings_are_learned_with_attention():
    forced, free = train(3, attention=True, steps=200)
    assert forced > 0.95
    assert free > 0.9


def test_whole_sequence_is_a_product():
    random, hits = Random(0), 0
    for _ in range(4000):
        hits += all(random.random() < 0.95 for _ in range(10))
    assert hits / 4000 == pytest.approx(whole_sequence(0.95, 10), abs=0.03)
    with pytest.raises(ValueError, match="per_token"):
        whole_sequence(1.2, 3)
    with pytest.raises(ValueError, match="length"):
        train(0, attention=False)
