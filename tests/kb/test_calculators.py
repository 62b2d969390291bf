"""Calculators: what may be compiled, Python and JavaScript bit for bit, the form, the presets, the numbers as text."""

import functools
import inspect
import json
import math
import random
import re
import struct
import subprocess

import pytest

from kb import calculators, freshness
from kb.calculator_js import NotTranslatable, check, compile_module
from kb.catalogue import catalogue
from kb.katex import node
from kb.paths import DOCS, ROOT
from kb.site import load_site

CASES = 600
RUNNER = ROOT / "tests" / "kb" / "calculator_runner.mjs"
EDGES = [0, -1, 0.5, 1.5, 3, 7, 1e-9, 1e9, 2**53, 1e300, math.nan, math.inf, -math.inf]


def bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def in_node(request: dict) -> list:
    run = subprocess.run([node(), str(RUNNER)], input=json.dumps(request), capture_output=True, text=True, check=False, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def plausible(field: calculators.Field, rng: random.Random) -> float | int:
    if isinstance(field.default, int) and field.default >= 1 and field.name not in ("usable", "efficiency", "mfu", "uptime"):
        return rng.choice([1, 2, 4, 8, 16, 64, field.default, field.default * 2, rng.randint(1, 2 * field.default)])
    return rng.choice([field.default, field.default * rng.random(), field.default / 3, 1 / 3, 97.3])


def inputs(calculator: calculators.Calculator) -> list[list]:
    """Argument lists: around the defaults, around every preset, random ones, and ones with an absurd value."""
    rng = random.Random(calculator.name)
    presets = [values for kind in calculator.presets().values() for _, values in kind.values()] or [{}]
    order = list(inspect.signature(calculator.function).parameters)
    by_name = {field.name: field for field in calculator.fields}
    cases = []
    for index in range(CASES):
        values = {name: by_name[name].default for name in order} | rng.choice(presets)
        changed = rng.sample(order, k=len(order) if index % 4 == 0 else rng.randint(0, 4))
        for name in changed:
            field = by_name[name]
            values[name] = rng.choice([value for value, _ in field.choices]) if field.choices else plausible(field, rng)
        if index % 5 == 0:
            name = rng.choice([name for name in order if not by_name[name].choices])
            values[name] = rng.choice(EDGES)
        cases.append([values[name] for name in order])
    return cases


def in_python(function, arguments: list) -> dict | str:
    try:
        return {name: bits(value) for name, value in function(*arguments).items()}
    except ValueError as error:
        return f"ValueError|{error}"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("calc")
    files = {}
    for path, text in calculators.scripts():
        file = folder / path.rsplit("/", 1)[1]
        file.write_text(text, encoding="utf-8")
        files[file.stem] = file
    return files


@pytest.mark.parametrize("name", calculators.NAMES)
def test_python_and_javascript_agree_bit_for_bit(name, scripts):
    calculator = calculators.load(name)
    cases = inputs(calculator)
    expected = [in_python(calculator.function, arguments) for arguments in cases]
    calls = [[{"text": value} if isinstance(value, str) else {"bits": bits(value)} for value in arguments] for arguments in cases]
    found = in_node({"module": str(scripts[name]), "calls": calls})
    different = [(case, want, got) for case, want, got in zip(cases, expected, found, strict=True) if want != got]
    assert different == []
    valid = [outcome for outcome in expected if isinstance(outcome, dict)]
    assert len(valid) > 150
    assert len(expected) - len(valid) > 50
    fields = {field.name for field in calculator.fields}
    for outcome in expected:
        if isinstance(outcome, str):
            assert re.match(r"ValueError\|(\w+): .+", outcome)[1] in fields
        else:
            assert all(math.isfinite(struct.unpack(">d", bytes.fromhex(value))[0]) for value in outcome.values())


@pytest.mark.parametrize("name", calculators.NAMES)
def test_every_preset_fits_its_calculator(name):
    calculator = calculators.load(name)
    for entries in calculator.presets().values():
        for preset, (source, values) in entries.items():
            assert values, preset
            assert source or preset[0].isdigit()
            # A much larger model cannot reach the default throughput: the calculator says so, at that field.
            outcome = in_python(functools.partial(calculator.function, **values), [])
            assert isinstance(outcome, dict) or (name == "mfu" and outcome.startswith("ValueError|tokens_per_s: "))


def test_the_usual_presets_are_the_defaults():
    for name in calculators.NAMES:
        calculator = calculators.load(name)
        defaults = {field.name: field.default for field in calculator.fields}
        for kind, preset in (("model", "Llama-3-8B"), ("hardware", "H100 80GB SXM")):
            if kind in calculator.presets():
                values = calculator.presets()[kind][preset][1]
                assert {key: defaults[key] for key in values} == values, name


def test_numbers_are_written_alike():
    rng = random.Random(1)
    numbers = [0.0, 0.5, 1234.5, 1235.5, 0.12345, 999.95, 999949.5, 1e15, 1e-3, 9.9995e-4, 70272.0, 2.5e-5, 3.1425e23, -1.25, -20.835]
    numbers += [rng.choice([-1, 1]) * 10 ** rng.uniform(-12, 26) for _ in range(3000)]
    numbers += [float(rng.randint(-(10**16), 10**16)) for _ in range(500)] + [k / 8 for k in range(-9000, 9000, 7)]
    found = in_node({"module": str(DOCS / "assets/calc/calc.mjs"), "numbers": [bits(value) for value in numbers]})
    assert found == [calculators.format_number(value) for value in numbers]


REJECTED = {
    "a % 3": "Mod",
    "a // 3": "FloorDiv",
    "a ** 2": "Pow",
    "round(a)": "round",
    "int(a)": "int",
    "float(a)": "float",
    "sum([a])": "sum",
    "max([a, 1])": "max",
    "str(a + 1)": "str",
    "helper(a=1)": "keywords",
    "helper(*[a])": "position",
    "math.log(a)": "math.log",
    "a if a else 1": "compare explicitly",
    "a or 1": "compare explicitly",
    "not a": "compare explicitly",
    "a in [1]": "comparisons",
    "a is None": "comparisons",
    "[a][-1]": "index",
    "[x for x in [a]]": "ListComp",
    "{1: a}": "keys",
    "(a, 1)": "Tuple",
    "f'{a}'": "JoinedStr",
    "lambda: a": "Lambda",
    "a.real": "Attribute",
    "9007199254740993 + a": "2\\*\\*53",
    "(a := 1)": "NamedExpr",
    "'x'.join(['a'])": "join",
}


@pytest.mark.parametrize("expression", REJECTED)
def test_what_differs_in_javascript_is_rejected(tmp_path, expression):
    file = tmp_path / "bad.py"
    file.write_text(f"import math\n\ndef helper(a):\n    return a\n\ndef bad(a):\n    return {expression}\n", encoding="utf-8")
    with pytest.raises(NotTranslatable, match=rf"bad\.py:7: .*{REJECTED[expression]}"):
        check(file)


@pytest.mark.parametrize(
    "statement",
    [
        "    while a > 1:\n        a = a / 2\n",
        "    for x in [1, 2]:\n        a = x\n",
        "    a += 1\n",
        "    a, b = 1, 2\n",
        "    del a\n",
        "    try:\n        a = 1\n    except ValueError:\n        a = 2\n",
        "    assert a > 1\n",
        "    if a:\n        a = 1\n",
        "    raise TypeError('x')\n",
        "    new = a\n",
        "    global a\n",
        "    import os\n",
        "    def inner():\n        return a\n",
        "    return\n",
    ],
)
def test_statements_outside_the_shared_part_are_rejected(tmp_path, statement):
    file = tmp_path / "bad.py"
    file.write_text(f"def bad(a):\n{statement}    return a\n", encoding="utf-8")
    with pytest.raises(NotTranslatable, match=r"bad\.py:\d+:"):
        check(file)


@pytest.mark.parametrize(
    "source",
    [
        "import os\n",
        "from math import floor\n",
        "import math as m\n",
        "def bad(*a):\n    return a\n",
        "def bad(a, *, b):\n    return a\n",
        "def bad(a=[1]):\n    return a\n",
        "@staticmethod\ndef bad(a):\n    return a\n",
        "class Bad:\n    pass\n",
        "X = [i for i in range(3)]\n",
    ],
)
def test_module_level_is_checked(tmp_path, source):
    file = tmp_path / "bad.py"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(NotTranslatable):
        check(file)


def test_scripts_are_small_and_know_no_network():
    for path, text in calculators.scripts():
        assert len(text.encode()) < 20_000, path
        assert not re.search(r"https?:|fetch|import\b", re.sub(r"export const presets.*", "", text)), path


def test_compiling_is_repeatable():
    file = calculators.FOLDER / "kv_cache.py"
    assert compile_module(file, "kv_cache") == compile_module(file, "kv_cache")


@pytest.mark.parametrize("name", calculators.NAMES)
def test_default_results_are_in_the_html(name):
    calculator = calculators.load(name)
    page = calculators.render(calculator, calculator.page)
    for key, value in calculator.function().items():
        assert f'<output name="{key}">{calculators.format_number(value)}</output>' in page
    for field in calculator.fields:
        assert page.count(f'for="calc-{field.name}"') == 1
        assert page.count(f'id="calc-{field.name}"') == 1
        assert page.count(f'id="calc-{field.name}-error"') == 1
    assert 'href="../../assets/calc/calc.css"' in page
    assert "data-python" not in page
    assert " data-python " in calculators.render(calculator, calculator.page, python=True)


def test_an_embed_is_a_line_with_a_link():
    embed = calculators.fill(calculators.fence("training_memory", "calculator", "", {}, None), "infra/memory/some-page/")
    assert len(embed) < 1000
    assert 'href="../../../tools/training-memory/"' in embed
    assert "默认 Llama-3-8B、H100 80GB SXM、16 B" in embed
    assert '<output name="worst_gb">72.73</output>' in embed
    assert "<form" not in embed


def test_pages_are_rebuilt_when_a_calculator_changes():
    sources = freshness.sources(load_site(DOCS, catalogue()))
    for page in ("tools/kv-cache.md", "tools/index.md", "infra/memory/i1-2-estimating-activation-memory.md"):
        assert {calculators.FOLDER / "checks.py", calculators.FOLDER / "training_memory.py", DOCS / page} <= set(sources[page])


def test_fence_names_a_known_calculator():
    with pytest.raises(calculators.CalculatorError, match="kv_cache"):
        calculators.fence("kv_cash", "calculator", "", {}, None)
    content = f"<p>x</p>{calculators.fence(' mfu ', 'calculator', '', {}, None)}"
    assert 'data-calculator="mfu"' in calculators.fill(content, "tools/mfu/")


def test_every_calculator_has_its_page():
    for name in calculators.NAMES:
        text = (DOCS / calculators.load(name).page.rstrip("/")).with_suffix(".md").read_text(encoding="utf-8")
        assert f"```calculator\n{name}\n```" in text
        assert f'--8<-- "tools/{name}.py"' in text
        assert all(id in text for id in ("{ #formula }", "{ #conventions }", "{ #sources }"))
