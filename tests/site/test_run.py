"""运行, 编辑 and 停止 in two engines, and all that a reader may do to them."""

import pytest

from kb.paths import NODE_MODULES
from tests.site.serving import SUB_PATH

pytestmark = pytest.mark.browser

PAGE = "math/optimization/q011-adam-mathematics/"
NUMPY_PAGE = "math/optimization/q015-second-order-optimization/"
LONG = 60_000
COUNT_WORKERS = """(() => {
  window.alive = new Set();
  window.Worker = class extends Worker {
    constructor(...all) { super(...all); alive.add(this); }
    terminate() { alive.delete(this); super.terminate(); }
  };
})()"""


@pytest.fixture(params=["chromium", "firefox"])
def browser(request, launch):
    return launch(request.param)


@pytest.fixture(autouse=True)
def ignore_remarks_on_mathml(open_page):
    """Firefox remarks on KaTeX's hidden MathML twins."""
    yield
    open_page.problems[:] = [problem for problem in open_page.problems if "for <m" not in problem]


@pytest.fixture
def reader(open_page):
    """Opens the page and gives its first runnable block."""

    def open_(path=PAGE, **options):
        return Block(open_page(path, **options))

    return open_


class Block:
    def __init__(self, page):
        self.page = page
        self.root = page.locator(".kb-run").first
        self.root.wait_for()
        page.evaluate(COUNT_WORKERS)

    def button(self, name):
        return self.root.get_by_role("button", name=name, exact=True)

    @property
    def status(self):
        return self.root.locator(".kb-run__status").inner_text()

    @property
    def output(self):
        return self.root.locator(".kb-run__output").inner_text()

    def run(self, code=None):
        """Run, with the reader's code where given, to the end."""
        if code is not None:
            if self.button("编辑").is_visible():
                self.button("编辑").click()
            self.root.locator("textarea").fill(code)
        self.button("运行").click()
        self.finish()

    def finish(self):
        self.button("运行").wait_for(timeout=LONG)

    def wait_for_output(self, text):
        self.root.locator(".kb-run__output", has_text=text).wait_for(timeout=LONG)

    def workers(self):
        return self.page.evaluate("alive.size")


def test_buttons_stand_below_runnable_blocks_only(open_page):
    page = open_page(PAGE)
    page.locator(".kb-run").first.wait_for()
    assert page.locator("[data-run]").count() == page.locator(".kb-run__bar").count() > 0
    page = open_page(NUMPY_PAGE)
    page.wait_for_load_state("networkidle")
    assert page.locator(".highlight").count() > 0
    assert page.locator(".kb-run").count() == 0


def test_nothing_of_python_is_loaded_before_the_click(reader):
    block = reader()
    loaded = []
    block.page.on("request", lambda request: loaded.append(request.url))
    block.page.reload(wait_until="networkidle")
    assert [url for url in loaded if "pyodide" in url or "worker" in url or "snippets" in url or "manifest" in url] == []
    assert block.page.evaluate("performance.getEntriesByType('resource').filter(e => /pyodide|worker/.test(e.name)).length") == 0


def test_examples_are_shown_one_by_one(reader):
    block = reader()
    block.run()
    examples = block.root.locator(".kb-run__examples > li")
    shown = block.root.locator("pre code").first.text_content().count(">>> ")
    assert examples.count() == shown > 0
    assert block.root.locator(".kb-run__passed").count() == shown
    assert f"{shown} 个例子，{shown} 个与期望一致" in block.status
    assert "期望 = 实际" in block.root.inner_text()


def test_an_edited_example_shows_expected_and_actual_and_can_be_restored(reader):
    block = reader()
    before = block.root.locator("pre code").first.text_content()
    block.run('def double(x):\n    """双倍。\n\n    >>> double(2)\n    5\n    >>> double(3)\n    6\n    """\n    return 2 * x\n')
    assert "2 个例子，1 个与期望一致" in block.status
    failed = block.root.locator(".kb-run__failed")
    assert failed.inner_text().split() == ["double(2)", "期望", "5", "实际", "4"]
    block.button("还原").click()
    assert block.root.locator("pre code").first.text_content() == before
    assert block.root.locator("textarea").count() == 0
    block.run()
    assert block.root.locator(".kb-run__failed").count() == 0


