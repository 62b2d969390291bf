"""Checks of an answer page beyond its structure: citations, code blocks, wording, form of follow-ups and pitfalls.

Every check returns findings as text; an empty list means that the page passes.
"""

import importlib
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator

import autocorrect_py
import yaml

from kb import calculators, exercises
from kb.errata import MARKER, SEVERITIES
from kb.mdsource import EMBED, Fence, sections
from kb.page import Answer
from kb.paths import SNIPPETS, snippet_folder

EMPTY_WORDS = ("显著", "大幅", "一定程度", "众所周知", "综上所述", "值得注意的是", "总而言之", "不言而喻", "至关重要", "待写")
LINK_USE = re.compile(r"\]\[([^\]]+)\]")
LINK_DEFINITION = re.compile(r"^\[([^\]]+)\]: +(\S+)$", re.M)
FOLLOW_UP = re.compile(r'^\?\?\? question "(?P<question>[^"]+)"\n(?P<body>(?:    .*\n|[ \t]*\n)*)', re.M)
PITFALL = re.compile(r'^- \*\*["“].+["”]\*\*')
CHINESE = re.compile(r"[\u4e00-\u9fff]")
REASON = re.compile(r'title="[^"]+"')


def _section(answer: Answer, id: str) -> str:
    return next((body for heading, body in sections(answer.body) if heading and heading.id == id), "")


def check_answer_length(answer: Answer) -> list[str]:
    count = len(CHINESE.findall(answer.answer))
    return [] if 40 <= count <= 140 else [f"30 秒回答 has {count} Chinese characters; write 40–140"]


def check_follow_ups(answer: Answer) -> list[str]:
    found = list(FOLLOW_UP.finditer(_section(answer, "follow-ups") + "\n"))
    problems = [] if 3 <= len(found) <= 5 else [f"{len(found)} follow-ups; write 3–5"]
    return problems + [f"follow-up without an answer: {match['question']}" for match in found if not match["body"].strip()]


def check_pitfalls(answer: Answer) -> list[str]:
    items = re.findall(r"^- .*$", _section(answer, "pitfalls"), re.M)
    problems = [] if 2 <= len(items) <= 5 else [f"{len(items)} pitfalls; write 2–4 (5 at most)"]
    return problems + [f'pitfall does not begin with - **"…"**: {item[:40]}' for item in items if not PITFALL.match(item)]


def check_errata_markers(answer: Answer) -> list[str]:
    """A marker's severity is known and its counter-example is a function of the page's folder with a doctest."""
    problems = []
    loose = len(re.findall("〔题库", answer.body)) - len(MARKER.findall(answer.body))
    if loose:
        problems.append(f"{loose} malformed markers; write 〔题库 Q33 · 错误〕 or 〔题库 Q33 · 错误 · 反例 module.function〕")
    for match in MARKER.finditer(answer.body):
        if match["severity"] not in SEVERITIES:
            problems.append(f"severity {match['severity']!r} is not one of {'/'.join(SEVERITIES)}")
        if match["example"]:
            module, _, function = match["example"].rpartition(".")
            name = ".".join(("snippets", *snippet_folder(answer.question.folder).split("/"), module))
            example = getattr(importlib.import_module(name), function, None)
            if example is None or ">>>" not in (example.__doc__ or ""):
                problems.append(f"counter-example {match['example']} is not a function with a doctest in {name}")
    return problems


def check_references(answer: Answer) -> list[str]:
    """Every link label that is used is defined, and the other way round."""
    prose = "\n".join(line for _, line in answer.document.prose)
    text = re.sub(r"`[^`\n]*`|\$[^$\n]+\$", "", prose)
    defined, used = dict(LINK_DEFINITION.findall(text)), set(LINK_USE.findall(text))
    problems = [f"reference [{label}] is used and not defined" for label in sorted(used - set(defined))]
    problems += [f"reference [{label}] is defined and not used" for label in sorted(set(defined) - used)]
    return problems + [
        f"reference [{label}] is not an https link: {url}" for label, url in defined.items() if not url.startswith("https://")
    ]


