// On the page a search led to: mark the words, unfold what hides them.

import { ranges, tokenize } from "./text.mjs";

const PARAMETER = "h";
const MARK = "kb-found";
const LEFT_ALONE = ".katex, .arithmatex, .headerlink, .kb-facts, svg, script, style, button, mark";
const HEADING = "h1, h2, h3, h4, h5, h6";

/** A link that marks the terms on the page it leads to. */
export function withTerms(url, terms) {
  const marked = new URL(url);
  if (terms.length) marked.searchParams.set(PARAMETER, terms.join(" "));
  return marked.href;
}

function textNodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) => {
    if (node.nodeType === Node.TEXT_NODE) return NodeFilter.FILTER_ACCEPT;
    return node.matches(LEFT_ALONE) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP;
  });
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  return nodes;
}

/** The pieces of a text, marked where a term stands: strings and <mark> elements. */
export function marked(text, terms) {
  const pieces = [];
  let end = 0;
  for (const [from, to] of ranges(text, terms)) {
    const mark = document.createElement("mark");
    mark.className = MARK;
    mark.textContent = text.slice(from, to);
    pieces.push(text.slice(end, from), mark);
    end = to;
  }
  return [...pieces, text.slice(end)];
}

function markIn(root, terms) {
  for (const node of textNodes(root)) {
    const pieces = marked(node.data, terms);
    if (pieces.length > 1) node.replaceWith(...pieces);
  }
  return [...root.querySelectorAll(`.${MARK}`)];
}

const closedFold = (node) => node.closest("details:not([open])");
const follows = (node, other) => Boolean(other.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING);

function unfold(node) {
  for (let folded = closedFold(node); folded; folded = closedFold(folded)) folded.open = true;
}

/** Whether a node stands under a heading: after it and before the next one of its rank. */
function underHeading(heading, root) {
  const ranks = HEADING.split(", ").slice(0, Number(heading.localName[1]));
  const next = [...root.querySelectorAll(ranks.join())].find((other) => follows(other, heading));
  return (node) => follows(node, heading) && !(next && follows(node, next));
}

/** Opens the fold that says more about the terms than all that is visible, and goes there. */
function unfoldBest(marks, terms) {
  const kinds = (folded) => {
    const texts = marks.filter((mark) => closedFold(mark) === folded).map((mark) => mark.textContent);
    return new Set(tokenize(texts.join("|")).flatMap(({ term }) => (terms.has(term) ? term : []))).size;
  };
  let best = null;
  let most = kinds(null);
  for (const mark of marks) {
    const folded = closedFold(mark);
    if (folded && kinds(folded) > most) [best, most] = [mark, kinds(folded)];
  }
  if (!best) return;
  unfold(best);
  best.scrollIntoView({ block: "center" });
}

function target() {
  try {
    return document.getElementById(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return null; // a stray % in the address
  }
}

function openTarget() {
  const node = target();
  if (!node || !closedFold(node)) return;
  unfold(node);
  node.scrollIntoView();
}

function showTerms() {
  const url = new URL(location.href);
  const terms = new Set((url.searchParams.get(PARAMETER) ?? "").split(" ").filter(Boolean));
  const article = document.querySelector("article");
  if (!terms.size || !article) return;
  url.searchParams.delete(PARAMETER);
  history.replaceState(history.state, "", url);
  for (const mark of article.querySelectorAll(`.${MARK}`)) mark.replaceWith(mark.textContent);
  const marks = markIn(article, terms);
  const node = target();
  const heading = node?.matches(HEADING) && article.contains(node) ? node : null;
  unfoldBest(heading ? marks.filter(underHeading(heading, article)) : marks, terms);
}

/** Shows another place or other terms on the page that is open already. */
export function goWithinPage(href) {
  history.pushState(null, "", href);
  (target() ?? document.documentElement).scrollIntoView();
  showTerms();
}

/** Watches the pages that come and go, Material's instant navigation included. */
export function watchPages() {
  const arrive = () => {
    openTarget();
    showTerms();
  };
  addEventListener("hashchange", openTarget);
  if (window.document$) window.document$.subscribe(() => setTimeout(arrive));
  else arrive();
}
