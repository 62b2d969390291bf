"""The closed forms against a simulation that executes the schedules operation by operation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snippets.tools.pipeline import pipeline


def orders(stages: int, micro: int, schedule: str) -> list[list[tuple[str, int]]]:
    result = []
    for stage in range(stages):
        warm = micro if schedule == "gpipe" else min(micro, stages - 1 - stage)
        order = [("F", i) for i in range(warm)]
        for i in range(micro - warm):
            order += [("F", warm + i), ("B", i)]
        result.append(order + [("B", i) for i in range(micro - warm, micro)])
    return result


def simulate(stages: int, micro: int, schedule: str, forward: float, backward: float) -> tuple[float, int]:
    """(total time, most activations held by the first stage): an operation starts when its input and its stage are ready."""
    queues, done, free = orders(stages, micro, schedule), {}, [0.0] * stages
    position = [0] * stages
    while any(position[s] < len(queues[s]) for s in range(stages)):
        for s in range(stages):
            while position[s] < len(queues[s]):
                kind, i = queues[s][position[s]]
                needs = [("F", s - 1, i)] if kind == "F" else [("F", s, i), ("B", s + 1, i)]
                needs = [need for need in needs if 0 <= need[1] < stages]
                if any(need not in done for need in needs):
                    break
                start = max([free[s], *(done[need] for need in needs)])
                free[s] = done[kind, s, i] = start + (forward if kind == "F" else backward)
                position[s] += 1
    held = most = 0
    for kind, _ in queues[0]:
        held += 1 if kind == "F" else -1
        most = max(most, held)
    return max(free), most


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@given(
    stages=st.integers(1, 8),
    micro=st.integers(1, 20),
    forward=st.sampled_from([1, 2]),
    b=st.sampled_from([1, 2]),
    w=st.sampled_from([1, 2]),
)
def test_total_time_and_peak(schedule, stages, micro, forward, b, w):
    result = pipeline(stages=stages, micro=micro, t_f=forward, t_b=b, t_w=w, t_fb=forward + b + w)
    total, peak = simulate(stages, micro, schedule, forward, b + w)
    assert micro * (forward + b + w) + result[f"{schedule}_bubble"] == pytest.approx(total)
    assert result[f"{schedule}_peak"] == peak


def test_denominators():
    """Narayanan et al. 2021, section 2.2: (p−1)/m of the ideal time; of the total it is (p−1)/(m+p−1)."""
    result = pipeline(stages=8, micro=32, chunks=4)
    assert result["1f1b_ideal"] == pytest.approx(100 * 7 / 32)
    assert result["1f1b_total"] == pytest.approx(100 * 7 / 39)
    assert result["interleaved_ideal"] == pytest.approx(100 * 7 / (4 * 32))


def test_zero_bubble_and_dualpipe_tables():
    """With equal F, B, W: ZB-H1 a third of 1F1B (Qi et al.); DualPipe (PP/2−1)(F&B+B−3W) with B the whole backward."""
    result = pipeline(stages=8, micro=32)
    assert result["zb_h1_bubble"] * 3 == result["1f1b_bubble"]
    assert result["dualpipe_bubble"] == (8 / 2 - 1) * (3 + 2 - 3)
    assert (result["dualpipe_peak"], result["dualpipe_params"]) == (9, 2)


def test_interleaving_holds_more():
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p−1)/(p·v) times 1F1B's."""
    result = pipeline(stages=8, micro=64, chunks=3)
    assert result["interleaved_peak"] / result["1f1b_peak"] == pytest.approx(1 + 7 / 24)


def test_schedules_whose_premises_fail_are_left_out():
    assert not any(key.startswith("interleaved") for key in pipeline(chunks=1))
    assert not any(key.startswith("interleaved") for key in pipeline(stages=8, micro=12))
    assert not any(key.startswith("dualpipe") for key in pipeline(stages=7, micro=28))
    assert not any(key.startswith(("dualpipe", "zb_h1")) for key in pipeline(stages=8, micro=4))


def test_one_stage_has_no_bubble():
    result = pipeline(stages=1, micro=4)
    assert (result["1f1b_bubble"], result["1f1b_ideal"], result["zb_h1_total"]) == (0, 0, 0)


@given(st.integers(1, 64), st.integers(1, 256), st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0, 1))
def test_no_bubble_is_negative(stages, micro, f, b, share):
    w = 0.001 + share * (f + b - 0.001)
    result = pipeline(stages=stages, micro=micro, t_f=f, t_b=b, t_w=w, t_fb=f + b + w)
    assert all(value >= -1e-9 for value in result.values())


@pytest.mark.parametrize(("changes", "field"), [({"t_w": 3}, "t_w"), ({"t_fb": 0.5}, "t_fb"), ({"stages": 0}, "stages")])
def test_bad_input_names_its_field(changes, field):
    with pytest.raises(ValueError, match=rf"^{field}: "):
        pipeline(**changes)
