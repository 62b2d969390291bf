"""One answer page, parsed from its Markdown. Everything that the site shows about a question derives from it."""

import datetime
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from kb import mdsource
from kb.catalogue import DIFFICULTIES, KINDS, Catalogue, Question

FIELDS = ("id", "title_en", "difficulty", "kind", "tags", "related", "verified")
ASCII_ID = re.compile(r"^[a-z0-9][a-z0-9-]*$")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, in C where it is built
FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.S)
ANSWER = re.compile(r'^!!! answer "30 秒回答"\n(?P<body>(?:    .*\n|[ \t]*\n)+)', re.M)

_COMMON = ("explain", "follow-ups", "pitfalls", "references")
REQUIRED_SECTIONS = {
    "concept": _COMMON,
    "compare": _COMMON,
    "derivation": ("explain", "derivation", "follow-ups", "pitfalls", "references"),
    "code": ("explain", "code", "follow-ups", "pitfalls", "references"),
    "design": ("requirements", "numbers", "architecture", "tradeoffs", "failures", "follow-ups", "pitfalls", "references"),
    "behavioral": ("signals", "outline", "contrast", "follow-ups", "pitfalls"),
    "case": _COMMON,
    "paper": _COMMON,
    "trend": _COMMON,
    "open": _COMMON,
}


class PageError(ValueError):
    """A malformed page. The message is one line: file, field and remedy."""

    def __init__(self, path: str, field: str, remedy: str):
        super().__init__(f"{path}: {field}: {remedy}")


@dataclass(frozen=True)
class Answer:
    """A question page. `path` is below docs/, `body` is the Markdown after the front matter."""

    path: str
    question: Question
    title_en: str
    difficulty: int
    kind: str
    tags: tuple[str, ...]
    related: tuple[str, ...]
    verified: datetime.date
    answer: str
    body: str
    body_line: int

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def title(self) -> str:
        return self.question.title

    @property
    def url(self) -> str:
        """Site-relative address of the page."""
        return self.path.removesuffix(".md") + "/"

    @cached_property
    def document(self) -> mdsource.Document:
        return mdsource.parse(self.body, self.body_line)

    @property
    def has_code(self) -> bool:
        return bool(self.document.embeds)

    @property
    def reading_minutes(self) -> int:
        """Minutes at 350 Chinese characters or 200 Latin words a minute; code and formulas are not counted."""
        prose = "\n".join(line for _, line in self.document.prose)
        return max(1, round(len(re.findall(r"[\u4e00-\u9fff]", prose)) / 350 + len(re.findall(r"[A-Za-z]+", prose)) / 200))


def split_front_matter(path: str, text: str) -> tuple[dict, str, int]:
    """Front matter, body and the body's first line number."""
    match = FRONT_MATTER.match(text)
    if not match:
        raise PageError(path, "front matter", "begin the file with a block between two lines '---'")
    try:
        meta = yaml.load(match[1], Loader=LOADER)
    except yaml.YAMLError as error:
        raise PageError(path, "front matter", f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(meta, dict):
        raise PageError(path, "front matter", "must be a mapping of fields")
    return meta, text[match.end() :], match[0].count("\n") + 1


def _check_fields(path: str, meta: dict, catalogue: Catalogue) -> Question:
    for name in FIELDS:
        if name not in meta:
            raise PageError(path, name, f"is missing; an answer has {', '.join(FIELDS)}")
    for name in meta:
        if name not in FIELDS:
            raise PageError(path, str(name), f"is not a field of an answer; remove it or use one of {', '.join(FIELDS)}")
    question = catalogue.questions.get(meta["id"])
    if question is None:
        raise PageError(path, "id", f"{meta['id']!r} is not in the catalogue")
    if path != question.page:
        raise PageError(path, "id", f"the page of {question.id} belongs at {question.page}; move it")
    if not isinstance(meta["title_en"], str) or not meta["title_en"].strip():
        raise PageError(path, "title_en", "write the English title as text")
    if type(meta["difficulty"]) is not int or meta["difficulty"] not in DIFFICULTIES:
        raise PageError(path, "difficulty", f"{meta['difficulty']!r} is not one of 1, 2, 3")
    if meta["kind"] not in KINDS:
        raise PageError(path, "kind", f"{meta['kind']!r} is not one of {', '.join(KINDS)}")
    if type(meta["verified"]) is not datetime.date:
        raise PageError(path, "verified", f"{meta['verified']!r} is not a date such as 2026-12-01")
    for name, known, where in (("tags", catalogue.tags, "kb/data/tags.json"), ("related", catalogue.questions, "the catalogue")):
        values = meta[name]
        if not isinstance(values, list) or not values:
            raise PageError(path, name, "must be a list with at least one entry")
        for value in values:
            if value not in known:
                raise PageError(path, name, f"{value!r} is not in {where}")
        if len(set(values)) != len(values):
            raise PageError(path, name, "lists an entry twice")
    if question.id in meta["related"]:
        raise PageError(path, "related", "names the page itself; remove it")
    return question


def _check_headings(path: str, document: mdsource.Document, kind: str, title: str) -> None:
    headings = document.headings
    if not headings or headings[0].level != 1:
        raise PageError(path, "title", f"begin the body with '# {title}'")
    if headings[0].text != title:
        raise PageError(path, "title", f"is {headings[0].text!r}; the catalogue says {title!r}")
    seen = set()
    for heading in headings[1:]:
        where = f"heading in line {heading.line}"
        if heading.level == 1:
            raise PageError(path, where, "a page has one level 1 heading; use ##")
        if heading.id is None or not ASCII_ID.match(heading.id):
            raise PageError(path, where, f"add an ASCII id: '{heading.text} {{ #some-id }}'")
        if heading.id in seen:
            raise PageError(path, where, f"id {heading.id!r} is used twice on this page")
        seen.add(heading.id)
    for required in REQUIRED_SECTIONS[kind]:
        if required not in seen:
            raise PageError(path, f"section #{required}", f"is missing; a page of kind {kind} needs it")


def parse_answer(path: str, text: str, catalogue: Catalogue) -> Answer:
    """Parse and check one answer page.

    Raises PageError with a one-line message that names file, field and remedy.
    """
    meta, body, body_line = split_front_matter(path, text)
    question = _check_fields(path, meta, catalogue)
    try:
        document = mdsource.parse(body, body_line)
    except ValueError as error:
        raise PageError(path, "code", str(error)) from None
    _check_headings(path, document, meta["kind"], question.title)
    match = ANSWER.search(body)
    if not match or not match["body"].strip():
        raise PageError(path, "answer", 'add the block !!! answer "30 秒回答" with an indented body')
    return Answer(
        path=path,
        question=question,
        title_en=meta["title_en"],
        difficulty=meta["difficulty"],
        kind=meta["kind"],
        tags=tuple(meta["tags"]),
        related=tuple(meta["related"]),
        verified=meta["verified"],
        answer="\n".join(line.strip() for line in match["body"].strip().splitlines()),
        body=body,
        body_line=body_line,
    )


def read_answer(docs: Path, path: str, catalogue: Catalogue) -> Answer:
    return parse_answer(path, (docs / path).read_text(encoding="utf-8"), catalogue)
