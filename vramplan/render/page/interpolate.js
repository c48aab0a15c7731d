// What the page knows: figures of the grid as they are, and tensors between its micro-batches by their straight lines.
// Nothing here touches the page, so that tests can run it.
"use strict";

const FIELDS = ["fits", "fits_without_margin", "peak_tensor_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "peak_phase"];
const PHASES = ["loaded", "forward", "backward", "optimizer", "eval"];

function choiceOf(data, values) {
  return data.choices.find((one) => one.values.every((value, i) => String(value) === String(values[i])));
}

function micros(data, choice, card) {
  return Object.keys(choice.columns[card.kind].cells).map(Number);
}

function segmentOf(data, choice, card, micro) {
  return choice.columns[card.kind].segments.find((one) => one.first <= micro && micro <= one.last) || null;
}

// Live bytes of each category behind each event that is kept, and the peak of their sum.
function stepAt(data, choice, card, micro) {
  const segment = segmentOf(data, choice, card, micro);
  if (!segment) return null;
  let at = 0;
  const events = segment.events.map((step) => (at += step));
  const sums = events.map(() => 0), levels = {};
  for (const [name, runs] of Object.entries(segment.lines)) {
    levels[name] = runs.flatMap(([count, start, slope]) => Array(count).fill((start + slope * micro) * data.block));
    levels[name].forEach((size, i) => (sums[i] += size));
  }
  const peak = sums.reduce((best, size, i) => (size > sums[best] ? i : best), 0);
  return { events, levels, sums, peak, count: segment.count, marks: segment.marks, peak_tensor_bytes: sums[peak] };
}

// Every figure of `vramplan estimate --json`; between the grid's micro-batches what is exact there, and `whole` is false.
function figures(data, choice, card, micro) {
  const column = choice.columns[card.kind];
  const capacity = { capacity_bytes: card.usable, margin_bytes: card.margin };
  const pressed = (column.pressed[card.name] || {})[micro];
  const cell = pressed || column.cells[micro];
  if (!cell) {
    const step = stepAt(data, choice, card, micro);
    if (!step) return null;
    const least = step.peak_tensor_bytes + card.outside;
    const never = least > card.usable;
    return { whole: false, peak_tensor_bytes: step.peak_tensor_bytes, least_tensor_bytes: least, ...capacity, fits: never ? false : null };
  }
  const one = { whole: true, ...capacity };
  FIELDS.forEach((name, i) => (one[name] = cell[i]));
  one.device_total_bytes = one.peak_reserved_bytes + card.outside;
  one.headroom_bytes = card.usable - one.device_total_bytes;
  one.least_tensor_bytes = one.peak_tensor_bytes + card.outside;
  if (!pressed) {
    one.fits = one.device_total_bytes <= card.usable - card.margin;
    one.fits_without_margin = one.device_total_bytes <= card.usable;
  }
  one.phases = Object.fromEntries(PHASES.map((name, i) => [name, cell[6][i]]));
  one.by_category = {};
  data.categories.forEach(([name], i) => {
    const size = name === "context" ? card.outside : cell[7][i];
    if (size) one.by_category[name] = size;
  });
  one.terms = cell[8].map(([label, size]) => [data.labels[label], size]);
  return one;
}

const GiB = 2 ** 30;
const gib = (size) => (Math.ceil((size * 10) / GiB) / 10).toFixed(1); // a need never rounds down
const freeGib = (size) => (Math.floor((size * 10) / GiB) / 10).toFixed(1); // free space never up

const quoted = (word) => (/^[\w@%+=:,.\/-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'"'"'`)}'`); // for a shell

function command(data, values, card, micro) {
  const said = data.axes.flatMap(([, , flag], i) => [flag, values[i]]);
  return ["vramplan", "estimate", data.model, "--gpu", card.name, "--micro-batch", micro, "--accumulation", data.accumulation, ...said, ...data.words].map(quoted).join(" ");
}

if (typeof module !== "undefined") module.exports = { choiceOf, micros, stepAt, figures, gib, freeGib, command };
