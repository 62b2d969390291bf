// Fetches the index in three steps (titles, answers, bodies) and runs long work in slices.

import { Engine } from "./engine.mjs";

const SLICE = 6;

export const pause = (milliseconds = 0) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Resolves after the next frame is on the screen. */
export const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

/** Runs a generator in slices of a few milliseconds. Its value, or null once `isOvertaken` says so. */
export async function inSlices(steps, isOvertaken = () => false) {
  let until = performance.now() + SLICE;
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
    if (performance.now() < until) continue;
    await pause();
    if (isOvertaken()) return null;
    until = performance.now() + SLICE;
  }
}

async function fetchJson(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: HTTP ${response.status}`);
  return response.json();
}

/** A step that runs at its first call; after a failure, at the next call again. */
function once(work) {
  let running = null;
  const step = () => {
    running ??= work().then(
      (value) => {
        step.done = true;
        return value;
      },
      (error) => {
        running = null;
        throw error;
      },
    );
    return running;
  };
  step.done = false;
  return step;
}

export const titles = once(async () => new Engine(await fetchJson("titles.json")));

export const answers = once(async () => {
  const engine = await titles();
  engine.addAnswers(await fetchJson("answers.json"));
});

export const bodies = once(async () => {
  await answers();
  const engine = await titles();
  await inSlices(engine.addBodies(await fetchJson("bodies.json")));
});
