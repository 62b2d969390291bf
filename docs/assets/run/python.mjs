// The one Python worker of the page: it starts at the first job, stays warm for a while, and never outlives its use.

const IDLE = 5 * 60_000;
const ENDS = new Set(["done", "result", "error", "overflow", "fatal"]);

let engine = null; // { worker, ready, job, idle }
let jobs = 0;

/** Can this browser run Python? Whether the site ships it is known at build time. */
export const supported = () => typeof Worker === "function" && typeof WebAssembly === "object" && location.protocol.startsWith("http");

/** Ends the worker at once, and with it the running job, which is told `event`. */
export function stop(event = { type: "stopped" }) {
  if (!engine) return;
  const { worker, job, idle } = engine;
  engine = null;
  clearTimeout(idle);
  worker.terminate();
  job?.on(event);
}

function start() {
  const worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module", name: "python" });
  const own = { worker, ready: false, job: null, idle: 0 };
  worker.onmessage = ({ data }) => {
    if (engine !== own) return;
    if (data.type === "ready") own.ready = true;
    if (!own.job || data.id !== own.job.id) return;
    if (data.type === "overflow" || data.type === "fatal") {
      stop(data); // after either the interpreter is of no more use
      return;
    }
    const { on } = own.job;
    if (ENDS.has(data.type)) {
      own.job = null;
      own.idle = setTimeout(stop, IDLE);
    }
    on(data);
  };
  worker.onerror = (event) => {
    event.preventDefault();
    if (engine === own) stop({ type: "fatal", text: event.message || "Python 载入失败" });
  };
  return own;
}

function submit(request, on) {
  if (engine?.job) stop();
  engine ??= start();
  clearTimeout(engine.idle);
  engine.job = { id: ++jobs, on };
  if (!engine.ready) on({ type: "loading" });
  engine.worker.postMessage({ ...request, id: engine.job.id });
}

/** Runs a snippet; `on` is told what happens, the last time with one of ENDS or "stopped". */
export const run = (request, on) => submit({ ...request, kind: "run" }, on);

/**
 * Calls a function of a snippet: resolves to its result, rejects with a message for the reader.
 * `args` is an array (positional) or an object (keywords) of JSON values; `onState` is told what Python is doing.
 */
export function callPython(path, name, args, { onState = () => {} } = {}) {
  return new Promise((resolve, reject) => {
    submit({ kind: "call", path, name, arguments: args }, (event) => {
      if (event.type === "loading") onState("正在载入 Python…");
      else if (event.type === "start") onState("正在计算…");
      else if (event.type === "result") resolve(event.value);
      else if (event.type === "stopped") reject(Object.assign(new Error("已停止"), { name: "StoppedError" }));
      else if (event.type === "overflow") reject(new Error("输出过多，已停止"));
      else if (event.type === "error" || event.type === "fatal") reject(new Error(event.text));
    });
  });
}

// With instant navigation the worker survives the page; what runs on a page that is gone does not.
globalThis.document$?.subscribe(() => engine?.job && stop());
