"""The errata of the circulating bank, derived from the marked items under 常见错误说法 on the pages."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kb import views
from kb.mdsource import sections
from kb.page import Answer
from kb.site import Site

SEVERITIES = ("错误", "误导", "过时", "找不到来源", "乱码")
MARKER = re.compile(r"〔题库 (?P<bank>[QB]\d+) · (?P<severity>[^ ·〕]+)(?: · 反例 (?P<example>[\w.]+))?〕")
ITEM = re.compile(r'^- \*\*["“](?P<claim>.+?)["”]\*\*(?P<rest>.*)$')


@dataclass(frozen=True)
class Erratum:
    """One claim of the bank, as printed, and where the site refutes it."""

    answer: Answer
    bank: str
    severity: str
    claim: str
    example: str | None


def errata(site: Site) -> Iterator[Erratum]:
    for answer in site.answers.values():
        pitfalls = next((body for heading, body in sections(answer.body) if heading and heading.id == "pitfalls"), "")
        for item in re.split(r"\n(?=- )", pitfalls):
            claim, marker = ITEM.match(" ".join(item.split())), MARKER.search(item)
            if claim and marker:
                yield Erratum(answer, marker["bank"], marker["severity"], claim["claim"], marker["example"])


def badges(content: str) -> str:
    """Markers in rendered HTML as small labels."""

    def badge(match: re.Match) -> str:
        example = f" · 反例 <code>{html.escape(match['example'])}</code>" if match["example"] else ""
        return f'<span class="kb-erratum">题库 {match["bank"]} 如所印：{match["severity"]}{example}</span>'

    return MARKER.sub(badge, content)


MARKER_LINE = re.compile(r"^\{\{ errata \}\}$", re.M)


def table(page_url: str, site: Site) -> str:
    """All errata, grouped by question of the bank; each links to the item that refutes it."""
    found = sorted(errata(site), key=lambda erratum: (erratum.bank[0], int(erratum.bank[1:])))
    rows = "".join(
        f"<tr><td>{erratum.bank}</td><td>{views.inline_html(erratum.claim)}</td><td>{erratum.severity}</td>"
        f'<td><a href="{views.relative(erratum.answer.url, page_url)}#pitfalls">{erratum.answer.question.label} 的更正</a></td>'
        f'<td><time datetime="{erratum.answer.verified}">{erratum.answer.verified}</time></td></tr>'
        for erratum in found
    )
    head = "<tr><th>题库题号</th><th>如所印的说法</th><th>判定</th><th>更正与反例</th><th>核对于</th></tr>"
    return (
        f"<p>共 {len(found)} 条。</p>"
        f'<div class="kb-scroll"><table class="kb-questions kb-errata"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
    )


def expand_marker(body: str, page_url: str, site: Site) -> str:
    """Replace the marker {{ errata }} by the table."""
    return MARKER_LINE.sub(lambda _: table(page_url, site), body)