def test_an_exercise_is_checked_by_its_examples(open_page):
    page = open_page("coding/algorithms/q123-implement-gelu/")
    root = page.locator("[data-exercise].kb-run")
    root.wait_for()
    assert "math.erfc" not in root.locator("pre code").first.text_content()
    check = root.get_by_role("button", name="检查", exact=True)
    check.click()
    root.locator(".kb-run__failed", has_text="填空 1").first.wait_for(timeout=LONG)
    root.get_by_role("button", name="编辑", exact=True).click()
    area = root.locator("textarea")
    lines = {
        'raise NotImplementedError("填空 1")': "phi = 0.5 * math.erfc(-x * INV_SQRT2)",
        'raise NotImplementedError("填空 2")': "return 0.5 * math.erfc(-x * INV_SQRT2) + x * INV_SQRT_2PI * math.exp(-x * x / 2)",
        'raise NotImplementedError("填空 3")': "return 0.5 * x * (1 + math.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3)))",
    }
    code = area.input_value()
    for blank, line in lines.items():
        assert code.count(blank) == 1
        code = code.replace(blank, line)
    area.fill(code)
    check.click()
    root.locator(".kb-run__status[data-mood=good]").wait_for(timeout=LONG)
    assert root.locator(".kb-run__failed").count() == 0
    assert root.locator(".kb-run__passed").count() > 3


def test_output_streams_and_an_endless_loop_is_stopped_at_once(reader):
    block = reader()
    block.button("编辑").click()
    block.root.locator("textarea").fill('print("开始")\nwhile True: pass\n')
    block.button("运行").click()
    block.wait_for_output("开始")
    assert block.workers() == 1
    state = block.root.evaluate(
        """root => {
          root.querySelector('.kb-run__button--stop').click();
          return [root.querySelector('.kb-run__status').textContent, root.querySelector('.kb-run__button--run').hidden, alive.size];
        }"""
    )
    assert state == ["已停止", False, 0]
    block.run('print("又能用了")')
    assert block.output == "又能用了\n"


@pytest.mark.parametrize(
    "code",
    ['while True: print("x" * 100)', 'def f():\n    """\n    >>> while True: print("y" * 100)\n    """'],
    ids=["printed", "in an example"],
)
def test_a_flood_is_cut_off(reader, code):
    block = reader()
    block.run(code)
    assert "已停止" in block.status
    assert len(block.root.inner_text()) < 250_000
    block.run('print("又能用了")')
    assert block.output == "又能用了\n"


def test_a_traceback_shows_the_readers_lines_only(reader):
    block = reader()
    block.run("import statistics\n\ndef middle(x):\n    return statistics.mean(x)\n\nprint('前')\nmiddle([])\n")
    assert "出错" in block.status
    assert block.output.startswith("前\nTraceback (most recent call last):\n")
    assert "return statistics.mean(x)" in block.output
    assert "StatisticsError" in block.output
    for hidden in ("runner.py", "/lib/", "/kb/", "importlib"):
        assert hidden not in block.output


