"""The ledger of one step against closed forms, against a count kept by hand, and against what wrapping can change."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.infra.memory.fsdp_layout import fsdp_bytes
from snippets.infra.zero.unit_memory import LLAMA3_8B_LAYERS, LLAMA3_8B_ROOT, merged, peak_gb, persistent_gb, timeline

UNITS = st.lists(st.integers(1, 1000), min_size=1, max_size=10)


def peak(*args, **options):
    return max(size for _, size in timeline(*args, **options))


@pytest.mark.parametrize(("reduce", "times"), [(2, 8), (4, 10)])
def test_equal_units_peak_at_a_fixed_multiple_of_one(reduce, times):
    """Weights, full gradients, the prefetched buffer (2 each) and the previous unit's reduction input."""
    assert peak([100] * 8, reduce=reduce) == times * 100
    assert peak([100] * 80, reduce=reduce) == times * 100  # depth does not matter


def test_the_ledger_of_the_chapter_agrees():
    """fsdp_bytes counts two gathered units and two units of gradients: the same eight bytes per parameter."""
    parts = fsdp_bytes(32 * 218_112_000, 218_112_000, 8)
    assert peak(LLAMA3_8B_LAYERS) / 1e9 == pytest.approx(parts["聚齐的参数"] + parts["在途的梯度"])


@settings(deadline=None, max_examples=100)
@given(UNITS, st.integers(0, 1000), st.sampled_from([2, 4]))
def test_against_a_count_kept_by_hand(units, root, reduce):
    """Replays the step with a set of named tensors: what is added must be dropped."""
    alive, sizes = {"root": 2.0 * root}, []
    for i, size in enumerate(units):
        alive[f"buffer {i}"], alive[f"full {i}"] = 2.0 * size, 2.0 * size
        sizes.append(sum(alive.values()))
        alive.pop(f"buffer {i - 1}", None)
        if i + 1 < len(units):
            alive[f"buffer {i + 1}"] = 2.0 * units[i + 1]
        sizes.append(sum(alive.values()))
        del alive[f"full {i}"]
    alive.pop(f"buffer {len(units) - 1}")
    alive["root gradient"] = 2.0 * root
    for i in reversed(range(len(units))):
        alive[f"full {i}"], alive[f"gradient {i}"] = 2.0 * units[i], 2.0 * units[i]
        if i:
            alive[f"buffer {i - 1}"] = 2.0 * units[i - 1]
        sizes.append(sum(alive.values()))
        del alive[f"full {i}"]
        alive.pop(f"reduction {i + 1}", None)
        alive[f"reduction {i}"] = float(reduce * units[i])
        sizes.append(sum(alive.values()))
        del alive[f"gradient {i}"]
        alive.pop(f"buffer {i - 1}", None)
    del alive["root"]
    alive["root reduction"] = float(reduce * root)
    sizes.append(sum(alive.values()))
    assert [size for _, size in timeline(units, root, reduce=reduce)] == pytest.approx(sizes)


@settings(deadline=None, max_examples=60)
@given(UNITS, st.integers(0, 1000))
def test_keeping_the_weights_costs_the_rest_of_the_model(units, root):
    kept, dropped = peak(units, root, reshard=False), peak(units, root)
    assert kept >= 2 * sum(units) + 2 * root
    assert kept <= dropped + 2 * sum(units)


@settings(deadline=None, max_examples=60)
@given(UNITS, st.integers(1, 10))
def test_merging_keeps_the_parameters(units, per):
    assert sum(merged(units, per)) == sum(units)
    assert len(merged(units, per)) == -(-len(units) // per)


def test_coarser_wrapping_only_costs_and_more_cards_do_not_help():
    peaks = [peak_gb(per) for per in (1, 2, 4, 8, 16, 32)]
    assert peaks == sorted(peaks)
    assert persistent_gb(8e9, 512) < 0.3 < 5 < peak_gb(1)
    assert 32 * 218_112_000 + LLAMA3_8B_ROOT == 8_030_261_248


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: timeline([]), "units 须非空"),
        (lambda: timeline([0]), "units 须非空"),
        (lambda: timeline([1], -1), "root 非负"),
        (lambda: merged([1], 0), "per 须为正"),
        (lambda: persistent_gb(1, 0), "n 须为正"),
    ],
)
def test_rejects(call, message):
    with pytest.raises(ValueError, match=message):
        call()
