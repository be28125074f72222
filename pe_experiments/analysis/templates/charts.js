/* What the views are made of: sliders, heatmaps and line charts that answer to pointer and arrow keys. */
"use strict";

const $ = (id) => document.getElementById(id);
const redraws = []; // everything whose colours or width may change

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children); // strings become text, never markup
  return node;
}
const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

/* Three significant digits, with a real minus. */
function number(value) {
  if (value === null) return "masked";
  const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}

/* A slider with its value beside it; `show` writes the value. */
function slider(host, name, { min, max, step = 1, value, show = String }, changed) {
  const output = make("output");
  const input = make("input", { type: "range", min, max, step, value, "aria-label": name });
  const say = () => {
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => (say(), changed(Number(input.value))));
  host.append(make("label", {}, make("span", {}, name), output, input));
  say();
  return {
    get value() { return Number(input.value); },
    set(next) { input.value = next; say(); },
    limit(most) { input.max = most; say(); },
  };
}

/* Colours from --low over --mid to --high for -1 .. 1. */
let palette;
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  palette = ["--low", "--mid", "--high"].map((name) => style.getPropertyValue(name).trim().match(/\w\w/g).map((part) => parseInt(part, 16)));
}
function colour(share) {
  const [low, mid, high] = palette;
  const end = share < 0 ? low : high, t = Math.min(1, Math.abs(share));
  return mid.map((part, n) => Math.round(part + (end[n] - part) * t));
}
const css = (share) => `rgb(${colour(share).join(" ")})`;

/* Where the pointer or the arrow keys are, as shares of width and height or steps. */
function follow(node, { point, step, leave, choose }) {
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
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in moves) step(...moves[event.key]);
    else if (event.key === "Enter") choose?.();
    else return;
    event.preventDefault();
  });
}

/* A heatmap. `show` takes {rows, columns, value(row, column), limit, ends: {rows, columns}, tell(row, column), name,
   hint (said before anything is pointed at), mark: [share of the width, text], choose(row, column)}. */
function heatmap(host) {
  const canvas = make("canvas", { tabindex: 0, role: "img" }), cell = make("div", { class: "cell", hidden: "" }), mark = make("div", { class: "mark", hidden: "" });
  const sides = { rows: make("div", { class: "rows" }), columns: make("div", { class: "columns" }) };
  const told = make("p", { class: "told", role: "status" });
  const frame = make("div", { class: "heat" }, sides.rows, make("div", { class: "picture" }, canvas, cell, mark), sides.columns);
  host.append(frame, told);
  let spec = null, at = null;
  function move(row, column) {
    at = [Math.max(0, Math.min(spec.rows - 1, row)), Math.max(0, Math.min(spec.columns - 1, column))];
    cell.hidden = false;
    const [height, width] = [100 / spec.rows, 100 / spec.columns];
    Object.assign(cell.style, { left: `${at[1] * width}%`, top: `${at[0] * height}%`, width: `${width}%`, height: `${height}%` });
    told.textContent = spec.tell(...at);
  }
  follow(canvas, {
    point: (x, y) => move(Math.floor(y * spec.rows), Math.floor(x * spec.columns)),
    step: (x, y) => (at ? move(at[0] + y, at[1] + x) : move(0, 0)),
    leave: () => { cell.hidden = true; },
    choose: () => at && spec.choose?.(...at),
  });
  function paint() {
    if (!spec) return;
    canvas.width = spec.columns;
    canvas.height = spec.rows;
    const context = canvas.getContext("2d"), image = context.createImageData(spec.columns, spec.rows);
    for (let n = 0; n < spec.rows * spec.columns; n++) {
      const share = spec.value(Math.floor(n / spec.columns), n % spec.columns) / spec.limit;
      image.data.set([...colour(share), 255], 4 * n);
    }
    context.putImageData(image, 0, 0);
  }
  redraws.push(paint);
  return {
    frame,
    show(next) {
      const grown = !spec || spec.rows !== next.rows || spec.columns !== next.columns;
      spec = next;
      canvas.setAttribute("aria-label", spec.name);
      mark.hidden = !spec.mark;
      if (spec.mark) (mark.style.left = `${100 * spec.mark[0]}%`), (mark.textContent = spec.mark[1]);
      for (const [side, words] of Object.entries(spec.ends)) sides[side].replaceChildren(...words.map((word) => make("span", {}, word)));
      if (grown) (at = null), (cell.hidden = true), (told.textContent = spec.hint || "");
      else if (at && !cell.hidden) move(...at);
      paint();
    },
    move,
  };
}

