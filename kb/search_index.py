"""What the site's search reads: titles, 30-second answers and the text of every page, as three JSON files.

They load one after the other: titles give the first results, answers and bodies follow. docs/assets/search holds the code
that reads them.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import dedent

from pymdownx.slugs import slugify

from kb.llms import expand_embeds
from kb.mdsource import Heading, parse, sections
from kb.page import ANSWER, FRONT_MATTER, Answer, PageError
from kb.paths import DOCS, SNIPPETS
from kb.search_script import bundle, lean
from kb.search_text import code_words, plain_text
from kb.site import LABS, Site
from kb.views import QUESTIONS_MARKER

FOLDER = "assets/search"
H1 = re.compile(r"^# +(?P<text>.*?)(?: *\{[^}]*\})? *\n", re.M)

FOLLOW_UP = re.compile(r'^\?\?\?\+? *question +"(?P<question>.*)" *$', re.M)

_slug = slugify(case="lower")

# Goes into the header's HTML, so that nothing moves when the script wakes it up.
OPEN_BUTTON = (
    '<button class="kb-search-open" type="button" aria-label="搜索" aria-haspopup="dialog" aria-keyshortcuts="/ Control+K Meta+K">'
    '<svg viewBox="0 0 24 24" width="24" height="24" aria-hidden="true">'
    '<path d="M9.5 3a6.5 6.5 0 0 1 5.17 10.44l6.2 6.2-1.42 1.41-6.2-6.2A6.5 6.5 0 1 1 9.5 3m0 2a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9"/>'
    '</svg><span>搜索</span><kbd aria-hidden="true">/</kbd></button>'
)


@dataclass(frozen=True)
class Section:
    """A stretch of a page under one heading. `anchor` is empty for the part before the first heading."""

    anchor: str
    heading: str
    text: str
    code: str = ""


@dataclass(frozen=True)
class SearchPage:
    """A page as the search sees it. `id` is empty for pages that are no question."""

    url: str
    id: str
    title: str
    title_en: str
    chapter: str
    tags: tuple[str, ...]
    answer: str
    sections: tuple[Section, ...]


def _section(anchor: str, heading: str, markdown: str) -> Section:
    document = parse(markdown)
    code = "\n".join(line for fence in document.fences for line in fence.lines)
    prose = "\n".join(line for _, line in document.prose)
    return Section(anchor, plain_text(heading), plain_text(prose), code_words(code))


def _anchor(heading: Heading) -> str:
    return heading.id or _slug(plain_text(heading.text), "-")


@lru_cache(maxsize=1024)
def page_sections(markdown: str) -> tuple[Section, ...]:
    """The text of a page by level 2 and 3 headings; a folded follow-up is a section of its own under the same anchor.

    Cached: while serving, an edit changes one page.
    """
    found = []
    for heading, body in sections(markdown):
        anchor = _anchor(heading) if heading else ""
        title = heading.text if heading else ""
        # FOLLOW_UP has one group: text before the first follow-up, then question and answer by turns.
        text, *follow_ups = FOLLOW_UP.split(body)
        parts = [(title, text), *zip(follow_ups[::2], map(dedent, follow_ups[1::2]), strict=True)]
        for name, part in parts:
            section = _section(anchor, name, part)
            if section.text or section.code:
                found.append(section)
    return tuple(found)


def _answer_page(answer: Answer, site: Site, snippets: Path) -> SearchPage:
    section = next(part for part in site.catalogue.chapter_of(answer.question.folder).sections if part.folder == answer.question.folder)
    chapter = site.chapter_title(answer)
    body = ANSWER.sub("", H1.sub("", expand_embeds(answer.body, snippets), count=1), count=1)
    return SearchPage(
        url=answer.url,
        id=answer.id,
        title=answer.title,
        title_en=answer.title_en,
        chapter=chapter if section.title == chapter else f"{chapter} · {section.title}",
        tags=tuple(dict.fromkeys(word for tag in answer.tags for word in (tag, site.catalogue.tags[tag]))),
        answer=plain_text(answer.answer),
        sections=page_sections(body),
    )


def notebook_markdown(source: str) -> str:
    """The Markdown cells of a percent-format notebook, its code cells as fences."""
    cells = []
    for kind, body in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n?)*)", source, re.M):
        if "[markdown]" in kind:
            cells.append(re.sub(r"^# ?", "", body, flags=re.M))
        else:
            cells.append(f"~~~~~python\n{body.rstrip()}\n~~~~~\n")
    return "\n".join(cells)


def _unwritten(folder: str, site: Site) -> Iterator[Section]:
    """Questions that stand in a chapter's table without a page: found there."""
    for question in site.catalogue.in_folder(folder):
        if question.id not in site.answers:
            labels = " ".join(site.catalogue.tags[tag] for tag in question.tags)
            yield Section(question.id, f"{question.label} {question.title}（撰写中）", f"{question.title_en} {labels}")


def _other_page(path: str, site: Site) -> SearchPage:
    text = (site.docs / path).read_text(encoding="utf-8")
    is_notebook = path.endswith(".py")
    body = notebook_markdown(text) if is_notebook else FRONT_MATTER.sub("", text, count=1)
    title = H1.search(body)
    if title is None:
        raise PageError(path, "title", "begin the page with '# title'")
    found = list(page_sections(H1.sub("", body, count=1)))
    for marker in QUESTIONS_MARKER.finditer(body):
        found += _unwritten(marker["folder"], site)
    stem = path.rsplit(".", 1)[0]
    return SearchPage(
        url="" if stem == "index" else stem.removesuffix("/index") + "/",
        id="",
        title=plain_text(title["text"]),
        title_en="",
        chapter="实验" if path.startswith(f"{LABS}/") and is_notebook else "",
        tags=(),
        answer="",
        sections=tuple(found),
    )


def _other_paths(site: Site) -> Iterator[str]:
    answers = {answer.path for answer in site.answers.values()}
    for file in sorted([*site.docs.rglob("*.md"), *(site.docs / LABS).glob("[!_]*.py")]):
        path = file.relative_to(site.docs).as_posix()
        if path not in answers:
            yield path


def search_pages(site: Site, snippets: Path = SNIPPETS) -> list[SearchPage]:
    """Every page of the site, questions first."""
    answers = [_answer_page(answer, site, snippets) for answer in site.answers.values()]
    return answers + [_other_page(path, site) for path in _other_paths(site)]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def titles_json(pages: Iterable[SearchPage]) -> str:
    """Rows of url, id, title, English title, chapter, tags."""
    return _json([[page.url, page.id, page.title, page.title_en, page.chapter, " ".join(page.tags)] for page in pages])


def answers_json(pages: Iterable[SearchPage]) -> str:
    """The 30-second answers by url."""
    return _json({page.url: page.answer for page in pages if page.answer})


def bodies_json(pages: Iterable[SearchPage]) -> str:
    """Lists of [anchor, heading, text, code words] by url."""
    return _json({page.url: [[part.anchor, part.heading, part.text, part.code] for part in page.sections] for page in pages})


def files(site: Site) -> Iterator[tuple[str, str]]:
    """Pairs of (path in the site, text): the index, and the code that reads it as it is served."""
    folder = DOCS / FOLDER
    yield f"{FOLDER}/ui.mjs", lean(bundle(folder, "ui.mjs"))
    yield f"{FOLDER}/search.css", lean((folder / "search.css").read_text(encoding="utf-8"))
    pages = search_pages(site)
    yield f"{FOLDER}/titles.json", titles_json(pages)
    yield f"{FOLDER}/answers.json", answers_json(pages)
    yield f"{FOLDER}/bodies.json", bodies_json(pages)
