"""把数据画成可内嵌网页的 SVG：条形图、折线图、矩阵图、时间线。

四个公开函数 bars、lines、grid、timeline 都返回一个完整的 `<svg>` 字符串。约定：

- 画布宽 480 个单位，字号 14：缩到手机的 358 px 宽时字仍有 10 px。
- 颜色走 CSS 变量（`--kb-c1` … `--kb-c8` 及其上的文字 `--kb-t1` …），不加载样式表时用备用色，在白底与黑底上都看得清。
- 颜色不是唯一线索：折线另有虚线样式与标记形状，条形与色块直接写数值或标签。
- 输出只由输入决定；坐标保留两位小数以内；坏输入抛 ValueError。
"""

import hashlib
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby, pairwise

FONT = 14  # 字号
LINE = 20  # 一行文字占的高度
GAP = 6  # 文字与图形之间的空隙
WIDTH = 480

# 备用色：对白底与深色底的对比度都不低于 3；第二项是写在它上面的文字色，对比度不低于 4.5
PALETTE = (
    ("#2b7fc4", "#000"),
    ("#d9761a", "#000"),
    ("#ae4d95", "#fff"),
    ("#4d9c86", "#000"),
    ("#8a85e6", "#000"),
    ("#c45030", "#fff"),
    ("#879a5a", "#000"),
    ("#4b7f5b", "#fff"),
)
# 数值矩阵的五级色阶，从小到大
SCALE = (("#dbe9f6", "#000"), ("#a9cbe8", "#000"), ("#6aa5d8", "#000"), ("#2f74b5", "#fff"), ("#123f73", "#fff"))
DASHES = ("", "8 4", "2 3", "10 3 2 3", "5 2", "14 4", "2 6", "10 3 2 3 2 3")
FG, GRID, BACKGROUND = "var(--kb-fg,#757575)", "var(--kb-grid,#8885)", "var(--kb-bg,none)"
MIDDLE = 'text-anchor="middle"'
REF = f'class="kb-ref" fill="none" stroke="{FG}" stroke-width="2" stroke-dasharray="4 3"'
HALO = f'stroke="{BACKGROUND}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'

Format = Callable[[float], str]
Box = tuple[float, float, float, float]  # 左、上、右、下


def text_width(text: str, size: float = FONT) -> float:
    """估计文字宽度：全角 1 em，大写与宽字母 0.7 em，其余 0.58 em；宁宽勿窄。

    >>> text_width("显存 GB", 10)
    37.8
    """
    em = 0.0
    for char in text:
        if unicodedata.combining(char):
            continue
        if unicodedata.east_asian_width(char) in "WFA":
            em += 1
        elif char in "mwMW@%":
            em += 0.9
        else:
            em += 0.7 if char.isupper() else 0.58 if char != " " else 0.38
    return round(em * size, 2)


def number(value: float, digits: int = 4) -> str:
    """标签用的数字：digits 位有效数字，整数部分不舍入，太大太小写成 a×10ⁿ。

    >>> [number(v) for v in (0, 0.25, 31.4159, 131072, 1e6, 2.5e-7)]
    ['0', '0.25', '31.42', '131072', '10⁶', '2.5×10⁻⁷']
    """
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 999_999.5:
        return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return {"1": power, "-1": "-" + power}.get(mantissa, f"{mantissa}×{power}")


def _tick_format(fmt: Format) -> Format:
    """刻度的位置是精确的，文字也不能舍入。"""
    return (lambda value: number(value, 10)) if fmt is number else fmt


