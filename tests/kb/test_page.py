import re

import pytest

from kb.page import REQUIRED_SECTIONS, PageError, parse_answer
from tests.kb.conftest import PAGE, PATH


def test_a_complete_page_is_parsed(catalogue):
    answer = parse_answer(PATH, PAGE, catalogue)
    assert (answer.id, answer.kind, answer.difficulty) == ("q033", "concept", 2)
    assert answer.question.label == "Q033"
    assert answer.question.short_link == "q/033/"
    assert answer.answer.startswith("三个 stage 依次切分")
    assert answer.url == "dl/training/q033-zero/"
    assert [heading.id for heading in answer.document.headings[1:]] == ["explain", "follow-ups", "pitfalls", "references"]


BROKEN = {
    "no front matter": (r"\A---\n", "", "front matter"),
    "front matter not YAML": (r"id: q033", "id: [q033", "front matter"),
    "missing field": (r"verified: .*\n", "", "verified"),
    "unknown field": (r"kind: concept", "kind: concept\nauthor: x", "author"),
    "id not in catalogue": (r"id: q033", "id: q999", "id"),
    "wrong folder": (r"id: q033", "id: q034", "id"),
    "empty English title": (r"title_en: .*", "title_en: ''", "title_en"),
    "difficulty out of range": (r"difficulty: 2", "difficulty: 4", "difficulty"),
    "difficulty is not a number": (r"difficulty: 2", "difficulty: true", "difficulty"),
    "unknown kind": (r"kind: concept", "kind: essay", "kind"),
    "date is not a date": (r"verified: .*", "verified: soon", "verified"),
    "tag outside the vocabulary": (r"tags: .*", "tags: [zero, deepspeed]", "tags"),
    "tags empty": (r"tags: .*", "tags: []", "tags"),
    "tag twice": (r"tags: .*", "tags: [zero, zero]", "tags"),
    "unknown related id": (r"related: .*", "related: [q998]", "related"),
    "related to itself": (r"related: .*", "related: [q033]", "related"),
    "title differs": (r"# 解释 ZeRO .*", "# 解释 ZeRO", "title"),
    "no title": (r"# 解释 ZeRO .*\n", "", "title"),
    "second level 1 heading": (r"正文。", "# 又一个标题", "heading in line"),
    "heading without id": (r" \{ #explain \}", "", "heading in line 15"),
    "heading with a Chinese id": (r"#explain", "#讲解", "heading in line"),
    "heading id twice": (r"#follow-ups", "#explain", "heading in line"),
    "missing section": (r"## 常见错误说法 .*\n", "", "section #pitfalls"),
    "no answer": (r"!!! answer .*\n.*\n", "", "answer"),
    "answer empty": (r"    三个 stage .*\n", "", "answer"),
    "unclosed fence": (r"正文。", "```text", "code"),
}


@pytest.mark.parametrize(("pattern", "replacement", "field"), BROKEN.values(), ids=BROKEN)
def test_a_malformed_page_is_one_line_naming_file_and_field(catalogue, pattern, replacement, field):
    broken, count = re.subn(pattern, replacement, PAGE, count=1)
    assert count == 1
    with pytest.raises(PageError) as error:
        parse_answer(PATH, broken, catalogue)
    message = str(error.value)
    assert message.startswith(f"{PATH}: {field}")
    assert "\n" not in message


def test_headings_inside_fences_are_not_headings(catalogue):
    page = PAGE.replace("正文。", '```text title="x"\n# not a heading\n## nor this\n```')
    assert len(parse_answer(PATH, page, catalogue).document.headings) == 5


def test_every_kind_requires_some_sections():
    assert all(sections and len(set(sections)) == len(sections) for sections in REQUIRED_SECTIONS.values())
