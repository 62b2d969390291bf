// Runs the search engine for test_search_engine.py: JSON in (index and calls), JSON out (one answer a call).

import { Engine } from "../../docs/assets/search/engine.mjs";
import { excerpt, fold, ranges, tokenize } from "../../docs/assets/search/text.mjs";
import { text } from "node:stream/consumers";

function finish(steps) {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

const { rows, answers, bodies, calls } = JSON.parse(await text(process.stdin));
const engine = new Engine(rows);
if (answers) engine.addAnswers(answers);
if (bodies) finish(engine.addBodies(bodies));

const describe = (results) =>
  results.slice(0, 20).map((result) => ({
    url: result.row.url,
    id: result.row.id,
    inBody: result.inBody,
    terms: [...result.terms],
    ...engine.passage(result),
  }));

const functions = {
  search: (query) => describe(engine.search(query)),
  searchAll: (query) => describe(finish(engine.searchAll(query))),
  nearest: (query) => engine.nearest(query).map((row) => row.id),
  terms: (string) => tokenize(string).map(({ term }) => term),
  spans: (string) => tokenize(string).map(({ term, start, end }) => [term, start, end]),
  ranges: (string, terms) => ranges(string, new Set(terms)),
  excerpt: (string, terms, size) => excerpt(string, new Set(terms), size),
  fold,
};

console.log(JSON.stringify(calls.map(([name, ...args]) => functions[name](...args))));
