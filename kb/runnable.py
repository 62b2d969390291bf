"""Which snippets run in the reader's browser: those that import, themselves and through other snippets, the standard library only."""

import ast
import doctest
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kb.paths import CACHE, ROOT, SNIPPETS
from kb.python_runtime import DROPPED, Runtime

FOLDER = "assets/run"
RUNNER = ROOT / "docs" / FOLDER / "runner.py"
PACKAGE = "snippets"
# Parts of the standard library that need what WebAssembly on a page does not have: threads, processes, sockets, signals, a terminal.
NOT_ON_A_PAGE = {"_thread", "asyncio", "concurrent", "select", "selectors", "signal", "socket", "socketserver", "subprocess", "threading"}
STANDARD = set(sys.stdlib_module_names) - NOT_ON_A_PAGE - {path.rstrip("/").removesuffix(".py") for path in DROPPED}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
EXAMPLES = doctest.DocTestParser()
EMBEDDED = re.compile(
    r'^(?P<indent> *)```python(?P<options> [^\n{}]*)?\n(?P<embeds>(?: *-{1,}8<-{1,} +"[^"\n]+" *\n)+)(?=(?P=indent)``` *$)', re.M
)
EMBED = re.compile(r'"([^":]+)(?::([^"]+))?"')


def imports(text: str, path: str) -> Iterator[str]:
    """Dotted names that a module imports, in its code and in its doctests.

    >>> list(imports("import math\\nfrom .b import c", "a/x.py"))
    ['math', 'snippets.a.b.c']
    """
    trees = [ast.parse(text)]
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                package = [PACKAGE, *PurePosixPath(path).parent.parts][: -node.level + 1 or None] if node.level else []
                yield from (".".join(filter(None, [*package, node.module, alias.name])) for alias in node.names)
            elif isinstance(node, DOCUMENTED) and (documentation := ast.get_docstring(node)):
                for example in EXAMPLES.get_examples(documentation):
                    try:
                        trees.append(ast.parse(example.source))
                    except SyntaxError:
                        continue  # an example may show one


class Snippets:
    """The modules below a folder; what they import is kept on disk by the digest of their text."""

    def __init__(self, folder: Path = SNIPPETS, cache: Path = CACHE / "imports.json"):
        self._folder = folder
        self._cache = cache
        self._known: dict[str, list[str]] = json.loads(cache.read_text(encoding="utf-8")) if cache.exists() else {}
        self._imports: dict[str, list[str]] = {}
        self.digests: dict[str, str] = {}
        rules = Path(__file__).read_bytes()
        for file in sorted(folder.rglob("*.py")):
            path, text = file.relative_to(folder).as_posix(), file.read_bytes()
            self.digests[path] = hashlib.sha256(text).hexdigest()[:8]
            key = hashlib.sha256(path.encode() + rules + text).hexdigest()
            if key not in self._known:
                self._known[key] = sorted(set(imports(text.decode(), path)))
            self._imports[key] = self._known[key]
            self._imports[path] = self._known[key]

    def _file(self, name: str) -> str | None:
        """The file of `snippets.a.b`, or of the module that holds the name `snippets.a.b`."""
        parts = name.split(".")[1:]
        candidates = ("/".join(parts[:length]) + ".py" for length in range(len(parts), 0, -1))
        return next((path for path in candidates if path in self.digests), None)

    def needs(self, path: str) -> tuple[str, ...] | None:
        """The other files that a module imports, directly or not; None when a browser cannot run it."""
        seen: list[str] = [path]
        for current in seen:
            for name in self._imports[current]:
                top = name.partition(".")[0]
                file = self._file(name) if top == PACKAGE else None
                if file is None and top not in STANDARD:
                    return None
                if file is not None and file not in seen:
                    seen.append(file)
        return tuple(seen[1:])

    def runnable(self) -> dict[str, tuple[str, ...]]:
        """Every module that a browser can run, with the files it needs."""
        return {path: needs for path in self.digests if (needs := self.needs(path)) is not None}

    def save(self) -> None:
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        kept = {key: names for key, names in self._imports.items() if key not in self.digests}
        self._cache.write_text(json.dumps(kept), encoding="utf-8")


def mark_blocks(markdown: str, runnable: dict[str, tuple[str, ...]]) -> str:
    """Name the module and sections of each runnable embedded block in its fence, where the page's script finds them."""

    def mark(match: re.Match) -> str:
        embeds = EMBED.findall(match["embeds"])
        (path, *others) = {path for path, _ in embeds}
        if others or path not in runnable:
            return match[0]
        sections = ",".join(section for _, section in embeds if section)
        source = f"{path}:{sections}" if sections else path
        return f'{match["indent"]}``` {{ .python{match["options"] or ""} data-run="{source}" }}\n{match["embeds"]}'

    return EMBEDDED.sub(mark, markdown)


def publish(snippets: Snippets, runtime: Runtime, site: Path, folder: Path = SNIPPETS) -> None:
    """Write the runtime, the runner, every runnable module and their list into the built site."""
    out = site / FOLDER
    runtime.publish(out)
    runner = RUNNER.read_bytes()
    known = json.dumps({**runtime.facts(), "runner": hashlib.sha256(runner).hexdigest()[:8]})
    worker = RUNNER.with_name("worker.mjs").read_text(encoding="utf-8").replace("const RUNTIME = null;", f"const RUNTIME = {known};")
    modules = {path: {"digest": snippets.digests[path], "needs": needs} for path, needs in snippets.runnable().items()}
    (out / "runner.py").write_bytes(runner)
    (out / "worker.mjs").write_text(worker, encoding="utf-8")
    (out / "manifest.json").write_text(json.dumps(modules), encoding="utf-8")
    for path in modules:
        target = out / PACKAGE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((folder / path).read_bytes())
