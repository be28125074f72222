/* What the views are made of, then the seven views. */

const redraws = []; // everything whose colours or width may change

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

/* A heatmap. `show` takes {rows, columns, value(row, column), limit, ends: {rows, columns}, tell(row, column), name,
   hint (said before anything is pointed at), mark: [share of the width, text], choose(row, column)}. */
function heatmap(host) {
  const canvas = make("canvas", { role: "img" }), cell = make("div", { class: "cell", hidden: "" }), mark = make("div", { class: "mark", hidden: "" });
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
      if (spec.mark) {
        mark.style.left = `${100 * spec.mark[0]}%`;
        mark.textContent = spec.mark[1];
      }
      for (const [side, words] of Object.entries(spec.ends)) sides[side].replaceChildren(...words.map((word) => make("span", {}, word)));
      if (grown) {
        at = null;
        cell.hidden = true;
        told.textContent = spec.hint || "";
      } else if (at && !cell.hidden) move(...at);
      paint();
    },
    move,
  };
}

/* Lines over 0, 1, 2, ...; `show` takes {height, lines: [{encoding, values, kind}], dots: [[x, y]], training: the longest
   training length, x, y, name, tell(n)}. */
function curveView(host) {
  const told = make("p", { class: "told", role: "status" }), holder = make("div");
  host.append(holder, told);
  let spec = null, at = null;
  function paint() {
    const width = holder.clientWidth;
    if (!spec || !width) return;
    const dots = spec.dots || [], last = spec.lines[0].values.length - 1;
    const values = [0, ...spec.lines.flatMap((line) => line.values).filter(known), ...dots.map((dot) => dot[1])];
    const low = Math.min(...values), high = Math.max(...values), pad = (high - low || 1) * 0.05;
    const { root, box, x, y } = lineChart({
      width, height: spec.height, name: spec.name,
      series: spec.lines.map((line) => ({ ...line, points: line.values.map((value, n) => [n, value]) })),
      x: { kind: "linear", domain: [0, last], ticks: roundTicks(0, last, width / 70), label: spec.x },
      y: { kind: "linear", domain: [low - pad, high + pad], ticks: roundTicks(low, high, 5), label: spec.y, format: number },
    });
    if (spec.training) {
      root.append(draw("path", { d: `M${x(spec.training)},${box.top}V${box.bottom}`, class: "training" }));
      root.append(draw("text", { x: x(spec.training) - 4, y: box.bottom - 4, "text-anchor": "end" }, "training length"));
    }
    root.append(...dots.map(([n, value]) => draw("circle", { cx: x(n), cy: y(value), r: 3, class: "dot" })));
    const hair = draw("line", { y1: box.top, y2: box.bottom, class: "hair", visibility: "hidden" });
    root.append(hair);
    function move(n) {
      at = Math.max(0, Math.min(last, n));
      hair.setAttribute("visibility", "visible");
      for (const end of ["x1", "x2"]) hair.setAttribute(end, x(at));
      told.textContent = spec.tell(at);
    }
    follow(root, {
      point: (share) => move(Math.round(((share * width - box.left) / (box.right - box.left)) * last)),
      step: (right) => move(at === null ? 0 : at + right),
      leave: () => hair.setAttribute("visibility", "hidden"),
    });
    holder.replaceChildren(root);
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

const DATA = JSON.parse($("data").textContent);
const encodingOf = (name) => DATA.encodings.find((encoding) => encoding.name === name);
readPalette();

/* Sinusoids, from their formula. */
const frequency = (pair, width, base) => base ** ((-2 * pair) / width);
function sinusoid(position, dimension, width, base) {
  const angle = position * frequency(Math.floor(dimension / 2), width, base);
  return dimension % 2 ? Math.cos(angle) : Math.sin(angle);
}
function similarity(first, second, width, base) {
  let sum = 0;
  for (let pair = 0; pair < width / 2; pair++) sum += Math.cos((first - second) * frequency(pair, width, base));
  return sum;
}
const shape = { width: 128, base: 10000, length: 50 };
const periods = (pair) => 2 * Math.PI / frequency(pair, shape.width, shape.base);

/* 1. The vectors. */
const vectors = heatmap($("vectors"));
function showVectors() {
  const { width, base, length } = shape;
  vectors.show({
    rows: length, columns: width, limit: 1, value: (row, column) => sinusoid(row, column, width, base),
    ends: { rows: ["position 0", String(length - 1)], columns: ["dimension 0", String(width - 1)] },
    name: `sinusoidal vectors of ${length} positions in ${width} dimensions`,
    hint: `The first pair repeats every 6.28 positions, the last every ${number(periods(width / 2 - 1))}. Blue is +1, red −1.`,
    tell: (row, column) => `position ${row}, dimension ${column}: ${number(sinusoid(row, column, width, base))}; it repeats every ${number(periods(Math.floor(column / 2)))} positions`,
  });
}

/* 2. Similarity. */
const curve = curveView($("similarity"));
const start = slider($("start"), "start position of the dots", { min: 0, max: 49, value: 10 }, showSimilarity);
function showSimilarity() {
  const { width, base, length } = shape;
  start.limit(length - 1);
  const values = Array.from({ length }, (_, distance) => similarity(0, distance, width, base));
  const from = Math.min(start.value, length - 1), dots = [];
  for (let position = from; position < length; position++) {
    let dot = 0; // from the vectors themselves, not from the formula of the line
    for (let n = 0; n < width; n++) dot += sinusoid(from, n, width, base) * sinusoid(position, n, width, base);
    dots.push([position - from, dot]);
  }
  curve.show({
    height: 260, lines: [{ encoding: encodingOf("sinusoidal"), values, kind: "main" }], dots, x: "distance between two positions", y: "dot product",
    name: "dot product of two sinusoidal vectors over their distance",
    tell: (n) => `distance ${n}: dot product ${number(values[n])} of ${number(width / 2)} at distance 0`,
  });
  const rise = values.findIndex((value, n) => n && value > values[n - 1] + 1e-9);
  $("similarity-note").textContent = `Line: from position 0. Dots: from position ${from}. ` + (rise < 0
    ? "Up to this length, farther is always less similar."
    : `Farther is not always less similar: from distance ${rise - 1} to ${rise} the dot product rises.`);
}

/* 3. A pair on its circle. */
const circle = {
  pair: slider($("circle-sliders"), "pair", { min: 0, max: 63, value: 4 }, showCircle),
  position: slider($("circle-sliders"), "position", { min: 0, max: 200, value: 0 }, showCircle),
  offset: slider($("circle-sliders"), "offset", { min: 0, max: 50, value: 3 }, showCircle),
};
let walking = null;
$("walk").addEventListener("click", () => {
  walking = walking ? clearInterval(walking) : setInterval(() => (circle.position.set((circle.position.value + 1) % 201), showCircle()), 150);
  $("walk").setAttribute("aria-pressed", String(Boolean(walking)));
});
function showCircle() {
  circle.pair.limit(shape.width / 2 - 1);
  const [pair, position, offset] = [circle.pair.value, circle.position.value, circle.offset.value];
  const speed = frequency(pair, shape.width, shape.base);
  const points = [position, position + offset].map((p) => ({ p, sin: Math.sin(p * speed), cos: Math.cos(p * speed) }));
  const [a, b] = points, swept = (offset * speed) % (2 * Math.PI), at = (p, r) => `${(r * p.cos).toFixed(2)},${(-r * p.sin).toFixed(2)}`;
  const svg = draw("svg", { viewBox: "-120 -120 240 240", role: "img", "aria-label": `positions ${a.p} and ${b.p} on the circle of pair ${pair}` },
    draw("circle", { r: 90, class: "ring" }), draw("text", { x: -118, y: -108 }, "up: sine, right: cosine"),
    draw("path", { class: "arc", d: `M${at(a, 34)}A34,34 0 ${swept > Math.PI ? 1 : 0} 0 ${at(b, 34)}` }));
  points.forEach((point, n) => svg.append(
    draw("line", { x1: 0, y1: 0, x2: 90 * point.cos, y2: -90 * point.sin, class: "ab"[n] }),
    draw("circle", { cx: 90 * point.cos, cy: -90 * point.sin, r: 6, class: "ab"[n] }),
    draw("text", { x: 106 * point.cos, y: -106 * point.sin + 3, "text-anchor": "middle" }, String(point.p))));
  const table = make("table", {}, make("tr", {}, ...["position", "sine", "cosine"].map((word) => make("th", {}, word))),
    ...points.map((point) => make("tr", {}, make("td", { class: "number" }, String(point.p)), ...["sin", "cos"].map((part) => make("td", { class: "number" }, point[part].toFixed(3).replace("-", "−"))))));
  $("circle").replaceChildren(svg, table);
  const degrees = (offset * speed * 180) / Math.PI;
  $("circle-note").textContent = `Offset ${offset} rotates this pair by ${number(degrees)}° at every position, so one rotation matrix carries any position to the one ${offset} later.`;
}

/* 4. The binary counter, beside sinusoids of which each pair is half as fast as the one before. */
const BITS = 4, ROWS = 2 ** BITS, COUNT_BASE = 2 ** BITS;
const count = slider($("count"), "position", { min: 0, max: ROWS - 1, value: 7 }, showCounter);
function showCounter() {
  const now = count.value, bit = (p, n) => (p >> (BITS - 1 - n)) & 1;
  const body = Array.from({ length: ROWS }, (_, p) => {
    const bits = Array.from({ length: BITS }, (_, n) => make("td", { style: `background:${css(bit(p, n) ? 0.5 : 0)}` }, String(bit(p, n))));
    const waves = Array.from({ length: 2 * BITS }, (_, n) => make("td", { style: `background:${css(sinusoid(p, n, 2 * BITS, COUNT_BASE))}` }));
    return make("tr", p === now ? { class: "now" } : {}, make("th", {}, String(p)), ...bits, make("td", { class: "gap" }), ...waves);
  });
  const head = make("tr", {}, make("th", {}, ""), make("th", { colspan: BITS }, "binary"), make("th"), make("th", { colspan: 2 * BITS }, "sinusoids (base 16)"));
  $("counter").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  const next = (now + 1) % ROWS, flips = Array.from({ length: BITS }, (_, n) => bit(now, n) !== bit(next, n)).filter(Boolean).length;
  const step = Math.hypot(...Array.from({ length: 2 * BITS }, (_, n) => sinusoid(now + 1, n, 2 * BITS, COUNT_BASE) - sinusoid(now, n, 2 * BITS, COUNT_BASE)));
  $("counter-note").textContent = (now + 1 < ROWS ? `From ${now} to ${next}, ${flips} of ${BITS} bits flip` : `After ${now}, ${BITS} bits start again at 0`)
    + `; the sinusoids move by ${step.toFixed(2)}, as at every step.`;
}

/* 5. Two encodings. */
const ACTIONS = {
  rotation: "Queries and keys rotate with their position, so the change of a logit depends on the distance and on the words.",
  bias: "It adds a number to the attention logit.",
  scale: "It multiplies all logits of a query by the same factor, so by itself it knows no order.",
  weights: "It computes the attention weights by itself, from the words and their order.",
};
function cosines(rows) { // mean over all pairs that far apart
  const norms = rows.map((row) => Math.hypot(...row) || 1);
  return rows.map((_, distance) => {
    let sum = 0;
    for (let p = 0; p + distance < rows.length; p++) {
      sum += rows[p].reduce((total, value, n) => total + value * rows[p + distance][n], 0) / (norms[p] * norms[p + distance]);
    }
    return sum / (rows.length - distance);
  });
}
function notes(encoding) {
  const sentences = [], masks = (encoding.lines || []).flat().includes(null);
  if (encoding.vectors) sentences.push("It gives every position a vector, which is added to the word's vector or put beside it. The model must find distances itself.");
  if (masks) sentences.push("It masks far keys.");
  else if (encoding.action in ACTIONS) sentences.push(ACTIONS[encoding.action]);
  if (encoding.content && encoding.action === "bias") sentences.push("It depends on content. The number follows from the words, and the curve is a mean over random words.");
  if (encoding.action === "nothing" && !encoding.vectors) sentences.push("It changes nothing, so there is nothing to draw.");
  if (encoding.drawn) sentences.push("Its parameters start at zero. Here they are random, to show which distances can differ.");
  if (encoding.causal_only) sentences.push("It is for decoders only.");
  sentences.push(encoding.parameters ? `It trains ${encoding.parameters.toLocaleString("en")} parameters at d_model ${encoding.d_model} with ${encoding.heads} heads.` : "It has no parameters to train.");
  return sentences;
}
function encodingCard(number_, name) {
  const menu = make("select", { "aria-label": `encoding ${number_}` }, ...DATA.encodings.map((encoding) => make("option", { value: encoding.name }, encoding.name)));
  const about = make("p", { class: "about" }), picture = make("div"), chart = make("div"), list = make("ul");
  $("encodings").append(make("div", { class: "encoding" }, menu, about, picture, chart, list));
  const heat = heatmap(picture), lines = curveView(chart);
  menu.value = name;
  function show() {
    const encoding = encodingOf(menu.value);
    about.replaceChildren(swatch(encoding), " ", encoding.about);
    list.replaceChildren(...notes(encoding).map((text) => make("li", {}, text)));
    const windows = (encoding.lines || []).flat().includes(null), rows = encoding.vectors || encoding.channels || (windows ? encoding.lines : null);
    picture.hidden = !rows;
    if (rows) {
      const [row, column] = encoding.vectors ? ["position", "dimension"] : [encoding.channels ? "channel" : "head", "distance"];
      const limit = Math.max(...rows.flat().map(Math.abs)) || 1;
      heat.frame.classList.toggle("few", rows.length < 9);
      heat.show({
        rows: rows.length, columns: rows[0].length, limit, value: (r, c) => rows[r][c] ?? -limit,
        ends: { rows: rows.length < 9 ? [row] : [`${row} 0`, String(rows.length - 1)], columns: [`${column} 0`, String(rows[0].length - 1)] },
        name: `${encoding.name}: ${row} by ${column}`,
        hint: encoding.vectors ? `The vectors of ${rows.length} positions.` : !encoding.channels ? "Red cells are masked: the head cannot see a key so far back." : "Each cell shows how much of a channel's product with itself is left after query and key have rotated.",
        tell: (r, c) => `${row} ${r}, ${column} ${c}: ${number(rows[r][c])}`,
      });
    }
    chart.hidden = !(rows || encoding.lines);
    if (chart.hidden) return;
    const all = encoding.lines || [cosines(encoding.vectors)];
    const seen = all[0].map((_, n) => all.map((line) => line[n]).filter((value) => value !== null));
    const mean = seen.map((values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null));
    const masked = seen.findIndex((values) => values.length < all.length);
    lines.show({
      height: 220, x: encoding.lines ? "distance from query back to key" : "distance between two positions",
      y: !encoding.lines ? "cosine similarity, mean over pairs" : encoding.action === "weights" ? "log of the weight, by head" : "change of the logit of a key equal to the query, by head",
      lines: [...(all.length > 1 ? all.map((values) => ({ encoding, values })) : []), { encoding, values: mean, kind: "main" }],
      training: encoding.lines ? encoding.train_length : null, name: `${encoding.name} over distance`,
      tell: (n) => `distance ${n}: ${seen[n].length ? `mean ${number(mean[n])}` : "masked in every head"}${encoding.lines && seen[n].length > 1 ? ` (${number(Math.min(...seen[n]))} to ${number(Math.max(...seen[n]))})` : ""}`,
    });
    if (masked > 0) list.append(make("li", {}, `From distance ${masked} on, ${seen[masked].length ? "some heads" : "no head"} ${seen[masked].length ? "do not see" : "sees"} the key.`));
  }
  menu.addEventListener("change", show);
  show();
}

/* 6. Two sentences. */
function showOrder() {
  const { sentences, words, models } = DATA.sentences;
  const strip = (row, limit) => make("div", { class: "strip", title: row.map(number).join("  ") }, ...row.map((value) => make("i", { style: `background:${css(value / limit)}` })));
  $("order").replaceChildren(...models.map((model) => {
    const limit = Math.max(...model.outputs.flat(2).map(Math.abs));
    const head = make("tr", {}, ...["", ...sentences.map((text) => `in “${text}”`), "apart"].map((text) => make("th", {}, text)));
    const rows = [...words, "mean"].map((word, n) => make("tr", {}, make("th", {}, word),
      ...model.outputs.map((outputs) => make("td", {}, strip(outputs[n], limit))), make("td", { class: "number" }, model.apart[n].toFixed(2))));
    const blind = model.apart.every((value) => value === 0);
    return make("div", {}, make("h3", {}, model.name), make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))),
      make("p", { class: "verdict" }, blind ? "It is order-blind: the sentences are the same to it." : "It tells the sentences apart."));
  }));
}

