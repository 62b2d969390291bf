"""Calculators: a form, and results that Python computed at build time, from one tested function each.

A page names a calculator in a fence. The form comes from the function's signature and docstring, so that labels, units,
choices and defaults are written once, beside the formulas:

    Args:
        [group]
        name: label〔unit〕 {value=label of a choice; …}

    Returns:
        *name: headline result〔unit〕
        name: row｜column〔unit〕

The script of a calculator (`assets/calc/NAME.mjs`) is the same function in JavaScript, see `kb.calculator_js`.
"""

import functools
import html
import importlib
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

from kb.calculator_js import PACKAGE, compile_module
from kb.paths import SNIPPETS
from kb.views import relative

NAMES = ("training_memory", "kv_cache", "mfu", "pipeline", "communication", "training_cost")
FOLDER = SNIPPETS / "tools"
ASSETS = "assets/calc"
PAGES = "tools"
LINE = re.compile(r"^(?P<mark>\*?)(?P<name>\w+): (?P<label>[^〔{]+?)(?:〔(?P<unit>[^〕]+)〕)?(?: *\{(?P<choices>.+)\})?$")
SECTION = re.compile(r"^(?P<name>Args|Returns):\n(?P<lines>(?: {4}.*\n|\n)+)", re.M)
PLACEHOLDER = re.compile(r'<div class="kb-calc-here">(?P<name>\w+)</div>')
USUAL = ("Llama-3-8B", "H100 80GB SXM")  # where the defaults fit several presets, these are shown
PRESETS = {"model": "模型", "hardware": "硬件", "inventory": "精度清单"}


class CalculatorError(ValueError):
    """A calculator whose docstring and signature disagree, or an unknown name in a fence."""


@dataclass(frozen=True)
class Field:
    name: str
    label: str
    unit: str
    group: str
    default: float | int | str
    choices: tuple[tuple[float | int | str, str], ...]


@dataclass(frozen=True)
class Output:
    name: str
    label: str
    unit: str
    headline: bool

    @property
    def cell(self) -> tuple[str, str] | None:
        """(row, column) of an output that belongs to a table of its own."""
        row, bar, column = self.label.partition("｜")
        return (row, column) if bar else None


@dataclass(frozen=True)
class Calculator:
    name: str
    title: str
    function: Callable[..., dict[str, float]]
    fields: tuple[Field, ...]
    outputs: tuple[Output, ...]

    @property
    def page(self) -> str:
        """Address of the calculator's own page."""
        return f"{PAGES}/{self.name.replace('_', '-')}/"

    def presets(self) -> dict[str, dict[str, tuple[str, dict[str, float | str]]]]:
        """For each kind of preset that fills a field here: name → (source, values)."""
        names = {field.name for field in self.fields}
        found: dict[str, dict[str, tuple[str, dict]]] = {kind: {} for kind in PRESETS}
        data = _module("presets")
        for model in data.MODELS.values():
            # The account of a layer's activations knows two kinds of layers; other models are not offered for it.
            if model.layer or "layer" not in names:
                found["model"][model.name] = (model.source, _filled(model.fields(), names))
        for gpu in data.GPUS.values():
            found["hardware"][gpu.name] = (gpu.source, _filled(gpu.fields(), names))
            if gpu.fp8 and "peak_tflops" in names:
                found["hardware"][f"{gpu.name} · fp8"] = (gpu.source, _filled(gpu.fields() | {"peak_tflops": gpu.fp8}, names))
        for name in data.INVENTORIES if "optim_bytes" in names else ():
            found["inventory"][name] = ("", _filled(data.inventory_fields(name), names))
        return {kind: entries for kind, entries in found.items() if any(values for _, values in entries.values())}


def _filled(values: dict, names: set[str]) -> dict:
    return {name: value for name, value in values.items() if name in names}


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


def format_number(value: float) -> str:
    """Whole numbers in full, others to four significant digits; the page's script writes the same.

    >>> [format_number(x) for x in (70272.0, 131072, 1234.5, 42.94967296, 0.1, 2.5e-05, 3.143e23, 0.0, -1.25)]
    ['70,272', '131,072', '1,235', '42.95', '0.1', '2.5e-5', '3.143e23', '0', '-1.25']
    """
    exact = Decimal(value)
    size = abs(exact)
    if size != 0 and (size >= Decimal(10) ** 15 or size < Decimal("0.001")):
        rounded = Context(prec=4, rounding=ROUND_HALF_UP).create_decimal(exact)
        mantissa, _, exponent = f"{rounded:.3e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size >= 1000:
        return f"{int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP)):,}"
    text = f"{Context(prec=4, rounding=ROUND_HALF_UP).create_decimal(exact):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _section(name: str, doc: str, wanted: str) -> Iterator[tuple[str, re.Match]]:
    lines = next((match["lines"] for match in SECTION.finditer(doc + "\n") if match["name"] == wanted), "")
    group = ""
    for line in filter(None, map(str.strip, lines.splitlines())):
        if line.startswith("["):
            group = line.strip("[]")
        elif match := LINE.match(line):
            yield group, match
        else:
            raise CalculatorError(f"{name}: cannot read the line {line!r} below {wanted}")


