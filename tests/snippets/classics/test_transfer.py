"""The two tasks share features and not rules; with little data the pretrained features win."""

import pytest
import torch

from snippets.classics import transfer
from snippets.classics.transfer import features, pretrain, sample, target_accuracy

SCRATCH, PROBE, FULL = "从头训", "线性探针", "全量微调"


@pytest.fixture(scope="module")
def source():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny matrices: more threads only wait for each other
    yield pretrain()
    torch.set_num_threads(threads)


def test_tasks_differ():
    x0, y0 = sample(2000, 0, torch.Generator().manual_seed(0))
    x1, y1 = sample(2000, 1, torch.Generator().manual_seed(0))
    assert torch.equal(x0, x1)
    assert (y0 == y1).float().mean() < 0.5


@pytest.mark.parametrize(
    ("n", "table", "order"),
    [
        (50, {SCRATCH: 0.49, PROBE: 0.67, FULL: 0.58}, [PROBE, FULL, SCRATCH]),
        (500, {SCRATCH: 0.60, PROBE: 0.78, FULL: 0.75}, [PROBE, FULL, SCRATCH]),
        (10_000, {SCRATCH: 0.74, PROBE: 0.80, FULL: 0.83}, [FULL, PROBE, SCRATCH]),
    ],
)
def test_the_table_of_the_page(source, n, table, order):
    """Little data favours the probe, much data the full tuning."""
    measured = {how: target_accuracy(how, n, source) for how in table}
    assert measured == pytest.approx(table, abs=0.03)
    assert sorted(measured, key=measured.__getitem__, reverse=True) == order


def test_longer_training_narrows_the_gap_of_training_from_scratch(source):
    short, long = (target_accuracy(FULL, 10_000, source, steps=s) - target_accuracy(SCRATCH, 10_000, source, steps=s) for s in (300, 1000))
    assert short == pytest.approx(0.10, abs=0.03)
    assert long == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(("how", "frozen"), [(PROBE, True), (FULL, False)])
def test_the_probe_leaves_the_features_alone_and_neither_touches_the_source(source, monkeypatch, how, frozen):
    before, fitted, fit = [p.clone() for p in source.parameters()], [], transfer._fit
    monkeypatch.setattr(transfer, "_fit", lambda net, *args: fitted.append(net) or fit(net, *args))
    target_accuracy(how, 50, source)
    assert all(torch.equal(a, b) for a, b in zip(before, source.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before[:4], list(fitted[0].parameters())[:4], strict=True)) == frozen


def test_rejects(source):
    generator = torch.Generator().manual_seed(0)
    for call in (
        lambda: target_accuracy("提示", 10, source),
        lambda: target_accuracy(PROBE, 0, source),
        lambda: sample(5, 2, generator),
        lambda: features(torch.zeros(3, 19)),
        lambda: features(torch.zeros(20)),
    ):
        with pytest.raises(ValueError, match=r"how|n 须|x 须"):
            call()
