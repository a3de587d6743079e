// The script's side of benchmarks/peers/script.py.
import { createInterface } from "node:readline";

export const URL = process.env.BENCH_URL;
export const POOLED = Boolean(process.env.BENCH_POOLED);

const say = (...words) => process.stdout.write(`@ ${words.join(" ")}\n`);
// Date.now() has whole milliseconds only.
const now = () => (performance.timeOrigin + performance.now()) / 1000;

/** A stamped handler has begun. */
export const started = (number) => {
  const at = now();
  say("stamp", number, at);
};

/** Do what the first argument says; `client` resolves to {one, bulk, stamp}. */
export async function main({ prepare, work, client }) {
  const mode = process.argv[2];
  if (mode === "prepare") {
    await prepare();
    process.exit(0);
  }
  const lines = createInterface({ input: process.stdin });
  if (mode === "work") {
    say("ready");
    for await (const _ of lines) {
      await work();
    }
    return;
  }
  const { one, bulk, stamp } = await client();
  say("ready");
  for await (const line of lines) {
    const [word, number] = line.split(" ");
    const count = Number(number);
    try {
      const begun = performance.now();
      if (word === "one") {
        for (let i = 0; i < count; i++) await one(i);
      } else if (word === "bulk") {
        await bulk(count);
      } else {
        await stamp(count);
        say("at", now());
        continue;
      }
      say("seconds", (performance.now() - begun) / 1000);
    } catch (error) {
      say("error", String(error).split(/\s+/).join(" "));
    }
  }
  process.exit(0);
}