def _choices(hint: object, given: str | None) -> tuple[tuple[float | int | str, str], ...]:
    if typing.get_origin(hint) is not typing.Literal:
        return ()
    labels = dict(part.strip().split("=", 1) for part in (given or "").split(";"))
    return tuple((value, labels.get(str(value), str(value))) for value in typing.get_args(hint))


def load(name: str) -> Calculator:
    """The calculator of snippets/tools/NAME.py, from its function of the same name."""
    if name not in NAMES:
        raise CalculatorError(f"there is no calculator {name!r}; there are {', '.join(NAMES)}")
    function = getattr(_module(name), name)
    doc = inspect.getdoc(function) or ""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    fields = tuple(
        Field(match["name"], match["label"], match["unit"] or "", group, parameters[match["name"]].default, choices)
        for group, match in _section(name, doc, "Args")
        if match["name"] in parameters
        for choices in [_choices(hints[match["name"]], match["choices"])]
    )
    outputs = tuple(
        Output(match["name"], match["label"], match["unit"] or "", match["mark"] == "*") for _, match in _section(name, doc, "Returns")
    )
    if {field.name for field in fields} != set(parameters) or len(fields) != len(parameters):
        raise CalculatorError(f"{name}: the docstring's Args are not the function's parameters")
    if not set(function()) <= {output.name for output in outputs}:
        raise CalculatorError(f"{name}: the docstring's Returns lack {set(function()) - {output.name for output in outputs}}")
    return Calculator(name, doc.splitlines()[0].rstrip("。"), function, fields, outputs)


# HTML ------------------------------------------------------------------------


def _unit(unit: str) -> str:
    return f' <span class="kb-calc__unit">{html.escape(unit)}</span>' if unit else ""


def _control(field: Field) -> str:
    id = f"calc-{field.name}"
    if field.choices:
        options = "".join(
            f'<option value="{html.escape(str(value))}"{" selected" if value == field.default else ""}>{html.escape(label)}</option>'
            for value, label in field.choices
        )
        kind = "number" if isinstance(field.default, int) else "text"
        return f'<select id="{id}" name="{field.name}" data-kind="{kind}">{options}</select>'
    return f'<input id="{id}" name="{field.name}" inputmode="decimal" autocomplete="off" value="{field.default!r}">'


def _field(field: Field) -> str:
    wide = " kb-calc__field--wide" if field.choices else ""
    return (
        f'<div class="kb-calc__field{wide}"><label for="calc-{field.name}">{html.escape(field.label)}{_unit(field.unit)}</label>'
        f'{_control(field)}<p class="kb-calc__error" id="calc-{field.name}-error" hidden></p></div>'
    )


def _fitting(entries: dict, calculator: Calculator) -> str | None:
    """The preset that the defaults are those of."""
    defaults = {field.name: field.default for field in calculator.fields}
    fitting = [name for name, (_, values) in entries.items() if all(defaults[key] == value for key, value in values.items())]
    return next((name for name in fitting if name in USUAL), next(iter(fitting), None))


def _preset(kind: str, entries: dict, chosen: str | None) -> str:
    options = "".join(f"<option{' selected' if name == chosen else ''}>{html.escape(name)}</option>" for name in entries)
    return (
        f'<div class="kb-calc__field kb-calc__field--wide"><label for="calc-preset-{kind}">{PRESETS[kind]}</label>'
        f'<select id="calc-preset-{kind}" data-preset="{kind}"><option value="">自定义</option>{options}</select></div>'
    )


def _value(output: Output, results: dict[str, float]) -> str:
    value = format_number(results[output.name]) if output.name in results else "—"
    return f'<output name="{output.name}">{value}</output>'


