"""What a page is built from besides its own file. `mkdocs serve --dirty` looks at that file alone."""

import re
from collections.abc import Iterator
from pathlib import Path

from kb import exercises
from kb.page import Answer
from kb.paths import SNIPPETS
from kb.site import TOOLS, Site

FIGURE = re.compile(r"\]\((figures/[^)]+\.svg)\)")


def _answer_sources(answer: Answer, docs: Path) -> Iterator[Path]:
    yield docs / answer.path
    for embed in answer.document.embeds:
        yield SNIPPETS / embed.path
    for path in exercises.sources(answer):
        yield SNIPPETS / path
    for figure in FIGURE.findall(answer.body):
        yield (docs / answer.path).parent / figure


def sources(site: Site) -> dict[str, list[Path]]:
    """For every derived page below docs/, the files whose change makes it stale."""
    found = {answer.path: list(_answer_sources(answer, site.docs)) for answer in site.answers.values()}
    for chapter in (*site.catalogue.chapters, *site.catalogue.infra_topics, site.catalogue.classics):
        found[chapter.index] = [site.docs / answer.path for section in chapter.sections for answer in site.answers_in(section.folder)]
    tools = sorted((SNIPPETS / TOOLS).glob("*.py"))
    for page in sorted((site.docs / TOOLS).glob("*.md")):
        found[page.relative_to(site.docs).as_posix()] = [page, *tools]
    for answer in site.answers.values():
        if any(fence.language == "calculator" for fence in answer.document.fences):
            found[answer.path] += tools
    everything = [site.docs / answer.path for answer in site.answers.values()]
    return found | {"errata.md": everything, "tags.md": everything, "index.md": everything}


def is_stale(built: Path, made_of: list[Path]) -> bool:
    """Whether a built file is missing or older than anything it was made of."""
    if not built.exists():
        return True
    return any(source.exists() and source.stat().st_mtime > built.stat().st_mtime for source in made_of)
