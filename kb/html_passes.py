"""Passes over a page's rendered HTML: question links, foldable follow-ups, inlined figures."""

import hashlib
import html
import re
from pathlib import Path

from kb.site import Site
from kb.views import relative

TAG = re.compile(r"(<[^>]+>)")
TAG_NAME = re.compile(r"</?([a-zA-Z][\w-]*)")
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "path", "rect", "source", "wbr"}
NO_LINKS_INSIDE = {"a", "button", "code", "pre", "summary", "svg", "h1", "h2", "h3", "h4", "h5", "h6", "script", "style"}
QUESTION_ID = re.compile(r"(?<![\w/.-])(?:Q\d{3}|B\d{2}|I\d{1,2}-\d)(?![\w-])")
FIGURE = re.compile(r'<p>\s*<img alt="(?P<alt>[^"]*)" src="(?P<src>[^"]+\.svg)"\s*/?>\s*</p>')
PREFORMATTED = re.compile(r"(<pre\b.*?</pre>)", re.S)
CHINESE_BREAK = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef”’])\n(?=[\u3000-\u9fff\uff00-\uffef“‘])|(?<=[，。；：？、）”])\n")
FOLLOW_UP = re.compile(r'<details class="question">\s*<summary>(?P<question>.*?)</summary>', re.S)


def link_questions(content: str, page_url: str, site: Site) -> str:
    """Turn question ids such as Q033 in running text into links, where the page exists."""
    written = {answer.question.label: answer for answer in site.answers.values()}

    def link(match: re.Match) -> str:
        answer = written.get(match[0])
        if answer is None or answer.url == page_url:
            return match[0]
        return f'<a href="{relative(answer.url, page_url)}" title="{html.escape(answer.title)}">{match[0]}</a>'

    if not any(label in content for label in written):
        return content
    closed_by: list[str] = []
    parts = TAG.split(content)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            if not closed_by:
                parts[index] = QUESTION_ID.sub(link, part)
            continue
        name = TAG_NAME.match(part)
        if name is None:
            continue
        tag = name[1].lower()
        blocks = tag in NO_LINKS_INSIDE or 'class="arithmatex"' in part or 'class="kb-id"' in part or "kb-facts" in part
        if part.startswith("</"):
            if closed_by and closed_by[-1] == tag:
                closed_by.pop()
        elif (blocks or (closed_by and closed_by[-1] == tag)) and tag not in VOID and not part.endswith("/>"):
            closed_by.append(tag)
    return "".join(parts)


def join_chinese_lines(content: str) -> str:
    """A line break between two Chinese characters is no word space; browsers show it as one."""
    parts = PREFORMATTED.split(content)
    return "".join(part if index % 2 else CHINESE_BREAK.sub("", part) for index, part in enumerate(parts))


def name_follow_ups(content: str) -> str:
    """Give every folded follow-up an id derived from its question, so that one can link to it."""

    def add_id(match: re.Match) -> str:
        text = re.sub(r"<[^>]+>", "", match["question"])
        return match[0].replace("<details", f'<details id="f-{hashlib.sha256(text.encode()).hexdigest()[:6]}"', 1)

    return FOLLOW_UP.sub(add_id, content)


def inline_figures(content: str, page_file: Path) -> str:
    """Put SVG figures into the page, where the page's colours reach them."""

    def inline(match: re.Match) -> str:
        source = page_file.parent / match["src"].removeprefix("../")
        return f'<figure class="kb-figure">{source.read_text(encoding="utf-8").strip()}<figcaption>{match["alt"]}</figcaption></figure>'

    return FIGURE.sub(inline, content)
