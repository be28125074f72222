/* What the views are made of, then the views in the order of the page. */

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

/* Lines over 0, 1, 2, ...; `show` takes {height, lines: [{encoding, values, kind}], dots: [[x, y]], dashed: [x, words] of
   a vertical line, x, y, name, labels (whether lines are named at their ends), tell(n)}. */
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
      width, height: spec.height, name: spec.name, labels: spec.labels && { widest: 110 },
      series: spec.lines.map((line) => ({ ...line, points: line.values.map((value, n) => [n, value]) })),
      x: { kind: "linear", domain: [0, last], ticks: roundTicks(0, last, width / 70), label: spec.x },
      y: { kind: "linear", domain: [low - pad, high + pad], ticks: roundTicks(low, high, 5), label: spec.y, format: number },
    });
    if (spec.dashed) {
      const [place, words] = spec.dashed;
      root.append(draw("path", { d: `M${x(place)},${box.top}V${box.bottom}`, class: "dashed" }));
      root.append(draw("text", { x: x(place) - 4, y: box.bottom - 14, "text-anchor": "end" }, words));
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

/* A clock for every position: sinusoids, from their formula. */
const frequency = (pair, width, base) => base ** ((-2 * pair) / width);
function sinusoid(position, dimension, width, base) {
  const angle = position * frequency(Math.floor(dimension / 2), width, base);
  return dimension % 2 ? Math.cos(angle) : Math.sin(angle);
}
const shape = { width: 128, base: 10000, length: 50, from: 10 };
const vectors = heatmap($("vectors")), curve = curveView($("similarity"));
function showShape() {
  const { width, base, length, from } = shape, first = Math.min(from, length - 1);
  const period = (pair) => number(2 * Math.PI / frequency(pair, width, base));
  vectors.show({
    rows: length, columns: width, limit: 1, value: (row, column) => sinusoid(row, column, width, base),
    ends: { rows: ["position 0", String(length - 1)], columns: ["dimension 0", String(width - 1)] },
    name: `sinusoidal vectors of ${length} positions in ${width} dimensions`,
    hint: `The first pair repeats every 6.28 positions, the last every ${period(width / 2 - 1)}. Blue is +1, red −1.`,
    tell: (row, column) => `position ${row}, dimension ${column}: ${number(sinusoid(row, column, width, base))}; it repeats every ${period(Math.floor(column / 2))} positions`,
  });
  const product = (one, other) => {
    let sum = 0;
    for (let n = 0; n < width; n++) sum += sinusoid(one, n, width, base) * sinusoid(other, n, width, base);
    return sum;
  };
  const values = Array.from({ length }, (_, distance) => product(0, distance));
  const dots = Array.from({ length: length - first }, (_, distance) => [distance, product(first, first + distance)]);
  curve.show({
    height: 200, lines: [{ encoding: encodingOf("sinusoidal"), values, kind: "main" }], dots, x: "distance between two positions", y: "dot product",
    name: "dot product of two sinusoidal vectors over their distance",
    tell: (n) => `distance ${n}: dot product ${number(values[n])} of ${number(width / 2)} at distance 0`,
  });
  $("similarity-note").textContent = `Line: from position 0. Dots: from position ${first}.`;
}
const of = (key, change = (value) => value) => (value) => ((shape[key] = change(value)), showShape());
slider($("shape"), "d_model", { min: 2, max: 512, step: 2, value: shape.width }, of("width"));
slider($("shape"), "base", { min: 0.25, max: 6, step: 0.25, value: 4, show: (power) => number(10 ** power) }, of("base", (power) => 10 ** power));
slider($("shape"), "length", { min: 8, max: 256, value: shape.length }, of("length"));
slider($("shape"), "start of the dots", { min: 0, max: 200, value: shape.from }, of("from"));

/* RoPE: two hands on a circle, the angle between them, and the same angle for every pair. */
const ROPE = { pairs: 8, base: 10000, trained: 20 }, TURN = 2 * Math.PI;
const speed = (pair) => ROPE.base ** (-pair / ROPE.pairs);
const onCircle = (angle, radius) => [radius * Math.cos(angle), -radius * Math.sin(angle)];
const isNew = (pair, distance) => distance > ROPE.trained && ROPE.trained * speed(pair) < TURN;
function wedge(angle, radius, kind) {
  if (angle >= TURN) return draw("circle", { r: radius, class: kind });
  const [x, y] = onCircle(angle, radius);
  return draw("path", { d: `M0,0H${radius}A${radius},${radius} 0 ${angle > Math.PI ? 1 : 0} 0 ${x},${y}Z`, class: kind });
}
function disc(name, radius, ...parts) {
  const size = radius + 22;
  return draw("svg", { viewBox: `${-size} ${-size} ${2 * size} ${2 * size}`, role: "img", "aria-label": name }, draw("circle", { r: radius, class: "ring" }), ...parts);
}
function hand(angle, radius, kind, words) {
  const [x, y] = onCircle(angle, radius), [a, b] = onCircle(angle, radius + 11);
  return [draw("line", { x2: x, y2: y, class: kind }), draw("circle", { cx: x, cy: y, r: 5, class: kind }), draw("text", { x: a, y: b + 3, "text-anchor": "middle" }, words)];
}
/* Both angles, coloured by whether training has shown them; the trained one on top. */
const wedges = (pair, distance, radius) => [
  wedge(distance * speed(pair), radius, isNew(pair, distance) ? "unseen" : "seen"),
  wedge(Math.min(distance, ROPE.trained) * speed(pair), radius, "seen"),
];
const turned = {
  pair: slider($("rope-sliders"), "pair", { min: 0, max: ROPE.pairs - 1, value: 2 }, showRope),
  key: slider($("rope-sliders"), "position of the key", { min: 0, max: 200, value: 10 }, showRope),
  distance: slider($("rope-sliders"), "distance to the query", { min: 0, max: 80, value: 30 }, showRope),
};
let walking = null;
$("walk").addEventListener("click", () => {
  walking = walking ? clearInterval(walking) : setInterval(() => (turned.key.set((turned.key.value + 1) % 201), showRope()), 150);
  $("walk").setAttribute("aria-pressed", String(Boolean(walking)));
});
function showRope() {
  const [pair, key, distance] = [turned.pair.value, turned.key.value, turned.distance.value], query = key + distance;
  const degrees = (angle) => `${number((angle * 180) / Math.PI)}°`, angle = distance * speed(pair);
  $("rope").replaceChildren(
    make("figure", {}, disc(`query at ${query} and key at ${key}, pair ${pair}`, 90, ...hand(key * speed(pair), 90, "key", "k"), ...hand(query * speed(pair), 90, "query", "q")),
      make("figcaption", {}, `The key at ${key} and the query at ${query}`)),
    make("figure", {}, disc(`the angle between them, ${degrees(angle)}`, 90, ...wedges(pair, distance, 90), ...hand(angle, 90, "query", "")),
      make("figcaption", {}, "The angle between them")));
  $("rope-note").textContent = `Pair ${pair} turns the key by ${degrees(key * speed(pair))} and the query by ${degrees(query * speed(pair))}. The difference, ${degrees(angle)}, `
    + `is that of any two words ${distance} apart. ` + (isNew(pair, distance) ? "Training has not shown it." : "Training has shown it.");
  $("pairs").replaceChildren(...Array.from({ length: ROPE.pairs }, (_, n) =>
    make("figure", n === pair ? { class: "chosen" } : {}, disc(`pair ${n}`, 40, ...wedges(n, distance, 40)), make("figcaption", {}, `pair ${n}`))));
}

/* Rescaled frequencies, relative to RoPE, of pair m of a head with as many pairs; as in rope_extension.py and rope_released.py. */
const PAIRS = 64;
const clamp = (value) => Math.max(0, Math.min(1, value));
const rotations = (m, { base, length }) => (length * base ** (-m / PAIRS)) / TURN;
const RESCALED = {
  rope_linear: (m, { factor }) => 1 / factor,
  rope_ntk: (m, { factor }) => factor ** (-m / (PAIRS - 1)),
  rope_yarn(m, { factor, base, length }) {
    const pairWith = (count) => (PAIRS * Math.log(length / (TURN * count))) / Math.log(base);
    const first = Math.max(Math.floor(pairWith(32)), 0), last = Math.min(Math.ceil(pairWith(1)), 2 * PAIRS - 1);
    const divided = last < first ? 1 : clamp((m - first) / Math.max(last - first, 0.001));
    return 1 - divided + divided / factor;
  },
  rope_llama3(m, options) {
    const kept = clamp((rotations(m, options) - 1) / 3);
    return kept + (1 - kept) / options.factor;
  },
};
const extension = { factor: 4, base: 10000, length: 2048 }, extended = curveView($("extension"));
function showExtension() {
  const { factor, base, length } = extension, pairs = Array.from({ length: PAIRS }, (_, m) => m);
  const lines = Object.entries(RESCALED).map(([name, ratio]) => ({ encoding: encodingOf(name), values: pairs.map((m) => ratio(m, extension)), kind: "main" }));
  const once = pairs.findIndex((m) => rotations(m, extension) < 1);
  extended.show({
    height: 260, lines, labels: true, x: "pair of channels, fastest first", y: "frequency, relative to RoPE",
    dashed: once > 0 ? [once - 0.5, "one turn"] : null, name: "frequency of each pair after rescaling",
    tell: (m) => `pair ${m}: ${number(rotations(m, extension))} turns in ${number(length)} tokens; frequency times ${lines.map((line) => `${number(line.values[m])} (${line.encoding.name})`).join(", ")}`,
  });
  $("extension-note").textContent = `From ${number(length)} to ${number(length * factor)} tokens. YaRN also multiplies the logits by ${number((0.1 * Math.log(factor) + 1) ** 2)}.`;
}
const extend = (key, change = (value) => value) => (value) => ((extension[key] = change(value)), showExtension());
slider($("extension-sliders"), "factor", { min: 1, max: 32, value: 4 }, extend("factor"));
slider($("extension-sliders"), "base of RoPE", { min: 3, max: 7, step: 0.25, value: 4, show: (power) => number(10 ** power) }, extend("base", (power) => 10 ** power));
slider($("extension-sliders"), "original length", { min: 5, max: 17, value: 11, show: (power) => number(2 ** power) }, extend("length", (power) => 2 ** power));

/* Penalties on the logit over distance. */
const FARTHEST = 128, LOWEST = -10, CLOSED = 0.1;
const penalty = { slope: 4, p: 1, a: 0.5, gate: 0.98, stop: 40 }, penalties = curveView($("biases"));
const PENALTIES = {
  alibi: (distance) => -(2 ** -penalty.slope) * distance,
  kerple_log: (distance) => -penalty.p * Math.log1p(penalty.a * distance),
  fox: (distance) => distance * Math.log(penalty.gate) + (penalty.stop && distance > penalty.stop ? Math.log(CLOSED) - Math.log(penalty.gate) : 0),
};
function showBiases() {
  const lines = Object.entries(PENALTIES).map(([name, bias]) => {
    const values = Array.from({ length: FARTHEST + 1 }, (_, distance) => bias(distance));
    return { encoding: encodingOf(name), values: values.map((value) => (value < LOWEST ? null : value)), kind: "main", bias };
  });
  penalties.show({
    height: 260, lines, labels: true, x: "distance from query back to key", y: "added to the logit", name: "penalty on the logit over distance",
    tell: (n) => `distance ${n}: ${lines.map(({ encoding, bias }) => `${encoding.name} ${number(bias(n))}, which leaves ${number(100 * Math.exp(bias(n)))} % of a weight`).join("; ")}`,
  });
}
const fade = (key) => (value) => ((penalty[key] = value), showBiases());
slider($("bias-sliders"), "slope of ALiBi", { min: 1, max: 8, value: penalty.slope, show: (power) => `1/${2 ** power}` }, fade("slope"));
slider($("bias-sliders"), "p of KERPLE", { min: 0.05, max: 2, step: 0.05, value: penalty.p }, fade("p"));
slider($("bias-sliders"), "a of KERPLE", { min: 0.05, max: 1, step: 0.05, value: penalty.a }, fade("a"));
slider($("bias-sliders"), "gates of FoX", { min: 0.5, max: 1, step: 0.01, value: penalty.gate }, fade("gate"));
slider($("bias-sliders"), "a gate of 0.1", { min: 0, max: FARTHEST, value: penalty.stop, show: (n) => (n ? `${n} back` : "none") }, fade("stop"));

/* Two encodings. */
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
      dashed: encoding.lines ? [encoding.train_length, "training length"] : null, name: `${encoding.name} over distance`,
      tell: (n) => `distance ${n}: ${seen[n].length ? `mean ${number(mean[n])}` : "masked in every head"}${encoding.lines && seen[n].length > 1 ? ` (${number(Math.min(...seen[n]))} to ${number(Math.max(...seen[n]))})` : ""}`,
    });
    if (masked > 0) list.append(make("li", {}, `From distance ${masked} on, ${seen[masked].length ? "some heads" : "no head"} ${seen[masked].length ? "do not see" : "sees"} the key.`));
  }
  menu.addEventListener("change", show);
  show();
}

/* Two sentences. */
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

/* Trained models. */
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

showOrder();
showShape();
showRope();
showExtension();
showBiases();
showAnswers();
DATA.opened.forEach((name, n) => encodingCard(n + 1, name));
redraws.push(showOrder);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (readPalette(), redraws.forEach((redraw) => redraw())));
