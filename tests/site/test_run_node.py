"""What readers can run in the page, run under Pyodide in Node: all doctests, edits, errors, floods, calls."""

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from kb.katex import node
from kb.paths import SNIPPETS
from kb.python_runtime import Runtime, find
from kb.runnable import RUNNER, Snippets

PACKAGE = find()
RUNNABLE = Snippets().runnable()
LIMIT = 200_000


def run_all(requests):
    assert PACKAGE is not None, "node_modules/pyodide is missing: npm ci --ignore-scripts"
    data = {"package": str(PACKAGE), "stdlib": str(Runtime(PACKAGE).stdlib()), "runner": str(RUNNER), "requests": requests}
    done = subprocess.run(
        [node(), Path(__file__).with_name("python_runner.mjs")],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def request(path, **options):
    files = {name: (SNIPPETS / name).read_text(encoding="utf-8") for name in (path, *RUNNABLE[path])}
    return {"kind": "run", "path": path, "sections": [], "files": files, **options}


def script(text, **options):
    return {"kind": "run", "path": "reader/code.py", "sections": [], "files": {"reader/code.py": text}, **options}


@cache
def doctests():
    return dict(zip(RUNNABLE, run_all([request(path) for path in RUNNABLE]), strict=True))


@pytest.mark.parametrize("path", RUNNABLE)
def test_doctests_pass_in_the_readers_python(path):
    *examples, last = doctests()[path]["events"]
    failed = [example for example in examples if not example["passed"]]
    assert failed == []
    assert last["type"] == "done", last
    assert last["passed"] == last["total"]


SECTIONED = """import math

# --8<-- [start:one]
def one():
    \"\"\"
    >>> one()
    1
    \"\"\"
    return 1
# --8<-- [end:one]


class Holder:
    # --8<-- [start:two]
    def two(self):
        \"\"\"
        >>> Holder().two() + one()
        3
        \"\"\"
        return 2
    # --8<-- [end:two]


def three():
    \"\"\"
    >>> three()
    4
    \"\"\"
    return 3
"""


@cache
def answers():
    """One Node process for all that follows: (events, what was printed) by name."""
    requests = {
        "whole": script(SECTIONED),
        "section": script(SECTIONED, sections=["two"]),
        "sections": script(SECTIONED, sections=["one", "two"]),
        "edited": script(
            SECTIONED, sections=["two"], edited='def two(self):\n    """\n    >>> Holder().two()\n    20\n    """\n    return 20\n'
        ),
        "edited without examples": script(SECTIONED, sections=["one"], edited="def one():\n    return 1\n\nprint(one())\n"),
        "two sections edited": script(SECTIONED, sections=["one", "two"], edited="pass\n"),
        "long result": script('def f():\n    """\n    >>> "x" * 10**5\n    1\n    """\n'),
        "many examples": script('def f():\n    """\n' + "    >>> 1\n    1\n" * 1000 + '    """\n'),
        "flood": script('def f():\n    """\n    >>> while True: print("x" * 1000)\n    """\n'),
        "surrogate": script("def f():\n    r'''\n    >>> print('\\ud800')\n    1\n    '''\n"),
        "call": {
            "kind": "call",
            "path": "tools/checks.py",
            "files": {"tools/checks.py": "def f(x):\n    return {'y': x / 3}"},
            "name": "f",
            "arguments": [1],
        },
        "call nan": {"kind": "call", "path": "a.py", "files": {"a.py": "def f():\n    return float('nan')"}, "name": "f", "arguments": {}},
        "call bad": {
            "kind": "call",
            "path": "a.py",
            "files": {"a.py": "def f(x):\n    raise ValueError('太大')"},
            "name": "f",
            "arguments": {"x": 1},
        },
    }
    return dict(zip(requests, run_all(list(requests.values())), strict=True))


@pytest.mark.parametrize(
    ("name", "sources", "last"),
    [
        ("whole", ["one()", "Holder().two() + one()", "three()"], {"type": "done", "passed": 2, "total": 3, "unlisted": 0}),
        ("section", ["Holder().two() + one()"], {"type": "done", "passed": 1, "total": 1, "unlisted": 0}),
        ("sections", ["one()", "Holder().two() + one()"], {"type": "done", "passed": 2, "total": 2, "unlisted": 0}),
        ("edited", ["Holder().two()"], {"type": "done", "passed": 1, "total": 1, "unlisted": 0}),
        ("edited without examples", [], {"type": "done", "passed": 0, "total": 0, "unlisted": 0}),
        ("two sections edited", [], {"type": "done", "passed": 0, "total": 0, "unlisted": 0}),
    ],
)
def test_sections_and_edits(name, sources, last):
    *examples, end = answers()[name]["events"]
    assert [example["source"].strip() for example in examples] == sources
    assert end == last
    assert answers()[name]["printed"] == ("1\n" if name == "edited without examples" else "")


def test_results_are_bounded():
    (example, _) = answers()["long result"]["events"]
    assert not example["passed"]
    assert len(example["got"]) < 11_000
    *examples, end = answers()["many examples"]["events"]
    assert (len(examples), end["total"], end["unlisted"]) == (300, 1000, 700)
    assert answers()["flood"]["events"][-1] == {"type": "overflow"}
    (example, _) = answers()["surrogate"]["events"]
    assert example["got"] == "\ud800\n"


def test_calls_return_exact_numbers_or_the_message_of_the_exception():
    assert answers()["call"]["events"] == [{"type": "result", "value": {"y": 1 / 3}}]
    assert answers()["call nan"]["events"][0]["type"] == "error"
    assert answers()["call bad"]["events"] == [{"type": "error", "text": "ValueError: 太大"}]


def test_the_standard_library_is_built_the_same_everywhere(tmp_path):
    assert Runtime(PACKAGE, tmp_path).stdlib().read_bytes() == Runtime(PACKAGE).stdlib().read_bytes()
