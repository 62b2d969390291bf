// Runs requests through runner.py under Pyodide: {package, stdlib, runner, requests} in, one JSON list of events a line out.

import fs from "node:fs";
import path from "node:path";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const { package: folder, stdlib, runner, requests } = JSON.parse(await text(process.stdin));
// A Python error as Node shows it repeats all of Pyodide's source.
process.on("uncaughtException", (error) => {
  console.error(error.message);
  process.exit(1);
});

const { loadPyodide } = await import(pathToFileURL(path.join(folder, "pyodide.mjs")));
const pyodide = await loadPyodide({ stdLibURL: stdlib });
let printed = "";
const decoder = new TextDecoder();
const write = (bytes) => {
  printed += decoder.decode(bytes, { stream: true });
  return bytes.length;
};
pyodide.setStdin({ error: true });
pyodide.setStdout({ write });
pyodide.setStderr({ write });
const scope = pyodide.globals.get("dict")();
pyodide.runPython(fs.readFileSync(runner, "utf8"), { globals: scope });

for (const { kind, ...request } of requests) {
  const events = [];
  printed = "";
  scope.get(kind)((json) => events.push(JSON.parse(json)), JSON.stringify(request));
  console.log(JSON.stringify({ events, printed }));
}
