"""Third-party files that the site serves: copied from node_modules into the built site, never committed."""

from collections.abc import Iterator
from pathlib import Path

from kb.paths import NODE_MODULES

KATEX = "assets/katex"


def assets(node_modules: Path = NODE_MODULES) -> Iterator[tuple[str, Path]]:
    """Pairs of (path in the site, file)."""
    katex = node_modules / "katex" / "dist"
    yield f"{KATEX}/katex-swap.min.css", katex / "katex-swap.min.css"
    yield f"{KATEX}/copy-tex.min.js", katex / "contrib" / "copy-tex.min.js"
    for font in sorted((katex / "fonts").glob("*.woff2")):
        yield f"{KATEX}/fonts/{font.name}", font
