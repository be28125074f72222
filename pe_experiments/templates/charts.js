/* Line charts as SVG, without a library, and what they are made of; for the report page and the explorer. */
"use strict";

/* Unit shapes, in the order of MARKERS in drawing.py. */
const SHAPES = [
  "M1,0A1,1 0 1,1 -1,0A1,1 0 1,1 1,0Z", "M-.9-.9H.9V.9H-.9Z", "M0-1.15L1.1.85H-1.1Z", "M0-1.25L1.1 0L0 1.25L-1.1 0Z",
  "M0 1.15L1.1-.85H-1.1Z", "M-.4-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
  "M0-.5L.6-1.1L1.1-.6L.5 0L1.1.6L.6 1.1L0 .5L-.6 1.1L-1.1.6L-.5 0L-1.1-.6L-.6-1.1Z",
  "M0-1.3L.4-.4L1.3-.4L.6.2L.85 1.15L0 .6L-.85 1.15L-.6.2L-1.3-.4L-.4-.4Z", "M-1.15 0L.85-1.1V1.1Z", "M1.15 0L-.85-1.1V1.1Z",
  "M0-1.1L1.05-.34L.65.89H-.65L-1.05-.34Z", "M0-1.35L.75 0L0 1.35L-.75 0Z",
];

const $ = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;
const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children); // strings become text, never markup
  return node;
}

/* How wide a text is in a chart, in pixels. */
const ruler = document.createElement("canvas").getContext("2d");
ruler.font = "12px system-ui, sans-serif";
const wide = (text) => ruler.measureText(text).width;
const fixed = (value) => value.toFixed(1);
/* A line through points [x, y]; where y is null it is interrupted. */
const path = (points) => points.map(([x, y], n) => (known(y) ? `${n && known(points[n - 1][1]) ? "L" : "M"}${fixed(x)},${fixed(y)}` : "")).join("");
const strokeOf = (encoding) => `var(--c${encoding.colour})`;

function mark(encoding, x, y, size) {
  const attributes = { d: SHAPES[encoding.marker], transform: `translate(${fixed(x)},${fixed(y)}) scale(${size})` };
  return draw("path", { ...attributes, fill: strokeOf(encoding) });
}

/* A piece of the encoding's line with its mark, as in the charts. */
function swatch(encoding) {
  const line = draw("path", { d: "M1,6H25", stroke: strokeOf(encoding), "stroke-width": 2 });
  return draw("svg", { width: 26, height: 12, "aria-hidden": "true", class: "swatch" }, line, mark(encoding, 13, 6, 4));
}

function scale(kind, [first, last], [start, end]) {
  const to = kind === "log" ? Math.log2 : (value) => value;
  const span = to(last) - to(first) || 1;
  return (value) => start + ((to(value) - to(first)) / span) * (end - start);
}

/* About so many round numbers from `low` to `high`. */
function roundTicks(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) ticks.push(Number((n * step).toPrecision(10)));
  return ticks;
}

/* Ticks whose labels do not run into each other; those in `first` go first. */
function roomy(ticks, at, gap, first = []) {
  const kept = [];
  for (const tick of [...first, ...ticks]) {
    if (kept.every((other) => Math.abs(at(other) - at(tick)) > gap)) kept.push(tick);
  }
  return kept;
}

/* One chart.

   spec: width, height, x and y ({kind, domain, ticks, first, label, format}), shade ({to, words}: the training lengths on x),
   series ([{encoding, points: [[x, y, about]], seeds: [[[x, y]]], dashed, kind}]; `kind` is another class of the line), marks
   (their size), bounds ([{name, dash, points}]), labels (whether lines are named at their ends), name (for those who cannot
   see it). Gives the chart, its points in pixels, its box and its scales. */