def _tables(calculator: Calculator, results: dict[str, float]) -> str:
    """Plain outputs as label and value; outputs named row｜column as a table."""
    plain = [output for output in calculator.outputs if output.cell is None and not output.headline]
    cells = [output.cell for output in calculator.outputs if output.cell]
    parts = []
    if cells:
        rows = dict.fromkeys(row for row, _ in cells)
        # One column label may stand for two units (in copies, in GB), so the unit tells columns apart.
        heads = dict.fromkeys((output.cell[1], output.unit) for output in calculator.outputs if output.cell)
        by_place = {(output.cell[0], output.cell[1], output.unit): output for output in calculator.outputs if output.cell}
        head = "".join(f'<th scope="col">{html.escape(label)}{_unit(unit)}</th>' for label, unit in heads)
        body = "".join(
            f'<tr><th scope="row">{html.escape(row)}</th>'
            + "".join(f"<td>{_value(by_place[row, label, unit], results)}</td>" for label, unit in heads)
            + "</tr>"
            for row in rows
        )
        parts.append(
            '<div class="kb-scroll" tabindex="0" role="region" aria-label="结果的表格">'
            f'<table class="kb-calc__table"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )
    if plain:
        body = "".join(
            f'<tr><th scope="row">{html.escape(output.label)}{_unit(output.unit)}</th><td>{_value(output, results)}</td></tr>'
            for output in plain
        )
        parts.append(f'<table class="kb-calc__list"><tbody>{body}</tbody></table>')
    return "".join(parts)


def _headline(calculator: Calculator, results: dict[str, float]) -> str:
    items = "".join(
        f"<div><dt>{html.escape(output.label)}{_unit(output.unit)}</dt><dd>{_value(output, results)}</dd></div>"
        for output in calculator.outputs
        if output.headline and not output.cell
    )
    return f'<dl class="kb-calc__headline">{items}</dl>' if items else ""


def render(calculator: Calculator, page_url: str, python: bool = False) -> str:
    """The calculator on its own page: complete and readable without JavaScript, which only lets its fields change.

    `python`: the site ships Python, so results can be checked with it.
    """
    results = calculator.function()
    groups: dict[str, list[Field]] = {}
    for field in calculator.fields:
        groups.setdefault(field.group, []).append(field)
    presets = "".join(_preset(kind, entries, _fitting(entries, calculator)) for kind, entries in calculator.presets().items())
    controls = ([("预设", presets)] if presets else []) + [(group, "".join(map(_field, fields))) for group, fields in groups.items()]
    fieldsets = "".join(
        f'<fieldset class="kb-calc__group" disabled><legend>{html.escape(group)}</legend>{fields}</fieldset>' for group, fields in controls
    )
    return (
        f'<link rel="stylesheet" href="{relative(f"{ASSETS}/calc.css", page_url)}">'
        f'<form class="kb-calc" data-calculator="{calculator.name}" aria-label="{html.escape(calculator.title)}计算器"'
        f'{" data-python" if python else ""} autocomplete="off" novalidate>'
        f'<div class="kb-calc__inputs">{fieldsets}<p class="kb-calc__source" hidden></p></div>'
        f"{_headline(calculator, results)}"
        f'<div class="kb-calc__results">{_tables(calculator, results)}'
        '<p class="kb-calc__note">默认值的结果，构建时由 Python 算出；启用 JavaScript 后可以改数。</p>'
        '<p class="kb-calc__status" role="status"></p><p class="kb-calc__actions">'
        '<a href="#formula">公式</a><a href="#conventions">口径</a><a href="#sources">出处</a></p></div></form>'
    )


def render_embed(calculator: Calculator, page_url: str) -> str:
    """A calculator within another page: its headline results and a link; the form is fetched when the reader wants it."""
    own = relative(calculator.page, page_url)
    headline = _headline(calculator, calculator.function())
    chosen = "、".join(filter(None, (_fitting(entries, calculator) for entries in calculator.presets().values())))
    return (
        f'<aside class="kb-calc-embed" aria-label="{html.escape(calculator.title)}计算器">'
        f'<p><a href="{own}">{html.escape(calculator.title)}计算器</a>（默认 {html.escape(chosen)}）</p>'
        f'{headline}<button type="button" hidden>在这里改数</button></aside>'
    )


def fence(source: str, language: str, css_class: str, options: dict, md: object, **_) -> str:
    """Formatter of the ```calculator fence: a place that `fill` fills when the page's address is known."""
    return f'<div class="kb-calc-here">{load(source.strip()).name}</div>'


def install(config: object) -> None:
    """Let Markdown know the fence."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    if not any(entry["name"] == "calculator" for entry in fences):
        fences.append({"name": "calculator", "class": "calculator", "format": fence})


def fill(content: str, page_url: str, python: bool = False) -> str:
    """Put the calculators where a page's fences are."""

    def calculator(match: re.Match) -> str:
        loaded = load(match["name"])
        return render(loaded, page_url, python) if page_url == loaded.page else render_embed(loaded, page_url)

    return PLACEHOLDER.sub(calculator, content)


# Scripts -----------------------------------------------------------------------


def refresh() -> None:
    """Forget the imported snippets, so that `mkdocs serve` computes with what is on disk."""
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]


@functools.lru_cache(maxsize=1)
def _scripts(sources: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """(path in the site, text) of every calculator's script; `sources` decides whether they are made again."""

    def script(name: str) -> str:
        presets = json.dumps(load(name).presets(), ensure_ascii=False, separators=(",", ":"))
        order = json.dumps(list(inspect.signature(load(name).function).parameters), separators=(",", ":"))
        return f"{compile_module(FOLDER / f'{name}.py', name)}\nexport const order={order};\nexport const presets={presets};\n"

    return tuple((f"{ASSETS}/{name}.mjs", script(name)) for name in NAMES)


def scripts() -> tuple[tuple[str, str], ...]:
    """The scripts to serve, compiled when a source has changed."""
    return _scripts(tuple(file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.py"))))
