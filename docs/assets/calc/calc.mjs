// Calculators: a form that Python filled at build time, kept up to date by the same function in JavaScript.
// Loaded only by pages that have one (see js/kb.mjs). The fields that differ from their defaults are in the address.

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const SPEAK_MS = 700; // screen readers hear the result once typing pauses
const ADDRESS_MS = 250; // browsers limit how often the address may change

/** Text of a number field as a number; NaN, which every calculator rejects, if it is none. */
export function parseNumber(text) {
  const plain = text.normalize("NFKC").replace(/[\s,，_]/g, "");
  return NUMBER.test(plain) ? Number(plain) : NaN;
}

/** Whole numbers in full, others to four significant digits, as kb/calculators.py writes them. */
export function formatNumber(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e15 || size < 1e-3)) {
    const [mantissa, exponent] = value.toExponential(3).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  if (size >= 1000) {
    const whole = value < 0 ? `-${size.toFixed(0)}` : size.toFixed(0);
    return whole.replace(/\B(?=(\d{3})+$)/g, ",");
  }
  return String(Number(value.toPrecision(4)));
}

/** A calculator's complaint: which field, and what is wrong. */
export function complaint(error) {
  const match = /^(?:ValueError: )?(\w+): (.*)$/su.exec(error.message);
  return match ? { field: match[1], text: match[2] } : null;
}

const button = (text, onclick) => Object.assign(document.createElement("button"), { type: "button", textContent: text, onclick });

