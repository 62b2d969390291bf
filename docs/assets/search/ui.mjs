// The search dialog. Opens on the header's button, "/", "s", "f" and Ctrl/Cmd+K.

import { goWithinPage, marked, watchPages, withTerms } from "./highlight.mjs";
import { answers, bodies, inSlices, painted, pause, titles } from "./loader.mjs";

const ROOT = new URL("../../", import.meta.url);
const PAGE_SIZE = 10;
const SETTLED = 150;
const MAX_TERMS = 12;
const NEAREST_EXCERPT = 60;
const LOAD_FAILED = "索引没有加载成功，请检查网络后再输入一次。";

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function option(href, title, facts, text) {
  return element(
    "a",
    { href, role: "option", class: "kb-search__hit", tabindex: "-1", "aria-selected": "false" },
    element("span", { class: "kb-search__title" }, ...title),
    element("span", { class: "kb-search__facts" }, ...facts),
    element("span", { class: "kb-search__text" }, ...text),
  );
}

const factsLine = (row, place = "") => [row.id.toUpperCase(), row.chapter, place].filter(Boolean).join(" · ");

function resultOption(result, engine) {
  const { row, terms, inBody } = result;
  const { anchor, heading, text } = engine.passage(result);
  const url = new URL(row.url, ROOT);
  if (inBody) url.hash = anchor;
  const place = inBody ? heading : "";
  const facts = place ? marked(factsLine(row, place), terms) : [factsLine(row)];
  return option(withTerms(url, [...terms].slice(0, MAX_TERMS)), marked(row.title, terms), facts, marked(text, terms));
}

function nearestOption(row) {
  const url = new URL(row.url, ROOT);
  return option(url.href, [row.title], [factsLine(row)], [row.answer.slice(0, NEAREST_EXCERPT)]);
}