def check_wording(answer: Answer) -> list[str]:
    problems = []
    for number, line in answer.document.prose:
        problems += [f"line {number}: {word!r} stands where a number or a mechanism should" for word in EMPTY_WORDS if word in line]
        if "！" in line:
            problems.append(f"line {number}: no exclamation marks")
    return problems


def check_spacing(answer: Answer) -> list[str]:
    """Spaces between Chinese and Latin text, full-width punctuation; formulas, code and link targets are left out."""
    problems = []
    for number, line in answer.document.prose:
        # A formula or inline code counts as a Latin word: it too is set off by spaces.
        plain = re.sub(r"`[^`]*`|\$[^$]*\$", "X", re.sub(r"\]\([^)]*\)|\]\[[^\]]*\]|\{ *#[^}]*\}|https?://\S+", "", line))
        if line.startswith("[") or EMBED.match(line):
            continue
        for finding in autocorrect_py.lint_for(plain, "text").lines:
            problems.append(f"line {number}: {finding.old!r} → {finding.new!r}")
    return problems


def _validate_python(fence: Fence) -> None:
    if not fence.lines or not all(EMBED.match(line) for line in fence.lines if line.strip()):
        raise ValueError("Python on a page must be embedded from snippets/, where tests run it")


def _validate_shell(fence: Fence) -> None:
    run = subprocess.run(["bash", "-n"], input="\n".join(fence.lines), capture_output=True, text=True, check=False)
    if run.returncode:
        raise ValueError(run.stderr.strip())


def _validate_reason(fence: Fence) -> None:
    if not REASON.search(fence.info):
        raise ValueError('what no parser can validate needs a visible reason: title="…"')


VALIDATORS: dict[str, Callable[[Fence], object]] = {
    "python": _validate_python,
    "py": _validate_python,
    "pycon": _validate_python,
    "json": lambda fence: json.loads("\n".join(fence.lines)),
    "yaml": lambda fence: list(yaml.safe_load_all("\n".join(fence.lines))),
    "toml": lambda fence: tomllib.loads("\n".join(fence.lines)),
    "bash": _validate_shell,
    "sh": _validate_shell,
    "text": _validate_reason,
    "exercise": exercises.validate,
    "calculator": lambda fence: calculators.load("\n".join(fence.lines).strip()),
}


def check_code(answer: Answer) -> list[str]:
    problems = []
    for fence in answer.document.fences:
        validate = VALIDATORS.get(fence.language)
        if validate is None:
            problems.append(f"line {fence.line}: no validator for {fence.language!r}; use one of {', '.join(VALIDATORS)} or add one")
            continue
        try:
            validate(fence)
        except Exception as error:
            problems.append(f"line {fence.line}: {fence.language}: {error}")
    if re.search(r"^(?: {4}|\t)(?:import |from \w+ import|def |>>> )", answer.body, re.M) and not answer.document.fences:
        problems.append("Python in an indented block; embed it from snippets/")
    for embed in answer.document.embeds:
        file = SNIPPETS / embed.path
        if not file.is_file():
            problems.append(f"embedded snippet {embed.path} does not exist")
        elif embed.section and f"[start:{embed.section}]" not in file.read_text(encoding="utf-8"):
            problems.append(f"embedded snippet {embed.path} has no section {embed.section}")
    return problems


CHECKS: tuple[Callable[[Answer], list[str]], ...] = (
    check_answer_length,
    check_follow_ups,
    check_pitfalls,
    check_errata_markers,
    check_references,
    check_wording,
    check_spacing,
    check_code,
)


def check(answer: Answer) -> Iterator[str]:
    """All findings about one page."""
    for run in CHECKS:
        yield from run(answer)
