"""Figures drawn by snippets: every function `figure_<name>() -> str` owns one SVG file below docs/."""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kb.catalogue import Catalogue
from kb.paths import DOCS, SNIPPETS, snippet_folder

PREFIX = "figure_"


@dataclass(frozen=True)
class Figure:
    """`path` is the SVG's path below docs/."""

    module: str
    function: str
    path: str

    def draw(self) -> str:
        return getattr(importlib.import_module(self.module), self.function)().strip() + "\n"


def _functions(source: str) -> list[str]:
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name.startswith(PREFIX)]


def find_figures(catalogue: Catalogue, snippets: Path = SNIPPETS) -> Iterator[Figure]:
    """The figures of all snippets that lie in a section's folder."""
    folders = sorted({question.folder for question in catalogue.questions.values()})
    for folder in folders:
        for file in sorted((snippets / snippet_folder(folder)).glob("*.py")):
            module = ".".join(("snippets", *file.relative_to(snippets).with_suffix("").parts))
            for function in _functions(file.read_text(encoding="utf-8")):
                name = f"{file.stem}_{function.removeprefix(PREFIX)}".replace("_", "-")
                yield Figure(module, function, f"{folder}/figures/{name}.svg")


def write_figures(catalogue: Catalogue, folder: str = "", docs: Path = DOCS) -> list[str]:
    """Draw the figures below a folder of docs/; returns the paths whose content changed."""
    changed = []
    for figure in find_figures(catalogue):
        if not figure.path.startswith(folder):
            continue
        file = docs / figure.path
        drawn = figure.draw()
        if not file.exists() or file.read_text(encoding="utf-8") != drawn:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(drawn, encoding="utf-8")
            changed.append(figure.path)
    return changed
