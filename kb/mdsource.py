"""Reading Markdown line by line: what is code, what is a heading, what is plain text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
HEADING = re.compile(r"^(?P<marks>#{1,6}) +(?P<text>.*?)(?: *\{ *#(?P<id>[^ }]*) *\})? *$")
EMBED = re.compile(r'^ *-{1,}8<-{1,} +"(?P<path>[^":]+)(?::(?P<section>[^"]+))?" *$')


@dataclass(frozen=True)
class Fence:
    """A fenced code block; `line` is the 1-based line of its opening."""

    line: int
    info: str
    lines: tuple[str, ...]

    @property
    def language(self) -> str:
        match = re.match(r"[\w+-]+|\{ *\.([\w+-]+)", self.info.strip())
        return (match[1] or match[0]).lower() if match else ""


@dataclass(frozen=True)
class Heading:
    line: int
    level: int
    text: str
    id: str | None


@dataclass(frozen=True)
class Embed:
    """A snippet inclusion: path below snippets/ and the named section, if any."""

    path: str
    section: str | None


@dataclass
class Document:
    """A Markdown text split into fenced code and the lines outside of it."""

    fences: list[Fence] = field(default_factory=list)
    prose: list[tuple[int, str]] = field(default_factory=list)

    @property
    def headings(self) -> list[Heading]:
        return [
            Heading(number, len(match["marks"]), match["text"], match["id"])
            for number, line in self.prose
            if (match := HEADING.match(line))
        ]

    @property
    def embeds(self) -> list[Embed]:
        lines = [line for fence in self.fences for line in fence.lines] + [line for _, line in self.prose]
        return [Embed(match["path"], match["section"]) for line in lines if (match := EMBED.match(line))]


def parse(text: str, first_line: int = 1) -> Document:
    """Split Markdown into fences and prose. An unclosed fence is an error (ValueError)."""
    document = Document()
    opening: re.Match | None = None
    start, body = 0, []
    for number, line in enumerate(text.splitlines(), first_line):
        match = FENCE.match(line)
        if opening is None:
            if match:
                opening, start, body = match, number, []
            else:
                document.prose.append((number, line))
        elif match and match["fence"].startswith(opening["fence"]) and not match["info"].strip():
            indent = len(opening["indent"])
            lines = tuple(row[indent:] if row[:indent].isspace() or not indent else row for row in body)
            document.fences.append(Fence(start, opening["info"].strip(), lines))
            opening = None
        else:
            body.append(line)
    if opening is not None:
        raise ValueError(f"line {start}: the code fence is never closed")
    return document


def sections(text: str) -> Iterator[tuple[Heading | None, str]]:
    """The text split at its level 2 and 3 headings: (heading or None for the part before the first, body)."""
    headings = {heading.line: heading for heading in parse(text).headings if heading.level in (2, 3)}
    current, body = None, []
    for number, line in enumerate(text.splitlines(), 1):
        if number in headings:
            yield current, "\n".join(body)
            current, body = headings[number], []
        else:
            body.append(line)
    yield current, "\n".join(body)
