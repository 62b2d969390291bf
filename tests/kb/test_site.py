import pytest

from kb.page import PageError
from kb.site import load_site, navigation, redirects
from tests.kb.conftest import PAGE, PATH


def test_navigation_lists_written_pages_only(site):
    nav = navigation(site)
    assert {"短名": ["dl/index.md", {"训练技巧": [PATH]}]} in nav
    assert {"短名": ["infra/index.md", {"显存": ["infra/memory/index.md"]}]} in nav
    assert "q034" not in str(nav)


def test_short_links_point_at_pages(site):
    assert redirects(site) == {"q/033.md": PATH}


def test_duplicate_id_stops(docs, catalogue):
    (docs / PATH).with_name("q033-again.md").write_text(PAGE, encoding="utf-8")
    with pytest.raises(PageError, match=r"q033-again\.md: id"):
        load_site(docs, catalogue)


def test_missing_index_page_stops(docs, catalogue):
    (docs / "classics/index.md").unlink()
    with pytest.raises(PageError, match=r"classics/index\.md: chapter"):
        load_site(docs, catalogue)


def test_index_page_needs_its_short_name(docs, catalogue):
    (docs / "classics/index.md").write_text("---\ntitle: x\n---\n# x\n", encoding="utf-8")
    with pytest.raises(PageError, match=r"classics/index\.md: front matter"):
        load_site(docs, catalogue)
