"""The two tasks share features and not rules; with little data the pretrained features win."""

import pytest
import torch

from snippets.classics.transfer import pretrain, sample, target_accuracy


@pytest.fixture(scope="module")
def source():
    return pretrain(seed=1, steps=1200)


def test_tasks_differ():
    x0, y0 = sample(2000, 0, torch.Generator().manual_seed(0))
    x1, y1 = sample(2000, 1, torch.Generator().manual_seed(0))
    assert torch.equal(x0, x1)
    assert (y0 == y1).float().mean() < 0.5


def test_little_data_favours_the_probe_and_much_data_the_full_tuning(source):
    few = {how: target_accuracy(how, 50, source, seed=1) for how in ("从头训", "线性探针", "全量微调")}
    many = {how: target_accuracy(how, 5000, source, seed=1) for how in ("从头训", "线性探针", "全量微调")}
    assert few["线性探针"] > few["从头训"] + 0.05
    assert few["线性探针"] > few["全量微调"]
    assert many["全量微调"] > many["线性探针"] - 0.01
    assert many["全量微调"] > many["从头训"]


def test_the_probe_leaves_the_features_alone(source):
    before = [p.clone() for p in source.parameters()]
    target_accuracy("全量微调", 50, source)
    assert all(torch.equal(a, b) for a, b in zip(before, source.parameters(), strict=True))


def test_rejects(source):
    with pytest.raises(ValueError, match="how"):
        target_accuracy("提示", 10, source)
