// 运行, 编辑 and 停止 below code blocks. Nothing of Python is loaded before the first click.

import { run as runPython, stop as stopPython, supported } from "./python.mjs";

const BLANKS = "把 raise 的那一行换成你的代码，Ctrl+Enter 检查，Esc 离开编辑框。";
const HINT = "Ctrl+Enter 运行，Esc 离开编辑框。要看别的值，加一行 print(…)，或者改 >>> 的例子。";

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const button = (text, kind) => element("button", { type: "button", className: `kb-run__button kb-run__button--${kind}`, textContent: text });

const seconds = (since) => {
  const milliseconds = performance.now() - since;
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
};

function exampleItem({ passed, source, want, got }) {
  const code = element("code", { textContent: source.trimEnd() });
  const item = element("li", { className: passed ? "kb-run__passed" : "kb-run__failed" }, code);
  const row = (label, text) => element("div", { className: "kb-run__row" }, element("b", { textContent: label }), element("samp", { textContent: text.trimEnd() || "（无输出）" }));
  if (passed) {
    if (want) item.append(row("期望 = 实际", got));
  } else item.append(row("期望", want), row("实际", got));
  return item;
}

function setUp(block) {
  block.classList.add("kb-run");
  const [path, names = ""] = block.dataset.run.split(":");
  const pre = block.querySelector("pre");
  const original = pre.querySelector("code").textContent;
  let area = null;

  const exercise = "exercise" in block.dataset; // its text has blanks, the file has not
  const run = button(exercise ? "检查" : "运行", "run");
  const stop = button("停止", "stop");
  const edit = button("编辑", "edit");
  const restore = button("还原", "edit");
  const status = element("span", { className: "kb-run__status", role: "status" });
  const bar = element("div", { className: "kb-run__bar" }, run, stop, edit, restore, status);
  const output = element("pre", { className: "kb-run__output", tabIndex: 0 });
  output.setAttribute("role", "region");
  output.setAttribute("aria-label", "程序的输出");
  const examples = element("ol", { className: "kb-run__examples" });
  stop.hidden = restore.hidden = output.hidden = examples.hidden = true;
  block.append(bar, output, examples);

  const say = (text, mood = "") => {
    status.textContent = text;
    status.dataset.mood = mood;
  };
  const clear = () => {
    output.replaceChildren();
    examples.replaceChildren();
    output.hidden = examples.hidden = true;
  };
  const print = (text, isError = false) => {
    output.hidden = false;
    output.append(isError ? element("span", { className: "kb-run__error", textContent: text }) : text);
  };
  const swap = (shown, hidden) => {
    const hadFocus = document.activeElement === hidden;
    shown.hidden = false;
    hidden.hidden = true;
    if (hadFocus) shown.focus();
  };

  function execute() {
    clear();
    say("运行中…");
    swap(stop, run);
    const began = performance.now();
    const end = (text, mood) => {
      say(text, mood);
      swap(run, stop);
    };
    runPython({ path, sections: names ? names.split(",") : [], edited: area?.value ?? (exercise ? original : undefined) }, (event) => {
      switch (event.type) {
        case "loading":
          return say("正在载入 Python（首次约 7 MB）…");
        case "start":
          return say("运行中…");
        case "out":
          return print(event.text, event.isError);
        case "test":
          examples.hidden = false;
          return examples.append(exampleItem(event));
        case "done": {
          const { passed, total, unlisted } = event;
          const rest = unlisted ? `，后 ${unlisted} 个未列出` : "";
          return end(total ? `${total} 个例子，${passed} 个与期望一致${rest}（${seconds(began)}）` : `完成（${seconds(began)}）`, passed === total ? "good" : "bad");
        }
        case "error":
          print(event.text, true);
          return end(`出错（${seconds(began)}）`, "bad");
        case "overflow":
          return end("输出超过 20 万字符，已停止", "bad");
        case "fatal":
          return end(`不能运行：${event.text}`, "bad");
        default:
          return end("已停止");
      }
    });
  }

  function startEditing() {
    area = element("textarea", { className: "kb-run__editor", value: original.trimEnd(), spellcheck: false, autocapitalize: "off", wrap: "off" });
    area.setAttribute("aria-label", "编辑代码");
    area.rows = Math.min(30, area.value.split("\n").length + 1);
    area.onkeydown = (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") run.hidden ? stop.focus() : run.focus();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        if (run.hidden) return;
        execute();
      } else if (event.key === "Tab" && !event.shiftKey) document.execCommand("insertText", false, "    "); // keeps undo
      else return;
      event.preventDefault();
    };
    pre.after(area);
    pre.hidden = true;
    swap(restore, edit);
    say(exercise ? BLANKS : HINT);
    area.focus();
  }

  run.onclick = execute;
  stop.onclick = () => stopPython();
  edit.onclick = startEditing;
  restore.onclick = () => {
    if (run.hidden) stopPython();
    area.remove();
    area = null;
    pre.hidden = false;
    clear();
    say("");
    swap(edit, restore);
  };
}

function setUpPage() {
  document.querySelectorAll("[data-run]:not(.kb-run)").forEach(setUp);
}

if (supported()) {
  if (globalThis.document$) document$.subscribe(setUpPage);
  else setUpPage();
}
