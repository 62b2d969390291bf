"""The catalogue: every question that the site answers or will answer, and where its page belongs."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kb.paths import DATA

KINDS = {
    "concept": "概念",
    "derivation": "推导",
    "code": "手写代码",
    "design": "系统设计",
    "case": "案例",
    "compare": "对比",
    "open": "开放问题",
    "behavioral": "行为面试",
    "paper": "论文",
    "trend": "趋势",
}
DIFFICULTIES = {1: "入门", 2: "进阶", 3: "资深"}


@dataclass(frozen=True)
class Question:
    id: str
    folder: str
    title: str
    title_en: str
    slug: str
    kind: str
    difficulty: int
    tags: tuple[str, ...]
    near_duplicates: tuple[str, ...]

    @property
    def page(self) -> str:
        """Path of the question's page below docs/."""
        return f"{self.folder}/{self.id}-{self.slug}.md"

    @property
    def label(self) -> str:
        """The id as people write it: Q033, I1-2, B03."""
        return self.id.upper()

    @property
    def short_link(self) -> str:
        """Site-relative permanent address: q/033/, i/1-2/, b/03/."""
        return f"{self.id[0]}/{self.id[1:]}/"


@dataclass(frozen=True)
class Section:
    folder: str
    title: str

    @property
    def anchor(self) -> str:
        return self.folder.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Chapter:
    """A folder with an index page. Infra topics and the classics have one section: themselves."""

    folder: str
    title: str
    sections: tuple[Section, ...]

    @property
    def index(self) -> str:
        return f"{self.folder}/index.md"


@dataclass(frozen=True)
class Catalogue:
    questions: dict[str, Question]
    chapters: tuple[Chapter, ...]
    infra_topics: tuple[Chapter, ...]
    classics: Chapter
    tags: dict[str, str]

    def chapter_of(self, folder: str) -> Chapter:
        """The chapter, topic or classics collection that holds a question folder."""
        for chapter in (*self.chapters, *self.infra_topics, self.classics):
            if folder == chapter.folder or any(folder == section.folder for section in chapter.sections):
                return chapter
        raise ValueError(f"no chapter holds the folder {folder!r}")

    def in_folder(self, folder: str) -> list[Question]:
        """The questions of one section, in catalogue order."""
        return [question for question in self.questions.values() if question.folder == folder]


def read_catalogue(data: Path = DATA) -> Catalogue:
    raw = json.loads((data / "catalogue.json").read_text(encoding="utf-8"))
    questions = {}
    for entry in raw["questions"]:
        if entry["id"] in questions:
            raise ValueError(f"catalogue.json: id {entry['id']} appears twice")
        questions[entry["id"]] = Question(
            **{name: entry[name] for name in ("id", "folder", "title", "title_en", "slug", "kind", "difficulty")},
            tags=tuple(entry["tags"]),
            near_duplicates=tuple(entry["near_duplicates"]),
        )

    def single(entry: dict) -> Chapter:
        return Chapter(entry["folder"], entry["title"], (Section(entry["folder"], entry["title"]),))

    chapters = tuple(
        Chapter(entry["folder"], entry["title"], tuple(Section(**section) for section in entry["sections"])) for entry in raw["chapters"]
    )
    return Catalogue(
        questions=questions,
        chapters=chapters,
        infra_topics=tuple(single(entry) for entry in raw["infra_topics"]),
        classics=single(raw["classics"]),
        tags=json.loads((data / "tags.json").read_text(encoding="utf-8")),
    )


@cache
def catalogue() -> Catalogue:
    """The project's catalogue, read once."""
    return read_catalogue()
