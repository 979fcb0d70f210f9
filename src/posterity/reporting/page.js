"use strict";
// The page of a report: tips, arrow keys, and sites that are ticked off.
// Nothing is loaded and nothing is sent.

document.documentElement.classList.add("js");
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

// --- numbers as Python's %.4g writes them ---------------------------------------------------------

function shown(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  let text;
  if (exponent < -4 || exponent >= digits) {
    const size = Math.abs(exponent);
    text = trimmed(mantissa) + "e" + (exponent < 0 ? "-" : "+") + (size < 10 ? "0" : "") + size;
  } else {
    text = trimmed(value.toFixed(digits - 1 - exponent));
  }
  return text.replaceAll("-", "−");
}

const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

// A number in the form of a panel: in a unit that is a power of ten, with some decimals.
function fixed(value, { unit, decimals }) {
  if (!Number.isFinite(value)) return "–";
  const text = (value / Number(unit)).toFixed(Number(decimals));
  return (Number(text) === 0 ? text.replace("-", "") : text).replaceAll("-", "−");
}

// --- special functions ----------------------------------------------------------------------------

function logGamma(x) {
  if (x < 12) {
    let product = 1;
    for (; x < 12; x += 1) product *= x;
    return logGamma(x) - Math.log(product);
  }
  const y = 1 / (x * x);
  const series = 1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)));
  return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series / x;
}

// Lentz's continued fraction: terms(n) gives its n-th numerator and denominator.
function fraction(first, terms) {
  const tiny = 1e-300;
  let f = first || tiny, c = f, d = 0;
  for (let n = 1; n < 5000; n += 1) {
    const [a, b] = terms(n);
    d = 1 / (b + a * d || tiny);
    c = b + a / c || tiny;
    f *= c * d;
    if (Math.abs(c * d - 1) < 1e-16) break;
  }
  return f;
}

// The share of Gamma(a, 1) below x, and of Beta(a, b) below x.
function gammaBelow(a, x) {
  if (x <= 0) return 0;
  const front = Math.exp(a * Math.log(x) - x - logGamma(a));
  if (x < a + 1) {
    let term = 1 / a, sum = term;
    for (let n = 1; n < 10000 && term > 1e-17 * sum; n += 1) sum += term *= x / (a + n);
    return sum * front;
  }
  return 1 - front / fraction(x + 1 - a, (n) => [n * (a - n), x + 2 * n + 1 - a]);
}

function betaBelow(a, b, x) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - betaBelow(b, a, 1 - x);
  const log = logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x);
  const terms = (n) => {
    const m = n >> 1;
    const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
    const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
    return [n % 2 ? odd : even, 1];
  };
  return Math.exp(log) / a / fraction(1, terms);
}

// Where a distribution function reaches p, between two ends.
function quantile(below, p, low, high) {
  for (let n = 0; n < 200 && high - low > 1e-15 * Math.abs(high); n += 1) {
    const middle = (low + high) / 2;
    if (below(middle) < p) low = middle; else high = middle;
  }
  return (low + high) / 2;
}

function normalQuantile(p) { // by the gamma law: Z² / 2 ~ Gamma(1/2, 1)
  const half = Math.abs(2 * p - 1);
  return Math.sign(p - 0.5) * Math.sqrt(2 * quantile((x) => gammaBelow(0.5, x), half, 0, 800));
}

// --- laws: from natural parameters to rows of mean, deviation, and the ends of an interval --------

function cholesky(packed, d) { // of a lower triangle, row by row; null if it is not positive
  const L = Float64Array.from(packed);
  const at = (i, j) => (i * (i + 1)) / 2 + j;
  for (let i = 0; i < d; i += 1) {
    for (let j = 0; j <= i; j += 1) {
      let sum = L[at(i, j)];
      for (let k = 0; k < j; k += 1) sum -= L[at(i, k)] * L[at(j, k)];
      if (i === j && !(sum > 0)) return null;
      L[at(i, j)] = i === j ? Math.sqrt(sum) : sum / L[at(j, j)];
    }
  }
  return { L, at };
}

