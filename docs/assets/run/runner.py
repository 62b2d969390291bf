"""Runs a tested snippet inside the reader's browser; the same code runs the doctests in Node.

The worker writes the files of a snippet below ROOT, calls `run` or `call`, and gets every event as one JSON string.
"""

import dataclasses
import doctest
import importlib
import io
import json
import linecache
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path("/kb")
LONGEST_RESULT = 10_000
MOST_RESULTS = 300
RECURSION_LIMIT = sys.getrecursionlimit()
MARKER = re.compile(r"[ \t]*# --8<-- \[(?P<kind>start|end):(?P<name>[^\]]+)\]")


class TooMuch(BaseException):
    """Output beyond what a page should hold."""


def ranges(lines: list[str], sections: list[str]) -> list[tuple[int, int]]:
    """The lines (from, to) between the markers of the sections, in file order; the whole file without sections."""
    if not sections:
        return [(0, len(lines))]
    start: dict[str, int] = {}
    found = []
    for number, line in enumerate(lines):
        if match := MARKER.match(line):
            if match["kind"] == "start":
                start[match["name"]] = number + 1
            elif match["name"] in sections:
                found.append((start[match["name"]], number))
    return sorted(found)


def edited_file(text: str, sections: list[str], edited: str) -> str:
    """The file with the reader's text in place of the sections (several sections: in place of the last)."""
    lines = text.splitlines(keepends=True)
    *others, (first, last) = ranges(lines, sections)
    margin = re.match(r"[ \t]*", next((line for line in lines[first:last] if line.strip()), ""))[0] if sections else ""
    lines[first:last] = (textwrap.indent(edited, margin).rstrip("\n") + "\n").splitlines(keepends=True)
    for first, last in reversed(others):
        del lines[first:last]
    return "".join(lines)


def trimmed_traceback(error: BaseException) -> str:
    """The traceback with the frames of the reader's files only."""

    def trim(trace: traceback.TracebackException | None) -> None:
        if trace is None:
            return
        own = [frame for frame in trace.stack if frame.filename.startswith((f"{ROOT}/", "<doctest"))]
        trace.stack = traceback.StackSummary.from_list(own) if own else None
        for inner in (trace.__cause__, trace.__context__, *(getattr(trace, "exceptions", None) or ())):
            trim(inner)

    trace = traceback.TracebackException.from_exception(error)
    trim(trace)
    return _clip("".join(trace.format()).replace(f"{ROOT}/", ""))


def _clip(text: str) -> str:
    return text if len(text) <= LONGEST_RESULT else f"{text[:LONGEST_RESULT]}…（共 {len(text)} 个字符）\n"


class _Captured(io.StringIO):
    """What a doctest example prints, up to a limit."""

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit

    def getvalue(self) -> str:
        text = super().getvalue()
        return text if not text or text.endswith("\n") else text + "\n"

    def truncate(self, size: int | None = None) -> int:
        self.seek(size or 0)
        return super().truncate()

    def write(self, text: str) -> int:
        if self.tell() + len(text) > self.limit:
            raise TooMuch
        return super().write(text)


class _Runner(doctest.DocTestRunner):
    """Reports each example as it ends."""

    def __init__(self, post: Callable[..., None], limit: int):
        super().__init__(verbose=False, optionflags=doctest.ELLIPSIS)  # as in pyproject.toml
        self._fakeout = _Captured(limit)
        self._post = post
        self.passed = self.total = 0

    def _example(self, passed: bool, example: doctest.Example, got: str) -> None:
        self.passed += passed
        self.total += 1
        if self.total <= MOST_RESULTS:
            self._post("test", passed=passed, source=example.source, want=_clip(example.exc_msg or example.want), got=_clip(got))

    def report_start(self, out, test, example):
        pass

    def report_success(self, out, test, example, got):
        self._example(True, example, got)

    def report_failure(self, out, test, example, got):
        self._example(False, example, got)

    def report_unexpected_exception(self, out, test, example, exc_info):
        if isinstance(exc_info[1], TooMuch):
            raise exc_info[1]
        self._example(False, example, trimmed_traceback(exc_info[1]))


def write_files(files: dict[str, str]) -> None:
    """Put the files of a snippet where Python imports them; forget what an earlier run imported and changed."""
    for path, text in files.items():
        file = ROOT / "snippets" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "snippets"]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    sys.setrecursionlimit(RECURSION_LIMIT)
    os.chdir(ROOT)
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    sys.path_importer_cache.clear()
    linecache.clearcache()


def _module(path: str):
    return importlib.import_module("snippets." + path.removesuffix(".py").replace("/", "."))


def run(post_json: Callable[[str], None], request_json: str, limit: int = 200_000) -> None:
    """Import the module, then run the doctests of the shown sections (of the whole file where these, unedited, have none).

    Posts {"type": "test", …} for each example and at last {"type": "done", passed, total}, or {"type": "error", text}.
    """

    def post(kind: str, **fields) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        post_json(json.dumps({"type": kind, **fields}))

    request = json.loads(request_json)
    path, sections, edited = request["path"], request["sections"], request.get("edited")
    files = request["files"]
    if edited is not None:
        files[path] = edited_file(files[path], sections, edited)
    write_files(files)
    try:
        module = _module(path)
        shown = ranges(files[path].splitlines(), sections)
        tests = sorted(doctest.DocTestFinder().find(module, module.__name__), key=lambda test: test.lineno or 0)
        for test in (tests := [test for test in tests if test.examples]):
            test.within = [
                example for example in test.examples if any(first <= (test.lineno or 0) + example.lineno < last for first, last in shown)
            ]
        if edited is not None or any(test.within for test in tests):
            tests = [test for test in tests if test.within]
        runner = _Runner(post, limit)
        for test in tests:
            runner.run(test, out=lambda _: None, clear_globs=False)
    except TooMuch:
        post("overflow")
    except BaseException as error:
        post("error", text=trimmed_traceback(error))
    else:
        post("done", passed=runner.passed, total=runner.total, unlisted=max(0, runner.total - MOST_RESULTS))


def call(post_json: Callable[[str], None], request_json: str) -> None:
    """Call one function of a module. Posts {"type": "result", value}, or {"type": "error", text}: the exception's last line."""
    request = json.loads(request_json)
    arguments = request["arguments"]
    try:
        write_files(request["files"])
        function = getattr(_module(request["path"]), request["name"])
        value = function(**arguments) if isinstance(arguments, dict) else function(*arguments)
        if dataclasses.is_dataclass(value):
            value = dataclasses.asdict(value)
        answer = json.dumps({"type": "result", "value": value}, allow_nan=False)
    except BaseException as error:
        answer = json.dumps({"type": "error", "text": "".join(traceback.format_exception_only(error)).strip()})
    post_json(answer)
