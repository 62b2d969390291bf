// Writes Python's standard library as compiled modules: node stdlib_zip.mjs PACKAGE TARGET DROPPED
// PACKAGE is the folder of npm's pyodide, DROPPED a JSON list of path prefixes to leave out. The result depends on nothing else.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, target, dropped] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(path.resolve(folder, "pyodide.mjs")));
const pyodide = await loadPyodide();
pyodide.FS.writeFile("/in.zip", fs.readFileSync(path.join(folder, "python_stdlib.zip")));
pyodide.globals.set("dropped", pyodide.toPy(JSON.parse(dropped)));
pyodide.runPython(`
from importlib._bootstrap_external import _code_to_timestamp_pyc
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

with ZipFile("/in.zip") as given, ZipFile("/out.zip", "w") as made:
    for name in sorted(given.namelist()):
        if name.endswith("/") or name.startswith(tuple(dropped)):
            continue
        data = given.read(name)
        if name.endswith(".py"):
            code = compile(data, "/lib/python314.zip/" + name, "exec", dont_inherit=True, optimize=2)
            name, data = name + "c", bytes(_code_to_timestamp_pyc(code, 0, 0))
        made.writestr(ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, ZIP_DEFLATED, 9)
`);
fs.writeFileSync(target, pyodide.FS.readFile("/out.zip"));
