"""Charts are well-formed, deterministic, to scale, inside their box, and refuse data that cannot be drawn."""

import itertools
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snippets.common.chart import PALETTE, SCALE, bars, binary, grid, lines, log_ticks, nice_ticks, number, text_width, timeline

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


# Geometry read back from the picture ---------------------------------------

CSS = Path(__file__).parents[3] / "docs/assets/stylesheets/chart.css"
MARKED = [(2.0**k, 2.0**k / 2048) for k in range(10, 18)]
ROOF = {"H100": [(0.1, 0.335), (295, 989), (1e4, 989)], "H20": [(0.1, 0.4), (37, 148), (1e4, 148)]}
GALLERY = EXAMPLES | {
    "long labels": bars(["Llama-3-8B（BF16，b=1，s=8192）", "DeepSeek-V3"], {"": [1.07, 0.57]}, title="长", refs={"下": 0.9, "上": 1}),
    "three groups": bars(["A100", "B200"], {"BF16": [312, 2250], "FP8": [0, 4500], "FP4": [0, 9000]}, title="组", stacked=False, unit="T"),
    "vertical stack": bars(["1", "2"], {"算": [10, 10], "传": [1, 15]}, title="竖", vertical=True, refs={"预算": 20, "SLO": 22}, unit="ms"),
    "roofline": lines(
        ROOF,
        title="屋顶",
        x_log=10,
        y_log=10,
        x_label="FLOP/B",
        y_label="TFLOP/s",
        points={"b=1": (1, 3.35), "s=8192": (4000, 989)},
        x_refs={"H20 拐点 37": 37, "H100 拐点 295": 295},
    ),
    "cache": lines({"MHA": MARKED}, title="KV", x_log=2, y_log=10, markers=True, y_refs={"剩余 40 GB": 40}),
    "ends": lines({f"系列 {k}": [(0, k), (1, k / 9)] for k in range(8)}, title="端", end_labels=True),
    "sharding": grid(
        [["a", "b"], [None, "b"]],
        title="切分",
        legend={"a": "GPU 0", "b": "GPU 1"},
        rows=["W_q", "bias"],
        columns=["0–1023", "1024–2047"],
        texts=[["Q 0–7", "Q 8–15"], ["无", "复制"]],
        row_title="张量",
        column_title="下标",
    ),
    "wide mask": grid(
        [["v" if j <= i else None for j in range(32)] for i in range(32)],
        title="因果",
        legend={"v": "可见"},
        rows=[str(i) for i in range(32)],
        columns=[str(i) for i in range(32)],
    ),
    "pipeline": timeline({"stage 0": [(0, 1, "F", "1"), (3, 5, "B", "1")]}, title="流水", unit="t_f", refs={"理想": 4}, width=720),
}


