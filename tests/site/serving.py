"""A static server and a browser for tests and measurements."""

import functools
import gzip
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SUB_PATH = "/kb/"
EXECUTABLES = {"chromium": ("chromium", "google-chrome"), "firefox": ("firefox-esr", "firefox")}
FIREFOX_FIX = Path(__file__).with_name("firefox_fix.cjs")
BROWSER_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder under SUB_PATH, as a code host's pages do."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args, compress: bool = False, **kwargs):
        self._compress = compress
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.removeprefix(SUB_PATH) if path.startswith(SUB_PATH) else "/no-such-file")

    def do_GET(self):
        file = Path(self.translate_path(self.path))
        if not self._compress or not file.is_file() or file.suffix == ".woff2":
            super().do_GET()
            return
        body = gzip.compress(file.read_bytes(), 9)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(file)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serve(folder: Path, *, compress: bool = False) -> Iterator[str]:
    """Serves a built site; yields its address."""
    handler = functools.partial(_Handler, directory=str(folder), compress=compress)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{SUB_PATH}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def browsers() -> Iterator[Callable]:
    """Yields a function that launches the machine's "chromium" or "firefox", driven by Playwright."""
    from playwright.sync_api import sync_playwright

    def launch(name: str):
        path = os.environ.get(name.upper()) or next(filter(None, map(shutil.which, EXECUTABLES[name])), None)
        if not path:
            raise FileNotFoundError(f"{name} is missing: apt-get install {EXECUTABLES[name][0]}, or set {name.upper()} to its path")
        if name == "chromium":
            browser = playwright.chromium.launch(executable_path=path, args=BROWSER_ARGS)
        else:
            browser = playwright.firefox.launch(executable_path=path, channel="moz-firefox")
        opened.append(browser)
        return browser

    opened = []
    options = os.environ.get("NODE_OPTIONS")
    os.environ["NODE_OPTIONS"] = f"--require={FIREFOX_FIX}"
    try:
        with sync_playwright() as playwright:
            try:
                yield launch
            finally:
                for browser in opened:
                    browser.close()
    finally:
        if options is None:
            del os.environ["NODE_OPTIONS"]
        else:
            os.environ["NODE_OPTIONS"] = options


@contextmanager
def chromium() -> Iterator:
    """The machine's Chromium."""
    with browsers() as launch:
        yield launch("chromium")
