"""Four real processes in every layout against one process without cuts: loss, every gradient, norm, weights; the bugs that people make."""

import functools
import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from snippets.coding.system_design import gradient_sync as module
from snippets.coding.system_design.gradient_sync import (
    IGNORE,
    Plan,
    batch,
    exposed_seconds,
    full_parameters,
    groups_to_sum,
    local_piece,
    rank_lists,
    traffic_per_step,
)
from snippets.common.processes import launch
from tests.snippets.coding.bugs import with_bug

TP_DP, SP_DP = Plan(d=2, t=2), Plan(d=2, t=2, sequence_parallel=True)
PP_DP, EP_DP, ALL_EP = Plan(p=2, d=2), Plan(d=4, e=2), Plan(d=4, e=4, bucket=1)
PP_SP, PP_EP, EP_SP = Plan(p=2, t=2, sequence_parallel=True), Plan(p=2, d=2, e=2), Plan(d=2, t=2, e=2, sequence_parallel=True)
PLANS = (TP_DP, SP_DP, PP_DP, EP_DP, ALL_EP, PP_SP, PP_EP, EP_SP, Plan(p=4, micro=4), Plan(t=4, bucket=10**6), Plan(d=4, micro=1))

BUGS = {
    "f does not sum": (TP_DP, ("if self.plan.sequence_parallel else (Copy, Reduce)", "if self.plan.sequence_parallel else (View, Reduce)")),
    "bias before g": (
        TP_DP,
        (
            '@ w[f"{i}.down"].T, tp) + w[f"{i}.bias"]',
            '@ w[f"{i}.down"].T + w[f"{i}.bias"], tp)',
        ),
    ),
    "norms not summed under SP": (SP_DP, ("if sequence_parallel and kind(name) in", "if False and kind(name) in")),
    "experts not summed over TP under SP": (EP_SP, ('kind(name) in ("replicated", "expert")', 'kind(name) == "replicated"')),
    "norms summed over TP without SP": (TP_DP, ("if sequence_parallel and kind(name) in", "if kind(name) in")),
    "tied copies not summed": (PP_DP, ('if name == "embed":\n', "if False:\n")),
    "experts summed over all of DP": (EP_DP, ('((False, "dp"), (True, "edp"))', '((False, "dp"), (True, "dp"))')),
    "no sum over DP": (TP_DP, ("            buckets.finish()", "            buckets.armed = False")),
    "denominator of the own replica": (TP_DP, ("        dist.all_reduce(total, group=self.groups[\"dp\"])  #", "        pass  #")),
    "buckets sent in the first micro-batch": (TP_DP, ("if k == plan.micro - 1:", "if k == 0:")),
    "norm: only the own shard": (TP_DP, ('for group in ("tp", "ep", "pp"):', 'for group in ("ep", "pp"):')),
    "norm: replicated counted t times": (TP_DP, ('.get(kind(name), ("tp", "ep"))', '.get(kind(name), ("ep",))')),
    "norm: tied embedding counted twice": (PP_DP, ('if name == "embed" and not self.first:', "if False:")),
    "norm: stages apart": (PP_DP, ('for group in ("tp", "ep", "pp"):', 'for group in ("tp", "ep"):')),
}  # fmt: skip


class View:
    @staticmethod
    def apply(x, group):
        return x


class Model:
    """The same network, without cuts, micro-batches or processes: autograd does it all."""

    def __init__(self, plan):
        self.plan, self.w = plan, {name: w.requires_grad_() for name, w in full_parameters(plan).items()}

    def loss(self, x, y):
        w, norm = self.w, lambda z, g: F.rms_norm(z, (self.plan.h,), g, 1e-6)
        z = w["embed"][x]
        for i in range(self.plan.layers):
            n = norm(z, w[f"{i}.norm"])
            if i % 2 == 0:
                z = z + F.linear(F.linear(n, w[f"{i}.up"]).relu(), w[f"{i}.down"], w[f"{i}.bias"])
            else:
                gate, pick = torch.softmax(n @ w[f"{i}.router"].T, -1).max(-1)
                hidden = torch.einsum("bsfh,bsh->bsf", w[f"{i}.experts_in"][pick], n).relu()
                z = z + gate[..., None] * torch.einsum("bshf,bsf->bsh", w[f"{i}.experts_out"][pick], hidden)
        logits = norm(z, w["norm"]) @ w["embed"].T
        return F.cross_entropy(logits[y != IGNORE], y[y != IGNORE])


@functools.cache
def reference(plan, steps=2):
    model = Model(plan)
    optimizer = torch.optim.SGD(model.w.values(), lr=plan.lr)
    losses, norms, grads = [], [], {}
    for step in range(steps):
        optimizer.zero_grad()
        loss = model.loss(*batch(plan, step))
        loss.backward()
        grads = {name: w.grad.clone() for name, w in model.w.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.w.values(), plan.clip).item())
        optimizer.step()
    return {"losses": losses, "norms": norms, "grads": grads, "parameters": {n: w.detach() for n, w in model.w.items()}}


