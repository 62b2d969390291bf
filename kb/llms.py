"""The site for language models and other readers of plain text: llms.txt, llms-full.txt, a Markdown copy of each page."""

from collections.abc import Iterator
from pathlib import Path

from kb import exercises
from kb.mdsource import EMBED
from kb.page import Answer
from kb.paths import SNIPPETS
from kb.site import Site


def _section(path: Path, name: str | None) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    if name is not None:
        start = next(i for i, line in enumerate(lines) if line.strip() == f"# --8<-- [start:{name}]")
        end = next(i for i, line in enumerate(lines) if line.strip() == f"# --8<-- [end:{name}]")
        lines = lines[start + 1 : end]
    return [line for line in lines if "--8<--" not in line]


def expand_embeds(body: str, snippets: Path = SNIPPETS) -> str:
    """The Markdown with every snippet inclusion replaced by the code itself."""
    out = []
    for line in body.splitlines():
        match = EMBED.match(line)
        if match:
            indent = line[: len(line) - len(line.lstrip())]
            out += [indent + row if row else row for row in _section(snippets / match["path"], match["section"])]
        else:
            out.append(line)
    return "\n".join(out) + "\n"


def markdown_copy(answer: Answer) -> str:
    return exercises.expand(expand_embeds(answer.body), answer.id)


def index(site: Site, name: str, description: str) -> str:
    """llms.txt: one line a page, grouped by chapter."""
    lines = [f"# {name}", "", f"> {description}", ""]
    chapter = None
    for answer in site.answers.values():
        if site.chapter_title(answer) != chapter:
            chapter = site.chapter_title(answer)
            lines += ["", f"## {chapter}", ""]
        summary = " ".join(answer.answer.split())
        lines.append(f"- [{answer.question.label} {answer.title}]({answer.url}index.md): {summary}")
    return "\n".join(lines) + "\n"


def full_text(site: Site) -> str:
    """llms-full.txt: all answers in one file, each with its address."""
    return "\n\n---\n\n".join(f"<!-- {answer.url} -->\n{markdown_copy(answer)}" for answer in site.answers.values())


def files(site: Site, name: str, description: str) -> Iterator[tuple[str, str]]:
    """Pairs of (path in the site, text)."""
    yield "llms.txt", index(site, name, description)
    yield "llms-full.txt", full_text(site)
    for answer in site.answers.values():
        yield f"{answer.url}index.md", markdown_copy(answer)
