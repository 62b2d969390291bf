// The text of the pages. Twenty times as long as titles and answers, so it is scanned, not indexed.

import { fold, isLatin, tokenize } from "./text.mjs";

const BODY_SATURATION = 3;
const USUAL_LENGTH = 2500;
const CODE_WEIGHT = 0.3;
const PAGES_PER_STEP = 8;
const MAX_COUNT = 8;
const MAX_VARIANTS = 4;

const SHORT_WORD = 5;
const ALPHANUMERIC = /[0-9a-z\u00c0-\u052f]/;

/** Occurrences of a spelling, up to a limit. Short Latin words count only as whole words: rag, not storage. */
function count(text, spelling) {
  const whole = isLatin(spelling) && spelling.length < SHORT_WORD;
  let found = 0;
  for (let at = text.indexOf(spelling); at >= 0 && found < MAX_COUNT; at = text.indexOf(spelling, at + spelling.length)) {
    const inside = whole && (ALPHANUMERIC.test(text[at - 1] ?? "") || ALPHANUMERIC.test(text[at + spelling.length] ?? ""));
    if (!inside) found++;
  }
  return found;
}

export class Bodies {
  /** Latin terms and how they are written: flashattention as "flashattention", "flash attention", "flash-attention". */
  spellings = new Map();
  #pages = [];

  /**
   * A page a step: drive the generator in slices.
   *
   * @param {[string, string, string, string][][]} bodies  per page its sections: [anchor, heading, text, code]
   */
  *add(bodies) {
    for (const sections of bodies) {
      const body = sections.map(([anchor, heading, text, code]) => ({
        anchor,
        heading,
        text,
        code,
        plain: fold(`${heading}\n${text}`).toLowerCase(),
        plainCode: fold(code).toLowerCase(),
      }));
      for (const { heading, text, code } of body) {
        this.#noteWords(`${heading}\n${text}`);
        this.#noteWords(code);
      }
      const plain = body.map((section) => section.plain).join("\n");
      this.#pages.push({ sections: body, plain, plainCode: body.map((section) => section.plainCode).join("\n") });
      yield;
    }
  }

  #noteWords(text) {
    for (const { term, start, end } of tokenize(text)) {
      if (!isLatin(term)) continue;
      const spelling = fold(text.slice(start, end)).toLowerCase();
      const variants = this.spellings.get(term);
      if (!variants) this.spellings.set(term, [spelling]);
      else if (variants.length < MAX_VARIANTS && !variants.includes(spelling)) variants.push(spelling);
    }
  }

  /**
   * Pages that contain one of the words, as page -> {score, terms, spellings}; a few pages a step.
   *
   * @param {[string, number][]} words  [term, weight]
   */
  *scores(words) {
    const needles = words.flatMap(([term, weight]) => (this.spellings.get(term) ?? [term]).map((spelling) => ({ term, weight, spelling })));
    const scores = new Map();
    for (const [page, { plain, plainCode }] of this.#pages.entries()) {
      const length = 0.5 + (0.5 * plain.length) / USUAL_LENGTH;
      for (const { term, weight, spelling } of needles) {
        const hits = count(plain, spelling) + CODE_WEIGHT * count(plainCode, spelling);
        if (!hits) continue;
        const entry = scores.get(page) ?? { score: 0, terms: [], spellings: [] };
        entry.score = Math.max(entry.score, (weight * hits) / (hits + BODY_SATURATION * length));
        entry.terms.push(term);
        entry.spellings.push(spelling);
        scores.set(page, entry);
      }
      if (page % PAGES_PER_STEP === PAGES_PER_STEP - 1) yield;
    }
    return scores;
  }

  /**
   * The section of a page that says most about the query.
   *
   * @param {{weight: number, spellings: string[]}[]} found  what the page contains
   */
  section(page, found) {
    let best = null;
    for (const section of this.#pages[page]?.sections ?? []) {
      let score = 0;
      for (const { weight, spellings } of found) {
        if (spellings.some((spelling) => count(section.plain, spelling))) score += weight;
        else if (spellings.some((spelling) => count(section.plainCode, spelling))) score += weight * CODE_WEIGHT;
      }
      if (score > (best?.score ?? 0)) best = { section, score };
    }
    return best?.section ?? null;
  }
}
