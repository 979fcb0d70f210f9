// Reads a ledger of posterity (docs/format.md) and prints its sites, and mean and sd by name.
// node ledger.js FILE. Of Gaussian, DiagonalGaussian and Beta; plain JavaScript, no package.
"use strict";
const fs = require("fs");
const crypto = require("crypto");

const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");
const refuse = (why) => { console.error(`refused: ${why}`); process.exit(1); };

function read(path) {
  const file = fs.readFileSync(path);
  if (file.length < 8) refuse("no header");
  const start = 8 + Number(file.readBigUInt64LE(0));
  if (start > file.length) refuse("a header beyond the file");
  const header = JSON.parse(file.subarray(8, start).toString("utf8"));
  const { posterity: text, sha256: digest } = header.__metadata__ || {};
  if (text === undefined) refuse("a file without a manifest");
  const manifest = JSON.parse(text);
  if (manifest.format !== 2) refuse(`format ${manifest.format}`);
  if (sha256(text) !== digest) refuse("a manifest that was altered");
  const names = Object.keys(header).filter((name) => name !== "__metadata__").sort();
  const all = crypto.createHash("sha256");
  const arrays = {};
  for (const name of names) {
    const { dtype, shape, data_offsets: [from, to] } = header[name];
    if (dtype !== "F64" || start + to > file.length) refuse(`array ${name}`);
    const bytes = file.subarray(start + from, start + to);
    all.update(bytes);
    arrays[name] = Array.from({ length: shape.reduce((a, b) => a * b, 1) },
      (_, k) => bytes.readDoubleLE(8 * k));
  }
  if (all.digest("hex") !== manifest.data) refuse("arrays that were altered");
  return { tree: manifest.tree, arrays };
}

// The inverse of a symmetric, positive definite matrix (d x d, by rows), by Gauss and Jordan.
function inverse(matrix, d) {
  const rows = Array.from({ length: d }, (_, i) => [
    ...matrix.slice(i * d, (i + 1) * d), ...Array.from({ length: d }, (_, j) => +(i === j))]);
  for (let i = 0; i < d; i++) {
    const pivot = rows[i][i];
    rows[i] = rows[i].map((value) => value / pivot);
    for (let k = 0; k < d; k++) {
      const factor = rows[k][i];
      if (k !== i) rows[k] = rows[k].map((value, j) => value - factor * rows[i][j]);
    }
  }
  return rows.map((row) => row.slice(d));
}

const { tree, arrays } = read(process.argv[2]);
if (tree.type !== "Ledger") refuse(`a ${tree.type}`);
const { prior, factors, sites, forgotten } = tree.fields;
if (!["Gaussian", "DiagonalGaussian", "Beta"].includes(prior.type)) refuse(`a ledger of ${prior.type}`);
const total = {}; // natural parameters: those of the prior and of all factors, added up
for (const field of Object.keys(prior.fields)) {
  const size = arrays[`prior/${field}`].length;
  total[field] = arrays[`prior/${field}`].map((value, k) => {
    const stack = factors === null ? [] : arrays[`factors/${field}`];
    for (let at = k; at < stack.length; at += size) value += stack[at];
    return value;
  });
}
let mean, sd;
if (prior.type === "Beta") {
  const [a, b] = [total.a_minus_one[0] + 1, total.b_minus_one[0] + 1];
  mean = [a / (a + b)];
  sd = [Math.sqrt((a * b) / (a + b + 1)) / (a + b)];
} else if (prior.type === "DiagonalGaussian") {
  mean = total.precision_mean.map((value, k) => value / total.precision[k]);
  sd = total.precision.map((value) => 1 / Math.sqrt(value));
} else {
  const covariance = inverse(total.precision, total.precision_mean.length);
  mean = covariance.map((row) => row.reduce((sum, c, k) => sum + c * total.precision_mean[k], 0));
  sd = covariance.map((row, k) => Math.sqrt(row[k]));
}
console.log(["sites", ...sites.filter((_, k) => !forgotten[k])].join("\t"));
mean.forEach((value, k) => console.log([(prior.names || [])[k] || `z${k}`, value, sd[k]].join("\t")));
