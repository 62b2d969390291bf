// Reads one JSON array of [latex, displayMode] a line, answers one JSON array of {html} or {error} a line.
import readline from "node:readline";
import katex from "katex";

for await (const line of readline.createInterface({ input: process.stdin })) {
  const rendered = JSON.parse(line).map(([latex, displayMode]) => {
    try {
      return { html: katex.renderToString(latex, { displayMode, throwOnError: true, strict: "error", output: "htmlAndMathml" }) };
    } catch (error) {
      return { error: error.message };
    }
  });
  process.stdout.write(JSON.stringify(rendered) + "\n");
}