function lineChart(spec) {
  const { width, height, series } = spec;
  const room = spec.labels ? Math.min(spec.labels.widest, width * 0.36) : spec.x.label ? 20 : 8; // else half of a tick
  const letters = spec.y.label ? Math.max(...spec.y.ticks.map((tick) => spec.y.format(tick).length)) : 0;
  const box = { left: 7 + 6.8 * letters, right: width - room, top: spec.y.label ? 19 : 6, bottom: height - (spec.x.label ? 34 : 18) };
  const x = scale(spec.x.kind, spec.x.domain, [box.left, box.right]);
  const y = scale(spec.y.kind, spec.y.domain, [box.bottom, box.top]);
  const place = ([a, b]) => [x(a), known(b) ? y(b) : null];
  const root = draw("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": spec.name, class: "chart",
  });
  root.append(...frame(spec, box, x, y));
  for (const bound of spec.bounds || []) {
    const points = bound.points.map(place);
    root.append(draw("path", { d: path(points), class: "bound", "stroke-dasharray": bound.dash }));
    const above = points[0][1] > box.top + 12;
    if (spec.x.label) root.append(draw("text", { x: points[0][0] + 2, y: points[0][1] + (above ? -4 : 12), class: "note" }, bound.name));
  }
  const spots = [];
  const lines = series.map(({ encoding, points: values, seeds, dashed, kind }) => {
    const points = values.map(place);
    const stroke = strokeOf(encoding);
    const group = draw("g", { class: "series", "data-encoding": encoding.index });
    group.append(...(seeds || []).map((seed) => draw("path", { d: path(seed.map(place)), class: "seed", stroke })));
    group.append(draw("path", { d: path(points), class: kind ? `line ${kind}` : "line", stroke, "stroke-dasharray": dashed ? "5 3" : null }));
    if (spec.marks) {
      const every = Math.max(1, Math.ceil(points.length / 12));
      group.append(...points.filter((_, n) => n % every === 0).map(([a, b]) => mark(encoding, a, b, spec.marks)));
    }
    points.forEach(([a, b], n) => spots.push({ x: a, y: b, n, encoding, about: values[n][2] }));
    root.append(group);
    return { encoding, points };
  });
  if (spec.labels) root.append(...endLabels(lines.filter((line) => line.points.length), box, width));
  return { root, spots, box, x, y };
}

function frame(spec, box, x, y) {
  const parts = [];
  if (spec.shade && spec.shade.to > spec.x.domain[0]) {
    const end = Math.min(x(spec.shade.to), box.right);
    parts.push(draw("rect", { x: box.left, y: box.top, width: end - box.left, height: box.bottom - box.top, class: "shade" }));
    if (spec.shade.words && end - box.left > 185) {
      parts.push(draw("text", { x: end, y: box.top - 5, class: "note", "text-anchor": "end" }, spec.shade.words));
    }
  }
  for (const tick of spec.y.ticks) {
    parts.push(draw("path", { d: `M${box.left},${fixed(y(tick))}H${fixed(box.right)}`, class: tick === 0 && spec.y.domain[0] < 0 ? "zero" : "grid" }));
    if (spec.y.label) parts.push(draw("text", { x: box.left - 5, y: y(tick) + 4, "text-anchor": "end" }, spec.y.format(tick)));
  }
  for (const tick of roomy(spec.x.ticks, x, 26, spec.x.first)) {
    parts.push(draw("path", { d: `M${fixed(x(tick))},${box.bottom}v4`, class: "tick" }));
    parts.push(draw("text", { x: x(tick), y: box.bottom + 15, "text-anchor": "middle" }, String(tick)));
  }
  if (spec.x.label) parts.push(draw("text", { x: (box.left + box.right) / 2, y: box.bottom + 30, "text-anchor": "middle" }, spec.x.label));
  if (spec.y.label) parts.push(draw("text", { x: 0, y: 11, class: "heading" }, spec.y.label));
  return parts;
}

/* Names at the ends of the lines, moved apart; lines that coincide, and lines there is no room for, share a label. */
function endLabels(lines, box, width) {
  const groups = [];
  for (const line of lines) {
    const same = groups.find((group) => coincide(group.lines[0], line));
    if (same) same.lines.push(line);
    else groups.push({ lines: [line], end: line.points.at(-1) });
  }
  groups.sort((a, b) => a.end[1] - b.end[1]);
  const step = 14;
  const most = Math.max(1, Math.floor((box.bottom - box.top + 12) / step));
  while (groups.length > most) {
    const gaps = groups.slice(1).map((group, n) => group.end[1] - groups[n].end[1]);
    const n = gaps.indexOf(Math.min(...gaps));
    groups[n].lines.push(...groups.splice(n + 1, 1)[0].lines);
  }
  const heights = groups.map((group) => group.end[1]);
  for (let n = 1; n < heights.length; n++) heights[n] = Math.max(heights[n], heights[n - 1] + step);
  const bottom = box.bottom + 4;
  for (let n = heights.length - 1, least = bottom; n >= 0; n--, least = heights[n + 1] - step) heights[n] = Math.min(heights[n], least);
  return groups.map((group, n) => endLabel(group, heights[n], box, width));
}

