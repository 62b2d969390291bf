"""Streams run one thing at a time, dependencies hold, and what is exposed matches the closed form and the bounds."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.zero.overlap import PREFETCH, bound_total, exposed, hidden_total, simulate, total

LAYERS = st.integers(1, 20)
TIMES = st.floats(0.1, 10)
HOW = st.sampled_from(PREFETCH)


@settings(deadline=None, max_examples=150)
@given(LAYERS, TIMES, TIMES, TIMES, TIMES, HOW, st.booleans(), st.booleans())
def test_streams_and_dependencies(layers, gather, scatter, forward, backward, how, reshard, shared):
    work = simulate(layers, gather, scatter, forward, backward, prefetch=how, reshard=reshard, shared_link=shared)
    groups = [("gather", "scatter"), ("compute",)] if shared else [("gather",), ("scatter",), ("compute",)]
    for streams in groups:
        line = sorted((w for w in work if w.stream in streams), key=lambda w: w.start)
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(line))
    when = {}
    for w in work:
        when.setdefault(w.name, []).append(w)
    for i in range(layers):
        assert when[f"F{i}"][0].start >= when[f"AG{i}"][0].end - 1e-9
        assert len(when[f"AG{i}"]) == (2 if reshard else 1)
        back = when[f"B{i}"][0]
        assert back.start >= when[f"AG{i}"][-1].end - 1e-9
        assert when[f"RS{i}"][0].start >= back.end - 1e-9
        if i:
            assert when[f"F{i}"][0].start >= when[f"F{i - 1}"][0].end - 1e-9
            assert when[f"B{i - 1}"][0].start >= back.end - 1e-9


@settings(deadline=None, max_examples=150)
@given(LAYERS, TIMES, TIMES, TIMES, TIMES)
def test_prefetching_helps_and_no_one_beats_the_bound(layers, gather, scatter, forward, backward):
    times = (layers, gather, scatter, forward, backward)
    plain, ahead = (total(simulate(*times, prefetch=how)) for how in PREFETCH)
    assert bound_total(*times) - 1e-9 <= ahead <= plain + 1e-9
    assert plain == pytest.approx(layers * (2 * gather + scatter + forward + backward))


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 40), TIMES, TIMES, st.floats(1.0, 3), st.floats(1.0, 3))
def test_hidden_communication_leaves_three_gaps(layers, gather, scatter, more, backward_more):
    forward, backward = gather * more, (gather + scatter) * backward_more
    work = simulate(layers, gather, scatter, forward, backward)
    assert total(work) == pytest.approx(hidden_total(layers, gather, scatter, forward, backward))
    assert exposed(work) == pytest.approx(2 * gather + scatter)


def test_keeping_the_last_weights_saves_the_gap_between_the_passes():
    assert exposed(simulate(8, 2, 2, 3, 6, reshard=False)) == 4  # the first gather and the last scatter


@pytest.mark.parametrize(
    "call", [lambda: simulate(0, 1, 1, 1, 1), lambda: simulate(1, -1, 1, 1, 1), lambda: simulate(1, 1, 1, 1, 1, prefetch="both")]
)
def test_rejects(call):
    with pytest.raises(ValueError, match="layers 须为正"):
        call()
