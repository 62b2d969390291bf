"""Calculators in real browsers: results, presets, address, bad input, keyboard, navigation, embeds, accessibility."""

import re

import pytest

from kb import calculators
from kb.paths import NODE_MODULES
from tests.site.serving import SUB_PATH

pytestmark = pytest.mark.browser

PAGES = [calculators.load(name).page for name in calculators.NAMES]
KV = "tools/kv-cache/"
NUMBER = r"-?[\d,.]+(e-?\d+)?|—"
EMBEDS = ["infra/memory/i1-2-estimating-activation-memory/", "deep-learning/training/q033-zero-three-stages/"]


def ready(page, name: str | None = None):
    """The page, once its calculator (the named one) is alive."""
    which = f'[data-calculator="{name}"]' if name else ""
    page.locator(f"form.kb-calc{which}[data-ready] fieldset:enabled").first.wait_for()
    return page


def fill(page, name: str, text: str):
    page.locator(f"#calc-{name}").fill(text)


def value(page, name: str) -> str:
    return page.locator(f'output[name="{name}"]').first.inner_text()


def no_overflow(page, width: int) -> bool:
    return page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("path", ["tools/", *PAGES])
def test_no_horizontal_scroll_on_phones(open_page, path):
    page = open_page(path, width=320, height=844)
    assert no_overflow(page, 320)
    page.set_viewport_size({"width": 390, "height": 844})
    assert no_overflow(page, 390)


@pytest.mark.parametrize("path", ["tools/", *PAGES, *EMBEDS])
def test_axe_finds_no_violation(open_page, path):
    page = open_page(path)
    if path in PAGES:
        fill(ready(page), {"tools/pipeline/": "stages", "tools/mfu/": "gpus", "tools/training-cost/": "gpus"}.get(path, "layers"), "x")
        page.locator("[aria-invalid]").wait_for()
    if path in EMBEDS:
        page.get_by_role("button", name="在这里改数").click()
        ready(page)
    area = ".kb-calc-embed" if path in EMBEDS else "main"
    page.add_script_tag(path=str(NODE_MODULES / "axe-core" / "axe.min.js"))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.locator(f"body[data-md-color-scheme={'slate' if scheme == 'dark' else 'default'}]").wait_for()
        result = page.evaluate("area => axe.run(area, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})", area)
        found = [f"{item['id']}: {node['target']} {node['failureSummary']}" for item in result["violations"] for node in item["nodes"]]
        assert found == [], scheme


@pytest.mark.parametrize("path", PAGES)
def test_defaults_are_there_without_javascript_and_the_script_starts_with_them(open_page, path):
    page = open_page(path, java_script_enabled=False)
    static = page.locator("form.kb-calc output").all_inner_texts()
    assert static
    assert all(re.fullmatch(NUMBER, text) for text in static)
    assert page.locator("form.kb-calc :is(input, select):enabled").count() == 0
    assert page.get_by_text("默认值的结果，构建时由 Python 算出").is_visible()
    assert ready(open_page(path)).locator("form.kb-calc output").all_inner_texts() == static


def test_a_change_is_computed_and_kept_in_the_address(open_page):
    page = ready(open_page(KV))
    assert value(page, "token_bytes") == "131,072"
    page.locator("#calc-dtype").select_option("fp8")
    fill(page, "seq", "131,072")  # as people write it
    assert value(page, "token_bytes") == "65,536"
    page.wait_for_url("**/tools/kv-cache/?*")
    assert "dtype=fp8" in page.url
    assert "layers" not in page.url
    total = value(page, "total_gb")
    page.reload()
    assert value(ready(page), "total_gb") == total
    assert page.locator("#calc-dtype").input_value() == "fp8"
    page.get_by_role("button", name="恢复默认").click()
    page.wait_for_url("**/tools/kv-cache/")
    assert value(page, "token_bytes") == "131,072"


def test_a_link_shows_the_same_numbers(open_page):
    page = ready(open_page(KV + "?attention=mla&layers=61&latent=576&unknown=1&dtype=nonsense"))
    assert value(page, "token_bytes") == "70,272"
    assert page.locator("#calc-dtype").input_value() == "bf16"
    copied = open_page(KV, permissions=["clipboard-read", "clipboard-write"])
    fill(ready(copied), "layers", "80")
    copied.get_by_role("button", name="复制链接").click()
    copied.get_by_text("已复制").wait_for()
    assert copied.evaluate("navigator.clipboard.readText()").endswith("/tools/kv-cache/?layers=80")


