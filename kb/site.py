"""All pages of the site together, and what derives from the whole: navigation and short links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kb.catalogue import Catalogue, Chapter
from kb.page import Answer, PageError, read_answer, split_front_matter

ANSWER_NAME = re.compile(r"^[qbi]\d[\d-]*-")
LABS = "labs"
TOOLS = "tools"
META_PAGES = ("about.md", "errata.md", "tags.md", "contributing.md")


@dataclass(frozen=True)
class Site:
    docs: Path
    catalogue: Catalogue
    answers: dict[str, Answer]
    short_names: dict[str, str]

    def answers_in(self, folder: str) -> list[Answer]:
        """The written answers of one section, in catalogue order."""
        return [self.answers[question.id] for question in self.catalogue.in_folder(folder) if question.id in self.answers]

    def answer_at(self, path: str) -> Answer | None:
        """The answer whose page lies at a path below docs/, if it is one."""
        return next((answer for answer in self.answers.values() if answer.path == path), None)

    def chapter_title(self, answer: Answer) -> str:
        return self.catalogue.chapter_of(answer.question.folder).title


def _answer_paths(docs: Path) -> Iterator[str]:
    for file in sorted(docs.rglob("*.md")):
        if ANSWER_NAME.match(file.name):
            yield file.relative_to(docs).as_posix()


def _short_name(docs: Path, index: str) -> str:
    """The tab label of a chapter, from the front matter of its index page."""
    try:
        text = (docs / index).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PageError(index, "chapter", "has no index page; write it") from None
    meta, _, _ = split_front_matter(index, text)
    if set(meta) != {"short"} or not isinstance(meta["short"], str):
        raise PageError(index, "front matter", "a chapter's index page has the one field 'short' (its tab label)")
    return meta["short"]


def load_site(docs: Path, catalogue: Catalogue) -> Site:
    """Read and check every page below docs/.

    Raises PageError for the first malformed page.
    """
    answers: dict[str, Answer] = {}
    for path in _answer_paths(docs):
        answer = read_answer(docs, path, catalogue)
        if answer.id in answers:
            raise PageError(path, "id", f"{answer.id} is already the id of {answers[answer.id].path}")
        answers[answer.id] = answer
    indexes = [chapter.index for chapter in (*catalogue.chapters, *catalogue.infra_topics, catalogue.classics)]
    short_names = {index: _short_name(docs, index) for index in (*indexes, "infra/index.md")}
    ordered = {id: answers[id] for id in catalogue.questions if id in answers}
    return Site(docs, catalogue, ordered, short_names)


def navigation(site: Site) -> list:
    """MkDocs `nav`, derived: one tab a chapter, one group a section that has pages."""

    def pages(folder: str) -> list[str]:
        return [answer.path for answer in site.answers_in(folder)]

    def tab(chapter: Chapter) -> dict:
        if chapter.sections[0].folder == chapter.folder:
            return {site.short_names[chapter.index]: [chapter.index, *pages(chapter.folder)]}
        groups = [{section.title: pages(section.folder)} for section in chapter.sections if pages(section.folder)]
        return {site.short_names[chapter.index]: [chapter.index, *groups]}

    infra = [{topic.title: [topic.index, *pages(topic.folder)]} for topic in site.catalogue.infra_topics]
    labs = sorted(file.relative_to(site.docs).as_posix() for file in (site.docs / LABS).glob("[!_]*.py"))
    tools = sorted(
        path for file in (site.docs / TOOLS).glob("*.md") if (path := file.relative_to(site.docs).as_posix()) != f"{TOOLS}/index.md"
    )
    return [
        {"首页": "index.md"},
        *(tab(chapter) for chapter in site.catalogue.chapters),
        {site.short_names["infra/index.md"]: ["infra/index.md", *infra]},
        tab(site.catalogue.classics),
        {"计算器": [f"{TOOLS}/index.md", *tools]},
        {"实验": [f"{LABS}/index.md", *labs]},
        {"关于": list(META_PAGES)},
    ]


def redirects(site: Site) -> dict[str, str]:
    """Short links as mkdocs-redirects wants them: q/033.md -> path of the page."""
    return {answer.question.short_link.rstrip("/") + ".md": answer.path for answer in site.answers.values()}
