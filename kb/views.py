"""HTML that the build derives from the page model: answer header and footer, chapter tables, tag listing."""

import html
import posixpath
import re
from collections import defaultdict
from urllib.parse import urlencode

import markdown as python_markdown

from kb.catalogue import DIFFICULTIES, KINDS, Question
from kb.page import Answer
from kb.site import Site

QUESTIONS_MARKER = re.compile(r"^\{\{ questions: (?P<folder>\S+) \}\}$", re.M)
TAGS_MARKER = re.compile(r"^\{\{ tags \}\}$", re.M)
COUNTS_MARKER = re.compile(r"\{\{ (written|planned) \}\}")
LINK = re.compile(r"\[([^\]]+)\](?:\[[^\]]+\]|\([^)]+\))")
H1 = re.compile(r"^# .*\n", re.M)

_inline_markdown = python_markdown.Markdown(
    extensions=["pymdownx.arithmatex"], extension_configs={"pymdownx.arithmatex": {"generic": True}}
)


def relative(target: str, page_url: str) -> str:
    """Relative link from the page at `page_url` (ends in / or is empty) to a site-relative address."""
    link = posixpath.relpath(target, page_url or ".")
    return link + "/" if target.endswith("/") else link


def answer_html(answer: Answer) -> str:
    """The 30-second answer as HTML; formulas are left to the math renderer."""
    return _inline_markdown.reset().convert(LINK.sub(r"\1", answer.answer))


def inline_html(text: str) -> str:
    """One line of Markdown as HTML without a paragraph around it."""
    return _inline_markdown.reset().convert(text).removeprefix("<p>").removesuffix("</p>")


def share_text(answer: Answer) -> str:
    """What the copy button puts before the short link."""
    return f"{answer.question.label} {answer.title}"


def report_link(answer: Answer, repo_url: str) -> str | None:
    """A prefilled issue form on the project's code host, if the site knows one."""
    if not repo_url:
        return None
    fields = {
        "template": "error.yml",
        "title": f"[{answer.question.label}] {answer.title}",
        "question": answer.question.label,
        "page": answer.path,
    }
    return f"{repo_url.rstrip('/')}/issues/new?{urlencode(fields)}"


def header(answer: Answer, site: Site, repo_url: str) -> str:
    """The line of facts below an answer's title."""
    link = relative(answer.question.short_link, answer.url)
    tags_page = relative("tags/", answer.url)
    tags = "".join(f'<a class="kb-tag" href="{tags_page}#{tag}">{html.escape(site.catalogue.tags[tag])}</a>' for tag in answer.tags)
    report = report_link(answer, repo_url) or relative("contributing/", answer.url) + "#report"
    return (
        '<div class="kb-facts">'
        f'<p class="kb-facts__line"><strong class="kb-id">{answer.question.label}</strong>'
        f'<span class="kb-difficulty kb-difficulty--{answer.difficulty}">{DIFFICULTIES[answer.difficulty]}</span>'
        f"<span>{KINDS[answer.kind]}</span>"
        f"<span>约 {answer.reading_minutes} 分钟</span>"
        f'<span>核对于 <time datetime="{answer.verified}">{answer.verified}</time></span></p>'
        f'<p class="kb-facts__line">{tags}</p>'
        '<p class="kb-facts__line kb-actions">'
        f'<a class="kb-copy" href="{link}" data-share="{html.escape(share_text(answer))}">复制链接</a>'
        f'<a href="{html.escape(report)}">报告错误</a></p>'
        "</div>"
    )


def _label(question: Question) -> str:
    return f'<span class="kb-id">{question.label}</span> {html.escape(question.title)}'


def _related_item(question: Question, answer: Answer, site: Site) -> str:
    target = site.answers.get(question.id)
    label = _label(question)
    if target is None:
        return f'<li>{label} <span class="kb-unwritten">撰写中</span></li>'
    return f'<li><a href="{relative(target.url, answer.url)}">{label}</a></li>'


def related(answer: Answer, site: Site) -> str:
    """The related questions below an answer."""
    items = "".join(_related_item(site.catalogue.questions[id], answer, site) for id in answer.related)
    return f'<section class="kb-related" aria-labelledby="related"><h2 id="related">相关题目</h2><ul>{items}</ul></section>'


def decorate_answer(body: str, answer: Answer, site: Site, repo_url: str) -> str:
    """The page's Markdown with its header after the title and the related questions at the end."""
    facts = header(answer, site, repo_url)
    body = H1.sub(lambda match: f"{match[0]}\n{facts}\n\n", body, count=1)
    return f"{body}\n\n{related(answer, site)}\n"


def _question_row(question: Question, page_url: str, site: Site) -> str:
    answer = site.answers.get(question.id)
    title = html.escape(question.title)
    difficulty = answer.difficulty if answer else question.difficulty
    kind = answer.kind if answer else question.kind
    if answer:
        code = '<span class="kb-has-code" title="有可运行的代码">代码</span>' if answer.has_code else ""
        cell = (
            f'<a href="{relative(answer.url, page_url)}">{title}</a>{code}'
            f'<details class="kb-peek"><summary>30 秒回答</summary>{answer_html(answer)}</details>'
        )
    else:
        cell = f'{title} <span class="kb-unwritten">撰写中</span>'
    return (
        f'<tr id="{question.id}"><td class="kb-id">{question.label}</td><td>{cell}</td>'
        f'<td><span class="kb-difficulty kb-difficulty--{difficulty}">{DIFFICULTIES[difficulty]}</span></td><td>{KINDS[kind]}</td></tr>'
    )


def question_table(folder: str, page_url: str, site: Site) -> str:
    """The table of one section's questions. Unwritten ones are listed without a link."""
    questions = site.catalogue.in_folder(folder)
    if not questions:
        raise ValueError(f"no question of the catalogue is in the folder {folder!r}")
    rows = "".join(_question_row(question, page_url, site) for question in questions)
    return (
        '<div class="kb-scroll"><table class="kb-questions"><thead><tr><th>题号</th><th>题目</th><th>难度</th><th>类型</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def tag_listing(page_url: str, site: Site) -> str:
    """Every tag in use with its pages, in the order of its display name."""
    by_tag = defaultdict(list)
    for answer in site.answers.values():
        for tag in answer.tags:
            by_tag[tag].append(answer)
    parts = []
    for tag, answers in sorted(by_tag.items(), key=lambda item: site.catalogue.tags[item[0]].lower()):
        items = "".join(f'<li><a href="{relative(answer.url, page_url)}">{_label(answer.question)}</a></li>' for answer in answers)
        parts.append(f'<h2 id="{tag}">{html.escape(site.catalogue.tags[tag])}</h2><ul class="kb-tagged">{items}</ul>')
    return "\n".join(parts)


def expand_markers(body: str, page_url: str, site: Site) -> str:
    """Replace the markers {{ questions: … }}, {{ tags }}, {{ written }} and {{ planned }} by what they stand for."""
    body = QUESTIONS_MARKER.sub(lambda match: question_table(match["folder"], page_url, site), body)
    body = TAGS_MARKER.sub(lambda _: tag_listing(page_url, site), body)
    counts = {"written": len(site.answers), "planned": len(site.catalogue.questions)}
    return COUNTS_MARKER.sub(lambda match: str(counts[match[1]]), body)
