import pytest

from kb.katex import FormulaError, Renderer


@pytest.fixture
def renderer(tmp_path):
    renderer = Renderer(cache=tmp_path)
    yield renderer
    renderer.close()


def test_inline_and_display_formulas_are_rendered_in_order(renderer):
    html = renderer.render_page(
        "p.md",
        '<span class="arithmatex">\\(a&lt;b\\)</span><div class="arithmatex">\\[\\frac{1}{2}\\]</div>'
        '<span class="arithmatex">\\(a&lt;b\\)</span>',
    )
    assert html.count("katex-display") == 1
    assert html.count('<annotation encoding="application/x-tex">a&lt;b</annotation>') == 2


def test_a_broken_formula_names_page_and_source(renderer):
    with pytest.raises(FormulaError, match=r"p\.md: formula '.*frac\{1'"):
        renderer.render_page("p.md", '<span class="arithmatex">\\(\\frac{1\\)</span>')


def test_an_unknown_command_is_an_error(renderer):
    with pytest.raises(FormulaError, match="nosuchcommand"):
        renderer.render_page("p.md", '<span class="arithmatex">\\(\\nosuchcommand\\)</span>')


def test_results_are_cached_on_disk(renderer, tmp_path):
    page = '<span class="arithmatex">\\(x^2\\)</span>'
    first = renderer.render_page("p.md", page)
    renderer.save()
    again = Renderer(cache=tmp_path)
    assert again.render_page("p.md", page) == first
    assert again._process is None, "the second renderer needed no Node process"
