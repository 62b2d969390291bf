"""The site, built once and strictly, and a browser that reports everything that goes wrong in it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from kb.paths import ROOT
from tests.site.serving import SUB_PATH, browsers, serve


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """The folder of the strictly built site; a warning of the build is an error."""
    out = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "SITE_URL": f"http://127.0.0.1{SUB_PATH}", "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return out


@pytest.fixture(scope="session")
def base_url(built):
    with serve(built) as url:
        yield url


@pytest.fixture(scope="session")
def launch():
    """Launches a browser by its name, once."""
    with browsers() as launch_:
        yield cache(launch_)


@pytest.fixture
def browser(launch):
    return launch("chromium")


@pytest.fixture
def open_page(browser, base_url):
    """Opens a page of the site; afterwards asserts that nothing was logged as an error and nothing left this host."""
    problems: list[str] = []
    contexts = []

    def open_(path: str = "", *, width: int = 1280, height: int = 900, dark: bool = False, **options):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", locale="zh-CN", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.on("request", lambda request: request.url.startswith(("http://127.0.0.1", "data:", "blob:")) or problems.append(request.url))
        page.on("response", lambda response: response.status < 400 or problems.append(f"{response.status} {response.url}"))
        page.goto(base_url + path)
        return page

    open_.problems = problems
    yield open_
    for context in contexts:
        context.close()
    assert problems == []
