"""Python for the reader's browser: Pyodide's files from node_modules, with a compiled and trimmed standard library."""

import hashlib
import json
import logging
import os
import shutil
import subprocess
from pathlib import Path

from kb.katex import node
from kb.paths import CACHE, NODE_MODULES, ROOT

log = logging.getLogger("mkdocs.kb.python")

VERSION = "314.0.7"
FOLDER = f"pyodide-{VERSION}"
STDLIB = "python_stdlib.zip"
LOCK = "pyodide-lock.json"
SHA256 = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    LOCK: "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
    STDLIB: "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
}
BUILDER = ROOT / "kb" / "stdlib_zip.mjs"

# Paths of the standard library that the site does not ship: of no use in a browser, or large and not for snippets.
DROPPED = (
    "_pydecimal.py",
    "_pyio.py",
    "cProfile.py",
    "concurrent/interpreters",
    "ctypes",
    "curses",
    "dbm",
    "email/",
    "ensurepip",
    "ftplib.py",
    "http/",
    "idlelib",
    "imaplib.py",
    "logging/handlers.py",
    "mailbox.py",
    "multiprocessing",
    "pickletools.py",
    "poplib.py",
    "profile.py",
    "pstats.py",
    "pydoc_data",
    "smtplib.py",
    "sqlite3",
    "ssl.py",
    "sysconfig/",
    "tarfile.py",
    "tkinter",
    "turtle",
    "unittest/mock.py",
    "venv",
    "webbrowser.py",
    "wsgiref",
    "xml/",
    "xmlrpc",
    "zoneinfo",
)


def find(node_modules: Path = NODE_MODULES) -> Path | None:
    """The folder of the pinned Pyodide, or None, with one line in the log."""
    folder = node_modules / "pyodide"
    missing = [name for name in SHA256 if not (folder / name).is_file()]
    if missing:
        log.info("pages get no run buttons: %s lacks %s; run: npm ci --ignore-scripts", folder, ", ".join(missing))
        return None
    other = [name for name, digest in SHA256.items() if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest]
    if other:
        log.warning("pages get no run buttons: %s is not Pyodide %s (SHA-256 of %s)", folder, VERSION, ", ".join(other))
        return None
    return folder


class Runtime:
    """The files to publish. A standard library that is not in the cache is compiled in the background while the site is built."""

    def __init__(self, package: Path, cache: Path = CACHE / "python"):
        self._package = package
        recipe = [*SHA256.values(), *DROPPED, BUILDER.read_text(encoding="utf-8")]
        key = hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:12]
        self._stdlib = cache / f"stdlib-{key}.zip"
        self._process: subprocess.Popen | None = None
        if not self._stdlib.exists():
            cache.mkdir(parents=True, exist_ok=True)
            self._made = cache / f"{self._stdlib.name}.{os.getpid()}"
            command = [node(), str(BUILDER), str(package), str(self._made), json.dumps(DROPPED)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def facts(self) -> dict:
        """What the worker needs to know to start Python."""
        info = json.loads((self._package / LOCK).read_text(encoding="utf-8"))["info"]
        return {"folder": f"{FOLDER}/", "stdlib": self._stdlib.name, "lock": {"info": info, "packages": {}}}

    def stdlib(self) -> Path:
        """The compiled standard library."""
        if self._process is not None:
            output, _ = self._process.communicate()
            if self._process.returncode:
                raise RuntimeError(f"compiling Python's standard library failed:\n{output}")
            self._made.replace(self._stdlib)
            self._process = None
        return self._stdlib

    def publish(self, folder: Path) -> None:
        """Copy what changed into a folder of the built site."""
        target = folder / FOLDER
        target.mkdir(parents=True, exist_ok=True)
        for source in (*(self._package / name for name in SHA256 if name not in (LOCK, STDLIB)), self.stdlib()):
            copy = target / source.name
            if not copy.exists() or copy.stat().st_size != source.stat().st_size or copy.stat().st_mtime < source.stat().st_mtime:
                shutil.copy2(source, copy)
