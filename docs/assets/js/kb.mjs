// Small conveniences of a page. Without JavaScript the links below still lead to the right place.

function copyShareText(link) {
  const text = `${link.dataset.share} — ${link.href}`;
  return navigator.clipboard.writeText(text);
}

async function onClick(event) {
  const link = event.target.closest("a.kb-copy");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const label = link.textContent;
  try {
    await copyShareText(link);
    link.textContent = "已复制";
  } catch {
    location.assign(link.href); // no clipboard (insecure origin): the short link itself can be copied from the address bar
    return;
  }
  setTimeout(() => (link.textContent = label), 1500);
}

document.addEventListener("click", onClick);

// Calculators: their own pages load what brings them to life; in other pages a button does, or a link that carries numbers.
const calculators = () => import("../calc/calc.mjs");

async function startCalculators() {
  const carriesNumbers = [...new URLSearchParams(location.search).keys()].some((key) => key !== "h"); // h: the search's words
  for (const button of document.querySelectorAll(".kb-calc-embed > button[hidden]")) {
    const open = async () => (await calculators()).open(button.parentElement);
    button.hidden = false;
    button.addEventListener("click", async () => (await open())?.querySelector("select, input").focus(), { once: true });
    if (carriesNumbers) open();
  }
  if (document.querySelector("form.kb-calc:not([data-ready])")) (await calculators()).setUp(document);
}

if (globalThis.document$) document$.subscribe(startCalculators); // also after an instant navigation
else startCalculators();
