"""Every answer page against every check of kb.checks."""

import pytest

from kb.catalogue import catalogue
from kb.checks import CHECKS, check_code, check_references
from kb.paths import DOCS
from kb.site import load_site

ANSWERS = load_site(DOCS, catalogue()).answers


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("id", ANSWERS)
def test_page(id, check):
    assert check(ANSWERS[id]) == []


@pytest.mark.parametrize("id", ANSWERS)
def test_near_duplicates_are_related(id):
    """Near-duplicate questions of the catalogue are cross-linked."""
    missing = set(ANSWERS[id].question.near_duplicates) - set(ANSWERS[id].related)
    assert missing == set()


def _broken(answer, old, new):
    from dataclasses import replace

    assert old in answer.body
    return replace(answer, body=answer.body.replace(old, new, 1))


def test_python_written_in_a_page_is_found():
    answer = ANSWERS["q016"]
    assert "must be embedded" in check_code(_broken(answer, "## 面试官会追问", "```python\nx = 1\n```\n\n## 面试官会追问"))[0]


def test_broken_yaml_and_shell_are_found():
    answer = ANSWERS["q016"]
    page = _broken(answer, "## 面试官会追问", "```yaml\na: [1\n```\n\n```bash\nif true; then\n```\n\n```promql\nx\n```\n\n## 面试官会追问")
    languages = [finding.split(": ")[1] for finding in check_code(page)]
    assert languages[:2] == ["yaml", "bash"]
    assert languages[2].startswith("no validator for 'promql'")


def test_undefined_reference_is_found():
    answer = ANSWERS["q016"]
    assert check_references(_broken(answer, "## 参考 { #references }", "## 参考 { #references }\n\n- [某文][nowhere]")) == [
        "reference [nowhere] is used and not defined"
    ]