def test_presets_fill_the_fields(open_page):
    page = ready(open_page(KV))
    assert page.locator("#calc-preset-model").input_value() == "Llama-3-8B"
    page.locator("#calc-preset-model").select_option("DeepSeek-V3")
    assert value(page, "token_bytes") == "70,272"
    assert "arXiv 2412.19437" in page.locator(".kb-calc__source").inner_text()
    page.locator("#calc-preset-hardware").select_option("H20 96GB")
    assert page.locator("#calc-memory_gb").input_value() == "96"
    assert "未核实" in page.locator(".kb-calc__source").inner_text()
    fill(page, "layers", "60")
    assert page.locator("#calc-preset-model").input_value() == ""
    fill(page, "layers", "61")
    assert page.locator("#calc-preset-model").input_value() == "DeepSeek-V3"


def test_bad_input_gets_a_message_at_its_field(open_page):
    page = ready(open_page(KV))
    field = page.locator("#calc-layers")
    for text in ("", "abc", "1.5", "-1", "0", "1e999", "NaN", "Infinity", "0x10", "1e", "--1", "９９９９９９９", "1;2", "𝟛𝟛.𝟝"):
        fill(page, "layers", text)
        assert field.get_attribute("aria-invalid") == "true", text
        message = page.locator(f"#{field.get_attribute('aria-describedby')}")
        assert message.is_visible()
        assert message.inner_text() == "须是 1 到 10000 的整数"
        assert set(page.locator("form.kb-calc output").all_inner_texts()) == {"—"}
        assert "NaN" not in page.locator("form.kb-calc").inner_text()
        fill(page, "layers", "３２")  # full-width digits are digits
        assert field.get_attribute("aria-invalid") is None
        assert message.is_hidden()
        assert value(page, "token_bytes") == "131,072"


def test_a_link_with_bad_input_says_so(open_page):
    page = ready(open_page("tools/training-memory/?tp=3&dp=abc"))
    assert page.locator("[aria-invalid]").count() == 1
    fill(page, "dp", "8")
    assert page.locator("#calc-tp-error").inner_text() == "须整除头数"


def test_markup_in_the_address_stays_text(open_page):
    page = ready(open_page(KV + "?layers=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"))
    assert page.locator("#calc-layers").get_attribute("aria-invalid") == "true"
    assert page.locator("form.kb-calc img").count() == 0


def test_what_does_not_apply_is_a_dash(open_page):
    page = ready(open_page("tools/pipeline/"))
    fill(page, "stages", "7")
    assert value(page, "dualpipe_bubble") == "—"
    assert value(page, "1f1b_ideal") == "18.75"


def test_keyboard_only(open_page):
    page = ready(open_page(KV))
    page.locator("#calc-layers").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("80")
    page.keyboard.press("Enter")  # does not submit
    assert value(page, "token_bytes") == "327,680"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "恢复默认":
            break
    page.keyboard.press("Space")
    assert value(page, "token_bytes") == "131,072"
    page.wait_for_url("**/tools/kv-cache/")


def test_the_result_is_announced_once_typing_pauses(open_page):
    page = ready(open_page(KV))
    assert page.locator(".kb-calc__status").inner_text() == ""
    fill(page, "layers", "80")
    page.locator(".kb-calc__status", has_text="每 token，整个模型 字节 327,680").wait_for(state="attached")


