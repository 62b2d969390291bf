"""Charts are well-formed, deterministic, to scale, inside their box, and refuse data that cannot be drawn."""

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snippets.common.chart import PALETTE, bars, grid, lines, log_ticks, nice_ticks, text_width, timeline

SVG = "{http://www.w3.org/2000/svg}"
NASTY = 'a<b>&"c"'

EXAMPLES = {
    "bars": bars(["甲", "乙"], {"权重": [1, 2], "梯度": [3, 4]}, title="堆叠", unit="GB", refs={"80 GB": 80}),
    "grouped": bars(["甲", "乙"], {"权重": [1, 2], "梯度": [3, 4]}, title="并排", stacked=False),
    "vertical": bars(["甲", "乙", "丙"], {"x": [1, 5, 2]}, title="竖", vertical=True),
    "lines": lines({"a": [(1, 1), (10, 100)], "b": [(1, 3), (10, 30)]}, title="线", x_log=10, y_log=10, markers=True),
    "grid": grid([["x", None], ["x", "y"]], title="掩码", legend={"x": "可见", "y": "边"}, rows=["q0", "q1"], columns=["k0", "k1"]),
    "numbers": grid([[0.1, 0.9], [0.5, 0.2]], title="数值"),
    "timeline": timeline({"s0": [(0, 1, "F", "1"), (3, 5, "B", "1")], "s1": [(1, 2, "F"), (2, 3, "B")]}, title="时间线"),
}


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


@pytest.mark.parametrize("svg", EXAMPLES.values(), ids=EXAMPLES)
def test_well_formed_and_accessible(svg):
    root = parse(svg)
    assert root.get("role") == "img"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert root.get("aria-labelledby").split() == [root.find(f"{SVG}title").get("id"), root.find(f"{SVG}desc").get("id")]
    assert root.find(f"{SVG}desc").text.strip()
    assert "<script" not in svg
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", svg)


@pytest.mark.parametrize("svg", EXAMPLES.values(), ids=EXAMPLES)
def test_compact_and_legible_on_phones(svg):
    root = parse(svg)
    width = float(root.get("viewBox").split()[2])
    assert len(svg) < 6_000
    if width <= 480:
        assert 14 * 358 / width >= 10, "text stays at 10 px or more when the figure is shown 358 px wide"
    assert all(len(number.split(".")[1]) <= 2 for number in re.findall(r"\d+\.\d+", svg.split("</desc>")[1]))


def test_deterministic_and_ids_differ_between_figures():
    again = bars(["甲", "乙"], {"权重": [1, 2], "梯度": [3, 4]}, title="堆叠", unit="GB", refs={"80 GB": 80})
    assert again == EXAMPLES["bars"]
    ids = {parse(svg).find(f"{SVG}title").get("id") for svg in EXAMPLES.values()}
    assert len(ids) == len(EXAMPLES)


def test_text_is_escaped():
    for svg in (
        bars([NASTY], {NASTY: [1], "z": [2]}, title=NASTY, unit=NASTY),
        lines({NASTY: [(0, 1), (1, 2)]}, title=NASTY, x_label=NASTY),
        grid([["k"]], title=NASTY, legend={"k": NASTY}),
        timeline({NASTY: [(0, 1, "F", NASTY)]}, title=NASTY),
    ):
        assert parse(svg).find(f"{SVG}title").text == NASTY
        assert NASTY not in svg


def bar_widths(svg: str) -> list[float]:
    """Lengths of the drawn horizontal bars, from the path data of the fills."""
    return [float(width) for width in re.findall(r"h(\d+(?:\.\d+)?)v", svg)]


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 1000), min_size=2, max_size=6))
def test_bars_are_to_scale(values):
    svg = bars([f"b{i}" for i in range(len(values))], {"x": values}, title="t")
    drawn = bar_widths(svg) or [float(r.get("width")) for r in parse(svg).iter(f"{SVG}rect") if r.get("width")]
    longest = sorted(drawn)[-len(values) :]
    ratio = max(longest) / max(values)
    for value, width in zip(sorted(values), sorted(longest), strict=True):
        assert width == pytest.approx(value * ratio, abs=0.6)


@given(st.floats(-100, 100), st.floats(1, 1e6))
def test_ticks_are_evenly_spaced_at_nice_numbers(low, span):
    ticks = nice_ticks(low, low + span)
    assert len(ticks) >= 2
    assert ticks[0] <= low + span
    step = ticks[1] - ticks[0]
    assert all(b - a == pytest.approx(step) for a, b in itertools.pairwise(ticks))
    mantissa = step / 10 ** math.floor(math.log10(step))
    assert any(mantissa == pytest.approx(nice, rel=1e-3) for nice in (1, 2, 2.5, 5, 10))


@given(st.floats(1e-9, 1e3), st.floats(1e3, 1e9))
def test_log_ticks_over_several_decades_are_powers(low, factor):
    ticks = log_ticks(low, low * factor)
    assert all(math.log10(tick) == pytest.approx(round(math.log10(tick)), abs=1e-9) for tick in ticks)


def test_labels_stay_inside_the_box():
    svg = lines({"系列": [(0, 0.001), (1, 123456)]}, title="t", x_label="很长很长很长的横轴说明", y_label="GB")
    root = parse(svg)
    width, height = map(float, root.get("viewBox").split()[2:])
    for text in root.iter(f"{SVG}text"):
        if text.get("x") is None:
            continue
        assert -1 <= float(text.get("x")) <= width + 1
        assert -1 <= float(text.get("y")) <= height + 1


def test_wide_characters_count_double():
    assert text_width("显存") > text_width("ab")
    assert text_width("") == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: bars([], {"x": []}, title="t"),
        lambda: bars(["a"], {"x": [1, 2]}, title="t"),
        lambda: bars(["a"], {"x": [-1]}, title="t"),
        lambda: bars(["a"], {"x": [math.nan]}, title="t"),
        lambda: bars(["a"], {f"s{i}": [1] for i in range(len(PALETTE) + 1)}, title="t"),
        lambda: lines({}, title="t"),
        lambda: lines({"a": []}, title="t"),
        lambda: lines({"a": [(0, math.inf)]}, title="t"),
        lambda: lines({"a": [(0, 1)]}, title="t", x_log=10),
        lambda: grid([], title="t"),
        lambda: grid([["a"], ["a", "a"]], title="t", legend={"a": "a"}),
        lambda: grid([["b"]], title="t", legend={"a": "a"}),
        lambda: timeline({}, title="t"),
        lambda: timeline({"r": [(1, 1, "F")]}, title="t"),
        lambda: timeline({"r": [(0, 2, "F"), (1, 3, "F")]}, title="t"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call):
    with pytest.raises(ValueError, match=r"\S"):
        call()
