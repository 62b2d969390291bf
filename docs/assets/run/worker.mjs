// Python lives here. It starts with the worker, runs one job at a time, and ends when the page terminates the worker.

const LIMIT = 200_000; // characters of output a run may print
const EAGER = 200; // messages sent at once; later output is collected for PAUSE milliseconds or CHUNK characters
const PAUSE = 60;
const CHUNK = 8192;

const RUNTIME = null; // the build puts the paths of Python here

const here = (path) => new URL(path, import.meta.url);

async function get(url, options, send = fetch) {
  const response = await send(url, options);
  if (!response.ok) throw new Error(`${new URL(url).pathname.split("/").at(-1)}: HTTP ${response.status}`);
  return response;
}

// The newest manifest; the stored one where the network is gone.
const manifest = get(here("manifest.json"), { cache: "no-cache" })
  .catch(() => get(here("manifest.json"), { cache: "force-cache" }))
  .then((response) => response.json());

/** Rejects when the file at url does not arrive: loadPyodide waits for ever for its WebAssembly. */
function lost(url) {
  const plain = self.fetch;
  return new Promise((_, reject) => {
    self.fetch = (input, options) => {
      if (String(input) !== url) return plain(input, options);
      const arriving = get(url, options, plain);
      arriving.catch(reject);
      return arriving;
    };
  });
}

async function boot() {
  const { folder, stdlib, lock, runner } = RUNTIME;
  const source = get(here(`runner.py?v=${runner}`)).then((response) => response.text());
  source.catch(() => {}); // awaited below
  const indexURL = here(folder).href;
  const { loadPyodide } = await import(`${indexURL}pyodide.mjs`);
  const missing = lost(`${indexURL}pyodide.asm.wasm`);
  const loading = loadPyodide({ indexURL, stdLibURL: indexURL + stdlib, lockFileContents: JSON.stringify(lock) });
  const pyodide = await Promise.race([loading, missing]);
  pyodide.setStdin({ error: true });
  pyodide.FS.mkdirTree("/kb");
  const scope = pyodide.globals.get("dict")();
  pyodide.runPython(await source, { globals: scope, filename: "runner.py" });
  return { pyodide, run: scope.get("run"), call: scope.get("call") };
}

const booted = boot();
booted.then(
  () => postMessage({ type: "ready" }),
  () => {}, // told to the job that waits for it
);

const texts = new Map();

async function text(name, digest) {
  if (!texts.has(name)) texts.set(name, await (await get(here(`snippets/${name}?v=${digest}`))).text());
  return texts.get(name);
}

async function sources(path) {
  const modules = await manifest;
  if (!modules[path]) throw new Error(`${path} 不能在浏览器里运行`);
  const paths = [path, ...modules[path].needs];
  return Object.fromEntries(await Promise.all(paths.map(async (name) => [name, await text(name, modules[name].digest)])));
}

/** Sends what Python prints. Beyond the limit it never returns: the page ends this worker. */
function capture(pyodide, id) {
  let text = "";
  let isError = false;
  let messages = 0;
  let total = 0;
  let sent = performance.now();
  const flush = () => {
    if (text) postMessage({ id, type: "out", text, isError });
    text = "";
    messages += 1;
    sent = performance.now();
  };
  const writer = (toError) => {
    const decoder = new TextDecoder();
    return (bytes) => {
      if (toError !== isError) flush();
      isError = toError;
      text += decoder.decode(bytes, { stream: true });
      total += bytes.length;
      if (total > LIMIT) overflow(id, flush);
      if (messages < EAGER || text.length > CHUNK || performance.now() - sent > PAUSE) flush();
      return bytes.length;
    };
  };
  pyodide.setStdout({ write: writer(false) });
  pyodide.setStderr({ write: writer(true) });
  return flush;
}

function overflow(id, flush) {
  flush();
  postMessage({ id, type: "overflow" });
  for (;;);
}

self.onmessage = async ({ data: { id, kind, ...request } }) => {
  try {
    const files = await sources(request.path);
    const { pyodide, [kind]: work } = await booted;
    const flush = capture(pyodide, id);
    const post = (json) => {
      flush();
      postMessage({ id, ...JSON.parse(json) });
    };
    postMessage({ id, type: "start" });
    work(post, JSON.stringify({ ...request, files }));
  } catch (error) {
    postMessage({ id, type: "fatal", text: String(error?.message ?? error) });
  }
};
