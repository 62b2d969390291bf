"""Highlighted code kept on disk. Pygments takes two fifths of a full build, and its result depends on the code alone."""

import hashlib
import json
from pathlib import Path

import pygments
from pygments.formatter import Formatter
from pygments.lexer import Lexer
from pymdownx import highlight

from kb.paths import CACHE


class Cache:
    """Results of pygments.highlight by code, lexer and formatter settings; valid for one version of Pygments."""

    def __init__(self, folder: Path = CACHE / "highlight"):
        self._file = folder / f"{pygments.__version__}.json"
        self._known: dict[str, str] = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        self._used: set[str] = set()

    def highlight(self, code: str, lexer: Lexer, formatter: Formatter) -> str:
        settings = sorted((name, repr(value)) for name, value in formatter.options.items())
        key = hashlib.sha256(repr((code, lexer.name, type(formatter).__name__, settings)).encode()).hexdigest()
        self._used.add(key)
        if key not in self._known:
            self._known[key] = pygments.highlight(code, lexer, formatter)
        return self._known[key]

    def save(self) -> None:
        """Write the results that this process used; those of deleted code are dropped."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = {key: self._known[key] for key in sorted(self._used)}
        self._file.write_text(json.dumps(kept, ensure_ascii=False), encoding="utf-8")


def install(cache: Cache) -> None:
    """Let the highlight extension ask the cache first."""
    highlight.highlight = cache.highlight
