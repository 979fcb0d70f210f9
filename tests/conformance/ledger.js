// Reads a ledger of posterity (docs/format.md) and prints its sites, and mean and sd by name.
// node ledger.js FILE. For Gaussian, DiagonalGaussian and Beta; plain JavaScript, no package.
"use strict";
const sha256 = (...parts) =>
  parts.reduce((hash, part) => hash.update(part), require("crypto").createHash("sha256")).digest("hex");
const refuse = (why) => { console.error(`refused: ${why}`); process.exit(1); };

function read(path) {
  const file = require("fs").readFileSync(path);
  const start = file.length < 8 ? Infinity : 8 + Number(file.readBigUInt64LE(0));
  if (start > file.length) refuse("a header beyond the file");
  const header = JSON.parse(file.subarray(8, start).toString("utf8"));
  const { posterity: text, sha256: digest } = header.__metadata__ || {};
  if (text === undefined) refuse("a file without a manifest");
  const manifest = JSON.parse(text);
  if (manifest.format !== 2) refuse(`format ${manifest.format}`);
  if (sha256(text) !== digest) refuse("a manifest that was altered");
  const names = Object.keys(header).filter((name) => name !== "__metadata__").sort();
  const bytes = names.map((name) => file.subarray(...header[name].data_offsets.map((k) => start + k)));
  if (sha256(...bytes) !== manifest.data) refuse("arrays that were altered");
  const arrays = names.map((name, n) => {
    if (header[name].dtype !== "F64") refuse(`array ${name}`);
    return [name, Array.from({ length: bytes[n].length / 8 }, (_, k) => bytes[n].readDoubleLE(8 * k))];
  });
  return { tree: manifest.tree, arrays: Object.fromEntries(arrays) };
}

function inverse(matrix, d) { // of a positive definite matrix (d x d, by rows), by Gauss and Jordan
  const unit = (i) => Array.from({ length: d }, (_, j) => +(i === j));
  const rows = unit(0).map((_, i) => [...matrix.slice(i * d, (i + 1) * d), ...unit(i)]);
  for (let i = 0; i < d; i++) {
    const pivot = rows[i].map((value) => value / rows[i][i]);
    for (let k = 0; k < d; k++) {
      const factor = rows[k][i];
      rows[k] = k === i ? pivot : rows[k].map((value, j) => value - factor * pivot[j]);
    }
  }
  return rows.map((row) => row.slice(d));
}

const { tree, arrays } = read(process.argv[2]);
if (tree.type !== "Ledger") refuse(`a ${tree.type}`);
const { prior, factors, sites, forgotten } = tree.fields;
const moments = { // mean and variance of each number, from natural parameters
  Beta: ({ a_minus_one: [a], b_minus_one: [b] }) =>
    [[(a + 1) / (a + b + 2), ((a + 1) * (b + 1)) / (a + b + 3) / (a + b + 2) ** 2]],
  DiagonalGaussian: (law) => law.precision.map((value, k) => [law.precision_mean[k] / value, 1 / value]),
  Gaussian: (law) => inverse(law.precision, law.precision_mean.length)
    .map((row, k) => [row.reduce((sum, c, j) => sum + c * law.precision_mean[j], 0), row[k]]),
}[prior.type];
if (moments === undefined) refuse(`a ledger of ${prior.type}`);
const total = Object.fromEntries(Object.keys(prior.fields).map((field) => { // prior and all factors
  const start = arrays[`prior/${field}`], stack = factors === null ? [] : arrays[`factors/${field}`];
  const own = (k) => stack.filter((_, at) => at % start.length === k);
  return [field, start.map((value, k) => own(k).reduce((sum, factor) => sum + factor, value))];
}));
console.log(["sites", ...sites.filter((_, k) => !forgotten[k])].join("\t"));
moments(total).forEach(([mean, variance], k) => {
  console.log([(prior.names || [])[k] || `z${k}`, mean, Math.sqrt(variance)].join("\t"));
});
