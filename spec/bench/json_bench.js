// Node's side of json_bench.lua: the same documents, one a line, from the file named or from that script.
//   node spec/bench/json_bench.js [file] [--json]
"use strict";
const fs = require("fs");
const path = require("path");
const { execFileSync } = require("child_process");

const ROUNDS = Number(process.env.MW_BENCH_ROUNDS) || 15;
const file = process.argv.slice(2).find((a) => !a.startsWith("--"));
const lua = path.join(__dirname, "json_bench.lua");
const all = file ? fs.readFileSync(file) : execFileSync("luajit", [lua, "--documents"], { maxBuffer: 1 << 30 });

// Each document as a buffer of its own and as a flat string of its own, as a consumer would have it.
const buffers = [];
for (let from = 0, to; (to = all.indexOf(10, from)) >= 0; from = to + 1) buffers.push(Buffer.from(all.subarray(from, to)));
const strings = buffers.map((b) => b.toString());

let found = 0;
function measure(one) {
  let best = Infinity; // the best round, as json_bench.lua takes it
  for (let round = 0; round < ROUNDS; round++) {
    const start = process.hrtime.bigint();
    for (let i = 0; i < strings.length; i++) found += one(i);
    best = Math.min(best, Number(process.hrtime.bigint() - start) / 1e3 / strings.length);
  }
  return best;
}

const results = {
  "JSON.parse": measure((i) => JSON.parse(strings[i]).items.length),
  "JSON.parse of a Buffer": measure((i) => JSON.parse(buffers[i].toString()).items.length),
};
const decoded = strings.slice(0, 100).map((s) => JSON.parse(s));
results["JSON.stringify"] = measure((i) => JSON.stringify(decoded[i % 100]).length);

if (process.argv.includes("--json")) console.log(JSON.stringify(results));
else for (const [name, time] of Object.entries(results)) console.log(name.padEnd(24), time.toFixed(2), "us");
if (!found) process.exit(1);
