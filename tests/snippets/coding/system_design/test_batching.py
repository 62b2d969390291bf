"""Every schedule replayed by independent accounts: tokens, budget, KV blocks, order, waiting, cost; and the bugs that people make."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.coding.system_design import batching as module
from snippets.coding.system_design.batching import (
    Cost,
    Request,
    Step,
    continuous,
    expected_batch,
    figure_load,
    percentile,
    poisson_load,
    request_level,
    summary,
)
from tests.snippets.coding.bugs import with_bug


def load(m, seed, count=30, gap=0.02, prompt=60, output=25):
    rng, now, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(1 / gap)
        requests.append(m.Request(now, rng.randint(1, prompt), rng.randint(1, output)))
    return requests


def replay_continuous(requests, steps, *, max_batch, budget, blocks, size, reserve=0):
    kv, generated, seen = [0] * len(requests), [0] * len(requests), []
    active, clock, cost = set(), 0.0, Cost()
    for step in steps:
        arrived = [i for i, r in enumerate(requests) if r.arrival <= step.start and generated[i] < r.output]
        assert step.start == clock or (not active and step.start == requests[arrived[0]].arrival), "idle while work waits"
        decoding = {i for i in active if kv[i] == requests[i].prompt + generated[i] - 1}
        for i, lost in step.preempted.items():
            assert lost == kv[i]
            assert i not in step.work, "preempted and admitted in the same step"
            kv[i] = 0
            active.discard(i)
        assert arrived[0] in step.work, "the oldest request does not progress"
        if budget >= max_batch:
            assert decoding - step.preempted.keys() <= step.work.keys(), "a decode stalls although the budget allows it"
        assert 0 < sum(step.work.values()) <= budget
        assert len(step.work) <= max_batch
        for i, tokens in step.work.items():
            assert tokens >= 1
            if i not in seen:
                seen.append(i)
            kv[i] += tokens
            active.add(i)
        assert len(active) <= max_batch
        assert sorted(active) == arrived[: len(active)], "somebody jumped the queue"
        held = sum(-(-kv[i] // size) for i in active)
        assert held <= step.blocks <= blocks
        if not reserve:
            assert held == step.blocks, "blocks leak or are shared by mistake"
        expected = cost.step(sum(step.work.values()), sum(kv[i] for i in step.work))
        assert step.end - step.start == pytest.approx(expected)
        for i in step.work:
            known = requests[i].prompt + generated[i]
            assert kv[i] <= known
            if kv[i] == known:
                assert requests[i].times[generated[i]] == step.end, "a token leaves before its KV is complete"
                generated[i] += 1
                if generated[i] == requests[i].output:
                    active.remove(i)
        clock = step.end
    assert generated == [r.output for r in requests] == [len(r.times) for r in requests], "tokens lost or produced twice"
    assert seen == list(range(len(requests))), "not first come, first served"
    lost = sum(sum(s.preempted.values()) for s in steps)
    assert sum(s.slots for s in steps) == sum(r.prompt + r.output - 1 for r in requests) + lost


def replay_request_level(requests, steps, *, max_batch, max_wait):
    first, free = 0, 0.0
    done = [0] * len(requests)
    for k, step in enumerate(steps):
        new = [i for i in step.work if done[i] == 0]
        if new:
            assert new == list(range(first, first + len(new))), "not first come, first served"
            assert len(new) <= max_batch
            assert all(requests[i].arrival <= step.start for i in new)
            assert step.start <= max(free, requests[first].arrival + max_wait) + 1e-12, "waited longer than max_wait"
            assert step.slots == len(new) * max(requests[i].prompt for i in new)
            size, first, context = len(new), first + len(new), max(requests[i].prompt for i in new)
        else:
            assert step.slots == size
            context += 1
        assert step.end - step.start == pytest.approx(Cost().step(step.slots, size * context))
        for i in step.work:
            assert requests[i].times[done[i]] == step.end
            done[i] += 1
        free = step.end
        assert k == 0 or step.start >= steps[k - 1].end
    assert done == [r.output for r in requests] == [len(r.times) for r in requests], "tokens lost"


CONFIGS = (
    {"max_batch": 64, "budget": 64, "blocks": 60, "size": 4},
    {"max_batch": 8, "budget": 16, "blocks": 24, "size": 4},
    {"max_batch": 16, "budget": math.inf, "blocks": 100, "size": 1},
    {"max_batch": 16, "budget": 20, "blocks": 40, "size": 16, "reserve": 25},
    {"max_batch": 3, "budget": 1, "blocks": 200, "size": 8},
)


def check(m):
    """What a module like batching.py must satisfy."""
    preempted = 0
    for seed in range(4):
        for config in CONFIGS:
            requests = load(m, seed)
            steps = m.continuous(requests, **config)
            replay_continuous(requests, steps, **config)
            preempted += sum(len(s.preempted) for s in steps)
        for max_batch, max_wait in ((4, 0.03), (8, 0.0), (5, math.inf), (1, 0.1)):
            requests = load(m, seed, gap=0.1)
            replay_request_level(requests, m.request_level(requests, max_batch, max_wait), max_batch=max_batch, max_wait=max_wait)
    assert preempted > 50


def test_module_satisfies_the_check():
    check(module)


BUGS = {
    "finished requests keep their blocks": ("                    free += r.blocks\n", ""),
    "newcomers do not count against the budget": (
        "running.append(i)\n            r.blocks, free, left,",
        "running.append(i)\n            r.blocks, free, _,",
    ),
    "the oldest is preempted": ("victim = running.pop()", "victim = running.pop(0)"),
    "preempted to the back of the queue": ("waiting.appendleft(victim)", "waiting.append(victim)"),
    "a token after every chunk": ("if r.kv == r.prompt + len(r.times):", "if True:"),
    "recomputation forgets the generated tokens": ("if r.kv == r.prompt + len(r.times):", "if r.kv >= r.prompt:"),
    "old context not counted in blocks": ("max(r.kv + tokens, keep)", "max(tokens, keep)"),
    "the head of the queue is passed over": ("break  # 队首", "waiting.rotate(-1)\n                break  # 队首"),
    "admission in the step of a preemption": ("while waiting and not preempted and", "while waiting and"),
    "max wait from the newest": ("min(full, requests[first].arrival + max_wait)", "min(full, full + max_wait)"),
    "batch ends with its shortest": ("max(requests[i].output for i in batch)", "min(requests[i].output for i in batch)"),
    "context of the step not read": ("requests[i].kv + n for i, n in", "requests[i].kv for i, n in"),
}


@pytest.mark.parametrize("change", BUGS.values(), ids=BUGS.keys())
def test_every_bug_is_caught(change):
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        check(with_bug(module, change))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=15),
    st.integers(1, 8),
    st.integers(1, 60),
    st.integers(0, 20),
    st.integers(1, 5),
)
def test_any_load_any_limits(items, max_batch, budget, spare, size):
    now, requests = 0.0, []
    for gap, prompt, output in items:
        now += gap
        requests.append(Request(now, prompt, output))
    blocks = max(-(-(r.prompt + r.output) // size) for r in requests) + spare
    config = {"max_batch": max_batch, "budget": budget, "blocks": blocks, "size": size}
    replay_continuous(requests, continuous(requests, **config), **config)


def test_one_request_alone_takes_what_the_cost_says():
    for budget, chunks in ((math.inf, [100]), (40, [40, 40, 20])):
        (r,) = requests = [Request(1.0, 100, 3)]
        continuous(requests, budget=budget)
        cost, now, kv = Cost(), 1.0, 0
        for n in chunks:
            kv += n
            now += cost.step(n, kv)
        expected = [now, now + cost.step(1, 101), now + cost.step(1, 101) + cost.step(1, 102)]
        assert r.times == pytest.approx(expected)


def test_no_starvation_bound():
    """A request that is the oldest needs at most ceil(known / budget) + output steps, whatever arrives behind it."""
    requests = [Request(0.0, 100, 10), *(Request(0.001 * k, 1, 30) for k in range(1, 200))]
    steps = continuous(requests, max_batch=32, budget=32)
    assert sum(s.end <= requests[0].times[-1] for s in steps) <= math.ceil(100 / 32) + 10


def test_chunks_bound_the_stall_and_whole_prompts_do_not():
    """Refutes 'continuous batching alone keeps streams smooth'."""
    stalls = {}
    for budget in (256, math.inf):
        requests = [Request(0.0, 100, 200), Request(0.1, 4096, 5)]
        stalls[budget] = summary(requests, continuous(requests, budget=budget))["stall"]
    cost = Cost()
    assert stalls[256] <= cost.step(256, 4096 + 300)
    assert stalls[math.inf] >= cost.step(4096, 4096)


def test_bigger_wait_does_not_help_when_busy():
    """Refutes 'the wait makes the batch': under backlog the queue fills it, with no wait at all."""
    sizes = {}
    for wait in (0.0, 0.5):
        requests = poisson_load(8, 200)
        steps = request_level(requests, 32, wait)
        starts = {}
        for i, r in enumerate(requests):
            starts.setdefault(r.times[0], []).append(i)
        sizes[wait] = sum(len(batch) == 32 for batch in starts.values()) / len(starts)
        assert steps[-1].end > 0
    assert sizes[0.0] > 0.6
    assert abs(sizes[0.0] - sizes[0.5]) < 0.2


def test_preemption_thrashes_under_overload_and_reservation_does_not():
    results = {}
    for reserve in (0, 1024):
        requests = poisson_load(10, 300)
        results[reserve] = summary(requests, continuous(requests, budget=512, blocks=2600, reserve=reserve))
    assert results[1024]["preemptions"] == 0 < results[0]["preemptions"]
    assert results[0]["throughput"] < results[1024]["throughput"]


@pytest.mark.parametrize(("rate", "wait", "cap"), [(100, 0.02, 32), (50, 0.1, 4), (10, 0.0, 8), (3, 1.0, 1)])
def test_expected_batch_by_simulation(rate, wait, cap):
    rng, total, runs = random.Random(1), 0, 20_000
    for _ in range(runs):
        size, clock = 1, rng.expovariate(rate)
        while clock <= wait and size < cap:
            size, clock = size + 1, clock + rng.expovariate(rate)
        total += size
    assert total / runs == pytest.approx(expected_batch(rate, wait, cap), abs=0.05)


def test_load_has_the_stated_means():
    requests = poisson_load(5, 20_000, seed=3)
    assert requests[-1].arrival / 20_000 == pytest.approx(0.2, rel=0.03)
    assert sum(r.prompt for r in requests) / 20_000 == pytest.approx(969, rel=0.03)
    assert sum(r.output for r in requests) / 20_000 == pytest.approx(242, rel=0.03)


def test_summary_by_hand():
    requests = [Request(1.0, 10, 3, [2.0, 2.5, 4.0]), Request(1.5, 10, 1, [2.0])]
    steps = [Step(1.0, 2.0, {0: 10, 1: 10}, 40), Step(2.0, 4.0, {0: 2}, 4, preempted={1: 7})]
    expected = {"ttft50": 0.5, "ttft99": 1.0, "tpot50": 1.0, "tpot99": 1.0, "stall": 1.5}
    expected |= {"throughput": 4 / 3, "useful": 0.5, "preemptions": 1, "recomputed": 7}
    assert summary(requests, steps) == pytest.approx(expected)


def test_figure_and_percentile():
    assert "静态 32" in figure_load()
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([5], 0.99) == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda: continuous([]),
        lambda: continuous([Request(0, 1, 1)], max_batch=0),
        lambda: continuous([Request(0, 1, 1)], budget=math.nan),
        lambda: continuous([Request(0, 1, 1)], budget=0),
        lambda: continuous([Request(0, 100, 1)], blocks=6, size=16),
        lambda: continuous([Request(0, 10, 20)], reserve=10),
        lambda: continuous([Request(math.nan, 1, 1)]),
        lambda: continuous([Request(1, 1, 1), Request(0, 1, 1)]),
        lambda: continuous([Request(0, 0, 1)]),
        lambda: continuous([Request(0, 1, 1, [0.5])]),
        lambda: continuous([Request(0, 1.5, 1)]),
        lambda: continuous([Request(0, 1, True)]),
        lambda: continuous([Request(0, 1, 1, kv=5)]),
        lambda: continuous([Request(math.inf, 1, 1)]),
        lambda: continuous([Request(0, 1, 1)], max_batch=math.nan),
        lambda: continuous([Request(0, 1, 1)], size=math.nan),
        lambda: continuous([Request(0, 1, 1)], blocks=math.inf),
        lambda: continuous([Request(0, 1, 1)], budget=2.5),
        lambda: continuous([Request(0, 1, 1)], reserve=-1),
        lambda: Cost(fixed=math.nan),
        lambda: Cost(per_kv=-1.0),
        lambda: request_level([Request(0, 1, 1)], max_wait=math.nan),
        lambda: request_level([Request(0, 1, 1)], max_wait=-1),
        lambda: poisson_load(0, 1),
        lambda: poisson_load(math.inf, 1),
        lambda: poisson_load(1, 0),
        lambda: percentile([], 0.5),
        lambda: percentile([1], 0),
        lambda: expected_batch(1, math.inf, 3),
        lambda: expected_batch(math.nan, 1, 3),
    ],
)
def test_rejects(call):
    with pytest.raises(ValueError, match=r"须|放不下"):
        call()