def binary(value: float) -> str:
    """以 1024 为底的数字，写序列长度用：整 K、整 M 写成 4K、1M（K = 1024）。

    >>> [binary(v) for v in (512, 4096, 131072, 2**20, 3000)]
    ['512', '4K', '128K', '1M', '3000']
    """
    for unit, size in (("M", 2**20), ("K", 2**10)):
        if value >= size and value % size == 0:
            return f"{value // size:.0f}{unit}"
    return number(value)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """覆盖 [low, high] 的整齐刻度，步长取 1、2、2.5、5 乘 10 的幂，约 count 段。

    >>> nice_ticks(0, 87)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    tiny = 1e-300  # 再小就到了非规格化数
    if high - low <= max(tiny, 1e-9 * max(abs(low), abs(high))):  # 几乎是一个数：从 0 画起
        low, high = min(0.0, low), max(0.0, high)
        high = high if high - low > tiny else low + 1
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def log_ticks(low: float, high: float, base: int = 10, most: int = 7) -> list[float]:
    """覆盖 [low, high] 的对数刻度：base 的整数次幂，太密则隔几个取一个；底为 10 且不足两个数量级时加 2、5。

    >>> log_ticks(3, 4000), log_ticks(512, 5000, base=2)
    ([1.0, 10.0, 100.0, 1000.0, 10000.0], [512.0, 1024.0, 2048.0, 4096.0, 8192.0])
    """
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    last = max(last, first + 1)
    if base == 10 and last - first <= 2:
        ticks = [m * 10.0**k for k in range(first, last) for m in (1, 2, 5)] + [10.0**last]
        start = max(i for i, tick in enumerate(ticks) if tick <= low * 1.000001)
        stop = max(1, min(i for i, tick in enumerate(ticks) if tick >= high * 0.999999))
        return [float(f"{tick:.12g}") for tick in ticks[min(start, stop - 1) : stop + 1]]
    step = math.ceil((last - first) / most)
    last = first + math.ceil((last - first) / step) * step
    return [float(base) ** k for k in range(first, last + 1, step)]


# 画图的零件 ---------------------------------------------------------------


def _n(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _color(index: int) -> str:
    return f"var(--kb-c{index + 1},{PALETTE[index][0]})"


def _on_color(index: int) -> str:
    return f"var(--kb-t{index + 1},{PALETTE[index][1]})"


def _on_fill(index: int) -> str:
    """色块里文字的属性；描一圈色块的颜色，参考线穿过时仍读得清。"""
    return f'fill="{_on_color(index)}" stroke="{_color(index)}" stroke-width="3" paint-order="stroke" {MIDDLE}'


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    """文字，y 是它的竖直中心；不写 dominant-baseline，各家渲染器对它的支持不一。"""
    where = {"start": "", "middle": ' text-anchor="middle"', "end": ' text-anchor="end"'}[anchor]
    return f'<text x="{_n(x)}" y="{_n(y + FONT * 0.35)}"{where}{extra and " " + extra}>{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float) -> str:
    """路径里的一个矩形；同色的矩形合成一条路径，文件小一半。"""
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h{_n(-width)}z"


def _boxes(parts: Sequence[str], color: str) -> str:
    return f'<path class="kb-fill" d="{"".join(parts)}" fill="{color}" stroke="{BACKGROUND}"/>' if parts else ""


def _path(d: str) -> str:
    return f'<path d="{d}"/>'


def _group(parts: Sequence[str], attributes: str) -> str:
    return f"<g {attributes}>{''.join(parts)}</g>" if parts else ""


def _rules(parts: Sequence[str]) -> str:
    """网格线，合成一条路径。"""
    return f'<path class="kb-grid" d="{"".join(parts)}" fill="none" stroke="{GRID}"/>'


def _need(value: Sequence | Mapping, what: str) -> None:
    if len(value) == 0:
        raise ValueError(f"{what}不能为空")


def _finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{what}须为有限数，得到 {value!r}")
    return float(value)


def _few(count: int, what: str) -> None:
    if count > len(PALETTE):
        raise ValueError(f"{what}最多 {len(PALETTE)} 种，得到 {count} 种")


def _svg(width: float, height: float, title: str, desc: str, body: Sequence[str]) -> str:
    """套上 <svg>：id 由内容的散列得出，同一页放几张图也不冲突。"""
    content = "\n".join(part for part in body if part)
    key = "k" + hashlib.sha256(f"{title}\n{desc}\n{content}".encode()).hexdigest()[:8]
    # 比手机宽的图不再缩小，在自己的框里横向滚动；可用键盘滚动，所以要能得到焦点
    wide = width > WIDTH
    fit = (
        f'style="min-width:{round(width * 0.75)}px;max-width:{round(width * 7 / 6)}px;height:auto" tabindex="0"'
        if wide
        else 'style="max-width:100%;height:auto"'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" width="{round(width * 7 / 6)}"'
        f' {fit} role="img"'
        f' aria-labelledby="{key}t {key}d" font-family="system-ui,sans-serif" font-size="{FONT}" fill="{FG}">'
        f'<title id="{key}t">{escape(title)}</title><desc id="{key}d">{escape(desc)}</desc>\n{content}\n</svg>\n'
    )


def _legend(entries: Sequence[tuple[str, str]], width: float, top: float, sample_width: float = 20) -> tuple[str, float]:
    """图例排成若干行；entries 是（样例，文字），样例左端在原点、竖直居中。返回 SVG 与下缘。"""
    parts, x, y = [], 0.0, top
    for sample, label in entries:
        need = sample_width + GAP + text_width(label)
        if need > width:
            raise ValueError(f"图例文字太长，放不进 {width:g} 宽的图：{label!r}")
        if x and x + need > width:
            x, y = 0.0, y + LINE
        parts.append(f'<g transform="translate({_n(x)} {_n(y + LINE / 2)})">{sample}{_text(sample_width + GAP, 0, label)}</g>')
        x += need + 18
    return (_group(parts, 'class="kb-legend"'), y + LINE + GAP) if parts else ("", top)


def _swatches(fills: Sequence[str], names: Sequence[str], width: float) -> tuple[str, float]:
    """色块图例。"""
    return _legend([(f'<path d="M0-8h20v16h-20z" fill="{fill}"/>', name) for fill, name in zip(fills, names, strict=True)], width, 0)


def _spread(centers: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """把一排标签沿一条线推开到互不重叠、都在 [low, high] 内；放不下时抛 ValueError。"""
    if math.fsum(sizes) > high - low + 0.01:
        raise ValueError("参考线或线端的标签太多，排不开")
    order = sorted(range(len(centers)), key=lambda i: centers[i])
    placed = [0.0] * len(centers)
    edge = low
    for i in order:
        placed[i] = max(centers[i], edge + sizes[i] / 2)
        edge = placed[i] + sizes[i] / 2
    edge = high
    for i in reversed(order):
        placed[i] = min(placed[i], edge - sizes[i] / 2)
        edge = placed[i] - sizes[i] / 2
    return placed


def _ref_row(
    refs: Mapping[str, float], at: Callable[[float], float], top: float, bottom: float, width: float, gaps: Sequence[float] = ()
) -> list[str]:
    """竖直的参考线，标签在绘图区上方排成一行，挤开时用折线连回去；gaps 是线要让开的各行文字的上缘。"""
    down = "".join(f"V{_n(y)}m0 {LINE}" for y in gaps) + f"V{_n(bottom)}"
    xs = [at(value) for value in refs.values()]
    places = _spread(xs, [text_width(label) + GAP for label in refs], 0, width)
    lines = [_path(f"M{_n(p)} {_n(top - 8)}L{_n(x)} {_n(top)}{down}") for x, p in zip(xs, places, strict=True)]
    labels = [_text(p, top - 8 - LINE / 2, label, "middle") for p, label in zip(places, refs, strict=True)]
    return [_group(lines, REF), *labels]


# 条形图 -------------------------------------------------------------------


def bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    unit: str = "",
    stacked: bool = True,
    vertical: bool = False,
    refs: Mapping[str, float] | None = None,
    fmt: Format = number,
    desc: str = "",
    width: float = WIDTH,
) -> str:
    """条形图：每个标签一条（或一组），series 的每一项是图例名到各标签的非负数值。

    stacked=True 堆叠并在末端写合计；False 并排。只有一个系列时不画图例。refs 是参考线：文字 → 数值。
    段里写不下的数值不写（合计仍写）；desc 缺省时由数据生成，供读屏软件用。
    labels 与每个系列等长，否则抛 ValueError；负数、NaN、inf、空数据亦然。

    >>> svg = bars(["ZeRO-0", "ZeRO-3"], {"参数": [14, 1.75], "梯度": [14, 1.75]},
    ...            title="每卡显存", unit="GB", refs={"A100 80 GB": 80})
    >>> svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 ')
    True
    >>> bars(["a"], {"x": [-1]}, title="坏数据")
    Traceback (most recent call last):
    ...
    ValueError: 系列 'x' 的 'a' 须为非负数，得到 -1.0
    """
    refs = refs or {}
    _need(labels, "labels ")
    _need(series, "series ")
    _few(len(series), "系列")
    rows: list[list[float]] = []
    for name, values in series.items():
        if len(values) != len(labels):
            raise ValueError(f"系列 {name!r} 有 {len(values)} 个数值，labels 有 {len(labels)} 个")
        rows.append([_finite(value, f"系列 {name!r} 的 {label!r} ") for label, value in zip(labels, values, strict=True)])
        for label, value in zip(labels, rows[-1], strict=True):
            if value < 0:
                raise ValueError(f"系列 {name!r} 的 {label!r} 须为非负数，得到 {value!r}")
    for label, value in refs.items():
        if _finite(value, f"参考线 {label!r} ") < 0:
            raise ValueError(f"参考线 {label!r} 须为非负数，得到 {value!r}")
    stacked = stacked and len(series) > 1
    totals = [math.fsum(column) for column in zip(*rows, strict=True)]
    ends = totals if stacked else [max(column) for column in zip(*rows, strict=True)]
    ticks = nice_ticks(0, max([*ends, *refs.values()]) or 1.0)
    names = list(series)
    if not desc:
        unit_text = f"，单位 {unit}" if unit else ""
        parts = [
            f"{label}："
            + "、".join(f"{name} {fmt(row[i])}".strip() for name, row in zip(names, rows, strict=True))
            + (f"，合计 {fmt(totals[i])}" if stacked else "")
            for i, label in enumerate(labels)
        ]
        desc = f"条形图{unit_text}。" + "；".join(parts + [f"参考线 {label}" for label in refs]) + "。"
    shown = names if len(names) > 1 else []
    legend, top = _swatches([_color(k) for k in range(len(shown))], shown, width)
    draw = _vertical_bars if vertical else _horizontal_bars
    tick_texts = [_tick_format(fmt)(tick) for tick in ticks]
    body, height = draw(labels, rows, totals if stacked else None, ticks, tick_texts, unit, refs, fmt, top, width)
    return _svg(width, height, title, desc, [legend, *body])


def _bar_parts(
    rows: Sequence[Sequence[float]], totals: Sequence[float] | None, fmt: Format, thickness: float
) -> list[tuple[int, int, float, float, float, str, str]]:
    """每个矩形：（标签序号，系列序号，起点，终点，组内偏移，段内文字，末端文字），起终点是数值。"""
    parts = []
    for i in range(len(rows[0])):
        start = 0.0
        for k, row in enumerate(rows):
            if totals is None:
                parts.append((i, k, 0.0, row[i], k * thickness, "", fmt(row[i])))
            else:
                last = fmt(totals[i]) if k == len(rows) - 1 else ""
                parts.append((i, k, start, start + row[i], 0.0, fmt(row[i]), last))
                start += row[i]
    return parts


def _horizontal_bars(
    labels: Sequence[str],
    rows: Sequence[Sequence[float]],
    totals: Sequence[float] | None,
    ticks: Sequence[float],
    tick_texts: Sequence[str],
    unit: str,
    refs: Mapping[str, float],
    fmt: Format,
    top: float,
    width: float,
) -> tuple[list[str], float]:
    """横向：标签短则放左边，长则放在条的上方。"""
    label_width = max(map(text_width, labels))
    above = label_width > width * 0.3
    left = max(2.0, text_width(tick_texts[0]) / 2) if above else label_width + GAP + 2
    if above and label_width > width:
        raise ValueError(f"标签太长，放不进 {width:g} 宽的图：{max(labels, key=text_width)!r}")
    thickness = 22.0 if totals is not None or len(rows) == 1 else 18.0
    depth = thickness if totals is not None else thickness * len(rows)
    head = LINE if above else 0
    pitch = head + depth + 10
    parts = _bar_parts(rows, totals, fmt, thickness)
    high = ticks[-1]
    plot = width - left - max(2, text_width(tick_texts[-1]) / 2)
    for part in parts:
        if part[6] and part[3] > 0:
            plot = min(plot, (width - left - GAP - text_width(part[6]) - 1) * high / part[3])
    top += LINE + 8 if refs else 0
    bottom = top + pitch * len(labels) + 4

    def at(value: float) -> float:
        return left + value / high * plot

    body = [_rules([f"M{_n(at(tick))} {_n(top)}V{_n(bottom)}" for tick in ticks])]
    fills: list[list[str]] = [[] for _ in rows]
    inside: list[list[str]] = [[] for _ in rows]
    ends = []
    for i, k, start, end, offset, label, last in parts:
        y = top + 7 + i * pitch + head + offset
        middle = y + thickness / 2
        fills[k].append(_box(at(start), y, at(end) - at(start), thickness - (0 if totals is not None else 2)))
        if label and end > start and text_width(label) + 4 <= at(end) - at(start):
            inside[k].append(_text((at(start) + at(end)) / 2, middle, label))
        if last:
            ends.append(_text(at(end) + GAP, middle, last))
    body += [_boxes(fill, _color(k)) for k, fill in enumerate(fills)]
    gaps = [top + 5 + i * pitch for i in range(len(labels))] if above else []
    body += _ref_row(refs, at, top, bottom, width, gaps) if refs else []
    body += [_group(text, _on_fill(k)) for k, text in enumerate(inside)]
    body.append(_group(ends, HALO))
    for i, label in enumerate(labels):
        y = top + 7 + i * pitch
        body.append(_text(0, y + LINE / 2 - 2, label, extra=HALO) if above else _text(left - GAP, y + depth / 2, label, "end"))
    body += _tick_row([at(tick) for tick in ticks], tick_texts, bottom + LINE / 2 + 2)
    height = bottom + LINE + 4
    if unit:
        body.append(_text(width, height + LINE / 2 - 2, unit, "end"))
        height += LINE
    return body, height


def _thin(places: Sequence[float], texts: Sequence[str], gap: float = GAP) -> range:
    """一排文字太挤时隔几个写一个：写哪几个。"""
    sizes = [text_width(text) for text in texts]
    for step in range(1, len(texts)):
        keep = range(0, len(texts), step)
        if all(places[b] - places[a] >= (sizes[a] + sizes[b]) / 2 + gap for a, b in pairwise(keep)):
            return keep
    return range(1)


def _tick_row(places: Sequence[float], texts: Sequence[str], y: float) -> list[str]:
    return [_text(places[i], y, texts[i], "middle") for i in _thin(places, texts)]


def _vertical_bars(
    labels: Sequence[str],
    rows: Sequence[Sequence[float]],
    totals: Sequence[float] | None,
    ticks: Sequence[float],
    tick_texts: Sequence[str],
    unit: str,
    refs: Mapping[str, float],
    fmt: Format,
    top: float,
    width: float,
) -> tuple[list[str], float]:
    """竖向：参考线的文字在绘图区右侧。"""
    left = max(map(text_width, tick_texts)) + GAP + 2
    right = width - (max(map(text_width, refs)) + GAP + 2 if refs else 2)
    pitch = (right - left) / len(labels)
    long = max(labels, key=text_width)
    if text_width(long) > pitch - 4:
        raise ValueError(f"标签 {long!r} 在竖向图里放不下，改用横向（vertical=False）或缩短它")
    count = 1 if totals is not None else len(rows)
    thickness = min(64.0, pitch * 0.72 / count)
    parts = _bar_parts(rows, totals, fmt, thickness)
    if any(part[6] and text_width(part[6]) > pitch / count + 2 for part in parts):
        raise ValueError("竖向图太密，数值写不下，改用横向（vertical=False）")
    top += (LINE if unit else 0) + LINE
    bottom = top + 220
    high = ticks[-1]

    def at(value: float) -> float:
        return bottom - value / high * (bottom - top)

    body = [_rules([f"M{_n(left)} {_n(at(tick))}H{_n(right)}" for tick in ticks])]
    fills: list[list[str]] = [[] for _ in rows]
    inside: list[list[str]] = [[] for _ in rows]
    ends = []
    for i, k, start, end, offset, label, last in parts:
        x = left + (i + 0.5) * pitch - thickness * count / 2 + offset
        fills[k].append(_box(x, at(end), thickness, at(start) - at(end)))
        if label and at(start) - at(end) >= FONT + 2 and text_width(label) + 2 <= thickness:
            inside[k].append(_text(x + thickness / 2, (at(start) + at(end)) / 2, label))
        if last:
            ends.append(_text(x + thickness / 2, at(end) - LINE / 2, last, "middle"))
    body += [_boxes(fill, _color(k)) for k, fill in enumerate(fills)]
    if refs:
        ys = [at(value) for value in refs.values()]
        places = _spread(ys, [LINE] * len(ys), top - LINE / 2, bottom + LINE / 2)
        lines = [_path(f"M{_n(left)} {_n(y)}H{_n(right - 4)}L{_n(right + 3)} {_n(p)}") for y, p in zip(ys, places, strict=True)]
        body.append(_group(lines, REF))
        body += [_text(right + GAP, p, label) for p, label in zip(places, refs, strict=True)]
    body += [_group(text, _on_fill(k)) for k, text in enumerate(inside)]
    body.append(_group(ends, HALO))
    body += [_text(left - GAP, at(tick), text, "end") for tick, text in zip(ticks, tick_texts, strict=True)]
    body += [_text(left + (i + 0.5) * pitch, bottom + LINE / 2 + 4, label, "middle") for i, label in enumerate(labels)]
    if unit:
        body.append(_text(0, top - LINE * 1.5, unit))
    return body, bottom + LINE + 8


# 折线图 -------------------------------------------------------------------


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_label: str = "",
    y_label: str = "",
    x_log: int = 0,
    y_log: int = 0,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
    x_fmt: Format | None = None,
    y_fmt: Format | None = None,
    markers: bool = False,
    points: Mapping[str, tuple[float, float]] | None = None,
    x_refs: Mapping[str, float] | None = None,
    y_refs: Mapping[str, float] | None = None,
    end_labels: bool = False,
    desc: str = "",
    width: float = WIDTH,
    height: float = 260,
) -> str:
    """折线图：每个系列是若干 (x, y)，按给出的顺序连线，虚线样式随系列变。

    x_log、y_log：0 为线性轴，2 或 10 为该底的对数轴（底为 2 时刻度写成 4K、128K，K = 1024）。
    x_range、y_range：坐标轴至少覆盖的范围；数据总被覆盖。x_ticks：指定刻度（须覆盖数据）。
    points：单独标出的点，文字写在点旁；x_refs、y_refs：竖、横参考线，文字 → 数值。
    end_labels=True 把系列名写在线的右端，不画图例。markers=True 画出每个数据点。
    空系列、NaN、inf、对数轴上的非正数抛 ValueError。

    >>> svg = lines({"cosine": [(0, 3e-4), (100, 3e-5)]}, title="学习率", x_label="步", y_label="lr", y_log=10)
    >>> 'role="img"' in svg
    True
    >>> lines({"a": [(0, 1)]}, title="坏数据", x_log=10)
    Traceback (most recent call last):
    ...
    ValueError: 对数轴上 'a' 的 x 须为正数，得到 0.0
    """
    points, x_refs, y_refs = points or {}, x_refs or {}, y_refs or {}
    _need(series, "series ")
    _few(len(series), "系列")
    for name, base in (("x_log", x_log), ("y_log", y_log)):
        if base not in (0, 2, 10):
            raise ValueError(f"{name} 须为 0、2 或 10，得到 {base!r}")
    for name, values in series.items():
        _need(values, f"系列 {name!r} ")
    where = [(name, point) for name, values in series.items() for point in values] + list(points.items())
    xs = [(name, point[0]) for name, point in where] + list(x_refs.items()) + [("x_range", value) for value in x_range or ()]
    ys = [(name, point[1]) for name, point in where] + list(y_refs.items()) + [("y_range", value) for value in y_range or ()]
    x_axis = _axis(xs, "x", x_log, x_ticks, x_fmt)
    y_axis = _axis(ys, "y", y_log, None, y_fmt)
    x_text, y_text = _tick_format(x_axis[2]), _tick_format(y_axis[2])
    names = list(series)
    shapes = [k if markers else None for k in range(len(names))]
    if not desc:
        spans = "；".join(
            f"{name}：从 ({x_axis[2](values[0][0])}, {y_axis[2](values[0][1])}) 到 ({x_axis[2](values[-1][0])}, {y_axis[2](values[-1][1])})"
            for name, values in series.items()
        )
        marks = "".join(f"；{name} ({x_axis[2](x)}, {y_axis[2](y)})" for name, (x, y) in points.items())
        marks += "".join(f"；参考线 {label}" for label in [*x_refs, *y_refs])
        axes = f"横轴 {x_label or 'x'}{'（对数）' if x_log else ''}，纵轴 {y_label or 'y'}{'（对数）' if y_log else ''}"
        desc = f"折线图，{axes}。{spans}{marks}。"
    samples = [(_line_sample(k, shapes[k]), name) for k, name in enumerate(names)]
    legend, top = _legend(samples if len(names) > 1 and not end_labels else [], width, 0, 28)
    if y_label:
        top += LINE
    top += LINE + 8 if x_refs else LINE / 2
    bottom = top + height
    left = max(text_width(y_text(tick)) for tick in y_axis[0]) + GAP + 2
    last = text_width(x_text(x_axis[0][-1])) / 2
    right = width - max(last, max(map(text_width, names)) + GAP + 14 if end_labels else 0, 4)
    if right - left < 160:
        raise ValueError("线端的系列名太长，绘图区放不下；改用图例（end_labels=False）")

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x_axis[1](x) * (right - left), bottom - y_axis[1](y) * (bottom - top)

    rules = [f"M{_n(left)} {_n(at(x_axis[0][0], tick)[1])}H{_n(right)}" for tick in y_axis[0]]
    rules += [f"M{_n(at(tick, y_axis[0][0])[0])} {_n(top)}V{_n(bottom)}" for tick in x_axis[0]]
    body = [legend, _rules(rules)]
    if x_refs:
        body += _ref_row(x_refs, lambda value: at(value, y_axis[0][0])[0], top, bottom, width)
    level = {label: at(x_axis[0][0], value)[1] for label, value in y_refs.items()}
    body.append(
        _group(
            [_path(f"M{_n(left)} {_n(y)}H{_n(right)}") for y in level.values()],
            REF,
        )
    )
    drawn = [[at(*point) for point in values] for values in series.values()]
    for k, places in enumerate(drawn):
        dash = f' stroke-dasharray="{DASHES[k]}"' if DASHES[k] else ""
        thinned = places if len(places) <= 24 else _simplify(places)
        d = "M" + "L".join(f"{x:.1f} {y:.1f}".replace(".0", "") for x, y in thinned)
        body.append(f'<path class="kb-line" d="{d}" fill="none" stroke="{_color(k)}" stroke-width="2.5" stroke-linejoin="round"{dash}/>')
        if markers or len(places) == 1:
            body.append(_group([_marker(k, x, y) for x, y in places], f'class="kb-mark" fill="{_color(k)}"'))
    taken: list[Box] = []
    marked = [at(*point) for point in points.values()]
    body.append(_group([_marker(0, x, y) for x, y in marked], f'class="kb-point" stroke="{BACKGROUND}"'))
    taken += [(x - 5, y - 5, x + 5, y + 5) for x, y in marked]
    obstacles = [*drawn, *([(x, top), (x, bottom)] for x in (at(value, y_axis[0][0])[0] for value in x_refs.values()))]
    obstacles += [[(left, y), (right, y)] for y in level.values()]
    frame = (left, top, right, bottom)
    free = []
    for label, (x, y) in zip(points, marked, strict=True):
        size = text_width(label)
        choices = [(x + 9, y), (x - 9 - size, y)]
        choices += [(x + dx, y + dy) for dy in (-15, 15, -32, 32, -52, 52) for dx in (8, -size - 8, -size / 2)]
        free.append(_place(label, choices, frame, obstacles, taken))
    for label, y in level.items():
        size = text_width(label)
        lift = 17 if markers else 12
        steps = [left + GAP + t * (right - left - 2 * GAP - size) / 8 for t in range(9)]
        free.append(_place(label, [(x, y + dy) for dy in (-lift, lift) for x in reversed(steps)], frame, obstacles, taken))
    body.append(_group(free, HALO))
    if end_labels:
        ends = [places[-1] for places in drawn]
        spots = _spread([y for _, y in ends], [LINE] * len(ends), top - LINE / 2, bottom + LINE / 2)
        body += [
            _path(f"M{_n(x)} {_n(y)}L{_n(right + 12)} {_n(spot)}").replace("/>", f' stroke="{_color(k)}" fill="none"/>')
            for k, ((x, y), spot) in enumerate(zip(ends, spots, strict=True))
        ]
        body += [_text(right + 14, spot, name) for spot, name in zip(spots, names, strict=True)]
    body += [_text(left - GAP, at(x_axis[0][0], tick)[1], y_text(tick), "end") for tick in y_axis[0]]
    body += _tick_row([at(tick, y_axis[0][0])[0] for tick in x_axis[0]], list(map(x_text, x_axis[0])), bottom + LINE / 2 + 4)
    if y_label:
        body.append(_text(0, top - (LINE + 8 if x_refs else LINE / 2) - LINE / 2, y_label))
    total = bottom + LINE + 6
    for label in (x_label, y_label):
        if text_width(label) > width:
            raise ValueError(f"坐标轴文字太长：{label!r}")
    if x_label:
        half = text_width(x_label) / 2
        body.append(_text(min(max((left + right) / 2, half), width - half), total + LINE / 2, x_label, "middle"))
        total += LINE + 2
    return _svg(width, total, title, desc, body)


def _axis(
    values: Sequence[tuple[str, float]], axis: str, base: int, ticks: Sequence[float] | None, fmt: Format | None
) -> tuple[list[float], Callable[[float], float], Format]:
    """一条坐标轴：刻度、数值到 [0, 1] 的映射、刻度文字。"""
    for name, value in values:
        if _finite(value, f"{name!r} 的 {axis} ") <= 0 and base:
            raise ValueError(f"对数轴上 {name!r} 的 {axis} 须为正数，得到 {float(value)!r}")
    low, high = min(value for _, value in values), max(value for _, value in values)
    if ticks is not None:
        ticks = [_finite(tick, f"{axis}_ticks ") for tick in ticks]
        if len(ticks) < 2 or sorted(set(ticks)) != ticks or ticks[0] > low or ticks[-1] < high or (base and ticks[0] <= 0):
            raise ValueError(f"{axis} 轴的刻度须递增并覆盖数据 [{low:g}, {high:g}]，得到 {ticks}")
    elif base:
        ticks = log_ticks(low, high, base)
    else:
        ticks = nice_ticks(0.0 if 0 < low < high / 2 else low, high)
    warp = math.log if base else float
    start, stop = warp(ticks[0]), warp(ticks[-1])
    return ticks, lambda value: (warp(value) - start) / (stop - start), fmt or (binary if base == 2 else number)


def _line_sample(index: int, shape: int | None) -> str:
    dash = f' stroke-dasharray="{DASHES[index]}"' if DASHES[index] else ""
    mark = "" if shape is None else _marker(shape, 14, 0).replace("/>", f' fill="{_color(index)}"/>')
    return f'<path d="M0 0H28" stroke="{_color(index)}" stroke-width="2.5"{dash}/>{mark}'


def _marker(shape: int, x: float, y: float) -> str:
    """八种标记：圆、方、菱形、上三角、下三角、十字、横条、竖条，都以 (x, y) 为中心。"""
    outline = (
        "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
        "m-4-4h8v8h-8z",
        "m0-6l6 6l-6 6l-6-6z",
        "m0-5.5l5.5 9h-11z",
        "m0 5.5l5.5-9h-11z",
        "m-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
        "m-6-2h12v4h-12z",
        "m-2-6h4v12h-4z",
    )[shape]
    return _path(f"M{x:.1f} {y:.1f}{outline}")


def _simplify(points: Sequence[tuple[float, float]], tolerance: float = 0.15) -> list[tuple[float, float]]:
    """Douglas–Peucker：去掉偏离折线不到 tolerance 的点，肉眼看不出而文件小得多。"""
    keep, todo = {0, len(points) - 1}, [(0, len(points) - 1)]
    while todo:
        first, last = todo.pop()
        (x0, y0), (x1, y1) = points[first], points[last]
        length = math.hypot(x1 - x0, y1 - y0)
        worst, at = tolerance, None
        for i in range(first + 1, last):
            x, y = points[i]
            if length:
                t = min(1.0, max(0.0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length**2))
                distance = math.hypot(x - x0 - t * (x1 - x0), y - y0 - t * (y1 - y0))
            else:
                distance = math.hypot(x - x0, y - y0)
            if distance > worst:
                worst, at = distance, i
        if at is not None:
            keep.add(at)
            todo += [(first, at), (at, last)]
    return [points[i] for i in sorted(keep)]


def _place(
    label: str, choices: Sequence[tuple[float, float]], frame: Box, drawn: Sequence[Sequence[tuple[float, float]]], taken: list[Box]
) -> str:
    """在候选位置里选与折线、已有标签重叠最少的一个（同样好取靠前的），记入 taken。"""
    size = text_width(label)
    best: tuple[float, Box] | None = None
    for x, y in choices:
        x = min(max(x, frame[0] + 4), frame[2] - size - 4)
        box = (x - 2, y - 9, x + size + 2, y + 9)
        outside = sum(max(0.0, frame[i] - box[i]) + max(0.0, box[i + 2] - frame[i + 2]) for i in (0, 1))
        cost = 1e6 * outside + 1e3 * sum(_overlap(box, other) for other in taken)
        cost += sum(_crossing(box, a, b) for places in drawn for a, b in pairwise(places))
        if best is None or cost < best[0] - 1e-6:
            best = (cost, box)
    assert best is not None
    taken.append(best[1])
    return _text(best[1][0] + 2, best[1][1] + 9, label)


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _crossing(box: Box, a: tuple[float, float], b: tuple[float, float]) -> float:
    """线段落在框内的长度（Liang–Barsky 裁剪）。"""
    start, stop = 0.0, 1.0
    for i in (0, 1):
        step = b[i] - a[i]
        if abs(step) < 1e-9:
            if not box[i] < a[i] < box[i + 2]:
                return 0.0
            continue
        enter, leave = sorted(((box[i] - a[i]) / step, (box[i + 2] - a[i]) / step))
        start, stop = max(start, enter), min(stop, leave)
    return max(0.0, stop - start) * math.hypot(b[0] - a[0], b[1] - a[1])


# 矩阵图 -------------------------------------------------------------------


def grid(
    cells: Sequence[Sequence[str | float | None]],
    *,
    title: str,
    legend: Mapping[str, str] | None = None,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    texts: Sequence[Sequence[str]] = (),
    row_title: str = "",
    column_title: str = "",
    fmt: Format = number,
    desc: str = "",
    width: float = WIDTH,
) -> str:
    """矩阵图：注意力掩码、切分表、亲和度。cells 全是类别键，或全是数值；None 画成空格子。

    类别：legend 是键 → 图例文字，颜色按 legend 的次序；None 不进图例。
    数值：按大小分成五级色阶，格子里写数值（texts 可改写）。文字比格子宽就不写；不超过 12 列时列名须都写得下。
    各行须等长，rows、columns、texts 的大小须与 cells 相符，类别须都在 legend 里，否则抛 ValueError。

    >>> svg = grid([["可见", None], ["可见", "可见"]], title="因果掩码", legend={"可见": "可见"},
    ...            rows=["q0", "q1"], columns=["k0", "k1"])
    >>> svg.count("</text>")  # 一项图例、两个行名、两个列名
    5
    """
    _need(cells, "cells ")
    _need(cells[0], "cells 的行")
    count = len(cells[0])
    if any(len(row) != count for row in cells):
        raise ValueError(f"cells 各行长度不同：{[len(row) for row in cells]}")
    for name, size, given in (("rows", len(cells), rows), ("columns", count, columns)):
        if given and len(given) != size:
            raise ValueError(f"{name} 有 {len(given)} 个，cells 有 {size} 个")
    if texts and [len(row) for row in texts] != [count] * len(cells):
        raise ValueError("texts 的大小须与 cells 相同")
    values = [cell for row in cells for cell in row if cell is not None]
    numeric = bool(values) and not any(isinstance(value, str) for value in values)
    if numeric:
        if legend:
            raise ValueError("cells 是数值时不用 legend")
        numbers = [_finite(value, "cells ") for value in values]  # type: ignore[arg-type]
        low, high = min(numbers), max(numbers)
        step = (high - low) / len(SCALE) or 1.0
        levels = [[None if cell is None else min(len(SCALE) - 1, int((cell - low) / step)) for cell in row] for row in cells]
        fills = [f"var(--kb-s{k + 1},{color})" for k, (color, _) in enumerate(SCALE)]
        inks = [f"var(--kb-u{k + 1},{ink})" for k, (_, ink) in enumerate(SCALE)]
        bounds = [fmt(low + k * step) for k in range(len(SCALE) + 1)]
        names = [f"{a}–{b}" for a, b in pairwise(bounds)] if high > low else [fmt(low)]
        written = texts or [["" if cell is None else fmt(cell) for cell in row] for row in cells]
    else:
        legend = legend or {}
        keys = list(legend)
        _few(len(keys), "类别")
        for value in values:
            if value not in legend:
                raise ValueError(f"类别 {value!r} 不在 legend 里：{keys}")
        levels = [[None if cell is None else keys.index(cell) for cell in row] for row in cells]  # type: ignore[arg-type]
        fills, inks, names = [_color(k) for k in range(len(keys))], [_on_color(k) for k in range(len(keys))], list(legend.values())
        written = texts
    if not desc:
        kinds = "、".join(names)
        desc = f"矩阵图，{len(cells)} 行 {count} 列" + (f"，图例：{kinds}" if kinds else "") + "。" + _describe_rows(levels, rows, names)
    left = max([1.0, *(text_width(name) + GAP for name in rows)])
    # 格宽取 0.5 的倍数；缺省至多 44，免得小矩阵的格子太大，文字与列名更宽时才加宽
    room = math.floor((width - left - 1) / count * 2) / 2
    widest = max([text_width(text) for row in written for text in row] + [text_width(name) + 2 for name in columns], default=0.0)
    size = min(room, max(44.0, widest + 6))
    if size < 4:
        raise ValueError(f"{count} 列在 {width:g} 宽的图里放不下")
    lettered = any(any(row) for row in written)
    tall = min(size, 28.0) if lettered or size > 28 else size
    whole = numeric and not texts and tall >= FONT and widest + 2 <= size  # 每格都写着数值，不必再画色阶图例
    key, top = _swatches([] if whole else fills[: len(names)], [] if whole else names, width)
    top += LINE * (bool(row_title or column_title) + bool(columns))
    boxes: list[list[str]] = [[] for _ in fills]
    words: list[list[str]] = [[] for _ in fills]
    plain = []
    for i, row in enumerate(levels):
        j = 0
        for level, run in groupby(row):
            length = len(list(run))
            if level is not None:
                boxes[level].append(_box(left + j * size, top + i * tall, length * size, tall))
            j += length
        for j, text in enumerate(written[i] if written else ()):
            if text and text_width(text) + 2 <= size and tall >= FONT:
                level = row[j]
                (plain if level is None else words[level]).append(_text(left + (j + 0.5) * size, top + (i + 0.5) * tall, text))
    lattice = [f"M{_n(left)} {_n(top + i * tall)}h{_n(count * size)}" for i in range(len(levels) + 1)]
    lattice += [f"M{_n(left + j * size)} {_n(top)}v{_n(len(levels) * tall)}" for j in range(count + 1)]
    body = [key, *(_boxes(box, fills[k]) for k, box in enumerate(boxes)), _rules(lattice)]
    body += [_group(word, f'fill="{inks[k]}" {MIDDLE}') for k, word in enumerate(words)]
    body.append(_group(plain, MIDDLE))
    if rows:
        step = 1 if tall >= FONT else math.ceil(FONT / tall)
        body += [_text(left - GAP, top + (i + 0.5) * tall, rows[i], "end") for i in range(0, len(rows), step)]
    if columns:
        centers = [left + (j + 0.5) * size for j in range(count)]
        shown = _thin(centers, columns, gap=2)
        if len(shown) < count <= 12:  # 列多时是序号，隔几个写一个；列少时各有其名，不能省
            raise ValueError(f"列名在 {size:g} 宽的格子里写不下：{max(columns, key=text_width)!r}")
        body += [_text(centers[j], top - LINE / 2, columns[j], "middle") for j in shown]
    if row_title or column_title:
        y = top - LINE / 2 - (LINE if columns else 0)
        corner = "，".join(
            part for part in (f"行：{row_title}" if row_title else "", f"列：{column_title}" if column_title else "") if part
        )
        if text_width(corner) > width:
            raise ValueError(f"row_title、column_title 太长：{corner!r}")
        body.append(_text(0, y, corner))
    return _svg(width, top + len(cells) * tall + 2, title, desc, body)


def _describe_rows(levels: Sequence[Sequence[int | None]], rows: Sequence[str], names: Sequence[str]) -> str:
    """供读屏：逐行写出连续同类的格数，行数多时不写。"""
    if len(levels) > 8:
        return ""
    told = []
    for i, row in enumerate(levels):
        runs: list[list] = []
        for level in row:
            name = "空" if level is None else names[level]
            if runs and runs[-1][0] == name:
                runs[-1][1] += 1
            else:
                runs.append([name, 1])
        told.append(f"{rows[i] if rows else f'第 {i + 1} 行'}：" + "、".join(f"{name}×{count}" for name, count in runs))
    return "；".join(told) + "。"


# 时间线 -------------------------------------------------------------------


def timeline(
    rows: Mapping[str, Sequence[tuple]],
    *,
    title: str,
    legend: Mapping[str, str] | None = None,
    unit: str = "",
    end: float | None = None,
    refs: Mapping[str, float] | None = None,
    fmt: Format = number,
    desc: str = "",
    width: float = WIDTH,
) -> str:
    """时间线（甘特图）：每行是若干块 (开始, 结束, 类别) 或 (开始, 结束, 类别, 标签)，如流水线的各 stage、各 CUDA stream。

    legend：类别键 → 图例文字，颜色按其次序；缺省按类别出现的次序，文字即键。
    标签写不下就不写；width 大于 480 时图在手机上不再缩小，而是横向滚动（多 microbatch 的流水线用）。
    同一行的块不得重叠，结束须大于开始，时间须非负有限，否则抛 ValueError。

    >>> svg = timeline({"stage 0": [(0, 1, "F", "1"), (3, 5, "B", "1")]}, title="1F1B", legend={"F": "前向", "B": "反向"})
    >>> ">前向</text>" in svg and ">反向</text>" in svg
    True
    """
    refs = refs or {}
    _need(rows, "rows ")
    blocks = [(name, block) for name, row in rows.items() for block in row]
    _need(blocks, "rows 里的块")
    for name, block in blocks:
        if len(block) not in (3, 4):
            raise ValueError(f"{name!r} 的块须为 (开始, 结束, 类别[, 标签])，得到 {block!r}")
        start, stop = _finite(block[0], f"{name!r} 的开始 "), _finite(block[1], f"{name!r} 的结束 ")
        if start < 0 or stop <= start:
            raise ValueError(f"{name!r} 的块须满足 0 <= 开始 < 结束，得到 {block!r}")
    for name, row in rows.items():
        for a, b in pairwise(sorted(row, key=lambda block: block[:2])):
            if b[0] < a[1] - 1e-9 * max(1.0, a[1]):
                raise ValueError(f"{name!r} 的块重叠：{a!r} 与 {b!r}")
    legend = dict(legend) if legend else {block[2]: block[2] for _, block in blocks}
    keys = list(legend)
    _few(len(keys), "类别")
    for name, block in blocks:
        if block[2] not in legend:
            raise ValueError(f"{name!r} 的类别 {block[2]!r} 不在 legend 里：{keys}")
    last = max(block[1] for _, block in blocks)
    for label, value in refs.items():
        if _finite(value, f"参考线 {label!r} ") < 0:
            raise ValueError(f"参考线 {label!r} 须为非负数，得到 {value!r}")
    high = max([last, *refs.values(), _finite(end, "end ") if end is not None else 0.0])
    ticks = [tick for tick in nice_ticks(0, high, 6) if tick <= high * 1.000001]
    if not desc:
        busy = "；".join(f"{name} {len(row)} 块，忙 {fmt(math.fsum(b[1] - b[0] for b in row))}" for name, row in rows.items())
        desc = f"时间线{f'，单位 {unit}' if unit else ''}，到 {fmt(last)} 结束。{busy}。"
    key, top = _swatches([_color(k) for k in range(len(keys))], list(legend.values()), width)
    left = max(map(text_width, rows)) + GAP
    tick_texts = [_tick_format(fmt)(tick) for tick in ticks]
    right = width - max(2.0, text_width(tick_texts[-1]) / 2)
    if right - left < width * 0.4:
        raise ValueError(f"行名太长：{max(rows, key=text_width)!r}")
    top += LINE + 8 if refs else 2
    pitch, thick = 30.0, 24.0
    bottom = top + pitch * len(rows)

    def at(value: float) -> float:
        return left + value / high * (right - left)

    rules = [f"M{_n(at(tick))} {_n(top)}V{_n(bottom + 4)}" for tick in ticks]
    fills: list[list[str]] = [[] for _ in keys]
    words: list[list[str]] = [[] for _ in keys]
    for i, row in enumerate(rows.values()):
        for block in sorted(row, key=lambda block: block[:2]):
            k, y = keys.index(block[2]), top + i * pitch + 3
            span = at(block[1]) - at(block[0])
            fills[k].append(_box(at(block[0]), y, span, thick))
            label = block[3] if len(block) == 4 else ""
            if label and text_width(label) <= span:
                words[k].append(_text(at(block[0]) + span / 2, y + thick / 2, label))
    body = [key, _rules(rules)]
    body += [_boxes(fill, _color(k)) for k, fill in enumerate(fills)]
    body += _ref_row(refs, at, top, bottom, width) if refs else []
    body += [_group(word, _on_fill(k)) for k, word in enumerate(words)]
    body += [_text(left - GAP, top + (i + 0.5) * pitch, name, "end") for i, name in enumerate(rows)]
    body += _tick_row([at(tick) for tick in ticks], tick_texts, bottom + LINE / 2 + 6)
    height = bottom + LINE + 6
    if unit:
        body.append(_text(width, height + LINE / 2 - 2, unit, "end"))
        height += LINE
    return _svg(width, height, title, desc, body)