const coincide = (one, other) =>
  one.points.length === other.points.length && one.points.every(([, y], n) => Math.abs(y - other.points[n][1]) < 1.5);

function endLabel(group, height, box, width) {
  const left = box.right + 12;
  const marks = group.lines.slice(0, 3).map((line, n) => mark(line.encoding, left + 3 + 9 * n, height, 3.2));
  const start = left + 9 * marks.length + 1;
  const names = group.lines.map((line) => line.encoding.name);
  const leader = draw("path", { d: path([group.end, [left - 2, height]]), class: "leader" });
  const label = draw("text", { x: start, y: height + 4 }, together(names, width - start - 2), draw("title", {}, names.join(", ")));
  const encodings = group.lines.map((line) => line.encoding.index).join(" ");
  return draw("g", { class: "label", "data-encodings": encodings }, leader, ...marks, label);
}

/* As many names as fit into so many pixels, and how many more there are. */
function together(names, room) {
  for (let count = names.length; count > 0; count--) {
    const text = names.slice(0, count).join(", ") + (count < names.length ? ` +${names.length - count}` : "");
    if (wide(text) <= room) return text;
  }
  const more = names.length > 1 ? ` +${names.length - 1}` : "";
  let letters = names[0].length;
  while (letters > 1 && wide(names[0].slice(0, letters) + "…" + more) > room) letters--;
  return names[0].slice(0, letters) + "…" + more;
}

/* Where the pointer is, as shares of width and height, and steps of the arrow keys. */
function follow(node, { point, step, leave, choose }) {
  node.setAttribute("tabindex", 0);
  for (const kind of ["pointermove", "pointerdown"]) { // a finger may tap without a move
    node.addEventListener(kind, (event) => {
      const box = node.getBoundingClientRect();
      point((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    });
  }
  node.addEventListener("pointerleave", leave);
  node.addEventListener("blur", leave);
  node.addEventListener("click", () => choose?.());
  node.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in steps) step(...steps[event.key]);
    else if (event.key === "Escape") leave();
    else if (event.key === "Enter") choose?.();
    else return;
    event.preventDefault();
  });
}

/* Shows what a point is: under the pointer, and for the arrow keys while the chart has the focus. */
function explain({ root, spots }, tip, describe, focus) {
  const size = root.viewBox.baseVal;
  let current = null;
  function show(spot) {
    current = spot;
    const frame = root.getBoundingClientRect();
    const ratio = frame.width / size.width;
    const near = spots.filter((other) => Math.hypot(other.x - spot.x, other.y - spot.y) < 3);
    tip.replaceChildren(...describe(spot, near));
    tip.hidden = false;
    const left = frame.left + spot.x * ratio + 12;
    tip.style.left = `${Math.max(4, Math.min(left, document.documentElement.clientWidth - tip.offsetWidth - 6))}px`;
    tip.style.top = `${Math.max(4, frame.top + spot.y * ratio - tip.offsetHeight - 10)}px`;
    focus(spot.encoding.index);
  }
  function leave() {
    tip.hidden = true;
    focus(null);
  }
  follow(root, {
    leave,
    point(across, down) {
      const distance = (spot) => Math.hypot(spot.x - across * size.width, spot.y - down * size.height);
      const nearest = spots.reduce((best, spot) => (best && distance(best) <= distance(spot) ? best : spot), null);
      if (nearest && distance(nearest) < 28) show(nearest);
      else leave();
    },
    step(along, across) {
      if (!spots.length) return;
      if (!current) return void show(spots[0]);
      const line = spots.filter((spot) => spot.encoding === current.encoding);
      const column = spots.filter((spot) => spot.x === current.x).sort((a, b) => a.y - b.y);
      const list = along ? line : column;
      show(list[Math.max(0, Math.min(list.length - 1, list.indexOf(current) + along + across))]);
    },
  });
}