function gaussian([linear, precision], centre, z) {
  const d = centre.length, factor = cholesky(precision, d);
  if (!factor) return null;
  const { L, at } = factor, rows = [], half = new Float64Array(d);
  for (let i = 0; i < d; i += 1) { // L half = linear
    let sum = linear[i];
    for (let k = 0; k < i; k += 1) sum -= L[at(i, k)] * half[k];
    half[i] = sum / L[at(i, i)];
  }
  for (let j = 0; j < d; j += 1) { // L column = the j-th unit vector: its square is the variance
    const column = new Float64Array(d);
    let variance = 0, mean = 0;
    for (let i = j; i < d; i += 1) {
      let sum = i === j ? 1 : 0;
      for (let k = j; k < i; k += 1) sum -= L[at(i, k)] * column[k];
      column[i] = sum / L[at(i, i)];
      variance += column[i] ** 2;
      mean += column[i] * half[i];
    }
    rows.push(normal(centre[j] + mean, Math.sqrt(variance), z));
  }
  return rows;
}

function normal(mean, sd, z) { // a mean of next to no standard deviations is rounding
  const middle = Math.abs(mean) < 1e-12 * sd ? 0 : mean;
  return [middle, sd, middle - z * sd, middle + z * sd];
}

function diagonal([linear, precision], centre, z) {
  if (!precision.every((p) => p > 0)) return null;
  return [...precision].map((p, i) => normal(centre[i] + linear[i] / p, 1 / Math.sqrt(p), z));
}

function gamma([[less, rate]], _, __, tails) {
  const a = less + 1;
  if (!(a > 0 && rate > 0)) return null;
  const most = a + 40 * Math.sqrt(a) + 800;
  const ends = tails.map((p) => quantile((x) => gammaBelow(a, x), p, 0, most) / rate);
  return [[a / rate, Math.sqrt(a) / rate, ...ends]];
}

function betaRow(a, b, tails) {
  const ends = tails.map((p) => quantile((x) => betaBelow(a, b, x), p, 0, 1));
  return [a / (a + b), Math.sqrt((a * b) / (a + b + 1)) / (a + b), ...ends];
}

function beta([[a, b]], _, __, tails) {
  return a > -1 && b > -1 ? [betaRow(a + 1, b + 1, tails)] : null;
}

function dirichlet([less], _, __, tails) {
  if (!less.every((a) => a > -1)) return null;
  const total = less.reduce((sum, a) => sum + a + 1, 0);
  return [...less].map((a) => betaRow(a + 1, total - a - 1, tails));
}

const LAWS = { Gaussian: gaussian, DiagonalGaussian: diagonal, Gamma: gamma, Beta: beta, Dirichlet: dirichlet };

function unpacked(text) {
  return new Float64Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
}

// A function from the places of the sites that are in to the rows of the posterior; null is none.
function posteriorOf(data) {
  if (data.without) {
    return (kept) => {
      const away = data.sites.findIndex((_, place) => !kept.has(place));
      if (away < 0 || data.without[away] === null) return null;
      const flat = unpacked(data.without[away]);
      return Array.from({ length: flat.length / 4 }, (_, k) => flat.subarray(4 * k, 4 * k + 4));
    };
  }
  const tails = [(1 - data.level) / 2, (1 + data.level) / 2], z = normalQuantile(tails[1]);
  const blocks = data.blocks.map((block) => ({
    law: LAWS[block.family],
    centre: block.centre && unpacked(block.centre),
    laws: block.laws.map((parts) => parts.map(unpacked)),
  }));
  return (kept) => {
    const rows = [];
    for (const { law, centre, laws } of blocks) {
      const terms = laws.filter((_, n) => n === 0 || kept.has(n - 1)); // the prior comes first
      const sums = terms[0].map((part, p) => part.map((_, i) => added(terms.map((t) => t[p][i]))));
      const own = law(sums, centre, z, tails);
      if (!own) return null;
      rows.push(...own);
    }
    return rows;
  };
}

function added(terms) { // Neumaier's compensated sum
  let sum = 0, lost = 0;
  for (const term of terms) {
    const next = sum + term;
    lost += Math.abs(sum) >= Math.abs(term) ? sum - next + term : term - next + sum;
    sum = next;
  }
  return sum + lost;
}

// --- sites that are ticked off --------------------------------------------------------------------

