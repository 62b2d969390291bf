"""Measurements against the project's budgets: python -m tests.bench

The site is measured at its planned size: every unwritten question gets the body of a written page.
"""

import gzip
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kb import calculators
from kb.catalogue import catalogue
from kb.page import Answer
from kb.paths import DOCS, ROOT
from kb.site import load_site
from tests.site.serving import chromium, serve

PORT = 8765
COPIED = ("docs", "kb", "snippets", "mkdocs.yml", "CONTRIBUTING.md", "package.json")
ENVIRONMENT = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
SLOW_LINE = {"offline": False, "latency": 50, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 1.6e6 / 8}


def full_size_copy(target: Path) -> None:
    """The project in `target`, with a page for every question of the catalogue."""
    for name in COPIED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target / name)
    (target / "node_modules").symlink_to(ROOT / "node_modules")
    answers = load_site(DOCS, catalogue()).answers
    bodies: Iterator[Answer] = itertools.cycle(answers.values())
    for question in catalogue().questions.values():
        if question.id in answers:
            continue
        source = next(bodies)
        text = (DOCS / source.path).read_text(encoding="utf-8")
        for old, new in (
            (f"id: {source.id}\n", f"id: {question.id}\n"),
            (f"# {source.title}\n", f"# {question.title}\n"),
            (f"related: [{', '.join(source.related)}]", f"related: [{'q033' if question.id != 'q033' else 'q016'}]"),
            ("](figures/", f"](../{'../' * question.folder.count('/')}{source.question.folder}/figures/"),
        ):
            text = text.replace(old, new, 1) if "figures" not in old else text.replace(old, new)
        page = target / "docs" / question.page
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def build(project: Path) -> float:
    """Seconds of one strict build."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=project, env=ENVIRONMENT, check=True)
    return time.perf_counter() - start


def edit_to_refresh(project: Path) -> float:
    """Seconds from saving a page to the changed page being served."""
    page = project / "docs" / catalogue().questions["q033"].page
    url = f"http://127.0.0.1:{PORT}/{catalogue().questions['q033'].page.removesuffix('.md')}/"
    server = subprocess.Popen(
        [sys.executable, "-m", "mkdocs", "serve", "--dirty", "--no-strict", "--quiet", "--dev-addr", f"127.0.0.1:{PORT}"],
        cwd=project,
        env={**ENVIRONMENT, "SITE_URL": f"http://127.0.0.1:{PORT}/"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def served(mark: str) -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return mark in response.read().decode()
        except OSError:
            return False

    try:
        deadline = time.monotonic() + 120
        while not served("三分钟讲清"):
            if time.monotonic() > deadline:
                raise TimeoutError("mkdocs serve did not come up within 120 s")
            time.sleep(0.2)
        time.sleep(1)
        seconds = []
        for n in range(3):
            mark = f"bench-mark-{n}"
            page.write_text(page.read_text(encoding="utf-8").replace("## 参考", f"{mark}\n\n## 参考", 1), encoding="utf-8")
            start = time.perf_counter()
            while not served(mark):
                time.sleep(0.02)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)
    finally:
        server.terminate()
        server.wait()


def page_sizes(site: Path) -> list[int]:
    """Gzipped bytes of every answer page."""
    answers = load_site(DOCS, catalogue()).answers.values()
    return sorted(len(gzip.compress((site / answer.url / "index.html").read_bytes(), 9)) for answer in answers)


def calculator_sizes(site: Path) -> list[int]:
    """Gzipped bytes of every calculator: its page, the shared script and style, its own script."""
    shared = ["assets/calc/calc.mjs", "assets/calc/calc.css"]
    return sorted(
        sum(
            len(gzip.compress((site / path).read_bytes(), 9))
            for path in (f"{calculators.load(name).page}index.html", f"assets/calc/{name}.mjs", *shared)
        )
        for name in calculators.NAMES
    )


@contextmanager
def browser_page(**options):
    with chromium() as browser:
        context = browser.new_context(**options)
        yield context.new_page()
        context.close()


def first_load(site: Path, path: str) -> int:
    """Bytes of a cold first visit: text gzipped, fonts and images as they are."""
    total = 0

    def count(response) -> None:
        nonlocal total
        body = response.body()
        compressible = not response.url.endswith((".woff2", ".png"))
        total += len(gzip.compress(body, 9)) if compressible else len(body)

    with serve(site) as base, browser_page() as page:
        page.on("response", count)
        page.goto(base + path, wait_until="networkidle")
    return total


def first_search_result(site: Path) -> float:
    """Seconds from pressing / to the first result, at 1.6 Mbit/s and with the processor slowed to a quarter."""
    with serve(site, compress=True) as base, browser_page() as page:
        page.goto(base, wait_until="networkidle")
        session = page.context.new_cdp_session(page)
        session.send("Network.emulateNetworkConditions", SLOW_LINE)
        session.send("Emulation.setCPUThrottlingRate", {"rate": 4})
        start = time.perf_counter()
        page.keyboard.press("/")
        page.keyboard.type("zero")
        page.locator(".kb-search [role=option]").first.wait_for()
        return time.perf_counter() - start


CLICK_TO_RESULT = """new Promise(resolve => {
  const block = document.querySelector(".kb-run");
  const start = performance.now();
  new MutationObserver(() => {
    if (block.querySelector(".kb-run__status").dataset.mood) resolve((performance.now() - start) / 1000);
  }).observe(block, {attributes: true, subtree: true});
  block.querySelector(".kb-run__button--run").click();
})"""


def first_python_result(site: Path) -> tuple[list[float], int]:
    """Seconds from the click on 运行 to the last result, each in a new browser; gzipped bytes that the click loads."""
    seconds, responses, size = [], [], 0
    with serve(site) as base:
        for counted in (True, *5 * (False,)):
            with browser_page() as page:
                page.goto(base + catalogue().questions["q011"].page[:-3] + "/", wait_until="networkidle")
                if counted:
                    page.context.on("response", lambda response: responses.append(response))
                took = page.evaluate(CLICK_TO_RESULT)
                if not counted:
                    seconds.append(took)
                    continue
                bodies = {response.url: response.body() for response in responses}  # read while the page is open
                size = sum(len(body if url.endswith(".zip") else gzip.compress(body, 9)) for url, body in bodies.items())
    return seconds, size


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        full_size_copy(project)
        cold, warm = build(project), build(project)
        sizes = page_sizes(project / "site")
        python_seconds, python_bytes = first_python_result(project / "site")
        rows = [
            ("strict build of 372 pages, cold caches", f"{cold:.1f} s", "≤ 10 s"),
            ("strict build of 372 pages, warm caches", f"{warm:.1f} s", "≤ 10 s"),
            ("save to refreshed page in serve", f"{edit_to_refresh(project):.2f} s", "≤ 1.5 s"),
            ("answer page, gzip, median", f"{statistics.median(sizes) / 1e3:.1f} kB", "≤ 18 kB"),
            ("answer page, gzip, largest", f"{sizes[-1] / 1e3:.1f} kB", "≤ 18 kB"),
            (
                "lab page, gzip",
                f"{len(gzip.compress((project / 'site/labs/memory-ledger/index.html').read_bytes(), 9)) / 1e3:.1f} kB",
                "≤ 25 kB",
            ),
            (
                "cold first load of an answer",
                f"{first_load(project / 'site', catalogue().questions['q033'].page[:-3] + '/') / 1e3:.0f} kB",
                "≤ 210 kB",
            ),
            (
                "search titles, gzip",
                f"{len(gzip.compress((project / 'site/assets/search/titles.json').read_bytes(), 9)) / 1e3:.1f} kB",
                "about 21 kB",
            ),
            ("click on 运行 to its last result, cold, median", f"{statistics.median(python_seconds):.2f} s", "≤ 1.5 s"),
            ("the same, best of 5", f"{min(python_seconds):.2f} s", ""),
            ("loaded by that click, gzip", f"{python_bytes / 1e6:.2f} MB", ""),
            ("calculator: page and scripts, gzip, largest", f"{calculator_sizes(project / 'site')[-1] / 1e3:.1f} kB", "≤ 30 kB"),
            ("first search result, 1.6 Mbit/s, CPU / 4", f"{first_search_result(project / 'site'):.2f} s", "≤ 0.5 s"),
        ]
    width = max(len(name) for name, _, _ in rows)
    for name, value, budget in rows:
        print(f"{name:<{width}}  {value:>10}  {budget}")


if __name__ == "__main__":
    main()
