"""Which blocks can run in the page, how they are marked, and what happens without the runtime."""

import logging

import pytest

from kb.python_runtime import SHA256, find
from kb.runnable import Snippets, mark_blocks

MARKED = 'before\n\n    ```python title="snippets/a/x.py"\n    --8<-- "a/x.py:one"\n    --8<-- "a/x.py:two"\n    ```\n'


def snippets(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / "snippets").mkdir(exist_ok=True)
        (tmp_path / "snippets" / f"{name}.py").write_text(text, encoding="utf-8")
    return Snippets(tmp_path / "snippets", tmp_path / "imports.json")


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("import math, collections.abc\nfrom dataclasses import dataclass\n", ()),
        ("from snippets.base import f\n", ("base.py",)),
        ("from snippets import base\n", ("base.py",)),
        ("import snippets.base as b\n", ("base.py",)),
        ("from . import base\n", ("base.py",)),
        ("from .base import f\n", ("base.py",)),
        ("from snippets.middle import g\n", ("middle.py", "base.py")),
        ("import numpy\n", None),
        ("def f():\n    import torch.nn\n", None),
        ("from snippets.arrays import g\n", None),
        ("from snippets.missing import g\n", None),
        ("from kb import paths\n", None),
        ("import threading\n", None),
        ("from multiprocessing import Pool\n", None),
        ("import email.message\n", None),
        ('def f():\n    """\n    >>> import numpy as np\n    >>> f()\n    """\n', None),
        ('def f():\n    """\n    >>> from snippets.base import f as g\n    """\n', ("base.py",)),
        ('def f():\n    """\n    >>> 1 +\n    Traceback (most recent call last):\n    SyntaxError: invalid syntax\n    """\n', ()),
    ],
)
def test_what_a_module_imports_decides(tmp_path, text, needs):
    base = {"base": "from snippets.base import f\n", "middle": "from snippets.base import f\n", "arrays": "import numpy\n"}
    assert snippets(tmp_path, x=text, **base).needs("x.py") == needs


def test_a_change_is_seen_through_the_cache(tmp_path):
    known = snippets(tmp_path, x="import math\n", y="from snippets.x import f\n")
    assert set(known.runnable()) == {"x.py", "y.py"}
    known.save()
    assert set(snippets(tmp_path).runnable()) == {"x.py", "y.py"}
    assert snippets(tmp_path, x="import numpy\n").runnable() == {}


def test_a_block_of_one_runnable_module_is_marked():
    assert mark_blocks(MARKED, {"a/x.py": ()}).splitlines()[2] == ('    ``` { .python title="snippets/a/x.py" data-run="a/x.py:one,two" }')
    assert mark_blocks('```python\n--8<-- "a/x.py"\n```\n', {"a/x.py": ()}).startswith('``` { .python data-run="a/x.py" }\n--8<--')


@pytest.mark.parametrize(
    "block",
    [
        '```python\n--8<-- "a/x.py"\n--8<-- "a/y.py"\n```\n',
        '```python\n--8<-- "b/z.py"\n```\n',
        '```python\n--8<-- "a/x.py"\nprint(1)\n```\n',
        '```text\n--8<-- "a/x.py"\n```\n',
        "```python\nx = 1\n```\n",
    ],
)
def test_other_blocks_stay_as_they_are(block):
    assert mark_blocks(block, {"a/x.py": (), "a/y.py": ()}) == block


def test_without_the_runtime_one_line_says_so_and_nothing_is_marked(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="mkdocs.kb.python"):
        assert find(tmp_path) is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "npm ci" in record.message
    assert mark_blocks(MARKED, {}) == MARKED


def test_files_that_are_not_the_pinned_ones_are_refused(tmp_path, caplog):
    (tmp_path / "pyodide").mkdir()
    for name in SHA256:
        (tmp_path / "pyodide" / name).write_text("something else", encoding="utf-8")
    assert find(tmp_path) is None
    assert "SHA-256" in caplog.text
