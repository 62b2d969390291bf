"""Each check accepts the example page and finds the fault planted in it."""

import pytest

from kb import checks
from kb.page import parse_answer
from tests.kb.conftest import PAGE, PATH


def page(catalogue, old="", new=""):
    assert old in PAGE
    return parse_answer(PATH, PAGE.replace(old, new, 1) if old else PAGE, catalogue)


def test_answer_length(catalogue):
    assert checks.check_answer_length(page(catalogue)) == ["30 秒回答 has 19 Chinese characters; write 40–140"]
    assert checks.check_answer_length(page(catalogue, "依次切分", "依次切分" * 10)) == []


def test_follow_ups(catalogue):
    assert checks.check_follow_ups(page(catalogue)) == ["1 follow-ups; write 3–5"]
    empty = page(catalogue, "    见下。\n", "")
    assert "follow-up without an answer: 通信量是多少？" in checks.check_follow_ups(empty)


def test_pitfalls(catalogue):
    assert checks.check_pitfalls(page(catalogue)) == ["1 pitfalls; write 2–4 (5 at most)"]
    assert 'pitfall does not begin with - **"…"**' in checks.check_pitfalls(page(catalogue, '**"stage', '"stage'))[1]


@pytest.mark.parametrize(
    ("marker", "finding"),
    [
        ("〔题库 Q33 · 错误〕", None),
        ("〔题库 Q33 · 严重〕", "severity '严重'"),
        ("〔题库 Q33，错误〕", "1 malformed markers"),
    ],
)
def test_errata_markers(catalogue, marker, finding):
    found = checks.check_errata_markers(page(catalogue, "〔题库 Q33 · 错误〕", marker))
    assert found == [] if finding is None else found[0].startswith(finding)


def test_references(catalogue):
    assert checks.check_references(page(catalogue)) == []
    assert checks.check_references(page(catalogue, "[zero]: https", "[other]: https")) == [
        "reference [zero] is used and not defined",
        "reference [other] is defined and not used",
    ]
    assert "not an https link" in checks.check_references(page(catalogue, "https://arxiv", "http://arxiv"))[0]


def test_wording(catalogue):
    assert checks.check_wording(page(catalogue)) == []
    assert "line 17: '显著'" in checks.check_wording(page(catalogue, "正文。", "显著更好。"))[0]
    assert checks.check_wording(page(catalogue, "正文。", "```text\n显著\n```")) == []


def test_spacing(catalogue):
    assert checks.check_spacing(page(catalogue)) == []
    assert checks.check_spacing(page(catalogue, "正文。", "用ZeRO训练。"))
    assert checks.check_spacing(page(catalogue, "正文。", "公式 $N个x$ 与 `中文abc`。")) == []


@pytest.mark.parametrize(
    ("fence", "finding"),
    [
        ("```python\nx = 1\n```", "must be embedded"),
        ('```python\n--8<-- "no/such/file.py"\n```', "does not exist"),
        ("```json\n{'a': 1}\n```", "json"),
        ("```yaml\na: [1\n```", "yaml"),
        ("```toml\na = \n```", "toml"),
        ("```bash\nif true; then\n```", "bash"),
        ("```text\nx\n```", "visible reason"),
        ("```rust\nx\n```", "no validator for 'rust'"),
        ("```\nx\n```", "no validator for ''"),
    ],
)
def test_code_blocks(catalogue, fence, finding):
    assert finding in checks.check_code(page(catalogue, "正文。", fence))[0]


def test_valid_blocks_pass(catalogue):
    fences = '```json\n{"a": 1}\n```\n\n```yaml\na: 1\n```\n\n```bash\necho x\n```\n\n```text title="输出"\nx\n```'
    assert checks.check_code(page(catalogue, "正文。", fences)) == []