def differences(plan, results, steps=2):
    """The largest deviation of any rank, by what deviates."""
    expected = reference(plan, steps)
    worst = dict.fromkeys(("losses", "norms", "grads", "parameters"), 0.0)
    for r in results:
        for key in ("losses", "norms"):
            worst[key] = max(worst[key], *(abs(a - b) for a, b in zip(r[key], expected[key], strict=True)))
        for key in ("grads", "parameters"):
            for name, value in r[key].items():
                piece = local_piece(name, expected[key][name], plan, r["at"]["tp"], r["at"]["ep"])
                worst[key] = max(worst[key], (value - piece).abs().max().item())
    assert set().union(*(r["grads"] for r in results)) == set(expected["grads"])
    return worst


def _everything(rank):
    out = {"right": [module.train(rank, plan) for plan in PLANS]}
    for name, (plan, change) in BUGS.items():
        broken = with_bug(module, change)
        broken.View, broken.make_groups = View, module.make_groups
        out[name] = broken.train(rank, plan, steps=1)
    out["unused"], out["sent"], out["nan"] = _unused(rank), _sent_during_backward(), _one_nan(rank)
    with pytest.raises(ValueError, match="进程数 4"):
        module.Engine(Plan(d=2))
    return out


def _unused(rank):
    w = [torch.nn.Parameter(torch.full((3,), float(k))) for k in range(3)]
    buckets = module.Buckets(w, dist.group.WORLD, 3)
    buckets.arm()
    (w[0].sum() * (rank + 1) + (w[2].sum() if rank == 0 else 0)).backward()  # nobody uses 1, only rank 0 uses 2
    buckets.finish()
    return [p.grad for p in w]


def _sent_during_backward():
    """How many buckets have left when the gradient of each layer is ready, the last layer first."""
    w = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    buckets, sent = module.Buckets(w, dist.group.WORLD, 3), []
    for p in w:
        p.register_post_accumulate_grad_hook(lambda _: sent.append(len(buckets.works)))
    buckets.arm()
    (((w[0].exp() * w[1]).exp() * w[2]).sum()).backward()
    buckets.finish()
    return sent


def _one_nan(rank):
    """One rank produces NaN in a weight that is cut: (its norm, did its weights stay)."""
    engine = module.Engine(TP_DP)
    before = {name: p.detach().clone() for name, p in engine.w.items()}
    if rank == 3:
        engine.w["0.up"].register_hook(lambda g: g * math.nan)
    engine.gradients(*(z.chunk(TP_DP.d)[engine.at["dp"]] for z in batch(TP_DP, 0)))
    norm = engine.update()
    return norm.item(), all(torch.equal(p, before[name]) for name, p in engine.w.items())


@pytest.fixture(scope="module")
def runs():
    return launch(4, _everything)


@pytest.mark.parametrize("k", range(len(PLANS)))
def test_every_layout_is_one_process(runs, k):
    worst = differences(PLANS[k], [r["right"][k] for r in runs])
    assert max(worst.values()) < 1e-12, worst
    assert min(reference(PLANS[k])["norms"]) > 2 * PLANS[k].clip  # clipping takes part


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_is_caught(runs, name):
    worst = differences(BUGS[name][0], [r[name] for r in runs], steps=1)
    wrong = worst["norms"] if name.startswith("norm:") else worst["grads"]
    assert wrong > 1e-3, worst


def test_a_wrong_norm_does_not_show_in_the_first_loss(runs):
    """Refutes 'the loss of the first step agrees, so the gradients are right'."""
    for name in BUGS:
        if name not in ("bias before g", "denominator of the own replica"):
            plan = BUGS[name][0]
            assert all(abs(r[name]["losses"][0] - reference(plan, 1)["losses"][0]) < 1e-12 for r in runs), name


def test_tied_copies_stay_equal_only_when_summed(runs):
    """Refutes 'both copies start equal, so they stay equal'."""
    k = PLANS.index(PP_DP)
    for pick, equal in ((lambda r: r["right"][k], True), (lambda r: r["tied copies not summed"], False)):
        first, last = (pick(next(r for r in runs if pick(r)["at"]["pp"] == stage))["parameters"]["embed"] for stage in (0, 1))
        assert torch.equal(first, last) == equal


def test_norms_are_identical_on_tp_ranks_without_sp_and_parts_with_it(runs):
    """Refutes 'LayerNorm is replicated, so its gradient always needs an all-reduce over TP': without SP that multiplies it by t."""
    good = [r["right"][PLANS.index(TP_DP)]["grads"]["0.norm"] for r in runs]
    expected = reference(TP_DP, 1)["grads"]["0.norm"]
    assert all(torch.equal(good[0], g) for g in good)
    bad = runs[0]["norms summed over TP without SP"]
    assert bad["norms"][0] > reference(TP_DP, 1)["norms"][0]
    assert expected.abs().max() > 0.01