def test_unusual_programs(reader):
    block = reader()
    block.run('print("你好 𝔸 👩‍🔬 \\u0000 <b>不是标记</b>")')
    assert "你好 𝔸 👩‍🔬" in block.output
    assert "<b>不是标记</b>" in block.output
    assert block.root.locator("b", has_text="不是标记").count() == 0
    for code, expected in (
        ("print('\\ud800')", "UnicodeEncodeError"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
        ("def f(:", "SyntaxError"),
        ("input()", "OSError"),
        ("import numpy", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import threading; threading.Thread(target=print).start()", "RuntimeError"),
        ("raise ExceptionGroup('都错', [ValueError(1), TypeError(2)])", "TypeError: 2"),
    ):
        block.run(code)
        assert expected in block.output, code
    block.run("")
    assert block.status.startswith("完成")


def test_a_crash_of_the_interpreter_is_told_and_survived(reader, open_page):
    block = reader()
    block.run("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)")
    assert "不能运行" in block.status or "出错" in block.status
    block.run('print("又能用了")')
    assert block.output == "又能用了\n"
    open_page.problems.clear()  # Pyodide logs its end


@pytest.mark.parametrize("file", ["pyodide.asm.wasm", "runner.py", "manifest.json"])
def test_a_file_that_does_not_arrive_is_told_and_the_next_click_tries_again(open_page, reader, file):
    """loadPyodide itself would wait for ever for its WebAssembly."""
    block = reader()
    requests = block.page.context
    requests.route(f"**/run/**/{file}*", lambda route: route.fulfill(status=404))
    requests.route(f"**/run/{file}*", lambda route: route.fulfill(status=404))
    block.run()
    assert block.status == f"不能运行：{file}: HTTP 404"
    requests.unroute_all()
    block.run()
    assert "与期望一致" in block.status
    open_page.problems.clear()  # the browser logs the 404


def test_runs_do_not_see_each_other(reader):
    block = reader()
    block.run("import builtins, sys\nbuiltins.leaked = 1\nLEFT = 1\nsys.setrecursionlimit(50_000)\n")
    block.run("import sys\nprint('LEFT' in globals(), sys.getrecursionlimit())")
    assert block.output.startswith("False 1000")


def test_the_worker_survives_navigation_and_a_running_program_does_not(reader, base_url, built):
    block = reader()
    page = block.page
    sitemap = (built / "sitemap.xml").read_text(encoding="utf-8").replace(f"http://127.0.0.1{SUB_PATH}", base_url)
    page.route("**/sitemap.xml", lambda route: route.fulfill(body=sitemap, content_type="application/xml"))
    page.reload(wait_until="networkidle")  # navigation is instant to what the sitemap lists: it has to name this port
    page.evaluate(COUNT_WORKERS)
    block.run()
    assert block.workers() == 1

    def leave_and_return():
        page.evaluate("document.querySelector('.md-logo').click()")
        page.wait_for_url(lambda url: PAGE not in url)
        page.locator(".kb-cards").first.wait_for()
        page.evaluate("history.back()")
        page.wait_for_url(lambda url: PAGE in url)
        page.locator(".kb-run").first.wait_for()

    for _ in range(3):
        leave_and_return()
        assert page.locator(".kb-run__bar").count() == page.locator("[data-run]").count()
        block.run()
        assert "与期望一致" in block.status
    assert block.workers() == 1
    block.button("编辑").click()
    block.root.locator("textarea").fill('print("开始")\nwhile True: pass\n')
    block.button("运行").click()
    block.wait_for_output("开始")
    leave_and_return()
    assert block.workers() == 0


def test_a_second_block_takes_over(reader):
    block = reader()
    block.button("编辑").click()
    block.root.locator("textarea").fill('print("开始")\nwhile True: pass\n')
    block.button("运行").click()
    block.wait_for_output("开始")
    second = block.page.locator(".kb-run").nth(1)
    second.get_by_role("button", name="运行").click()
    second.locator(".kb-run__status", has_text="个例子").wait_for(timeout=LONG)
    assert block.status == "已停止"
    assert block.workers() == 1


def test_keyboard_only(reader):
    block = reader()
    page = block.page
    block.button("运行").focus()
    page.keyboard.press("Enter")
    block.finish()
    page.wait_for_function("document.activeElement.textContent === '运行'")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    editor = block.root.locator("textarea")
    assert editor.evaluate("e => e === document.activeElement")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("if True:\n")
    page.keyboard.press("Tab")
    page.keyboard.type("print('/sfnp')")
    assert editor.input_value() == "if True:\n    print('/sfnp')"
    assert page.locator("dialog[open]").count() == 0
    page.keyboard.press("Control+Enter")
    block.wait_for_output("/sfnp")
    block.finish()
    editor.focus()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "运行"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_phone_width_and_accessibility(reader, dark):
    block = reader(width=390, height=844)
    page = block.page
    while dark and page.locator("body").get_attribute("data-md-color-scheme") != "slate":
        page.locator("form[data-md-component=palette] label:visible").click()
    second = page.locator(".kb-run").nth(1)
    second.get_by_role("button", name="运行").click()
    second.locator(".kb-run__status", has_text="个例子").wait_for(timeout=LONG)
    block.run('print("长" * 300)\ndef f():\n    """\n    >>> "很长" * 200\n    2\n    """\n1 / 0\n')
    block.root.locator(".kb-run__output").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert block.root.locator("textarea").evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 16
    page.add_script_tag(path=str(NODE_MODULES / "axe-core" / "axe.min.js"))
    violations = page.evaluate(
        """axe.run(
          {include: [['.kb-run__bar'], ['.kb-run__editor'], ['.kb-run__output'], ['.kb-run__examples']]},
          {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']},
        )"""
    )["violations"]
    assert [(violation["id"], [node["target"] for node in violation["nodes"]]) for violation in violations] == []


def test_other_modules_call_python_in_the_same_worker(reader):
    """The contract that the calculators use."""
    block = reader()
    answers = block.page.evaluate(
        """async () => {
          const { callPython, supported } = await import(new URL('assets/run/python.mjs', document.querySelector('.md-logo').href));
          const states = [];
          const onState = (text) => states.push(text);
          const call = (...all) => callPython(...all, { onState }).catch((error) => `${error.name}: ${error.message}`);
          return [
            supported(),
            await call('math/optimization/adam.py', 'first_step_without_correction', { beta1: 0.9, beta2: 0.95 }),
            await call('math/optimization/adam.py', 'first_step_without_correction', [2, 0.95]),
            await call('math/optimization/second_order.py', 'anything', []),
            states.slice(0, 2),
            alive.size,
          ];
        }"""
    )
    supported, value, refused, unknown, states, workers = answers
    assert supported
    assert value == pytest.approx(0.1 / 0.05**0.5)
    assert refused.startswith("Error: ValueError: ")
    assert "不能在浏览器里运行" in unknown
    assert states == ["正在载入 Python…", "正在计算…"]
    assert workers == 0  # a job that cannot be done ends the worker
