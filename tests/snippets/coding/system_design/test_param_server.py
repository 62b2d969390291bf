"""One shard under random orders, repeats, deaths and bounds against plain averaging; the bugs that people make; the accounts."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.coding.system_design import param_server as module
from snippets.coding.system_design.param_server import Fenced, Shard, embedding_budget, owner, seconds_per_step
from tests.snippets.coding.bugs import with_bug

KEYS = 6


def gradient(params, worker, step):
    rng = random.Random(1000 * worker + step)
    keys = rng.sample(range(KEYS), 3)
    return {key: params[key] - rng.uniform(-1, 1) for key in keys}


def reference(workers, steps, lr, last):
    params = dict.fromkeys(range(KEYS), 0.0)
    for step in range(1, steps + 1):
        grads = [gradient(params, w, step) for w in range(workers) if step <= last.get(w, steps)]
        for key in {key for g in grads for key in g}:
            params[key] -= lr * math.fsum(g[key] for g in grads if key in g) / len(grads)
    return params


def use(m, seed, *, workers=3, shards=2, steps=8, staleness=None, last=None, lr=0.2):
    """Workers in a random order; `last` says after which step a worker vanishes, a push too early to close its round is dropped."""
    rng, last = random.Random(seed), last or {}
    parts = [m.Shard({k: 0.0 for k in range(KEYS) if k % shards == s}, range(workers), lr, staleness) for s in range(shards)]
    step, params, fresh = dict.fromkeys(range(workers), 1), {}, 0
    leads = []
    while step:
        for w in rng.sample(sorted(step), len(step)):
            if w not in params and step[w] > last.get(w, steps):
                if None in [part.pull(w, []) for part in parts]:
                    continue
                for part in parts:
                    if staleness is None and any(part.clock[v] < step[w] for v in part.alive - {w}):
                        part.push(w, step[w], dict.fromkeys(part.params, 100.0))  # this round cannot close yet: to be dropped
                    part.evict(w)
                    with pytest.raises(m.Fenced):
                        part.push(w, step[w], {})
                del step[w]
                break
            if step[w] > steps:
                for part in parts:
                    part.finish(w)
                del step[w]
                break
            if w not in params:
                got = [part.pull(w, sorted(part.params)) for part in parts]
                if None in got:
                    continue
                leads.append(max(step[w] - 1 - min(part.clock[v] for v in part.alive) for part in parts))
                params[w] = {k: v for values in got for k, v in values.items()}
            else:
                grads = gradient(params.pop(w), w, step[w])
                for s, part in enumerate(parts):
                    mine = {k: g for k, g in grads.items() if k % shards == s}
                    assert part.push(w, step[w], mine)
                    for _ in range(rng.randint(0, 2)):
                        assert not part.push(w, rng.randint(1, step[w]), mine), "a repeat was applied"
                fresh += 1
                step[w] += 1
            break
        else:
            raise AssertionError("everybody waits")
    assert all(part.pushes == fresh for part in parts)
    if staleness is not None:
        assert max(leads) <= staleness
        assert all(lead <= staleness for part in parts for lead in part.leads)
        assert all(delay <= (workers - 1) * (2 * staleness + 1) for part in parts for delay in part.delays)
    return {k: v for part in parts for k, v in part.params.items()}, leads


def check(m):
    """What a module like param_server.py must satisfy."""
    for seed in range(15):
        for last in ({}, {1: 4}, {0: 0, 2: 5}):
            got, _ = use(m, seed, last=last)
            assert got == reference(3, 8, 0.2, last)
        for staleness in (0, 2):
            use(m, seed, staleness=staleness)
            use(m, seed, staleness=staleness, last={2: 1})
    assert max(max(use(m, seed, staleness=2, steps=20)[1]) for seed in range(15)) == 2, "the bound is never reached"
    shard = m.Shard({0: 1.0}, range(2), 0.5, 3)
    shard.push(0, 1, {0: 1.0})
    assert shard.params == {0: 0.75}
    with pytest.raises(ValueError, match="应推第 2 步"):
        shard.push(0, 3, {})


def test_module_satisfies_the_check():
    check(module)


BUGS = {
    "repeats applied": ("if step <= self.clock[worker]:", "if step < self.clock[worker]:"),
    "average over all that ever joined": ("for w in sorted(arrived)], len(arrived))", "for w in sorted(arrived)], len(self.clock))"),
    "gradient of the dead counts": ("grads.pop(worker, None)", "pass"),
    "death closes no round": ("grads.pop(worker, None)\n        self._close_rounds()", "grads.pop(worker, None)"),
    "lead over the fastest": ("done - min(self.clock", "done - max(self.clock"),
    "the dead are waited for": ("min(self.clock[w] for w in self.alive)", "min(self.clock.values())"),
    "bound off by one": ("lead > self.staleness", "lead > self.staleness + 1"),
    "bound off by one, too strict": ("lead > self.staleness", "lead >= self.staleness"),
    "synchronous read does not wait": ("if done > self.version if", "if False if"),
    "no fence": ("if worker not in self.alive:", "if False:"),
    "sum instead of average": ("if key in grads) / count", "if key in grads)"),
    "a round closes with its first gradient": ("and self.alive <= arrived.keys()", ""),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises((AssertionError, ValueError, KeyError, pytest.fail.Exception)):
        check(with_bug(module, change))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 10), st.integers(0, 4))
def test_any_group(seed, workers, shards, steps, staleness):
    last = {workers - 1: steps // 2} if workers > 1 else {}
    got, _ = use(module, seed, workers=workers, shards=shards, steps=steps, last=last)
    assert got == reference(workers, steps, 0.2, last)
    use(module, seed, workers=workers, shards=shards, steps=steps, staleness=staleness, last=last)


def test_staleness_zero_is_not_bitwise_synchronous():
    """Refutes 'SSP with s = 0 is the synchronous algorithm': a late reader sees updates of the round it is in."""
    sync, ssp = ([use(module, seed, staleness=s)[0] for seed in range(10)] for s in (None, 0))
    assert all(params == sync[0] for params in sync)
    assert any(params != ssp[0] for params in ssp)


def test_asynchronous_repeats_change_the_model():
    """Refutes 'a push may simply be sent again': without step numbers the update is doubled."""
    shard = Shard({0: 0.0}, [0], 1.0, math.inf)
    shard.push(0, 1, {0: 1.0})
    shard.push(0, 1, {0: 1.0})
    assert shard.params == {0: -1.0}
    shard._apply([{0: 1.0}], 1)
    assert shard.params == {0: -2.0}


def test_routing_moves_only_what_it_must():
    names = [f"ps{i}" for i in range(8)]
    for key in range(500):
        before = owner(key, names)
        without = owner(key, [name for name in names if name != "ps3"])
        assert before == without or before == "ps3"
    counts = [sum(owner(key, names) == name for key in range(8000)) for name in names]
    assert max(counts) < 1.15 * min(counts)


def test_more_slack_is_never_slower_and_a_constant_straggler_is_not_helped():
    """Refutes 'bounded staleness hides a slow machine': it hides jitter, the mean of the slowest remains."""
    values = [seconds_per_step(s) for s in (0, 1, 2, 8, math.inf)]
    assert values == sorted(values, reverse=True)
    assert seconds_per_step(0, workers=1) == pytest.approx(1.5, rel=0.1)
    assert seconds_per_step(0, jitter=0) == pytest.approx(1)
    assert seconds_per_step(8, jitter=0, slow=2) == pytest.approx(2)
    assert seconds_per_step(math.inf, slow=2) == pytest.approx(3, rel=0.05)
    harmonic = 1 + 0.5 * sum(1 / k for k in range(1, 33))  # 1 + the expected maximum of 32 exponentials
    assert seconds_per_step(0, steps=5000) == pytest.approx(harmonic, rel=0.02)


def test_budget():
    assert embedding_budget(rows=1, dim=1, servers=1, samples=1, features=1, workers=1)[0].startswith("表与状态 0 GB")


@pytest.mark.parametrize(
    "call",
    [
        lambda: Shard({}, [], 0.1),
        lambda: Shard({}, [0], 0),
        lambda: Shard({}, [0], math.nan),
        lambda: Shard({}, [0], 0.1, -1),
        lambda: Shard({}, [0], 0.1, math.nan),
        lambda: Shard({}, [0], 0.1, version=-1),
        lambda: Shard({0: 0.0}, [0], 0.1).push(0, 1, {5: 1.0}),
        lambda: Shard({0: 0.0}, [0], 0.1).push(0, 1, {0: math.nan}),
        lambda: Shard({0: 0.0}, [0], 0.1).push(0, 2, {}),
        lambda: Shard({0: 0.0}, [0], 0.1).push(0, 0, {}),
        lambda: Shard({0: 0.0}, [0], 0.1).push(0, 1, {0: math.inf}),
        lambda: Shard({0: 0.0}, [0, 1], 0.1).push(0, 1, {0: 1e308}),
        lambda: Shard({0: 0.0}, [0], 100).push(0, 1, {0: 1e307}),
        lambda: Shard({0: math.nan}, [0], 0.1),
        lambda: Shard({0: 0.0}, [0], 0.1).pull(0, [5]),
        lambda: embedding_budget(rows=math.nan),
        lambda: embedding_budget(bandwidth=math.inf),
        lambda: seconds_per_step(0, jitter=math.inf),
        lambda: seconds_per_step(0, slow=math.inf),
        lambda: owner(0, []),
        lambda: embedding_budget(rows=0),
        lambda: embedding_budget(bandwidth=math.nan),
        lambda: seconds_per_step(-1),
        lambda: seconds_per_step(math.nan),
        lambda: seconds_per_step(0, slow=0.5),
    ],
)
def test_rejects(call):
    with pytest.raises(ValueError, match=r"须|至少|不在这个分片|NaN|应推第"):
        call()


def test_eviction_after_the_end_takes_nothing_back():
    shard = Shard({0: 1.0}, range(2), 0.1)
    shard.push(0, 1, {0: 1.0})
    shard.finish(0)
    shard.evict(0)
    shard.push(1, 1, {0: 3.0})
    assert shard.params == {0: 1.0 - 0.1 * (1.0 + 3.0) / 2}


def test_a_round_keeps_its_size_when_somebody_leaves():
    """Without a synchronous round: the evicted no longer divide, the finished still do."""
    for leave, expected in ((Shard.evict, 1.0 - 0.5 * 1.0), (Shard.finish, 1.0 - 0.5 * 1.0 / 2)):
        shard = Shard({0: 1.0}, range(2), 0.5, math.inf)
        leave(shard, 1)
        shard.push(0, 1, {0: 1.0})
        assert shard.params == {0: expected}


def test_unknown_workers_are_fenced():
    with pytest.raises(Fenced, match="worker 9"):
        Shard({}, [0], 0.1).pull(9, [])
