"""Lab pages: what mkdocs-jupyter renders, reduced to the markup and styles that every other page uses.

Its pages carry half a megabyte of inline styles each, raw formulas and headings without ids.
"""

import hashlib
import html
import re
from dataclasses import dataclass
from pathlib import Path

from bs4 import BeautifulSoup, Tag

HEADING_ID = re.compile(r"^(?P<text>.*?)\s*\{\s*#(?P<id>[a-z0-9-]+)\s*\}\s*$", re.S)
DISPLAY_MATH = re.compile(r"(?:<p>)?\$\$(.+?)\$\$(?:</p>)?", re.S)
INLINE_MATH = re.compile(r"(?<![\\$\w])\$([^$\n]+?)\$(?!\w)")
CODE = re.compile(r"(<(pre|code|svg)\b.*?</\2>)", re.S)


@dataclass(frozen=True)
class Lab:
    """`toc` is what MkDocs' get_toc takes."""

    content: str
    toc: list[dict]


def sources_digest(snippets: Path) -> str:
    """Changes whenever a snippet does, so that a lab which imports it is run again."""
    digest = hashlib.sha256()
    for file in sorted(snippets.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _math(markup: str) -> str:
    """Formulas in text as the math renderer expects them; code and figures are left alone."""
    parts = CODE.split(markup)
    for index in range(0, len(parts), 3):
        part = DISPLAY_MATH.sub(lambda match: f'<div class="arithmatex">\\[{match[1]}\\]</div>', parts[index])
        parts[index] = INLINE_MATH.sub(lambda match: f'<span class="arithmatex">\\({match[1]}\\)</span>', part)
    return "".join(part for index, part in enumerate(parts) if index % 3 != 2)


def _heading(tag: Tag, path: str) -> tuple[int, str, str]:
    tag.find("a", class_="anchor-link").decompose()
    level, text = int(tag.name[1]), tag.get_text()
    match = HEADING_ID.match(text)
    if match:
        tag.string = match["text"]
        tag["id"] = match["id"]
    elif level == 1:
        del tag["id"]
    else:
        raise ValueError(f"{path}: heading {text!r}: add an ASCII id: '{text} {{ #some-id }}'")
    return level, tag.get_text(), tag.get("id", "")


def _markdown(cell: Tag, path: str, toc: list[dict]) -> str:
    body = cell.find(class_="jp-RenderedMarkdown")
    for tag in body.find_all(re.compile("^h[1-6]$")):
        level, text, id = _heading(tag, path)
        if level == 2:
            toc.append({"level": level, "id": id, "name": html.escape(text), "children": []})
    return _math(body.decode_contents().strip())


def _output(tag: Tag) -> str:
    mime = tag.get("data-mime-type", "")
    if mime in ("image/svg+xml", "text/html"):
        return f'<div class="kb-output kb-figure">{tag.decode_contents().strip()}</div>'
    text = html.escape(tag.get_text().strip("\n"))
    return f'<div class="highlight kb-output"><pre><code>{text}</code></pre></div>'


def _code(cell: Tag) -> str:
    source = cell.find(class_="highlight-ipynb").find("pre")
    parts = [f'<div class="highlight"><pre><code>{source.decode_contents().strip()}</code></pre></div>']
    parts += [_output(output) for output in cell.find_all(class_="jp-OutputArea-output")]
    return "\n".join(parts)


def lean(path: str, content: str) -> Lab:
    """One rendered notebook as a plain page.

    Raises ValueError for a heading below level 1 without an id.
    """
    notebook = BeautifulSoup(content, "html.parser").find(class_="jp-Notebook")
    toc: list[dict] = []
    parts = []
    for cell in notebook.select(".jp-MarkdownCell, .jp-CodeCell[id]"):
        parts.append(_markdown(cell, path, toc) if "jp-MarkdownCell" in cell["class"] else _code(cell))
    return Lab("\n".join(parts), toc)
