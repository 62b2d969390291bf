"""The folders of the project against the catalogue and against each other."""

import re

import pytest

from kb.catalogue import catalogue
from kb.figures import find_figures
from kb.mdsource import parse
from kb.page import split_front_matter
from kb.paths import DOCS, SNIPPETS
from kb.site import ANSWER_NAME
from kb.views import QUESTIONS_MARKER

CHAPTERS = [*catalogue().chapters, *catalogue().infra_topics, catalogue().classics]
FIGURES = list(find_figures(catalogue()))
SHARED = {"common", "tools"}  # folders of snippets that mirror no section


def test_the_catalogue_is_complete():
    ids = set(catalogue().questions)
    expected = {f"q{n:03}" for n in range(1, 301)} | {f"b{n:02}" for n in range(1, 13)}
    assert expected <= ids
    assert len(ids) == 372
    assert sum(id.startswith("i") for id in ids) == 60


def test_catalogue_is_consistent():
    questions = catalogue().questions
    assert len({question.page for question in questions.values()}) == len(questions)
    for question in questions.values():
        catalogue().chapter_of(question.folder)
        assert set(question.tags) <= set(catalogue().tags)
        assert set(question.near_duplicates) <= set(questions)


def test_every_question_page_belongs_to_the_catalogue(site):
    """No page is extra or moved: load_site would have stopped; here, no stray Markdown below the chapter folders."""
    known = {answer.path for answer in site.answers.values()} | {chapter.index for chapter in CHAPTERS} | {"infra/index.md"}
    folders = {chapter.folder.split("/")[0] for chapter in CHAPTERS}
    stray = {
        path for file in DOCS.rglob("*.md") if (path := file.relative_to(DOCS).as_posix()).split("/")[0] in folders and path not in known
    }
    assert stray == set()
    assert all(ANSWER_NAME.match(answer.path.rsplit("/", 1)[1]) for answer in site.answers.values())


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.folder)
def test_index_page_has_title_sections_and_tables(chapter):
    _, body, line = split_front_matter(chapter.index, (DOCS / chapter.index).read_text(encoding="utf-8"))
    headings = parse(body, line).headings
    assert headings[0].text == chapter.title
    assert [match["folder"] for match in QUESTIONS_MARKER.finditer(body)] == [section.folder for section in chapter.sections]
    if chapter.sections[0].folder != chapter.folder:
        assert [(heading.text, heading.id) for heading in headings if heading.level == 2] == [
            (section.title, section.anchor) for section in chapter.sections
        ]
    introduction = body.split("\n## ")[0]
    assert len(re.findall(r"[\u4e00-\u9fff]", introduction)) >= 100


def test_tab_labels_are_short(site):
    assert all(len(name) <= 8 for name in site.short_names.values())


def test_the_tag_vocabulary_is_sorted_and_named():
    tags = catalogue().tags
    assert list(tags) == sorted(tags)
    assert all(re.fullmatch(r"[a-z0-9-]+", slug) and name.strip() for slug, name in tags.items())


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.path)
def test_figure_is_fresh(figure):
    file = DOCS / figure.path
    assert file.exists(), "run: make figures"
    assert file.read_text(encoding="utf-8") == figure.draw(), "run: make figures"


def test_every_svg_is_drawn_by_a_snippet():
    drawn = {figure.path for figure in FIGURES}
    assert {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.svg")} == drawn


def test_every_figure_is_used_by_a_page_of_its_folder(site):
    for figure in FIGURES:
        folder, name = figure.path.split("/figures/")
        users = [answer for answer in site.answers.values() if answer.question.folder == folder and f"figures/{name}" in answer.body]
        assert users, f"{figure.path} is not shown on any page"


def test_no_snippet_without_a_page(site):
    """A snippet is embedded by a page, or used by one that is."""
    embedded = {embed.path for answer in site.answers.values() for embed in answer.document.embeds}
    embedded |= {embed.path for page in (DOCS / "tools").glob("*.md") for embed in parse(page.read_text(encoding="utf-8")).embeds}
    files = {file.relative_to(SNIPPETS).as_posix(): file for file in SNIPPETS.rglob("*.py")}
    sources = {path: file.read_text(encoding="utf-8") for path, file in files.items()}
    labs = "".join(file.read_text(encoding="utf-8") for file in (DOCS / "labs").glob("*.py"))
    used = {path for path in files if path in embedded}
    while True:
        modules = {path: path.removesuffix(".py").replace("/", ".") for path in files}
        reachable = used | {
            path
            for path, module in modules.items()
            if f"snippets.{module}" in labs
            or f"from snippets.{module.rpartition('.')[0]} import {module.rpartition('.')[2]}" in labs
            or any(
                f"snippets.{module}" in sources[user]
                or f"from snippets.{module.rpartition('.')[0]} import {module.rpartition('.')[2]}" in sources[user]
                for user in used
            )
        }
        if reachable == used:
            break
        used = reachable
    assert set(files) - used == set()


def test_snippet_folders_mirror_the_sections():
    from kb.paths import snippet_folder

    folders = {snippet_folder(question.folder) for question in catalogue().questions.values()} | SHARED
    assert {file.parent.relative_to(SNIPPETS).as_posix() for file in SNIPPETS.rglob("*.py")} <= folders


def test_every_snippet_has_tests():
    tests = SNIPPETS.parent / "tests" / "snippets"
    for file in SNIPPETS.rglob("*.py"):
        relative = file.relative_to(SNIPPETS)
        assert (tests / relative.parent / f"test_{file.name}").exists(), relative