def test_buckets_leave_during_the_backward(runs):
    for r in runs:
        assert r["right"][PLANS.index(ALL_EP)]["early"][0] > 10  # bucket=1: one parameter each, all sent by hooks
        assert r["right"][PLANS.index(TP_DP)]["early"][0] >= 2


def test_unused_parameters_do_not_hang_and_order_is_kept(runs):
    """Refutes 'a hook per parameter is enough': a parameter without a gradient fires none."""
    for r in runs:
        assert [g.tolist() for g in r["unused"]] == [[10.0] * 3, [0.0] * 3, [1.0] * 3]


def test_each_layer_is_sent_as_soon_as_it_is_ready(runs):
    assert all(r["sent"] == [1, 2, 3] for r in runs)


def test_everybody_skips_the_step_when_one_rank_has_nan(runs):
    assert all(math.isnan(norm) and stayed for norm, stayed in (r["nan"] for r in runs))


@pytest.mark.parametrize("layout", [(1, 1, 1, 1), (2, 4, 2, 2), (4, 8, 8, 4), (3, 6, 1, 3)])
def test_groups_partition_the_ranks(layout):
    p, d, t, e = layout
    lists = rank_lists(*layout)
    for name, size in {"tp": t, "dp": d, "ep": e, "edp": d // e, "pp": p}.items():
        assert sorted(rank for group in lists[name] for rank in group) == list(range(p * d * t))
        assert {len(group) for group in lists[name]} == {size}
    for group in lists["dp"]:  # an expert's replicas and its EP group meet in exactly one rank
        for edp in lists["edp"]:
            for ep in lists["ep"]:
                if set(edp) <= set(group) and set(ep) <= set(group):
                    assert len(set(edp) & set(ep)) == 1


def test_256_gpus_have_the_known_group_counts():
    lists = rank_lists(p=4, d=8, t=8, e=1)
    assert [len(lists[name]) for name in ("tp", "dp", "pp")] == [32, 32, 64]


def test_numbers_from_first_principles():
    own = 96 // 16 * (4 * 12288**2 + 2 * 4 * 12288**2) // 8  # attention 4h^2, MLP 8h^2
    lines = traffic_per_step()
    assert f"{own:.2e} 个梯度，{own * 4 * 2 * 7 / 8 / 1e9:.1f} GB" in lines[0]
    assert f"{own * 4 * 2 * 7 / 8 / 50e9 * 1e3:.0f} ms" in lines[0]
    assert f"{6 * (2 * 2 + 2) * 12288 * 4 * 2 * 7 / 8 / 1e6:.1f} MB" in lines[1]
    assert f"{51200 * 12288 / 8 * 4 / 1e6:.0f} MB" in lines[2]
    assert f"共 {8 * 2048 * 12288 * 7 / 8 * 2 * 6 * 192 / 1e9:.0f} GB" in lines[4]  # 8bsh(t-1)/t elements a layer, in bf16
    assert f"反向 {4 * own * 2048 / (0.4 * 989e12) * 1e3:.0f} ms" in lines[5]
    assert f"{(192 + 15) * 6 * own * 2048 / (0.4 * 989e12):.1f} s" in lines[5]
    assert traffic_per_step(t=1)[4].endswith("共 0 GB")


def test_overlap():
    total, ring = 2 * 8.03e9, 2 * 7 / 8 / 50e9
    assert exposed_seconds(1e12) == pytest.approx(total * ring + 140e-6)
    assert exposed_seconds(1e8, backward=0) == pytest.approx(total * ring + math.ceil(total / 1e8) * 140e-6)
    assert exposed_seconds(1e8, backward=1e3) == pytest.approx((total % 1e8) * ring + 140e-6, rel=1e-3)
    assert exposed_seconds(1e8, d=1) == pytest.approx(0, abs=1e-9)


def test_expert_needs_its_own_group():
    assert groups_to_sum("3.experts_out", False) == ("edp",)
    assert full_parameters(Plan()).keys() >= {"embed", "0.up", "1.router", "3.experts_in", "norm"}


@pytest.mark.parametrize(
    "call",
    [
        lambda: Plan(d=0),
        lambda: Plan(d=True),
        lambda: Plan(d=3, e=2),
        lambda: Plan(p=3),
        lambda: Plan(t=5),
        lambda: Plan(d=16),
        lambda: Plan(t=3, s=4, sequence_parallel=True),
        lambda: Plan(clip=math.nan),
        lambda: Plan(lr=-1.0),
        lambda: rank_lists(1, 3, 1, 2),
        lambda: rank_lists(0, 1, 1, 1),
        lambda: traffic_per_step(p=7),
        lambda: exposed_seconds(0),
        lambda: exposed_seconds(math.nan),
        lambda: exposed_seconds(1e6, bandwidth=0),
    ],
)
def test_rejects(call):
    with pytest.raises(ValueError, match=r"须|不能被|分不匀"):
        call()
