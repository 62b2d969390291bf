// Runs a calculator on many inputs and prints each outcome: the 64 bits of every result, or the message of the error.
// Input on stdin: {module, calls: [[argument, …], …], numbers: [bits, …]}; an argument {"bits": "…"} is a number.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { module, calls, numbers } = JSON.parse(readFileSync(0, "utf8"));
const view = new DataView(new ArrayBuffer(8));
const decode = (argument) => (view.setBigUint64(0, BigInt(`0x${argument}`)), view.getFloat64(0));
const encode = (value) => (view.setFloat64(0, value), view.getBigUint64(0).toString(16).padStart(16, "0"));
const loaded = await import(pathToFileURL(module));
if (numbers) {
  console.log(JSON.stringify(numbers.map((bits) => loaded.formatNumber(decode(bits)))));
} else {
  const outcome = (call) => {
    try {
      const results = loaded.default(...call.map((argument) => (argument.bits ? decode(argument.bits) : argument.text)));
      return Object.fromEntries(Object.entries(results).map(([name, value]) => [name, encode(value)]));
    } catch (error) {
      return `${error.name}|${error.message.replace(/^ValueError: /, "")}`;
    }
  };
  console.log(JSON.stringify(calls.map(outcome)));
}