function ticks(low, high, most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const made = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) made.push(Number((n * step).toPrecision(10)));
  return made;
}

/* Lines over whole numbers 0, 1, 2, ...; `show` takes {height, lines: [{values, main}], dots: [[x, y]], marks: [[x, text]], x, y, name, tell(n)}. */
function lineChart(host) {
  const told = make("p", { class: "told", role: "status" }), holder = make("div");
  host.append(holder, told);
  let spec = null, at = null;
  function paint() {
    const width = holder.clientWidth;
    if (!spec || !width) return;
    const count = spec.lines[0].values.length, known = [...spec.lines.flatMap((line) => line.values), ...(spec.dots || []).map((dot) => dot[1])].filter((value) => value !== null);
    const low = Math.min(0, ...known), high = Math.max(0, ...known), pad = (high - low || 1) * 0.05;
    const box = { left: 40, right: width - 8, top: 20, bottom: spec.height - 34 };
    const x = (n) => box.left + (n / (count - 1)) * (box.right - box.left);
    const y = (value) => box.bottom - ((value - low + pad) / (high - low + 2 * pad || 1)) * (box.bottom - box.top);
    const svg = draw("svg", { width, height: spec.height, class: "chart", tabindex: 0, role: "img", "aria-label": spec.name });
    for (const tick of ticks(low, high, 5)) {
      svg.append(draw("line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), class: tick === 0 ? "zero" : "grid" }));
      svg.append(draw("text", { x: box.left - 5, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
    }
    for (const tick of ticks(0, count - 1, width / 70)) svg.append(draw("text", { x: x(tick), y: box.bottom + 15, "text-anchor": "middle" }, String(tick)));
    svg.append(draw("text", { x: (box.left + box.right) / 2, y: spec.height - 4, "text-anchor": "middle" }, spec.x), draw("text", { x: 0, y: 11 }, spec.y));
    for (const [n, words] of spec.marks || []) {
      svg.append(draw("line", { x1: x(n), x2: x(n), y1: box.top, y2: box.bottom, class: "mark" }), draw("text", { x: x(n) - 4, y: box.bottom - 4, "text-anchor": "end" }, words));
    }
    for (const line of spec.lines) {
      const points = line.values.map((value, n) => (value === null ? null : `${x(n).toFixed(1)},${y(value).toFixed(1)}`));
      const path = points.map((point, n) => point && (n && points[n - 1] ? "L" : "M") + point).filter(Boolean).join("");
      svg.append(draw("path", { d: path, class: line.main ? "line main" : "line" }));
    }
    for (const [n, value] of spec.dots || []) svg.append(draw("circle", { cx: x(n), cy: y(value), r: 3, class: "dot" }));
    const hair = draw("line", { y1: box.top, y2: box.bottom, class: "hair", visibility: "hidden" });
    svg.append(hair);
    function move(n) {
      at = Math.max(0, Math.min(count - 1, n));
      hair.setAttribute("visibility", "visible");
      for (const end of ["x1", "x2"]) hair.setAttribute(end, x(at));
      told.textContent = spec.tell(at);
    }
    follow(svg, {
      point: (share) => move(Math.round(((share * width - box.left) / (box.right - box.left)) * (count - 1))),
      step: (right) => move(at === null ? 0 : at + right),
      leave: () => hair.setAttribute("visibility", "hidden"),
    });
    holder.replaceChildren(svg);
  }
  redraws.push(paint);
  new ResizeObserver(() => holder.firstChild?.clientWidth !== holder.clientWidth && paint()).observe(holder);
  return {
    show(next) {
      spec = next;
      at = null;
      told.textContent = "";
      paint();
    },
  };
}
