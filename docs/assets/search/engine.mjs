// Ranking. Title, English title, tags, chapter and 30-second answer are an inverted index (BM25F), the bodies a fainter
// second source. Pure: no DOM, no network.

import { Bodies } from "./bodies.mjs";
import { ABBREVIATIONS, FILLERS, QUESTION_WORDS, idMatcher, segment } from "./query.mjs";
import { excerpt, fold, isLatin, isTypo, tokenize } from "./text.mjs";

// Weight of a hit, length normalisation and usual length in terms. The lengths are constants, so that answers can be
// added after the first search without touching what is already there.
const FIELDS = {
  id: [4, 0, 2],
  title: [4, 0.3, 14],
  titleEn: [3, 0.3, 10],
  tags: [3, 0.5, 7],
  chapter: [0.7, 0.3, 6],
  answer: [1, 0.6, 90],
};
const SATURATION = 2;
const BODY = 0.35;
const COORDINATION = 0.4;
const ID_SCORE = 1000;
const OTHER_PAGE = 0.9;

const QUESTION_WORD = 0.15;
const PART = 0.5;
const JOINED = 0.8;
const LONE_CHARACTER = 0.3;
const PREFIX = 0.5;
const TYPO = 0.7;
const ABBREVIATION = 0.8;

const MAX_QUERY = 200;
const MAX_BODY_SPELLINGS = 8;
const MAX_RESOLVED = 500;

const rarity = (pages, all) => Math.log(1 + (all - pages + 0.5) / (pages + 0.5));

function pairs(text) {
  const plain = fold(text).toLowerCase().replace(/[^0-9a-z\u00c0-\u9fff]/g, "");
  return new Set(Array.from({ length: Math.max(0, plain.length - 1) }, (_, i) => plain.slice(i, i + 2)));
}

/**
 * @typedef {object} Row  one page
 * @property {string} url
 * @property {string} id        empty for pages that are no question
 * @property {string} title
 * @property {string} titleEn
 * @property {string} chapter
 * @property {string} tags
 * @property {string} answer    empty until the answers are there
 *
 * @typedef {object} Result
 * @property {number} page
 * @property {Row} row
 * @property {number} score
 * @property {Set<string>} terms   what to highlight
 * @property {boolean} inBody      the body says more about the query than title and answer do
 */

export class Engine {
  #index = new Map();
  #latin = [];
  #han = [];
  #bodies = new Bodies();
  #words = null;
  #resolved = new Map();
  #pairs = null;

  /** @param {string[][]} rows  titles.json: [url, id, title, title_en, chapter, tags] a page */
  constructor(rows) {
    this.rows = rows.map(([url, id, title, titleEn, chapter, tags]) => ({ url, id, title, titleEn, chapter, tags, answer: "" }));
    this.rows.forEach((row, page) => {
      this.#add(page, "id", `${row.id} ${row.id.replace(/^(\D)0+/, "$1")}`);
      for (const field of ["title", "titleEn", "tags", "chapter"]) this.#add(page, field, row[field]);
    });
  }

  /** @param {Record<string, string>} answers  answers.json: the 30-second answers by url */
  addAnswers(answers) {
    this.rows.forEach((row, page) => {
      row.answer = answers[row.url] ?? "";
      this.#add(page, "answer", row.answer);
    });
  }

  /**
   * Makes the bodies searchable, a page a step: drive the generator in slices.
   *
   * @param {Record<string, [string, string, string, string][]>} bodies  bodies.json: [anchor, heading, text, code] by url
   */
  *addBodies(bodies) {
    const loaded = new Bodies();
    yield* loaded.add(this.rows.map((row) => bodies[row.url] ?? []));
    this.#bodies = loaded;
    this.#forget();
  }

  /**
   * Pages by title, tags and answer.
   *
   * @param {string} query
   * @returns {Result[]}
   */
  search(query) {
    return this.#search(query, false).next().value;
  }

  /**
   * The same and the bodies, a few pages a step.
   *
   * @param {string} query
   * @returns {Generator<undefined, Result[]>}
   */
  searchAll(query) {
    return this.#search(query, true);
  }