/* 7. Trained models. */
function showAnswers() {
  const { max_length, inputs, models } = DATA.answers, lengths = Object.keys(inputs).map(Number);
  const right = (input, answer) => [...input].filter((sign, n) => answer[n] === sign).length;
  const share = (model, length) => inputs[length].reduce((sum, input, n) => sum + right(input, model.answers[length][n]), 0) / inputs[length].join("").length;
  document.querySelectorAll(".trained-to").forEach((node) => (node.textContent = max_length));
  const map = heatmap($("map"));
  const length = slider($("length"), "input length", {
    min: lengths[0], max: lengths.at(-1), value: 14, show: (n) => `${n} (${n > max_length ? "past" : "within"} the training lengths)`,
  }, show);
  const which = slider($("length"), "input", { min: 1, max: inputs[lengths[0]].length, value: 1 }, show);
  function show() {
    const now = length.value, input = inputs[now][which.value - 1];
    const row = (name, tokens, verdict, kind) => make("div", { class: `answer ${kind}` }, make("span", {}, ...name), make("div", { class: "tokens" }, ...tokens), make("span", {}, verdict));
    const rows = models.map((model) => {
      const answer = model.answers[now][which.value - 1], good = right(input, answer);
      const tokens = Array.from({ length: Math.max(input.length, answer.length) }, (_, n) => {
        const kind = n >= input.length ? "wrong more" : answer[n] === input[n] ? "right" : "wrong";
        return make("b", { class: kind, title: kind === "right" ? "right" : `expected ${input[n] ?? "the end"}` }, answer[n] ?? "–");
      });
      return row([swatch(encodingOf(model.name)), " ", model.name], tokens, good === input.length && answer.length === good ? "all right" : `${good} of ${input.length} right`, "model");
    });
    $("answers").replaceChildren(row(["input"], [...input].map((sign) => make("b", {}, sign)), `length ${now}`, "input"), ...rows);
  }
  map.show({
    rows: models.length, columns: lengths.length, limit: 1, value: (row, column) => share(models[row], lengths[column]),
    ends: { rows: models.map((model) => model.name), columns: [`length ${lengths[0]}`, String(lengths.at(-1))] },
    mark: [(lengths.indexOf(max_length) + 1) / lengths.length, `trained to ${max_length}`],
    name: "share of right digits by model and length", hint: "Full blue: all right. Click a cell, or press Enter, to see its answers.",
    tell: (row, column) => `${models[row].name}, length ${lengths[column]}: ${Math.round(100 * share(models[row], lengths[column]))} % of the digits right`,
    choose: (_, column) => (length.set(lengths[column]), show()),
  });
  $("commands").textContent = models.map((model) => model.command).join("\n");
  show();
}

/* What the first three views share. */
function showShape() {
  showVectors();
  showSimilarity();
  showCircle();
}
const of = (key, change = (value) => value) => (value) => ((shape[key] = change(value)), showShape());
slider($("shape"), "d_model", { min: 2, max: 512, step: 2, value: shape.width }, of("width"));
slider($("shape"), "base", { min: 0.25, max: 6, step: 0.25, value: 4, show: (power) => number(10 ** power) }, of("base", (power) => 10 ** power));
slider($("shape"), "length", { min: 8, max: 256, value: shape.length }, of("length"));
showShape();
showCounter();
DATA.opened.forEach((name, n) => encodingCard(n + 1, name));
showOrder();
redraws.push(showCounter, showOrder);
showAnswers();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (readPalette(), redraws.forEach((redraw) => redraw())));
