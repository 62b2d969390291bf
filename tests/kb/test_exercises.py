"""Blanks are taken out of tested code, and a filled file is judged by the page's own tests."""

import ast
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from kb import exercises
from kb.catalogue import catalogue
from kb.paths import DOCS, ROOT, SNIPPETS
from kb.site import load_site

ANSWERS = load_site(DOCS, catalogue()).answers
EXERCISES = {id: sorted(set(exercises.sources(answer))) for id, answer in ANSWERS.items() if any(exercises.sources(answer))}
GELU = "coding/algorithms/gelu.py"


def test_coding_pages_set_exercises():
    assert "q121" in EXERCISES
    assert {id for id, answer in ANSWERS.items() if answer.path.startswith("coding/") and answer.kind == "code"} <= set(EXERCISES)


@pytest.mark.parametrize("path", sorted({path for paths in EXERCISES.values() for path in paths}))
def test_blanks_leave_a_module_that_parses_and_lacks_their_code(path):
    text = (SNIPPETS / path).read_text(encoding="utf-8")
    with_blanks = exercises.blanked(text)
    ast.parse(with_blanks)
    assert "[start:blank-" not in with_blanks
    count = len(re.findall(r"\[start:blank-", text))
    assert with_blanks.count("raise NotImplementedError(") == count > 0
    for match in exercises.BLANK.finditer(text):
        assert match["code"].strip()
        assert match["code"] not in with_blanks
        assert match["hint"], f"{match['name']} of {path} gives no hint"


@pytest.mark.parametrize("path", sorted({path for paths in EXERCISES.values() for path in paths}))
def test_no_exercise_starts_processes(path):
    """Processes of their own would import the solution, and pass whatever the reader wrote."""
    assert "snippets.common.processes" not in (SNIPPETS / path).read_text(encoding="utf-8")


def test_section_and_its_blanks():
    shown = exercises.shown(f"{GELU}:gelu")
    assert shown.startswith("def gelu(")
    assert "--8<--" not in shown
    assert [int(n) for n in re.findall("填空 ([0-9]+)", shown)] == [1, 2, 3]


@pytest.mark.parametrize("source", ["", "coding/nowhere.py:x", GELU, f"{GELU}:nowhere", f"{GELU}:error"])
def test_a_fence_without_blanks_is_an_error(source):
    with pytest.raises(exercises.ExerciseError):
        exercises.shown(source)


def test_fence_becomes_code_and_says_how_to_check_it():
    fence = f"before\n\n```exercise\n{GELU}:gelu\n```\n\nafter"
    local = exercises.expand(fence, "q123")
    assert "``` { .python }\ndef gelu(" in local
    assert "make check id=q123" in local
    assert "data-run" not in local
    assert f'data-run="{GELU}:gelu" data-exercise=""' in exercises.expand(fence, "q123", {GELU: ()})


def test_files_are_written_once(tmp_path):
    answer = ANSWERS["q123"]
    (file,) = exercises.write(answer, tmp_path)
    assert file == tmp_path / GELU
    assert "--8<--" not in file.read_text(encoding="utf-8")
    file.write_text("mine", encoding="utf-8")
    assert exercises.write(answer, tmp_path) == []
    assert file.read_text(encoding="utf-8") == "mine"
    assert exercises.write(replace(answer, body=""), tmp_path) == []


def _status(folder):
    code = (
        "import sys, pathlib; from kb import exercises; from kb.catalogue import catalogue; from kb.paths import DOCS; "
        "from kb.site import load_site; "
        "sys.exit(exercises.check(load_site(DOCS, catalogue()).answers['q123'], pathlib.Path(sys.argv[1])))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout


def test_blanks_fail_and_the_solution_passes(tmp_path):
    (file,) = exercises.write(ANSWERS["q123"], tmp_path)
    status, output = _status(tmp_path)
    assert status == 1
    assert "NotImplementedError: 填空 1" in output
    file.write_text((SNIPPETS / GELU).read_text(encoding="utf-8"), encoding="utf-8")
    status, output = _status(tmp_path)
    assert status == 0, output
    assert "passed" in output