for (const root of all(".ledger")) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const boxes = all("input[type=checkbox]", root), output = root.querySelector("output");
  const button = root.querySelector(".controls button"), posterior = posteriorOf(data);
  const fused = all(".fused", root).map((row) => {
    const strip = row.querySelector(".strip"), whisker = row.querySelector(".whisker");
    const before = whisker.cloneNode();
    before.setAttribute("class", "before");
    return {
      row, strip, before, value: row.querySelector(".value"),
      low: Number(row.dataset.low), high: Number(row.dataset.high), place: Number(row.dataset.row),
      name: row.querySelector("th").textContent,
      saved: [strip.innerHTML, row.querySelector(".value").innerHTML, row.dataset.tip],
    };
  });

  const draw = (one, row, what) => {
    const [mean, , low, high] = row;
    const x = (v) => `${(100 * clamp((v - one.low) / (one.high - one.low), 0, 1)).toFixed(2)}%`;
    const middle = Number.isFinite(mean) ? mean : (low + high) / 2;
    one.strip.innerHTML = one.saved[0];
    const whisker = one.strip.querySelector(".whisker");
    whisker.before(one.before.cloneNode());
    whisker.setAttribute("x1", x(low));
    whisker.setAttribute("x2", x(high));
    const mark = one.strip.querySelector("svg"), inside = one.low <= middle && middle <= one.high;
    mark.setAttribute("x", x(middle));
    mark.setAttribute("visibility", inside ? "visible" : "hidden");
    one.value.innerHTML = one.saved[1];
    const [m, l, h] = [mean, low, high].map((v) => fixed(v, one.row.dataset));
    one.value.firstChild.textContent = `${m} `;
    one.value.lastChild.textContent = `(${l} to ${h})`;
    const [mid, from, to] = [mean, low, high].map((v) => shown(v, Number(one.row.dataset.digits)));
    one.row.dataset.tip = `${what}: ${mid}, from ${from} to ${to}`;
  };

  const restore = (one) => {
    one.strip.innerHTML = one.saved[0];
    [one.value.innerHTML, one.row.dataset.tip] = [one.saved[1], one.saved[2]];
  };

  const update = () => {
    const kept = new Set(boxes.filter((box) => box.checked).map((box) => Number(box.dataset.place)));
    const away = data.sites.filter((_, place) => !kept.has(place));
    for (const row of all("tr[data-site]", root)) row.classList.toggle("off", !kept.has(Number(row.dataset.site)));
    button.disabled = away.length === 0;
    const rows = away.length ? posterior(kept) : null, what = `without ${away.join(", ")}`;
    for (const one of fused) {
      one.row.querySelector("th").textContent = rows ? (away.length === 1 ? `Without ${away[0]}` : `Without ${away.length} sites`) : one.name;
      if (rows) draw(one, rows[one.place], what); else restore(one);
      if (away.length && !rows) {
        one.value.textContent = "–";
        one.row.dataset.tip = `${what}: not a distribution`;
      }
    }
    const left = kept.size === 0 ? "No site is left, so this is the prior." : "The pale bar is the posterior of all.";
    output.textContent = away.length === 0 ? "The posterior of all sites."
      : rows ? `The posterior ${what}. ${left}`
      : `There is no posterior ${what}: the other contributions and the prior are not a distribution.`;
  };

  for (const box of boxes) {
    box.addEventListener("change", () => {
      if (data.without && !box.checked) for (const other of boxes) other.checked = other !== box;
      update();
    });
  }
  button.addEventListener("click", () => {
    for (const box of boxes) box.checked = true;
    update();
    boxes[0].focus();
  });
}

// --- tips, and arrow keys from mark to mark -------------------------------------------------------

const tip = document.getElementById("tip");

function tell(mark) {
  const text = mark && (mark.dataset.tip || mark.getAttribute("aria-label"));
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = mark.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const above = box.top - size.height - 8;
  tip.style.left = `${clamp(box.left + box.width / 2 - size.width / 2, 6, innerWidth - size.width - 6)}px`;
  tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
}

const marked = (event) => (event.target.closest ? event.target.closest("[data-tip]") : null);
document.addEventListener("pointerover", (event) => tell(marked(event)));
document.addEventListener("focusin", (event) => tell(marked(event)));
document.addEventListener("focusout", () => tell(null));
document.addEventListener("scroll", () => tell(null), { passive: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tell(null); });

for (const root of all("[data-roving]")) { // one stop for the tab key, arrows within
  const marks = all("[data-tip]", root);
  marks.forEach((mark, n) => mark.setAttribute("tabindex", n ? "-1" : "0"));
  root.addEventListener("keydown", (event) => {
    const here = marks.indexOf(document.activeElement);
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
    const places = { Home: 0, End: marks.length - 1 };
    const next = event.key in steps ? clamp(here + steps[event.key], 0, marks.length - 1) : places[event.key];
    if (here < 0 || next === undefined) return;
    event.preventDefault();
    marks[here].setAttribute("tabindex", "-1");
    marks[next].setAttribute("tabindex", "0");
    marks[next].focus();
  });
}

// --- print: what is folded is printed too ---------------------------------------------------------

let folded = [];
addEventListener("beforeprint", () => {
  folded = all("details:not([open])");
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
