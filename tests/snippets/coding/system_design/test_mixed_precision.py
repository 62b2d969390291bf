"""The framework against plain fp32 training, its state machine under overflow, resuming, and the bugs that people make."""

import copy

import pytest
import torch
from torch import nn

from snippets.coding.system_design import mixed_precision as module
from snippets.coding.system_design.mixed_precision import MixedPrecision, checkpoint_gb, one_shard_overflows
from snippets.common.processes import launch
from snippets.deep_learning.training.loss_scaling import LossScaler
from tests.snippets.coding.bugs import with_bug


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)


def batches(n, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(n)]


def loss_of(model, x, y, factor=1.0):
    x = x.to(next(model.parameters()).dtype)
    return factor * (model(x).float() - y).square().mean()


def train(cls, dtype, steps, *, parts=1, factor=1.0, max_norm=1.0, scaler=None, model=None):
    model = net() if model is None else model
    trainer = cls(model, adamw, dtype=dtype, scaler=scaler, max_norm=max_norm)
    for x, y in batches(steps):
        for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
            trainer.backward(loss_of(model, a, b, factor), parts)
        trainer.step()
    return model, trainer


def plain(steps, *, factor=1.0, max_norm=1.0):
    model = net()
    optimizer = adamw(model.parameters())
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(model, x, y, factor).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return list(model.parameters())


def close(trainer, expected, tolerance):
    for master, p in zip(trainer.masters, expected, strict=True):
        torch.testing.assert_close(master, p, atol=tolerance, rtol=tolerance)


def check(m):
    """What a module like mixed_precision.py must satisfy."""
    cls = m.MixedPrecision
    close(train(cls, torch.float32, 30)[1], plain(30), 1e-5)
    close(train(cls, torch.float32, 30, max_norm=0.05)[1], plain(30, max_norm=0.05), 1e-5)
    close(train(cls, torch.float32, 30, parts=4, scaler=LossScaler(interval=5))[1], plain(30), 1e-5)
    model, trainer = train(cls, torch.float16, 30, factor=1e-3, parts=2)
    close(trainer, plain(30, factor=1e-3), 0.02)  # AdamW hides the scale of the loss, ε apart
    for p, master in zip(model.parameters(), trainer.masters, strict=True):
        assert p.dtype == torch.float16
        assert torch.equal(p, master.half()), "the half-precision weights are not the rounded masters"
    # an overflow in one micro-batch skips the whole step and changes nothing but the scale
    before = copy.deepcopy(trainer.state_dict())
    (x, y), scale = batches(1)[0], trainer.scale
    trainer.backward(loss_of(model, x, y), 2)
    trainer.backward(loss_of(model, 1e4 * x, y, 1e4), 2)
    assert trainer.step() is False
    assert trainer.scale == scale / 2
    assert all(torch.equal(a, b) for a, b in zip(before["masters"], trainer.masters, strict=True))
    assert before["optimizer"]["state"][0]["step"] == trainer.optimizer.state_dict()["state"][0]["step"]
    trainer.backward(loss_of(model, x, y))
    assert trainer.step() is True  # nothing of the bad gradient is left
    assert all(p.isfinite().all() for p in model.parameters())
    trainer.backward(loss_of(model, x, y))
    trainer.sums[0].view(-1)[0] = torch.nan  # one element of the first parameter
    assert trainer.step() is False


def test_module_satisfies_the_check():
    check(module)