def test_instant_navigation(open_page, base_url):
    page = open_page("about/")
    built_for = f"http://127.0.0.1{SUB_PATH}"  # navigation is instant to what the sitemap lists, so it has to name this port

    def with_port(route):
        route.fulfill(body=route.fetch().text().replace(built_for, base_url), content_type="application/xml")

    page.route("**/sitemap.xml", with_port)
    page.goto(base_url + "tools/mfu/", wait_until="networkidle")
    page.evaluate("window.same = true")
    page.locator("nav.md-nav--primary").get_by_role("link", name="KV cache").first.click()
    page.wait_for_url(f"{base_url}{KV}")
    ready(page, "kv_cache")
    assert page.evaluate("window.same") is True
    fill(page, "layers", "80")
    assert value(page, "token_bytes") == "327,680"
    page.wait_for_url("**/?layers=80")
    page.locator("nav.md-nav--primary").get_by_role("link", name="流水线气泡").first.click()
    page.wait_for_url(f"{base_url}tools/pipeline/")
    ready(page, "pipeline")
    assert page.evaluate("location.search") == ""
    page.go_back()
    page.wait_for_url("**/tools/kv-cache/?layers=80")
    assert value(ready(page, "kv_cache"), "token_bytes") == "327,680"
    assert page.evaluate("window.same") is True


@pytest.mark.parametrize("path", EMBEDS)
def test_embed_opens_in_the_page(open_page, path):
    page = open_page(path, width=390, height=844)
    embed = page.locator(".kb-calc-embed")
    button = embed.get_by_role("button", name="在这里改数")
    button.wait_for()
    assert "calc/" not in page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name).join()")
    button.click()
    ready(page)
    assert no_overflow(page, 390)
    assert re.search(r"/tools/[a-z-]+/#formula$", page.locator("form.kb-calc").get_by_role("link", name="公式").evaluate("a => a.href"))
    fill(page, "layers", "x")
    assert page.locator("#calc-layers").get_attribute("aria-invalid") == "true"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_embed_opens_by_itself_for_a_shared_link(open_page):
    page = ready(open_page(EMBEDS[0] + "?seq=4096"))
    assert page.locator("#calc-seq").input_value() == "4096"


def test_python_confirms_the_result(open_page):
    page = ready(open_page("tools/training-memory/?pp=4&tp=8"))
    if page.locator("form.kb-calc[data-python]").count() == 0:
        pytest.skip("this build ships no Python")
    page.get_by_role("button", name="用 Python 复核").click()
    page.locator(".kb-calc__actions span", has_text="逐位相同").wait_for()
    fill(page, "tp", "3")
    page.get_by_role("button", name="用 Python 复核").click()
    page.locator(".kb-calc__actions span", has_text="须整除头数").wait_for()


def test_pages_without_a_calculator_load_nothing_of_it(open_page, browser, base_url):
    context = browser.new_context()
    page = context.new_page()
    loaded = []
    page.on("request", lambda request: loaded.append(request.url))
    page.goto(base_url + "about/", wait_until="networkidle")
    context.close()
    assert not any("/assets/calc/" in url for url in loaded)


def test_works_offline_once_loaded(open_page):
    page = ready(open_page(KV))
    page.context.set_offline(True)
    fill(page, "layers", "80")
    assert value(page, "token_bytes") == "327,680"


def test_no_layout_shift_when_the_script_starts(open_page):
    page = ready(open_page("tools/training-memory/"))
    shift = page.evaluate(
        """new Promise(resolve => {
          let total = 0;
          new PerformanceObserver(list => list.getEntries().forEach(entry => { total += entry.value; }))
            .observe({type: "layout-shift", buffered: true});
          setTimeout(() => resolve(total), 300);
        })"""
    )
    assert shift <= 0.01


def test_firefox(launch, base_url):
    problems = []
    page = launch("firefox").new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    for path in PAGES:
        page.goto(base_url + path)
        outputs = ready(page).locator("form.kb-calc output").all_inner_texts()
        assert all(re.fullmatch(NUMBER, text) for text in outputs)
    page.goto(base_url + KV)
    fill(ready(page), "layers", "80")
    assert value(page, "token_bytes") == "327,680"
    fill(page, "layers", "x")
    assert page.locator("#calc-layers-error").inner_text() == "须是 1 到 10000 的整数"
    page.locator("#calc-preset-model").select_option("DeepSeek-V3")
    assert value(page, "token_bytes") == "70,272"
    page.wait_for_function("location.search.includes('attention=mla')")
    page.reload()
    assert value(ready(page), "token_bytes") == "70,272"
    page.locator("nav.md-nav--primary").get_by_role("link", name="流水线气泡").first.click()
    page.wait_for_url("**/tools/pipeline/")
    fill(ready(page, "pipeline"), "micro", "64")
    assert value(page, "1f1b_ideal") == "10.94"
    assert problems == []
