"""The site in a real browser: palettes, phone width, short links, copying, printing, accessibility."""

import re

import pytest

from kb.paths import NODE_MODULES

pytestmark = pytest.mark.browser

ANSWER = "deep-learning/training/q033-zero-three-stages/"
PAGES = {
    "home": "",
    "chapter": "deep-learning/",
    "infra": "infra/",
    "numbers": ANSWER,
    "code": "math/algorithms/q016-efficient-attention-implementation/",
    "derivation": "infra/memory/i1-2-estimating-activation-memory/",
    "formulas": "math/optimization/q011-adam-mathematics/",
    "lab": "labs/memory-ledger/",
    "errata": "errata/",
    "tags": "tags/",
    "contributing": "contributing/",
    "about": "about/",
}


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("width", [320, 390])
def test_no_horizontal_scroll_on_phones(open_page, path, width):
    page = open_page(path, width=width, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("scrollTo(500, 0)")
    assert page.evaluate("scrollX") == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_axe_finds_no_violation(open_page, path, dark):
    page = open_page(path, dark=dark)
    page.add_script_tag(path=str(NODE_MODULES / "axe-core" / "axe.min.js"))
    result = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
    violations = [
        f"{violation['id']}: {node['target']} {node['failureSummary']}" for violation in result["violations"] for node in violation["nodes"]
    ]
    assert violations == []


def test_palette_follows_the_system_and_can_be_switched(open_page):
    assert open_page(dark=True).locator("body").get_attribute("data-md-color-scheme") == "slate"
    page = open_page()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "default"
    for _ in range(2):
        page.locator("form[data-md-component=palette] label:visible").click()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
    page.reload()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"


def test_short_link_leads_to_the_page_and_keeps_the_hash(open_page, base_url):
    page = open_page("q/033/#pitfalls")
    page.wait_for_url(f"{base_url}{ANSWER}#pitfalls")
    assert page.locator("h1").inner_text().startswith("解释 ZeRO 优化器的三个 stage")


def test_copy_link_yields_title_and_short_link(open_page, base_url):
    page = open_page(ANSWER, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_text("复制链接").click()
    page.get_by_text("已复制").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == f"Q033 解释 ZeRO 优化器的三个 stage — {base_url}q/033/"


def test_a_follow_up_opens_when_linked_to(open_page):
    page = open_page(ANSWER)
    anchor = page.locator("details.question").nth(1).get_attribute("id")
    assert re.fullmatch("f-[0-9a-f]{6}", anchor)
    page = open_page(f"{ANSWER}#{anchor}")
    page.locator(f"#{anchor}[open]").wait_for()


def test_every_page_is_shown_to_its_last_heading(open_page):
    """A formula or an embed that breaks the markup makes the rest of the page vanish."""
    for path in PAGES.values():
        page = open_page(path)
        last = page.locator("article :is(h1, h2, h3)").last
        last.scroll_into_view_if_needed()
        assert last.bounding_box()["height"] > 10
        assert page.locator(".katex-error").count() == 0


def test_formulas_are_visible(open_page):
    page = open_page(PAGES["formulas"])
    formula = page.locator("div.arithmatex .katex-html").first
    formula.scroll_into_view_if_needed()
    assert formula.bounding_box()["height"] > 10


def test_latex_is_copied(open_page):
    page = open_page(PAGES["formulas"], permissions=["clipboard-read", "clipboard-write"])
    latex = page.locator("div.arithmatex annotation").first.text_content()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('div.arithmatex'))")
    page.keyboard.press("Control+c")
    assert latex.strip() in page.evaluate("navigator.clipboard.readText()")


def test_readable_without_javascript(open_page):
    page = open_page(ANSWER, java_script_enabled=False)
    assert page.locator("h2#explain").is_visible()
    assert page.locator(".katex-html").first.is_visible()
    page.locator("details.question summary").first.click()
    assert page.locator("details.question[open] p").first.is_visible()
    assert page.locator("a.kb-copy").get_attribute("href").endswith("q/033/")


def test_folded_answers_are_printed(open_page):
    page = open_page(ANSWER)
    page.emulate_media(media="print")
    assert page.locator("details.question p").first.bounding_box()["height"] > 0


def test_no_layout_shift(open_page):
    page = open_page(ANSWER)
    page.wait_for_load_state("networkidle")
    shift = page.evaluate(
        """new Promise(resolve => {
          let total = 0;
          new PerformanceObserver(list => list.getEntries().forEach(entry => { total += entry.value; }))
            .observe({type: "layout-shift", buffered: true});
          setTimeout(() => resolve(total), 300);
        })"""
    )
    assert shift <= 0.01
