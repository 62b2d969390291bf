"""Exercises: a tested snippet with blanks, on its page and as a file to fill in.

A blank is a section of a snippet whose name begins with `blank-`. Comments at its head stay as the hint; its code makes way for
a `raise`. A page names the sections to show in a fence:

    ```exercise
    coding/algorithms/gelu.py:gelu
    ```
"""

import importlib.util
import re
import sys
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path

from kb.mdsource import Fence
from kb.page import Answer
from kb.paths import EXERCISES, ROOT, SNIPPETS

FENCE = re.compile(r"^```exercise\n(?P<source>[^\n]*)\n``` *$", re.M)
SOURCE = re.compile(r"^(?P<path>[\w/]+\.py):(?P<section>[\w-]+)$")
MARKER = re.compile(r"^[ \t]*# --8<-- \[(?P<kind>start|end):(?P<name>[^\]]+)\]\n", re.M)
BLANK = re.compile(
    r"^[ \t]*# --8<-- \[start:(?P<name>blank-[^\]]+)\]\n(?P<hint>(?:[ \t]*#[^\n]*\n)*)(?P<code>.*?)^[ \t]*# --8<-- \[end:(?P=name)\]\n",
    re.M | re.S,
)


class ExerciseError(ValueError):
    """A fence that names no section with blanks."""


def blanked(text: str) -> str:
    """The module with every blank emptied; the markers of other sections stay.

    >>> print(blanked("if x:\\n    # --8<-- [start:blank-a]\\n    # hint\\n    y = x\\n    # --8<-- [end:blank-a]\\nz = 1"))
    if x:
        # hint
        raise NotImplementedError("填空 1")
    z = 1
    """
    numbers = iter(range(1, text.count("\n") + 2))

    def empty(match: re.Match) -> str:
        margin = re.match(r"[ \t]*", match["code"])[0]
        return f'{match["hint"]}{margin}raise NotImplementedError("填空 {next(numbers)}")\n'

    return BLANK.sub(empty, text)


def _source(text: str) -> tuple[str, str]:
    match = SOURCE.match(text.strip())
    if not match or not (SNIPPETS / match["path"]).is_file():
        raise ExerciseError(f"{text!r} is not folder/module.py:section of a snippet")
    return match["path"], match["section"]


def shown(source: str) -> str:
    """The section that a fence names, with blanks."""
    path, section = _source(source)
    text = (SNIPPETS / path).read_text(encoding="utf-8")
    ends = {match["kind"]: match for match in MARKER.finditer(text) if match["name"] == section}
    if len(ends) != 2:
        raise ExerciseError(f"{path} has no section {section}")
    within = text[ends["start"].end() : ends["end"].start()]
    if not BLANK.search(within):
        raise ExerciseError(f"section {section} of {path} has no blanks; name a nested section blank-…")
    return textwrap.dedent(MARKER.sub("", blanked(within)))


def validate(fence: Fence) -> None:
    """Raise ExerciseError where the fence names no section with blanks."""
    shown("\n".join(fence.lines))


def sources(answer: Answer) -> Iterator[str]:
    """Paths below snippets/ of the modules that a page sets as exercises."""
    for fence in answer.document.fences:
        if fence.language == "exercise":
            yield _source("\n".join(fence.lines))[0]


def expand(markdown: str, id: str, runnable: Collection[str] = ()) -> str:
    """Replace the fences by code with blanks and the line that says how to check it."""

    def block(match: re.Match) -> str:
        path, _ = _source(match["source"])
        attributes = f' data-run="{match["source"].strip()}" data-exercise="" ' if path in runnable else " "
        here = "点“编辑”填好空，再点“检查”，页面上的例子会逐个对照。" if path in runnable else ""
        local = f"在本地：`make exercise id={id}` 写出带空的 `exercises/{path}`，填好后 `make check id={id}` 跑这一题的全部测试。"
        return f"``` {{ .python{attributes}}}\n{shown(match['source'])}```\n\n{here}{local}"

    return FENCE.sub(block, markdown)


def write(answer: Answer, folder: Path = EXERCISES) -> list[Path]:
    """Write the modules of a page's exercises, with blanks, below the folder. Files that exist stay as they are."""
    written = []
    for path in dict.fromkeys(sources(answer)):
        target = folder / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(MARKER.sub("", blanked((SNIPPETS / path).read_text(encoding="utf-8"))), encoding="utf-8")
            written.append(target)
    return written


def check(answer: Answer, folder: Path = EXERCISES) -> int:
    """Run the tests of a page's modules against the reader's files. Returns pytest's exit status."""
    import pytest

    tests = []
    for path in dict.fromkeys(sources(answer)):
        name = "snippets." + path.removesuffix(".py").replace("/", ".")
        specification = importlib.util.spec_from_file_location(name, folder / path)
        sys.modules[name] = module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        file = Path(path)
        tests.append(str(ROOT / "tests" / "snippets" / file.parent / f"test_{file.name}"))
    return int(pytest.main(["-q", *tests]))