def texts(svg: str):
    """Every text with its box (left, top, right, bottom), anchors and shifts inherited."""

    def walk(element, anchor, dx, dy):
        anchor = element.get("text-anchor", anchor)
        if shift := re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", "")):
            dx, dy = dx + float(shift[1]), dy + float(shift[2])
        if element.tag == f"{SVG}text":
            width = text_width(element.text)
            left = dx + float(element.get("x")) - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
            y = dy + float(element.get("y"))
            yield element.text, (left, y - 11, left + width, y + 3)
        for child in element:
            yield from walk(child, anchor, dx, dy)

    return list(walk(parse(svg), "start", 0.0, 0.0))


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Filled rectangles (x, y, width, height), colour by colour."""
    paths = "".join(path.get("d") for path in parse(svg).iter(f"{SVG}path") if path.get("class") == "kb-fill")
    return [tuple(map(float, box)) for box in re.findall(r"M(\S+) (\S+?)h(\S+?)v(\S+?)h\S+?z", paths)]


def rules(svg: str) -> tuple[list[float], list[float]]:
    """Positions of the vertical and of the horizontal grid lines, in drawing order."""
    d = next(path.get("d") for path in parse(svg).iter(f"{SVG}path") if path.get("class") == "kb-grid")
    found = re.findall(r"M(\S+) (\S+?)([VvHh])", d)
    return [float(x) for x, _, way in found if way in "Vv"], [float(y) for _, y, way in found if way in "Hh"]


def curves(svg: str) -> list[list[tuple[float, float]]]:
    paths = [path.get("d") for path in parse(svg).iter(f"{SVG}path") if path.get("class") == "kb-line"]
    return [[tuple(map(float, point.split())) for point in d[1:].split("L")] for d in paths]


def overlap(a, b) -> bool:
    return min(a[2], b[2]) - max(a[0], b[0]) > 0.5 and min(a[3], b[3]) - max(a[1], b[1]) > 0.5


@pytest.mark.parametrize("svg", GALLERY.values(), ids=GALLERY)
def test_texts_are_inside_the_picture_and_apart(svg):
    width, height = map(float, parse(svg).get("viewBox").split()[2:])
    found = texts(svg)
    for text, (left, top, right, bottom) in found:
        assert left >= -0.5, text
        assert top >= -0.5, text
        assert right <= width + 0.5, text
        assert bottom <= height + 0.5, text
    for (first, a), (second, b) in itertools.combinations(found, 2):
        assert not overlap(a, b), (first, second)


@pytest.mark.parametrize("svg", GALLERY.values(), ids=GALLERY)
def test_legend_is_above_the_plot_and_drawing_inside_the_picture(svg):
    root = parse(svg)
    width, height = map(float, root.get("viewBox").split()[2:])
    xs, ys = rules(svg)
    plot_top = min([y for _, y, _, _ in boxes(svg)] + [y for curve in curves(svg) for _, y in curve] + ys)
    for legend in (group for group in root.iter(f"{SVG}g") if group.get("class") == "kb-legend"):
        shifts = re.findall(r"translate\(\S+ (\S+)\)", ElementTree.tostring(legend, "unicode"))
        assert max(map(float, shifts)) + 10 <= plot_top
    assert all(0 <= x <= width for x in xs)
    assert all(0 <= y <= height for y in ys)
    assert all(x >= 0 and y >= 0 and x + w <= width + 0.1 and y + h <= height + 0.1 for x, y, w, h in boxes(svg))


@pytest.mark.parametrize("svg", GALLERY.values(), ids=GALLERY)
def test_nothing_but_variables_with_fallbacks_gives_colour(svg):
    for colour in re.findall(r'(?:fill|stroke)="([^"]*)"', svg):
        assert colour == "none" or re.fullmatch(r"var\(--kb-\w+,(#[0-9a-f]{3,8}|none)\)", colour)
    assert "<style" not in svg
    assert "url(" not in svg


values_strategy = st.floats(0, 1e6) | st.just(0.0)


@settings(deadline=None)
@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(values_strategy, min_size=n, max_size=n), min_size=2, max_size=5)))
def test_stacked_bars_are_to_scale_on_the_axis(rows):
    labels = [f"行 {i}" for i in range(len(rows[0]))]
    svg = bars(labels, {f"s{k}": row for k, row in enumerate(rows)}, title="t", unit="GB")
    totals = [math.fsum(column) for column in zip(*rows, strict=True)]
    ticks = nice_ticks(0, max(totals) or 1.0)
    assert ticks[0] == 0
    assert ticks[-1] >= max(totals) * (1 - 1e-9)
    xs, _ = rules(svg)
    assert len(xs) == len(ticks)
    unit = (xs[-1] - xs[0]) / ticks[-1]
    drawn = iter(boxes(svg))
    starts = [0.0] * len(labels)
    for row in rows:
        for i, value in enumerate(row):
            x, _, width, _ = next(drawn)
            assert x == pytest.approx(xs[0] + starts[i] * unit, abs=0.02)
            assert width == pytest.approx(value * unit, abs=0.02)
            starts[i] += value


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 900) | st.just(0.0), min_size=1, max_size=6))
def test_vertical_bars_are_to_scale_on_the_axis(values):
    svg = bars([str(i) for i in range(len(values))], {"x": values}, title="t", vertical=True)
    ticks = nice_ticks(0, max(values) or 1.0)
    _, ys = rules(svg)
    unit = (ys[0] - ys[-1]) / ticks[-1]
    for value, (_, y, _, height) in zip(values, boxes(svg), strict=True):
        assert height == pytest.approx(value * unit, abs=0.02)
        assert y + height == pytest.approx(ys[0], abs=0.02)


point = st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))


@settings(deadline=None)
@given(st.lists(st.lists(point, min_size=2, max_size=12), min_size=1, max_size=4), st.sampled_from([0, 2, 10]), st.sampled_from([0, 2, 10]))
def test_lines_are_to_scale_and_inside_the_axes(series, x_log, y_log):
    svg = lines({f"s{k}": points for k, points in enumerate(series)}, title="t", x_log=x_log, y_log=y_log)
    columns, rows = rules(svg)
    drawn = curves(svg)
    for axis, (base, span) in enumerate([(x_log, columns), (y_log, rows)]):
        warp = math.log if base else float
        data = [warp(p[axis]) for points in series for p in points]
        where = [p[axis] for curve in drawn for p in curve]
        assert len(data) == len(where)
        assert min(span) - 0.1 <= min(where) <= max(where) <= max(span) + 0.1
        low, high = data.index(min(data)), data.index(max(data))
        if data[high] - data[low] > 1e-6:
            slope = (where[high] - where[low]) / (data[high] - data[low])
            for value, place in zip(data, where, strict=True):
                assert place == pytest.approx(where[low] + (value - data[low]) * slope, abs=0.21)


def test_long_curves_are_thinned_within_a_quarter_of_a_unit():
    points = [(t, math.sin(t / 50)) for t in range(2001)]
    svg = lines({"a": points}, title="t")
    (curve,) = curves(svg)
    assert len(curve) < 700
    columns, rows = rules(svg)
    ticks = nice_ticks(min(y for _, y in points), max(y for _, y in points))
    for t, y in points:
        px = columns[0] + t / 2000 * (columns[-1] - columns[0])
        py = rows[0] - (y - ticks[0]) / (ticks[-1] - ticks[0]) * (rows[0] - rows[-1])
        assert min(distance((px, py), a, b) for a, b in itertools.pairwise(curve)) <= 0.25


def distance(p, a, b) -> float:
    length = math.dist(a, b)
    share = min(1, max(0, ((p[0] - a[0]) * (b[0] - a[0]) + (p[1] - a[1]) * (b[1] - a[1])) / length**2)) if length else 0
    return math.dist(p, (a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])))


@given(st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(st.sampled_from(["a", "b", None]), min_size=n, max_size=n), min_size=1)))
def test_grid_cells_are_where_the_matrix_says(cells):
    svg = grid(cells, title="t", legend={"a": "甲", "b": "乙"})
    columns, rows = rules(svg)
    assert (len(rows), len(columns)) == (len(cells) + 1, len(cells[0]) + 1)
    fills = [path for path in parse(svg).iter(f"{SVG}path") if path.get("class") == "kb-fill"]
    seen = {}
    for path in fills:
        key = "a" if "--kb-c1" in path.get("fill") else "b"
        for x, y, width, height in (tuple(map(float, box)) for box in re.findall(r"M(\S+) (\S+?)h(\S+?)v(\S+?)h\S+?z", path.get("d"))):
            for i, j in itertools.product(range(len(cells)), range(len(cells[0]))):
                if x < (columns[j] + columns[j + 1]) / 2 < x + width and y < (rows[i] + rows[i + 1]) / 2 < y + height:
                    assert (i, j) not in seen
                    seen[i, j] = key
    assert seen == {(i, j): key for i, row in enumerate(cells) for j, key in enumerate(row) if key}


def test_numbers_fall_into_five_even_classes():
    svg = grid([[0, 1, 2, 3, 4, 5]], title="t")
    assert re.findall(r'class="kb-fill"[^>]*--kb-s(\d)', svg) == ["1", "2", "3", "4", "5"]
    assert [text for text, _ in texts(svg)] == ["0", "1", "2", "3", "4", "5"]
    assert grid([[7, 7]], title="t").count('class="kb-fill"') == 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_timeline_blocks_are_to_scale(lengths):
    ends = list(itertools.accumulate(lengths))
    blocks = [(end - length, end, "F") for end, length in zip(ends, lengths, strict=True)]
    drawn = boxes(timeline({"s": blocks}, title="t"))
    unit = drawn[0][2] / lengths[0]
    for (start, end, _), (x, _, width, _) in zip(blocks, drawn, strict=True):
        assert width == pytest.approx((end - start) * unit, rel=0.01, abs=0.05)
        assert x == pytest.approx(drawn[0][0] + start * unit, rel=0.01, abs=0.05)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
@example(low=-2.1e-302, span=0.0)  # below what can be told from zero
def test_linear_ticks_cover_the_data(low, span):
    ticks = nice_ticks(low, low + span)
    slack = 1e-6 * span + 1e-300
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert 2 <= len(ticks) <= 8


@given(st.floats(1e-9, 1e9), st.floats(1, 1e9), st.sampled_from([2, 10]))
def test_log_ticks_cover_the_data(low, factor, base):
    ticks = log_ticks(low, low * factor, base)
    assert ticks[0] <= low * 1.00001
    assert ticks[-1] >= low * factor * 0.99999
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))


def test_tick_texts_are_exact_while_values_are_rounded():
    svg = lines({"a": [(0, 1000.2), (1, 1001)]}, title="t")
    assert {"1000.2", "1000.4"} <= {text for text, _ in texts(svg)}
    assert number(1002.5) == "1002"
    assert number(999_999.9) == "10⁶"
    assert number(-0.00025) == "-2.5×10⁻⁴"
    assert binary(0.5) == "0.5"


def test_desc_tells_the_values():
    desc = parse(bars(["甲"], {"参数": [1.5], "梯度": [2]}, title="t", unit="GB")).find(f"{SVG}desc").text
    assert desc == "条形图，单位 GB。甲：参数 1.5、梯度 2，合计 3.5。"
    assert parse(grid([["x"]], title="t", legend={"x": "x"}, desc="自己写")).find(f"{SVG}desc").text == "自己写"


def test_every_series_has_its_own_dash():
    svg = lines({f"s{k}": [(0, k), (1, k)] for k in range(8)}, title="t")
    dashes = [path.get("stroke-dasharray") for path in parse(svg).iter(f"{SVG}path") if path.get("class") == "kb-line"]
    assert len(set(dashes)) == 8


def test_wide_figures_scroll_and_can_be_focused():
    wide, narrow = parse(GALLERY["pipeline"]), parse(EXAMPLES["timeline"])
    assert wide.get("tabindex") == "0"
    assert 14 * float(re.search(r"min-width:(\d+)px", wide.get("style"))[1]) / 720 >= 10
    assert narrow.get("tabindex") is None
    assert "max-width:100%" in narrow.get("style")


# Colours -------------------------------------------------------------------


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def schemes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r'data-md-color-scheme="(\w+)"\] \{(.*?)\}', CSS.read_text(encoding="utf-8"), re.S)
    return {name: dict(re.findall(r"--kb-(\w+): (#\w+);", block)) for name, block in blocks}


@pytest.mark.parametrize(("scheme", "page"), [("default", "#ffffff"), ("slate", "#1f242e")])
def test_style_sheet_colours_are_legible(scheme, page):
    colours = schemes()[scheme]
    assert contrast(colours["fg"], page) >= 7
    for k in range(1, len(PALETTE) + 1):
        assert contrast(colours[f"c{k}"], colours[f"t{k}"]) >= 4.5
        assert contrast(colours[f"c{k}"], page) >= 3
    steps = [luminance(colours[f"s{k}"]) for k in range(1, len(SCALE) + 1)]
    assert steps == sorted(steps, reverse=scheme == "default")
    assert all(contrast(colours[f"s{k}"], colours[f"u{k}"]) >= 4.5 for k in range(1, len(SCALE) + 1))


def test_fallback_colours_are_legible_on_white_and_on_dark():
    for fill, ink in PALETTE:
        assert contrast(fill, ink) >= 4.5
        assert contrast(fill, "#fff") >= 3
        assert contrast(fill, "#1f242e") >= 3
    assert all(contrast(fill, ink) >= 4.5 for fill, ink in SCALE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bars(["甲"], {"x": [-1]}, title="t"), "'x' 的 '甲' 须为非负数，得到 -1.0"),
        (lambda: bars(["甲"], {"x": [1, 2]}, title="t"), "系列 'x' 有 2 个数值，labels 有 1 个"),
        (lambda: bars(["甲"], {"x": [1]}, title="t", refs={"r": math.nan}), "参考线 'r' 须为有限数，得到 nan"),
        (lambda: bars(["很长很长很长的标签"] * 6, {"x": [1] * 6}, title="t", vertical=True), "改用横向"),
        (lambda: bars(["a"], {"长" * 40: [1], "b": [1]}, title="t"), "图例文字太长"),
        (lambda: lines({"a": [(1, 0)]}, title="t", y_log=10), "对数轴上 'a' 的 y 须为正数，得到 0.0"),
        (lambda: lines({"a": [(1, 1)]}, title="t", y_log=10, y_refs={"r": -1}), "'r' 的 y 须为正数"),
        (lambda: lines({"a": [(1, 1)]}, title="t", x_log=7), "x_log 须为 0、2 或 10，得到 7"),
        (lambda: lines({"a": [(1, 1), (9, 1)]}, title="t", x_ticks=[0, 5]), "刻度须递增并覆盖数据"),
        (lambda: lines({"长" * 30: [(1, 1), (9, 1)]}, title="t", end_labels=True), "end_labels=False"),
        (lambda: grid([[1, math.inf]], title="t"), "须为有限数，得到 inf"),
        (lambda: grid([["a"]], title="t", legend={"a": "a"}, rows=["1", "2"]), "rows 有 2 个，cells 有 1 个"),
        (lambda: grid([["a"] * 9], title="t", legend={"a": "a"}, columns=["很长的列名"] * 9), "列名"),
        (lambda: timeline({"r": [(0, 2, "F"), (1, 3, "F")]}, title="t"), "'r' 的块重叠"),
        (lambda: timeline({"r": [(0, 1, "F")]}, title="t", legend={"B": "反向"}), "'F' 不在 legend 里"),
        (lambda: timeline({"r": [(-1, 1, "F")]}, title="t"), "0 <= 开始 < 结束"),
    ],
)
def test_refusals_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
