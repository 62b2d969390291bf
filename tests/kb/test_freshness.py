import os

from kb.freshness import is_stale, sources
from tests.kb.conftest import PATH


def test_a_page_depends_on_its_snippets_and_its_chapter_on_it(site):
    made_of = sources(site)
    assert made_of[PATH][0] == site.docs / PATH
    assert made_of["dl/index.md"] == [site.docs / PATH]
    assert site.docs / PATH in made_of["errata.md"]


def test_stale_means_missing_or_older(tmp_path):
    built, source = tmp_path / "built", tmp_path / "source"
    source.touch()
    assert is_stale(built, [source])
    built.touch()
    os.utime(source, (1, 1))
    assert not is_stale(built, [source, tmp_path / "gone"])
    os.utime(built, (0, 0))
    assert is_stale(built, [source])
