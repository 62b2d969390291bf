// What a typed query means: ids, words that carry little, abbreviations, words run together.

import { fold } from "./text.mjs";

export const QUESTION_WORDS =
  /为什么|什么|怎么样?|怎样|如何|哪些|解释|请问|介绍|原理|区别|作用|方法|应用|实现|比较|是否|可以|一下/g;

export const FILLERS = new Set(
  "a an and are as at by can do does explain for from how if in is it of on or the to vs what when why with".split(" "),
);

/** Abbreviations that a title is likely to spell out, and the joined term of the spelt-out form. */
export const ABBREVIATIONS = new Map(
  Object.entries({
    attn: "attention",
    ckpt: "checkpoint",
    cp: "contextparallel",
    dp: "dataparallel",
    ep: "expertparallel",
    ib: "infiniband",
    k8s: "kubernetes",
    lr: "learningrate",
    mha: "multihead",
    pp: "pipelineparallel",
    ppl: "perplexity",
    ps: "parameterserver",
    sp: "sequenceparallel",
    tp: "tensorparallel",
  }),
);

const TYPED_ID = /^([qbi]?)[\s\-_.]*(\d{1,3})(?:[\s\-_.]+(\d{0,2}))?$/;
const ID = /^(\D)(\d+)(?:-(\d+))?$/;

/**
 * How well a page's id fits a typed one (q033, 33, Q 33, i1-2, q03…): 2 the same, 1 its beginning, 0 not at all.
 * Null if the query is no id.
 */
export function idMatcher(query) {
  const typed = TYPED_ID.exec(fold(query).toLowerCase().trim());
  if (!typed) return null;
  const [, letter, number, sub] = typed;
  return (id) => {
    const parts = ID.exec(id);
    if (!parts || (letter && letter !== parts[1])) return 0;
    const sameNumber = Number(parts[2]) === Number(number);
    if (sub) return sameNumber && Number(parts[3]) === Number(sub) ? 2 : 0;
    if (sameNumber) return parts[3] ? 1 : 2;
    return letter && sub === undefined && parts[2].startsWith(number) ? 1 : 0;
  };
}

/** A word as known words: mixtureofexperts as mixture, of, experts. Null if it is not made of known words. */
export function segment(word, isKnown) {
  const best = [[]];
  for (let end = 2; end <= word.length; end++) {
    for (let start = Math.max(0, end - 20); start <= end - 2; start++) {
      if (best[start] && !(best[end]?.length <= best[start].length + 1)) {
        const piece = word.slice(start, end);
        if (isKnown(piece)) best[end] = [...best[start], piece];
      }
    }
  }
  return best[word.length] ?? null;
}
