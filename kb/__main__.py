"""Commands for people who write: python -m kb new|check|figures|urls|exercise|check-exercise."""

import argparse
import sys
from pathlib import Path

from kb.catalogue import Question, catalogue
from kb.page import REQUIRED_SECTIONS, PageError, read_answer
from kb.paths import DOCS, EXERCISES, PUBLISHED_URLS
from kb.site import load_site

SECTION_TITLES = {
    "explain": "三分钟讲清",
    "derivation": "推导",
    "numbers": "算一遍",
    "code": "代码",
    "requirements": "需求与规模",
    "architecture": "架构",
    "tradeoffs": "关键取舍",
    "failures": "故障与运维",
    "signals": "面试官在看什么",
    "outline": "回答骨架",
    "contrast": "好与差的对照",
    "follow-ups": "面试官会追问",
    "pitfalls": "常见错误说法",
    "references": "参考",
}


def skeleton(question: Question, today: str) -> str:
    """An empty page of a catalogue entry. It builds; `check` rejects it until its placeholders (待写) are gone."""
    titles = {**SECTION_TITLES, "numbers": "容量估算"} if question.kind == "design" else SECTION_TITLES
    related = question.near_duplicates or ("q033" if question.id != "q033" else "q016",)
    lines = [
        "---",
        f"id: {question.id}",
        f"title_en: {question.title_en}",
        f"difficulty: {question.difficulty}",
        f"kind: {question.kind}",
        f"tags: [{', '.join(question.tags)}]",
        f"related: [{', '.join(related)}]",
        f"verified: {today}",
        "---",
        f"# {question.title}",
        "",
        '!!! answer "30 秒回答"',
        "    待写",
    ]
    for section in REQUIRED_SECTIONS[question.kind]:
        lines += ["", f"## {titles[section]} {{ #{section} }}", "", "待写"]
    return "\n".join(lines) + "\n"


def new(id: str) -> int:
    import datetime

    question = catalogue().questions.get(id.lower())
    if question is None:
        print(f"{id!r} is not in the catalogue; ids look like q123, i1-2, b03", file=sys.stderr)
        return 2
    file = DOCS / question.page
    if file.exists():
        print(f"docs/{question.page} exists already", file=sys.stderr)
        return 2
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(skeleton(question, datetime.date.today().isoformat()), encoding="utf-8")
    print(f"docs/{question.page}")
    return 0


def check_pages(paths: list[str]) -> int:
    from kb.checks import check

    site_paths = [Path(path).resolve().relative_to(DOCS).as_posix() for path in paths]
    answers = [answer.path for answer in load_site(DOCS, catalogue()).answers.values()] if not paths else site_paths
    failed = False
    for path in answers:
        try:
            findings = list(check(read_answer(DOCS, path, catalogue())))
        except PageError as error:
            findings = [str(error)]
        for finding in findings:
            failed = True
            print(f"{path}: {finding}")
    return int(failed)


def draw_figures(folder: str) -> int:
    from kb.figures import write_figures

    for path in write_figures(catalogue(), folder):
        print(f"docs/{path}")
    return 0


def exercise(id: str, *, checked: bool) -> int:
    """Write the files with blanks of a page's exercise, or test what the reader made of them."""
    from kb import exercises

    answer = load_site(DOCS, catalogue()).answers.get(id.lower())
    paths = list(dict.fromkeys(exercises.sources(answer))) if answer else []
    if not paths:
        print(f"{id!r} has no exercise", file=sys.stderr)
        return 2
    missing = [path for path in paths if not (EXERCISES / path).exists()]
    if checked and missing:
        print(f"exercises/{missing[0]} does not exist; write it with: make exercise id={answer.id}", file=sys.stderr)
        return 2
    if checked:
        return exercises.check(answer)
    for path in exercises.write(answer):
        print(path.relative_to(EXERCISES.parent))
    if not missing:
        print(f"exercises/{paths[0]} exists already; delete it to begin again", file=sys.stderr)
        return 2
    return 0


def publish_urls() -> int:
    """Append the addresses of new answers to the list that must resolve for ever."""
    listed = PUBLISHED_URLS.read_text(encoding="utf-8").split() if PUBLISHED_URLS.exists() else []
    answers = load_site(DOCS, catalogue()).answers.values()
    current = [url for answer in answers for url in (answer.url, answer.question.short_link)]
    PUBLISHED_URLS.write_text("".join(f"{url}\n" for url in sorted({*listed, *current})), encoding="utf-8")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kb", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("new", help="write the page skeleton of a catalogue entry").add_argument("id")
    commands.add_parser("check", help="check pages (all, or those named)").add_argument("page", nargs="*")
    commands.add_parser("figures", help="draw the figures of the snippets into docs/").add_argument("folder", nargs="?", default="")
    commands.add_parser("exercise", help="write the file with blanks of a page's exercise").add_argument("id")
    commands.add_parser("check-exercise", help="test the filled file").add_argument("id")
    commands.add_parser("urls", help="add the addresses of new answers to the published list")
    arguments = parser.parse_args(argv)
    match arguments.command:
        case "new":
            return new(arguments.id)
        case "check":
            return check_pages(arguments.page)
        case "figures":
            return draw_figures(arguments.folder)
        case "exercise":
            return exercise(arguments.id, checked=False)
        case "check-exercise":
            return exercise(arguments.id, checked=True)
        case _:
            return publish_urls()


if __name__ == "__main__":
    sys.exit(main())
