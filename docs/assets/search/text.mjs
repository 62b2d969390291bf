// Text to terms. Every function keeps positions, so that what matched can be shown.

const RUN = /[\u3400-\u9fff\u3040-\u30ff]+|[0-9A-Za-z\u00c0-\u052f]+/g;
const WORD_PART = /[A-Z]+(?![a-z])|[A-Z]?[a-z]+/g;
const COMPOUND = /[^A-Z][A-Z]|[A-Z]{2}[a-z]|[0-9]/;
const JOINT = /^[ \-_@/.:+'’‐-―−]$/;

export const isLatin = (term) => term.charCodeAt(0) < 0x2e80;

const folded = new Map();

function foldChar(char) {
  let plain = folded.get(char);
  if (plain === undefined) {
    plain = char.normalize("NFKD").replace(/\p{M}/gu, "");
    if (plain.length !== 1) plain = char;
    folded.set(char, plain);
  }
  return plain;
}

/** NFKC-like folding (full-width forms, accents, superscripts) that never changes the length of the text. */
export function fold(text) {
  return text.replace(/[^\x00-\x7f\u3400-\u9fff]/g, foldChar);
}

/**
 * Chinese bigrams (a lone character stays itself); Latin words in lower case, the parts of compounds such as
 * FlashAttention or ZeRO3, and neighbours joined, so that flash-attention is also flashattention.
 *
 * @param {string} text
 * @returns {{term: string, start: number, end: number}[]}
 */
export function tokenize(text) {
  text = fold(text);
  const tokens = [];
  const add = (term, start, end) => tokens.push({ term, start, end });
  let previous = null;
  RUN.lastIndex = 0;
  for (let match = RUN.exec(text); match; match = RUN.exec(text)) {
    const run = match[0];
    const start = match.index;
    const end = start + run.length;
    if (!isLatin(run)) {
      if (run.length === 1) add(run, start, end);
      for (let i = start; i + 1 < end; i++) add(text.slice(i, i + 2), i, i + 2);
      previous = null;
      continue;
    }
    const word = run.toLowerCase();
    add(word, start, end);
    if (COMPOUND.test(run)) {
      for (const { 0: part, index } of run.matchAll(WORD_PART)) {
        const acronym = part.length === 2 && part === part.toUpperCase();
        if (part.length < run.length && (part.length > 2 || acronym)) {
          add(part.toLowerCase(), start + index, start + index + part.length);
        }
      }
    }
    if (previous && JOINT.test(text.slice(previous.end, start))) add(previous.word + word, previous.start, end);
    previous = { word, start, end };
  }
  return tokens;
}

/**
 * Where any of the terms stands in a text, as sorted, merged [start, end] pairs.
 *
 * @param {string} text
 * @param {Set<string>} terms
 */
export function ranges(text, terms) {
  const found = [];
  for (const { term, start, end } of tokenize(text)) {
    if (terms.has(term)) found.push([start, end]);
    else if (!isLatin(term)) for (let i = start; i < end; i++) if (terms.has(text[i])) found.push([i, i + 1]);
  }
  found.sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const [start, end] of found) {
    const last = merged.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  return merged;
}

/**
 * The part of a text with the most highlighted characters, and how many it has.
 *
 * @returns {{text: string, hits: number}}
 */
export function excerpt(text, terms, size = 90) {
  const marks = ranges(text, terms);
  let start = 0;
  let most = 0;
  for (const [from] of marks) {
    const begin = Math.max(0, Math.min(Math.floor(from - size / 4), text.length - size));
    let covered = 0;
    for (const [a, b] of marks) if (a >= begin && b <= begin + size) covered += b - a;
    if (covered > most) [start, most] = [begin, covered];
  }
  const cut = text.slice(start, start + size);
  // A word that the cut runs through is left out.
  const opened = start ? `…${cut.replace(/^[0-9A-Za-z]{1,20}(?=[^0-9A-Za-z])/, "")}` : cut;
  const closed = start + size < text.length ? `${opened.replace(/(?<=[^0-9A-Za-z])[0-9A-Za-z]{1,20}$/, "")}…` : opened;
  return { text: closed, hits: most };
}

/** Whether `word`, or a prefix of it, is one insertion, deletion, substitution or swap of neighbours away from `typed`. */
export function isTypo(typed, word) {
  let i = 0;
  while (i < typed.length && typed[i] === word[i]) i++;
  const same = (inWord, inTyped) => word.slice(inWord).startsWith(typed.slice(inTyped));
  const swapped = typed[i] === word[i + 1] && typed[i + 1] === word[i] && i + 1 < typed.length;
  return same(i + 1, i + 1) || same(i + 1, i) || same(i, i + 1) || (swapped && same(i + 2, i + 2));
}