class SearchDialog {
  #input = element("input", {
    type: "search",
    class: "kb-search__input",
    placeholder: "题目、术语、缩写或题号",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    enterkeyhint: "go",
    role: "combobox",
    "aria-label": "搜索",
    "aria-autocomplete": "list",
    "aria-controls": "kb-search-list",
    "aria-expanded": "false",
  });
  #close = element("button", { type: "button", class: "kb-search__close" }, "关闭");
  #status = element("p", { class: "kb-search__status", role: "status" });
  #list = element("div", { class: "kb-search__list", id: "kb-search-list", role: "listbox", "aria-label": "搜索结果", hidden: "" });
  #more = element("button", { type: "button", class: "kb-search__more", hidden: "" }, "更多");
  #dialog = element(
    "dialog",
    { class: "kb-search", "aria-label": "搜索" },
    element("div", { class: "kb-search__bar" }, this.#input, this.#close),
    this.#status,
    this.#list,
    this.#more,
  );

  #composing = false;
  #search = 0;
  /** Makers of the options that are not shown yet. */
  #waiting = [];
  #active = -1;
  #chosen = false;

  constructor() {
    document.body.append(this.#dialog);
    this.#input.addEventListener("compositionstart", () => (this.#composing = true));
    this.#input.addEventListener("compositionend", () => {
      this.#composing = false;
      this.#update();
    });
    this.#input.addEventListener("input", () => {
      if (!this.#composing) this.#update();
    });
    this.#dialog.addEventListener("keydown", (event) => this.#onKey(event));
    this.#dialog.addEventListener("cancel", (event) => {
      if (this.#composing) event.preventDefault();
    });
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dismiss();
    });
    this.#close.addEventListener("click", () => this.#dismiss());
    this.#more.addEventListener("click", () => {
      const first = this.#list.children.length;
      this.#extend();
      this.#activate(first);
      this.#input.focus();
    });
    this.#list.addEventListener("mousedown", (event) => event.preventDefault()); // the focus stays in the input
    this.#list.addEventListener("click", (event) => this.#onFollow(event));
  }

  open() {
    if (this.#dialog.open) return;
    this.#dialog.showModal();
    this.#input.focus();
    this.#input.select();
  }

  #dismiss() {
    this.#input.blur(); // else it keeps the keyboard until the next frame
    this.#dialog.close();
  }

  /** Titles at once, then what is still loading, then the bodies; a newer query ends an older one. */
  async #update() {
    const search = ++this.#search;
    const isOvertaken = () => search !== this.#search;
    const query = this.#input.value.trim();
    if (!query) {
      this.#show([], "");
      return;
    }
    try {
      if (!titles.done) this.#say("正在加载…");
      const engine = await titles();
      if (isOvertaken()) return;
      this.#showResults(engine, engine.search(query), query);
      await painted();
      if (!answers.done) {
        await answers();
        if (isOvertaken()) return;
        this.#showResults(engine, engine.search(query), query);
      }
      if (!bodies.done) await pause(SETTLED);
      if (isOvertaken()) return;
      await bodies();
      if (isOvertaken()) return;
      const results = await inSlices(engine.searchAll(query), isOvertaken);
      if (results) this.#showResults(engine, results, query);
    } catch {
      if (!isOvertaken()) this.#say(LOAD_FAILED);
    }
  }

  #showResults(engine, results, query) {
    if (results.length) {
      const makers = results.map((result) => () => resultOption(result, engine));
      this.#show(makers, `找到 ${results.length} 条结果`);
    } else if (bodies.done) {
      const rows = engine.nearest(query);
      const makers = rows.map((row) => () => nearestOption(row));
      this.#show(makers, `没有找到“${query}”。${rows.length ? "最接近的题目：" : ""}`);
    } else {
      this.#show([], "标题和回答里没有，正在搜索正文…");
    }
  }

  #show(makers, message) {
    const kept = this.#chosen ? this.#list.children[this.#active]?.href : null;
    this.#list.replaceChildren();
    this.#list.hidden = !makers.length;
    this.#list.scrollTop = 0;
    this.#input.setAttribute("aria-expanded", String(makers.length > 0));
    this.#waiting = makers;
    this.#extend();
    const index = kept ? [...this.#list.children].findIndex((node) => node.href === kept) : -1;
    this.#chosen = index >= 0;
    this.#activate(Math.max(0, index));
    this.#say(message);
  }

  #extend() {
    const shown = this.#list.children.length;
    const next = this.#waiting.splice(0, PAGE_SIZE).map((make) => make());
    next.forEach((node, i) => (node.id = `kb-search-hit-${shown + i}`));
    this.#list.append(...next);
    this.#more.hidden = !this.#waiting.length;
  }

  #activate(index) {
    this.#list.children[this.#active]?.setAttribute("aria-selected", "false");
    this.#active = index;
    const node = this.#list.children[index];
    if (!node) {
      this.#input.removeAttribute("aria-activedescendant");
      return;
    }
    node.setAttribute("aria-selected", "true");
    node.scrollIntoView({ block: "nearest" });
    this.#input.setAttribute("aria-activedescendant", node.id);
  }

  #say(message) {
    this.#status.textContent = message;
  }

  #onKey(event) {
    event.stopPropagation(); // the page's own shortcuts
    // 229: keys that belong to an input method; Safari sends its Enter after compositionend.
    if (event.isComposing || event.keyCode === 229 || event.altKey) return;
    const last = this.#list.children.length - 1;
    const moves = {
      ArrowDown: () => (this.#active < last ? this.#active + 1 : 0),
      ArrowUp: () => (this.#active > 0 ? this.#active - 1 : last),
      // Home and End belong to the text until an arrow has gone to the list.
      ...(this.#chosen && { Home: () => 0, End: () => last }),
    };
    if (event.key === "Escape") {
      event.preventDefault();
      this.#dismiss();
    } else if (event.target === this.#input && last >= 0 && moves[event.key] && !event.shiftKey) {
      event.preventDefault();
      this.#chosen = true;
      this.#activate(moves[event.key]());
    } else if (event.target === this.#input && event.key === "Enter") {
      event.preventDefault();
      this.#follow(event.ctrlKey || event.metaKey);
    }
  }

  #onFollow(event) {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    this.#dismiss();
    if (link.pathname !== location.pathname) return;
    event.preventDefault();
    event.stopPropagation(); // instant navigation
    goWithinPage(link.href);
  }

  #follow(inNewTab) {
    const link = this.#list.children[this.#active];
    if (!link) return;
    if (inNewTab) window.open(link.href, "_blank", "noopener");
    else link.click();
  }
}

const dialog = new SearchDialog();

function prefetch() {
  answers().catch(() => {}); // told when it is needed: at the first query
}

function isTyping(node) {
  return node.isContentEditable || /^(?:INPUT|TEXTAREA|SELECT)$/.test(node.tagName);
}

function isShortcut(event) {
  if (event.defaultPrevented || event.altKey || isTyping(event.target)) return false;
  if (event.ctrlKey || event.metaKey) return event.key.toLowerCase() === "k" && !event.shiftKey;
  return ["/", "s", "f"].includes(event.key);
}

for (const type of ["pointerover", "focusin"]) {
  document.addEventListener(type, (event) => {
    if (event.target.closest(".kb-search-open")) prefetch();
  });
}

document.addEventListener("click", (event) => {
  if (!event.target.closest(".kb-search-open")) return;
  prefetch();
  dialog.open();
});

document.addEventListener("keydown", (event) => {
  if (!isShortcut(event)) return;
  event.preventDefault();
  prefetch();
  dialog.open();
});

watchPages();