  *#search(query, withBodies) {
    const entries = new Map();
    let known = 0;
    const terms = this.#analyse(query.slice(0, MAX_QUERY));
    const onlyQuestionWords = terms.every(({ weight }) => weight <= QUESTION_WORD);
    for (const { term, weight, joined } of terms) {
      const matters = onlyQuestionWords || weight > QUESTION_WORD;
      const spellings = this.#spellings(term, joined);
      const inFields = this.#fieldScores(term, spellings);
      const inBodies = withBodies && matters ? yield* this.#bodyScores(term, spellings) : new Map();
      const pages = new Set([...inFields.keys(), ...inBodies.keys()]);
      const share = pages.size && weight * rarity(pages.size, this.rows.length);
      known += share;
      for (const page of pages) {
        if (!entries.has(page)) entries.set(page, { fields: 0, body: 0, covered: 0, matters: false, terms: new Set(), found: [] });
        const entry = entries.get(page);
        entry.covered += share;
        const field = inFields.get(page) ?? { score: 0, terms: [] };
        const body = inBodies.get(page) ?? { score: 0, terms: [], spellings: [] };
        if (body.score > field.score) entry.body += weight * body.score;
        else entry.fields += weight * field.score;
        if (!matters) continue;
        entry.matters = true;
        const kin = [...field.terms, ...body.terms];
        for (const found of kin.includes(term) ? [term] : kin) entry.terms.add(found);
        entry.found.push({ weight: weight * body.score, spellings: body.spellings });
      }
    }
    return this.#rank(query, entries, known);
  }

  #rank(query, entries, known) {
    const idFit = idMatcher(query);
    const results = [];
    this.rows.forEach((row, page) => {
      const byId = ID_SCORE * (idFit?.(row.id) ?? 0);
      const entry = entries.get(page);
      if (!byId && !entry?.matters) return;
      const { fields, body, covered, terms, found } = entry ?? { fields: 0, body: 0, covered: 0, terms: new Set(), found: [] };
      const coverage = 1 - COORDINATION * (1 - covered / known);
      const score = byId || (fields + body) * coverage * (row.id ? 1 : OTHER_PAGE);
      results.push({ page, row, score, terms, found, inBody: !byId && body > fields });
    });
    return results.sort((a, b) => b.score - a.score || a.page - b.page);
  }

  /**
   * What to show below a result's title: the place that matched, else the beginning of the answer.
   *
   * @param {Result} result
   * @returns {{anchor: string, heading: string, text: string}}
   */
  passage({ page, row, terms, inBody, found }) {
    const answer = excerpt(row.answer, terms);
    const section = inBody || !answer.hits ? this.#bodies.section(page, found) : null;
    if (!section) {
      const english = excerpt(row.titleEn, terms);
      return { anchor: "", heading: "", text: !answer.hits && english.hits ? english.text : answer.text };
    }
    const prose = excerpt(section.text, terms);
    const code = excerpt(section.code, terms);
    return { anchor: section.anchor, heading: section.heading, text: code.hits > prose.hits ? code.text : prose.text };
  }

  /**
   * Pages whose titles look most like the query, for when nothing matches.
   *
   * @returns {Row[]}
   */
  nearest(query, count = 5) {
    this.#pairs ??= this.rows.map((row) => [pairs(row.title), pairs(row.titleEn)]);
    const wanted = [...pairs(query.slice(0, MAX_QUERY))];
    const likeness = (other) => wanted.filter((pair) => other.has(pair)).length / (wanted.length + other.size || 1);
    return this.rows
      .map((row, page) => ({ row, score: Math.max(...this.#pairs[page].map(likeness)) }))
      .filter(({ score }) => score > 0)
      .sort((a, b) => b.score - a.score)
      .slice(0, count)
      .map(({ row }) => row);
  }

  #add(page, field, text) {
    const [weight, normalisation, usual] = FIELDS[field];
    const tokens = tokenize(text);
    const share = weight / (1 - normalisation + (normalisation * tokens.length) / usual);
    // A term counts once per field: in texts this short, repetition says little.
    for (const term of new Set(tokens.map((token) => token.term))) {
      if (!this.#index.has(term)) {
        this.#index.set(term, new Map());
        (isLatin(term) ? this.#latin : this.#han).push(term);
      }
      const pages = this.#index.get(term);
      pages.set(page, (pages.get(page) ?? 0) + share);
    }
    this.#forget();
  }

  #forget() {
    this.#words = null;
    this.#resolved.clear();
  }

  /** The terms of a query and how much each counts. */
  #analyse(query) {
    const terms = new Map();
    const note = (term, weight, joined = false) => {
      if (!(terms.get(term)?.weight >= weight)) terms.set(term, { term, weight, joined });
    };
    const read = (text, weight) => {
      const tokens = tokenize(text);
      const words = tokens.filter(({ term, start, end }) => isLatin(term) && end - start === term.length);
      const isPart = ({ start, end }) =>
        words.some((word) => word.start <= start && word.end >= end && word.end - word.start > end - start && this.#isKnown(word.term));
      for (const token of tokens) {
        const { term, start, end } = token;
        const joined = end - start > term.length;
        if (!isLatin(term)) {
          note(term, term.length === 1 ? weight * LONE_CHARACTER : weight);
        } else if (!joined && term.length > 5 && !this.#spellings(term).length) {
          for (const piece of segment(term, (piece) => this.#isKnown(piece)) ?? []) note(piece, weight);
        } else {
          note(term, weight * (FILLERS.has(term) ? QUESTION_WORD : joined ? JOINED : isPart(token) ? PART : 1), joined);
        }
      }
    };
    const rest = fold(query).replace(QUESTION_WORDS, (words) => {
      read(words, QUESTION_WORD);
      return "|";
    });
    read(rest, 1);
    return [...terms.values()];
  }

  #isKnown(term) {
    return this.#index.has(term) || this.#bodies.spellings.has(term) || ABBREVIATIONS.has(term);
  }

  #knownWords() {
    this.#words ??= [...new Set([...this.#latin, ...this.#bodies.spellings.keys()])];
    return this.#words;
  }

  /** The known terms that a typed one may stand for: [term, weight]. */
  #spellings(term, joined = false) {
    const key = joined ? ` ${term}` : term;
    if (!this.#resolved.has(key)) {
      if (this.#resolved.size > MAX_RESOLVED) this.#resolved.clear();
      this.#resolved.set(key, this.#resolve(term, joined));
    }
    return this.#resolved.get(key);
  }

  #resolve(term, joined) {
    if (!isLatin(term)) {
      const pairs = term.length === 1 ? this.#han.filter((pair) => pair !== term && pair.includes(term)) : [];
      return [term, ...pairs].map((other) => [other, 1]);
    }
    const found = this.#index.has(term) || this.#bodies.spellings.has(term) ? [[term, 1]] : [];
    if (term.length > 2) {
      for (const word of this.#knownWords()) {
        if (word !== term && word.startsWith(term)) found.push([word, (PREFIX * term.length) / word.length]);
      }
    }
    if (ABBREVIATIONS.has(term)) {
      for (const [word, weight] of this.#spellings(ABBREVIATIONS.get(term))) found.push([word, weight * ABBREVIATION]);
    }
    if (!found.length && !joined && term.length > 3) {
      for (const word of this.#knownWords()) {
        if (isTypo(term, word)) found.push([word, (TYPO * term.length) / Math.max(term.length, word.length)]);
      }
    }
    return found;
  }

  #fieldScores(term, spellings) {
    const indexed = spellings.filter(([word]) => this.#index.has(word));
    const pages = new Set(indexed.flatMap(([word]) => [...this.#index.get(word).keys()]));
    const scale = rarity(pages.size, this.rows.length);
    const scores = new Map();
    for (const [word, weight] of indexed) {
      for (const [page, hits] of this.#index.get(word)) {
        const entry = scores.get(page) ?? { score: 0, terms: [] };
        entry.score = Math.max(entry.score, (weight * scale * hits) / (hits + SATURATION));
        entry.terms.push(isLatin(term) ? word : term);
        scores.set(page, entry);
      }
    }
    return scores;
  }

  *#bodyScores(term, spellings) {
    const words = isLatin(term) ? [...spellings].sort((a, b) => b[1] - a[1]).slice(0, MAX_BODY_SPELLINGS) : [[term, 1]];
    const scores = yield* this.#bodies.scores(words);
    const scale = BODY * rarity(scores.size, this.rows.length);
    for (const entry of scores.values()) entry.score *= scale;
    return scores;
  }
}
