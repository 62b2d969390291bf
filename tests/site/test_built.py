"""The built site as files: links, anchors, published addresses, encodings, math."""

import html
import json
import posixpath
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from kb.catalogue import catalogue
from kb.paths import DOCS, PUBLISHED_URLS, ROOT
from kb.site import load_site

ANSWERS = load_site(DOCS, catalogue()).answers


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "source", "video", "audio") and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "modulepreload", "manifest"):
            self.loads.append(values["href"])


@cache
def _parsed(file: Path) -> _Links:
    parser = _Links()
    parser.feed(file.read_text(encoding="utf-8"))
    return parser


def _pages(built: Path) -> list[Path]:
    return sorted(built.rglob("*.html"))


def _target(built: Path, page: Path, link: str) -> Path:
    path = unquote(urlsplit(link).path)
    if path.startswith("/"):
        assert path.startswith("/kb/"), link
        file = built / path.removeprefix("/kb/")
    else:
        file = Path(posixpath.normpath((page.parent / path).as_posix())) if path else page
    return file / "index.html" if file.is_dir() else file


def test_internal_links_and_anchors(built):
    broken = []
    for page in _pages(built):
        if page.name == "404.html":
            continue
        for link in [*_parsed(page).links, *_parsed(page).loads]:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target = _target(built, page, link)
            anchor = unquote(urlsplit(link).fragment)
            if not target.is_file() or (anchor and target.suffix == ".html" and anchor not in _parsed(target).ids | {"__codelineno"}):
                broken.append(f"{page.relative_to(built)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_another_host(built):
    foreign = [
        f"{page.relative_to(built)}: {link}"
        for page in _pages(built)
        for link in _parsed(page).loads
        if urlsplit(link).scheme or link[:2] == "//"
    ]
    for css in built.rglob("*.css"):
        foreign += [
            f"{css.name}: {url}" for url in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"' ]+", css.read_text(encoding="utf-8"))
        ]
    assert foreign == []


def test_published_addresses_still_resolve(built):
    urls = PUBLISHED_URLS.read_text(encoding="utf-8").split()
    assert [url for url in urls if not (built / url / "index.html").is_file()] == []


def test_every_answer_is_on_the_list_of_published_addresses():
    urls = set(PUBLISHED_URLS.read_text(encoding="utf-8").split())
    missing = [url for answer in ANSWERS.values() for url in (answer.url, answer.question.short_link) if url not in urls]
    assert missing == [], "add them: python -m kb urls"


def test_ids_are_unique_on_each_page(built):
    for page in _pages(built):
        ids = re.findall(r'<[^>]* id="([^"]+)"', page.read_text(encoding="utf-8"))
        assert len(ids) == len(set(ids)), page


def test_nothing_is_mangled(built):
    """UTF-8 read as Latin-1 shows as Ã, Â or â€."""
    for file in (path for pattern in ("*.html", "*.json", "*.txt", "*.md") for path in built.rglob(pattern)):
        assert not re.search("Ã.|Â[^Â]|â€|\ufffd", file.read_text(encoding="utf-8")), file


def test_math_is_rendered_everywhere(built):
    formulas = 0
    for page in _pages(built):
        text = page.read_text(encoding="utf-8")
        boxes = re.findall(r'class="arithmatex">(.{0,20})', text, re.S)
        formulas += len(boxes)
        assert all(box.startswith(('<span class="katex', '<span class="katex')) for box in boxes), page
        visible = html.unescape(re.sub(r"<(pre|code|annotation|script|style)\b.*?</\1>", "", text, flags=re.S))
        assert not re.search(r"\$\$|(?<!\\)\\[\[(]|\\(?:frac|text|sqrt|sum)\b", re.sub(r"<[^>]+>", "", visible)), page
    assert formulas > 50


def test_no_marker_or_embed_is_left(built):
    for page in _pages(built):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
        for marker in ("{{ ", "--8&lt;--", "--8<--", "〔题库"):
            assert marker not in text, page


@pytest.mark.parametrize("id", ANSWERS)
def test_markdown_copy_lies_beside_the_page(built, id):
    copy = (built / ANSWERS[id].url / "index.md").read_text(encoding="utf-8")
    assert copy.startswith(f"# {ANSWERS[id].title}")
    assert "--8<--" not in copy


def test_llms_files(built):
    index = (built / "llms.txt").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+/index\.md)\)", index):
        assert (built / link).is_file()
    assert index.count("\n- [") == len(ANSWERS)
    assert (built / "llms-full.txt").stat().st_size > 10_000


def test_unwritten_questions_are_listed_without_link(built):
    for chapter in (*catalogue().chapters, *catalogue().infra_topics, catalogue().classics):
        text = (built / chapter.folder / "index.html").read_text(encoding="utf-8")
        for section in chapter.sections:
            for question in catalogue().in_folder(section.folder):
                row = re.search(rf'<tr id="{question.id}">(.*?)</tr>', text, re.S)[1]
                assert ("<a href" in row) == (question.id in ANSWERS)
                assert ("撰写中" in row) == (question.id not in ANSWERS)


def test_the_repository_names_no_machine_path():
    """Nothing of the machine that wrote a file leaks into the project."""
    for pattern in ("*.md", "*.py", "*.yml", "*.toml", "*.json", "*.mjs", "*.css"):
        for folder in ("docs", "kb", "snippets"):
            for file in (ROOT / folder).rglob(pattern):
                assert "/work/" not in file.read_text(encoding="utf-8"), file


def test_search_data_covers_every_answer(built):
    rows = json.loads((built / "assets/search/titles.json").read_text(encoding="utf-8"))
    text = json.dumps(rows, ensure_ascii=False)
    assert all(answer.title in text for answer in ANSWERS.values())