async function start(form) {
  form.dataset.ready = "";
  const name = form.dataset.calculator;
  let calculate, order, presets;
  try {
    ({ default: calculate, order, presets } = await import(new URL(`${name}.mjs`, import.meta.url)));
  } catch {
    return; // the static form with its default results stays
  }
  const fields = [...form.querySelectorAll("[name]:is(input, select)")];
  const selects = [...form.querySelectorAll("select[data-preset]")];
  const outputs = [...form.querySelectorAll("output")];
  const status = form.querySelector(".kb-calc__status");
  const note = form.querySelector(".kb-calc__note");
  const source = form.querySelector(".kb-calc__source");
  const initial = new Map(fields.map((field) => [field, [...(field.options ?? [])].find((option) => option.defaultSelected)?.value ?? field.defaultValue]));
  let speak, write;

  const valueOf = (field) => (field.tagName === "SELECT" && field.dataset.kind === "text" ? field.value : parseNumber(field.value));
  const set = (field, value) => {
    if (field.tagName !== "SELECT") field.value = value;
    else if ([...field.options].some((option) => option.value === String(value))) field.value = value;
  };

  const mark = (problem) => {
    for (const field of fields) {
      const wrong = problem?.field === field.name;
      const text = form.querySelector(`#calc-${field.name}-error`);
      text.hidden = !wrong;
      text.textContent = wrong ? problem.text : "";
      if (wrong) {
        field.setAttribute("aria-invalid", "true");
        field.setAttribute("aria-describedby", text.id);
      } else {
        field.removeAttribute("aria-invalid");
        field.removeAttribute("aria-describedby");
      }
    }
  };

  const showPresets = () => {
    const sources = [];
    for (const select of selects) {
      const matches = ([, [, values]]) =>
        Object.entries(values).every(([key, value]) => String(valueOf(form.elements[key])) === String(value));
      const entries = Object.entries(presets[select.dataset.preset]);
      const chosen = entries.find((entry) => entry[0] === select.value && matches(entry)) ?? entries.find(matches);
      select.value = chosen ? chosen[0] : "";
      if (chosen?.[1][0]) sources.push(`${chosen[0]}：${chosen[1][0]}`);
    }
    source.hidden = !sources.length;
    source.textContent = sources.length ? `出处　${sources.join("；")}` : "";
  };

  const address = () => {
    const url = new URL(location.href);
    for (const field of fields) {
      url.searchParams.delete(field.name);
      if (field.value !== initial.get(field)) url.searchParams.set(field.name, field.value);
    }
    return url;
  };

  const update = () => {
    let results = null, problem = null;
    try {
      results = calculate(...fields.map(valueOf));
    } catch (error) {
      problem = complaint(error);
      if (!problem) throw error;
    }
    mark(problem);
    verdict.textContent = "";
    for (const output of outputs) {
      const value = results?.[output.name];
      output.value = value === undefined ? "—" : formatNumber(value);
    }
    form.classList.toggle("kb-calc--invalid", Boolean(problem));
    note.hidden = !problem;
    note.textContent = problem ? "输入有误，改好标出的一项后重新计算。" : "";
    showPresets();
    clearTimeout(speak);
    speak = setTimeout(() => {
      const spoken = [...form.querySelectorAll(".kb-calc__headline > div")]
        .map((item) => `${item.querySelector("dt").textContent} ${item.querySelector("output").value}`);
      status.textContent = problem ? `输入有误：${problem.text}` : spoken.length ? spoken.join("；") : "结果已更新";
    }, SPEAK_MS);
    clearTimeout(write);
    write = setTimeout(() => form.isConnected && history.replaceState(history.state, "", address()), ADDRESS_MS);
  };

  const parameters = new URLSearchParams(location.search);
  for (const field of fields) if (parameters.has(field.name)) set(field, parameters.get(field.name));

  // The order of the form is not that of the function's parameters.
  fields.sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    const kind = event.target.dataset.preset;
    if (kind) {
      const [, values] = presets[kind][event.target.value] ?? [null, {}];
      for (const [key, value] of Object.entries(values)) set(form.elements[key], value);
    }
    update();
  });
  const check = async () => {
    const values = fields.map(valueOf);
    const { callPython } = await import(new URL("../run/python.mjs", import.meta.url));
    const say = (text) => (status.textContent = verdict.textContent = text);
    try {
      const python = await callPython(`tools/${name}.py`, name, values, { onState: say });
      const results = calculate(...values);
      const same = Object.keys(results).every((key) => Object.is(results[key], python[key])) && Object.keys(python).every((key) => key in results);
      say(same ? "Python 算出的每一项与上面逐位相同。" : `不一致，请报告错误：${JSON.stringify(python)}`);
    } catch (error) {
      say(`没有核对成：${error.message}`);
    }
  };
  const actions = form.querySelector(".kb-calc__actions");
  const verdict = document.createElement("span");
  const copy = button("复制链接", async () => {
    const url = address().href;
    try {
      await navigator.clipboard.writeText(url);
      copy.textContent = "已复制";
    } catch {
      copy.textContent = "请从地址栏复制"; // no clipboard on an insecure origin
      history.replaceState(history.state, "", url);
    }
    setTimeout(() => (copy.textContent = "复制链接"), 1500);
  });
  const reset = button("恢复默认", () => {
    for (const field of fields) field.value = initial.get(field);
    update();
  });
  actions.append(copy, reset);
  if ("python" in form.dataset && globalThis.Worker && globalThis.WebAssembly) actions.append(button("用 Python 复核", check), verdict);
  for (const group of form.querySelectorAll("fieldset")) group.disabled = false;
  update();
  clearTimeout(speak); // nothing has changed yet that would have to be spoken
}

/** Put the form of a calculator's own page in the place of its summary; resolves to the form. */
export async function open(embed) {
  const link = embed.querySelector("a");
  try {
    const response = await fetch(link.href);
    if (!response.ok) throw new Error(response.statusText);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const form = document.importNode(page.querySelector("form.kb-calc"), true);
    for (const part of form.querySelectorAll('a[href^="#"]')) part.href = new URL(part.hash, link.href);
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("calc.css", import.meta.url) });
    const loaded = new Promise((resolve) => (style.onload = style.onerror = resolve));
    embed.append(style);
    await loaded;
    embed.querySelector("dl")?.remove();
    embed.querySelector(":scope > button").remove();
    embed.append(form);
    await start(form);
    return form;
  } catch {
    location.assign(link.href); // the calculator's own page
    return null;
  }
}

/** Bring the calculators of a page to life; those already alive are left alone. */
export function setUp(root) {
  for (const form of root.querySelectorAll("form.kb-calc:not([data-ready])")) start(form);
}