REFRESH, CLEAR = "                p.copy_(master)\n", "        for total in self.sums:\n            total.zero_()\n"
BUGS = {
    "clipped before unscaling": ("            for total in self.sums:\n                total /= scale\n", ""),
    "unscaled by the new scale": ("                total /= scale\n", "                total /= self.scale\n"),
    "micro-batches summed": ("(self.scale / micro_batches)", "self.scale"),
    "half weights not refreshed": (REFRESH + "                master.grad", "                master.grad"),
    "bad gradients kept for the next step": (CLEAR, CLEAR.replace("self.sums", "self.sums * go")),
    "overflow not looked for": ("bad = any(not total.isfinite().all() for total in self.sums)", "bad = False"),
    "last parameter alone looked at": ("for total in self.sums)\n        overflow", "for total in self.sums[-1:])\n        overflow"),
    "masters from rounded weights": ("p.detach().clone().requires_grad_()", "p.detach().half().float().requires_grad_()"),
    "gradients kept in the parameters": ("                p.grad = None\n", ""),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises(AssertionError):
        check(with_bug(module, change))


def test_without_scaling_small_gradients_vanish():
    """A loss of 1e-7: in fp16 all gradients are 0, AdamW's decay is all that moves; scaled, it learns."""
    (x, y), results = batches(1)[0], {}
    for scale in (1.0, 2.0**16):
        model = net()
        trainer = MixedPrecision(model, adamw, scaler=LossScaler(scale=scale))
        trainer.backward(loss_of(model, x, y, 1e-8))
        results[scale] = sum((total != 0).sum().item() for total in trainer.sums)
    assert results[1.0] < 0.1 * results[2.0**16]


def test_masters_collect_what_half_precision_rounds_away():
    """200 steps of 1e-4 on a weight of 1: each is below half a unit of fp16 there."""
    for dtype in (torch.float16, torch.bfloat16):
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        trainer = MixedPrecision(model, lambda ps: torch.optim.SGD(ps, lr=1e-4), dtype=dtype)
        alone = torch.ones(1, dtype=dtype)
        for _ in range(200):
            trainer.backward(model.weight.float().sum())
            trainer.step()
            alone -= 1e-4
        assert alone.item() == 1
        assert trainer.masters[0].item() == pytest.approx(0.98, abs=1e-4)
        assert model.weight.item() == pytest.approx(0.98, abs=4e-3)


def test_small_micro_batch_gradients_add_up_in_fp32():
    """1 + 4096 · 2⁻¹²: in fp16 every addend is lost."""
    model = nn.Linear(1, 1, bias=False)
    trainer = MixedPrecision(model, lambda ps: torch.optim.SGD(ps, lr=0.0), scaler=LossScaler(scale=1.0))
    half = torch.ones((), dtype=torch.float16)
    trainer.backward(model.weight.float().sum())
    for _ in range(4096):
        trainer.backward(2.0**-12 * model.weight.float().sum())
        half += 2.0**-12
    assert trainer.sums[0].item() == 2
    assert half.item() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_resuming_is_exact_and_needs_masters_and_scaler(dtype):
    def resumed(change):
        def scaler():
            return LossScaler(scale=2.0**8, interval=5) if dtype == torch.float16 else None

        model, trainer = train(MixedPrecision, dtype, 7, scaler=scaler())
        state = copy.deepcopy(trainer.state_dict())
        again = net()
        other = MixedPrecision(again, adamw, dtype=dtype, scaler=scaler())
        change(state, model)
        other.load_state_dict(state)
        for x, y in batches(8, seed=9):
            for m, t in ((model, trainer), (again, other)):
                t.backward(loss_of(m, x, y))
                t.step()
        same = all(torch.equal(a, b) for a, b in zip(trainer.masters, other.masters, strict=True))
        return same, trainer.scale == other.scale

    assert resumed(lambda state, model: None) == (True, True)
    rounded = resumed(lambda state, model: state.update(masters=[p.detach().float() for p in model.parameters()]))
    assert rounded[0] is False
    if dtype == torch.float16:
        assert resumed(lambda state, model: state.update(scaler=LossScaler().state_dict()))[1] is False


def test_one_shard_overflows_and_all_skip():
    assert launch(2, one_shard_overflows, True) == [(False, 8.0), (False, 8.0)]
    assert launch(2, one_shard_overflows, False) == [(True, 16.0), (False, 8.0)]  # the ranks part


def test_frozen_and_unused_parameters():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1), "frozen": nn.Linear(2, 1)})
    model["frozen"].requires_grad_(False)
    trainer = MixedPrecision(model, lambda ps: torch.optim.SGD(ps, lr=0.1), scaler=LossScaler(scale=16.0))
    assert len(trainer.masters) == 4
    assert model["frozen"].weight.dtype == torch.float16
    trainer.backward(model["used"](torch.ones(1, 2).half()).float().sum())
    assert trainer.step()


def test_bf16_has_no_scaler_and_says_so_when_gradients_are_bad():
    model = net()
    trainer = MixedPrecision(model, adamw, dtype=torch.bfloat16)
    assert trainer.scaler is None
    trainer.backward(loss_of(model, *batches(1)[0], factor=float("inf")))
    with pytest.raises(ValueError, match="inf 或 NaN"):
        trainer.step()


def test_account_and_rejects():
    assert checkpoint_gb(1e9) == {"显存里": 18.0, "检查点": 12.0, "只存半精度权重": 2.0}
    trainer = MixedPrecision(net(), adamw)
    other = MixedPrecision(nn.Linear(2, 2), adamw)
    for call in (
        lambda: MixedPrecision(net().half(), adamw),
        lambda: MixedPrecision(net(), adamw, dtype=torch.int8),
        lambda: MixedPrecision(net(), adamw, max_norm=float("nan")),
        lambda: trainer.backward(torch.zeros((), dtype=torch.float16)),
        lambda: trainer.backward(torch.zeros(2)),
        lambda: trainer.backward(torch.zeros(()), 0),
        lambda: trainer.load_state_dict(other.state_dict()),
        lambda: trainer.load_state_dict({**trainer.state_dict(), "scaler": None}),
        lambda: checkpoint_gb(0),
    ):
        with pytest.raises(ValueError, match=r"须|不符"):
            call()
