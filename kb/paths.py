"""Where things live in the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SNIPPETS = ROOT / "snippets"
EXERCISES = ROOT / "exercises"  # what a reader fills in; never committed
DATA = ROOT / "kb" / "data"
CACHE = ROOT / ".cache"
NODE_MODULES = ROOT / "node_modules"
PUBLISHED_URLS = ROOT / "tests" / "site" / "published_urls.txt"


def snippet_folder(docs_folder: str) -> str:
    """The folder below snippets/ that mirrors a folder below docs/ (hyphens cannot be imported)."""
    return docs_folder.replace("-", "_")
