/* The page: a matrix that sorts and selects, charts of the selected task, small multiples, and folded tables. */
const DATA = JSON.parse($("data").textContent);
const CEILINGS = [["bag_ceiling", "order-blind", "6 3"], ["chance", "chance", "2 3"]];
const WIDE = 4; // tasks beside which intervals fit
const tip = $("tip");
const records = ({ columns, data }) => data.map((row) => Object.fromEntries(columns.map((column, n) => [column, row[n]])));
DATA.encodings.forEach((encoding, index) => Object.assign(encoding, { index }));
for (const section of DATA.sections) {
  section.rows = records(section.table);
  section.reached = `reached@${2 * section.max_length}`;
  section.byEncoding = new Map(section.rows.map((row) => [row.encoding, row]));
}
const state = { section: DATA.sections[0], pinned: null, sorted: 0, falling: true, order: [] };

/* Numbers as they are read: 0.32 [0.20, 0.48], 3 of 5. */
const number = (value, digits = 2) => (known(value) ? value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1") : "–");
/* Good encodings differ in the third digit of a metric without bounds, as the loss. */
const digitsOf = (column) => (DATA.metrics[metricOf(column)].bounds ? 2 : 3);
const metricOf = (column) => Object.keys(DATA.metrics).find((name) => column === name || new RegExp(`^${name}(@\\d+|_in_distribution|_at_2x|_extrapolation)$`).test(column));
function mean(row, column) {
  const digits = digitsOf(column);
  const [low, high] = ["_low", "_high"].map((end) => number(row[column + end], digits));
  const interval = known(row[column + "_low"]) && low !== high ? ` [${low}, ${high}]` : "";
  return number(row[column], digits) + interval;
}
const count = (row, column) => (known(row[column]) ? `${row[column]} of ${row.seeds}` : "–");
const p = (value) => (known(value) ? (value < 0.001 ? "<0.001" : String(Number(value.toPrecision(2)))) : "–");
const unlearned = (row) => known(row.solved) && row.solved < row.seeds / 2; // of a language model nothing is known
/* How good a value is, from 0 to 1: within the bounds of the metric, or else between the worst and the best of the task. */
function goodness(section, value) {
  const { bounds } = DATA.metrics[DATA.metric.name];
  if (bounds) {
    const share = known(value) ? Math.max(0, Math.min(1, (value - bounds[0]) / (bounds[1] - bounds[0]))) : 0;
    return known(value) && DATA.metric.lower ? 1 - share : share;
  }
  const all = section.rows.map((row) => row[DATA.metric.column]).filter(known);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  return known(value) && high > low ? (DATA.metric.lower ? high - value : value - low) / (high - low) : 0;
}
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/* The matrix: a row per encoding, a column per task. */
function buildMatrix() {
  const head = make("tr", {}, columnHead(-1, ["encoding"]), ...DATA.sections.map((s, n) => columnHead(n, s.heading)));
  $("matrix").append(make("thead", {}, head), make("tbody"));
  $("matrix").classList.toggle("many", DATA.sections.length > 6);
  $("matrix").classList.toggle("tall", DATA.encodings.length > 14);
  $("matrix").addEventListener("keydown", moveInMatrix);
  $("matrix").addEventListener("click", (event) => activate(event.target.closest("th, td")));
  $("matrix").addEventListener("pointerover", (event) => focusEncoding(encodingOf(event.target)));
  $("matrix").addEventListener("pointerleave", () => focusEncoding(null));
  sortMatrix();
  $("matrix").querySelector("th").tabIndex = 0;
}

function columnHead(n, [first, ...rest]) {
  const title = n < 0 ? "sort by name" : `${DATA.sections[n].title}: sort, and show its curves`;
  return make("th", { scope: "col", "data-column": n, tabindex: -1, title }, make("span", {}, breakable(first), ...(rest.length ? [make("small", {}, breakable(rest.join(", ")))] : [])));
}

/* Lines may break after = and _, and nowhere else within a word. */
const breakable = (name) => name.replace(/[=_]/g, "$&\u200b");

function encodingOf(node) {
  const row = node.closest("tr[data-encoding]");
  return row ? Number(row.dataset.encoding) : null;
}

function sortMatrix() {
  const { sorted, falling } = state;
  const section = DATA.sections[sorted];
  const sign = DATA.metric.lower ? -1 : 1;
  const value = (encoding) => sign * (section.byEncoding.get(encoding.index)?.[DATA.metric.column] ?? -sign * Infinity);
  state.order = [...DATA.encodings].sort((a, b) => (section ? value(b) - value(a) : a.name < b.name ? 1 : -1) * (falling ? 1 : -1));
  $("matrix").tBodies[0].replaceChildren(...state.order.map(matrixRow));
  for (const head of $("matrix").querySelectorAll("thead th")) {
    if (Number(head.dataset.column) === sorted) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

function matrixRow(encoding) {
  const head = make("th", { scope: "row", tabindex: -1, title: encoding.name }, swatch(encoding), make("span", {}, encoding.name));
  return make("tr", { "data-encoding": encoding.index }, head, ...DATA.sections.map((section, n) => matrixCell(section, n, encoding)));
}

function matrixCell(section, n, encoding) {
  const row = section.byEncoding.get(encoding.index);
  if (!row) return make("td", { tabindex: -1, "data-column": n, class: "none", "aria-label": "not run" });
  const value = row[DATA.metric.column];
  const share = goodness(section, value);
  const about = [`${encoding.name}, ${section.title}: ${mean(row, DATA.metric.column)}`, plural(row.seeds, "seed")];
  if (known(row[section.reached])) about.push(`${count(row, section.reached)} with exact match of at least ${DATA.solved} at twice the training length`);
  if (unlearned(row)) about.push("did not learn the training lengths");
  if (row.diverged) about.push(`${row.diverged} diverged`);
  const cell = make("td", { tabindex: -1, "data-column": n, title: about.join("; "), "aria-label": about.join("; ") });
  cell.className = (share > 0.5 ? "high" : "") + (unlearned(row) ? " unlearned" : "");
  if (known(value)) cell.style.setProperty("--share", `${Math.round(share * 100)}%`);
  cell.append(make("span", {}, number(value, digitsOf(DATA.metric.column))));
  const ends = mean(row, DATA.metric.column).split(" [")[1];
  if (ends && DATA.sections.length <= WIDE) cell.append(make("small", { class: "wide" }, `[${ends}`));
  if (known(row[section.reached])) cell.append(make("small", {}, `${row[section.reached]}/${row.seeds}`));
  return cell;
}

function activate(cell) {
  if (!cell) return;
  const encoding = encodingOf(cell);
  if (encoding !== null) state.pinned = state.pinned === encoding && cell.tagName === "TH" ? null : encoding;
  const column = Number(cell.dataset.column ?? NaN);
  if (encoding === null) {
    state.falling = state.sorted === column ? !state.falling : column >= 0;
    state.sorted = column;
    sortMatrix();
  }
  if (column >= 0) select(DATA.sections[column]);
  else markSelected();
  const again = [...$("matrix").rows].find((row) => encodingOf(row) === encoding)?.cells[cell.cellIndex];
  if (again && document.activeElement !== document.body) enter(again);
}

function moveInMatrix(event) {
  const cell = event.target.closest("th, td");
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e4], End: [0, 1e4] };
  if (event.key === "Enter" || event.key === " ") activate(cell);
  else if (!(event.key in steps)) return;
  event.preventDefault();
  if (!(event.key in steps)) return;
  const rows = $("matrix").rows;
  const row = rows[Math.max(0, Math.min(rows.length - 1, cell.parentNode.rowIndex + steps[event.key][0]))];
  enter(row.cells[Math.max(0, Math.min(row.cells.length - 1, cell.cellIndex + steps[event.key][1]))]);
}

function enter(cell) {
  for (const other of $("matrix").querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
  focusEncoding(encodingOf(cell));
}

/* One encoding stands out in every chart: the one pointed at, else the one that was chosen. */
function focusEncoding(encoding) {
  const chosen = encoding ?? state.pinned;
  document.body.classList.toggle("focused", chosen !== null);
  for (const node of document.querySelectorAll("[data-encoding], [data-encodings]")) {
    const encodings = (node.dataset.encoding ?? node.dataset.encodings).split(" ");
    node.classList.toggle("focus", encodings.includes(String(chosen)));
  }
}

/* A task is selected: by the matrix, by a small multiple, or by the page's address. */
function select(section) {
  state.section = section;
  history.replaceState(null, "", `#${encodeURIComponent(section.slug)}`);
  showSection();
  markSelected();
}

function markSelected() {
  const column = DATA.sections.indexOf(state.section);
  for (const cell of $("matrix").querySelectorAll("[data-column]")) {
    cell.classList.toggle("selected", Number(cell.dataset.column) === column);
  }
  for (const panel of $("multiples").children) panel.setAttribute("aria-pressed", Number(panel.dataset.section) === column);
  focusEncoding(null);
}

function showSection() {
  const { section } = state;
  $("sentence").textContent = section.sentence;
  for (const node of document.querySelectorAll(".title-of-task")) node.textContent = section.title;
  const { drawn } = section;
  const charts = drawn.map((accuracy) => curveChart(section, accuracy, $("curves"), drawn.length));
  $("curves").replaceChildren(...charts.map((chart) => chart.root));
  $("legend").replaceChildren(...(narrow() ? section.rows.map((row) => make("span", {}, ...nameOf(row))) : []));
  showFurther(section);
  showCosts(section);
  showTraining(section);
  showTables(section);
}

function seriesOf(section, accuracy, seeds) {
  return section.rows.map((row) => ({
    encoding: DATA.encodings[row.encoding],
    dashed: unlearned(row),
    points: section.lengths.map((length) => [length, row[`${accuracy}@${length}`], row]).filter((point) => known(point[1])),
    seeds: !seeds ? [] : (section.curves[accuracy][row.encoding] || []).map((values) =>
      values.map((value, n) => [section.measured[n], value]).filter((point) => known(point[1]))),
  }));
}

function boundsOf(section, accuracy) {
  const parents = (section.parents[accuracy] || []).map((parent) => ({ ...parent, dash: "1 2" }));
  return [...parents, ...orderBlind(section, accuracy)];
}

function orderBlind(section, accuracy) {
  if (accuracy !== section.bounded) return [];
  const bounds = CEILINGS.map(([key, name, dash]) => ({ name, dash, points: section.lengths.map((n) => [n, section.rows[0][`${key}@${n}`]]) }));
  return bounds.map((bound) => ({ ...bound, points: bound.points.filter((point) => known(point[1])) })).filter((bound) => bound.points.length);
}

function lengthAxis(section, label) {
  const [first, last] = [Math.min(section.measured[0], section.max_length), Math.max(section.measured.at(-1), section.max_length)];
  return { kind: "log", domain: [first / 1.06, last * 1.06], ticks: section.measured, first: [section.max_length, last], label };
}

/* A metric with bounds is drawn between them, another as far as its curves reach. */
function valueAxis(section, series, accuracy, ticks) {
  const { bounds } = DATA.metrics[accuracy];
  if (bounds) {
    const marks = ticks.map((share) => bounds[0] + share * (bounds[1] - bounds[0]));
    return { kind: "linear", domain: bounds, ticks: marks, format: (v) => v.toFixed(2) };
  }
  const lines = [...series.flatMap((one) => [one.points, ...one.seeds]), ...(section.parents[accuracy] || []).map((one) => one.points)];
  const all = lines.flat().map((point) => point[1]);
  const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  const room = 0.03 * (high - low) || 0.01;
  const marks = Array.from({ length: ticks.length }, (_, n) => low + ((high - low) * n) / (ticks.length - 1));
  return { kind: "linear", domain: [low - room, high + room], ticks: [...new Set(marks)], format: (v) => v.toFixed(2) };
}

function curveChart(section, accuracy, place, charts) {
  const width = Math.max(280, place.clientWidth);
  const phone = narrow();
  const height = phone ? (charts > 1 ? 165 : 260) : Math.max(230, Math.min(charts > 1 ? 330 : 460, (window.innerHeight - 175) / charts));
  const series = seriesOf(section, accuracy, true);
  const chart = lineChart({
    width, height, series, bounds: boundsOf(section, accuracy), marks: 3.4,
    x: lengthAxis(section, "input length"),
    y: { ...valueAxis(section, series, accuracy, [0, 0.25, 0.5, 0.75, 1]), label: DATA.metrics[accuracy].label },
    shade: { to: section.max_length, words: phone ? "" : "training lengths" }, labels: labelRoom(section),
    name: `${DATA.metrics[accuracy].label} over input length, ${section.title}; the tables below hold the same values`,
  });
  explain(chart, tip, (spot, near) => aboutPoint(section, accuracy, spot, near), focusEncoding);
  return chart;
}

const narrow = () => window.innerWidth < 760;

/* Room for names at the ends of the lines; where there is none, a legend under the charts has the names. */
function labelRoom(section) {
  const names = section.rows.map((row) => wide(DATA.encodings[row.encoding].name));
  return narrow() ? null : { widest: 50 + Math.max(...names, section.rows.length > 2 ? 126 : 50) };
}

function aboutPoint(section, accuracy, spot, near) {
  const length = section.lengths[spot.n];
  const lines = near.slice(0, 8).map((other) => {
    const reached = accuracy === "exact_match" && known(other.about[`reached@${length}`]) ? `; ${count(other.about, `reached@${length}`)} at least ${DATA.solved}` : "";
    const words = `${mean(other.about, `${accuracy}@${length}`)}, ${plural(other.about.seeds, "seed")}${reached}`;
    return make("div", {}, swatch(other.encoding), make("b", {}, other.encoding.name), ` ${words}`);
  });
  const more = near.length > 8 ? [make("div", {}, `and ${near.length - 8} more`)] : [];
  return [make("div", { class: "note" }, `${DATA.metrics[accuracy].label}, length ${length}`), ...lines, ...more];
}

/* All tasks at one glance. */
function buildMultiples() {
  const panels = DATA.sections.map((section, n) => {
    const accuracy = section.drawn.includes(DATA.metric.name) ? DATA.metric.name : section.drawn[0];
    const series = seriesOf(section, accuracy, false);
    const chart = lineChart({
      width: 200, height: 130, series, bounds: boundsOf(section, accuracy),
      x: { ...lengthAxis(section), ticks: [section.measured[0]] },
      y: valueAxis(section, series, accuracy, [0, 0.5, 1]),
      shade: { to: section.max_length }, name: `${DATA.metrics[accuracy].label} over input length, ${section.title}`,
    });
    const button = make("button", { type: "button", class: "panel", "data-section": n, "aria-pressed": "false" });
    button.append(make("span", {}, section.title), chart.root);
    button.addEventListener("click", () => select(section));
    return button;
  });
  $("multiples").append(...panels);
  $("all-tasks").hidden = panels.length < 2;
}

/* Accuracy by index in the answer, and metrics of the user over length. */
function showFurther(section) {
  $("further").hidden = !section.further.length;
  const width = Math.max(280, Math.min(620, $("further").clientWidth / (narrow() ? 1 : 2) - 10));
  const charts = section.further.map(({ title, x, lines, share }) => {
    const points = Object.values(lines).flat();
    const ends = (n) => [Math.min(...points.map((point) => point[n])), Math.max(...points.map((point) => point[n]))];
    const [[first, last], [low, high]] = [ends(0), share ? [0, 1] : ends(1)];
    const series = section.rows.filter((row) => lines[row.encoding]).map((row) => ({
      encoding: DATA.encodings[row.encoding], dashed: unlearned(row), points: lines[row.encoding].map(([a, b]) => [a, b, row]),
    }));
    const overLength = x === "input length";
    const room = high > low ? 0 : 0.5;
    const chart = lineChart({
      width, height: 220, series, marks: 3, labels: labelRoom(section), name: `${title}, ${section.title}`,
      x: overLength ? lengthAxis(section, x) : { kind: "linear", domain: [first, last || 1], ticks: roundTicks(first, last, 6), label: x },
      y: { kind: "linear", domain: [low - room, high + room], ticks: roundTicks(low - room, high + room, 5), format: (v) => String(v), label: title },
      shade: overLength ? { to: section.max_length, words: "" } : null,
    });
    const about = (spot) => `${spot.encoding.name}: ${number(lines[spot.encoding.index][spot.n][1], 3)}`;
    explain(chart, tip, (spot, near) => near.slice(0, 8).map((other) => make("div", {}, swatch(other.encoding), about(other))), focusEncoding);
    return chart.root;
  });
  $("further-charts").replaceChildren(...charts);
}

/* Costs, in the order of the matrix; nothing is sorted by what is mostly noise. Times only where they can be compared. */
function showCosts(section) {
  const columns = [
    ["ms per training step (median of the runs)", (row) => number(1000 * row.seconds_per_step, 1), "seconds_per_step"],
    ["parameters", (row) => number(row.parameters, 0), "parameters"],
    ["of the encoding", (row) => number(row.encoding_parameters, 0), "encoding_parameters"],
  ].filter(([, , key]) => section.rows.some((row) => known(row[key])));
  $("costs").hidden = !columns.length;
  $("times").hidden = columns[0]?.[2] !== "seconds_per_step";
  const rows = state.order.filter((encoding) => section.byEncoding.has(encoding.index)).map((encoding) => {
    const row = section.byEncoding.get(encoding.index);
    return [[swatch(encoding), encoding.name], ...columns.map(([, show, key]) => (known(row[key]) ? show(row) : "–"))];
  });
  $("cost-table").replaceChildren(tableOf(null, ["encoding", ...columns.map(([heading]) => heading)], rows));
}

function showTraining(section) {
  const { training } = section;
  $("training").hidden = !training;
  if (!training) return;
  const width = Math.max(280, Math.min(620, $("training").clientWidth / (narrow() ? 1 : 2) - 10));
  const charts = [["loss", "training loss (nats)"], ["exact_match", "exact match on the training lengths"]].map(([key, label]) => {
    const { steps, values } = training[key];
    if (!steps.length) return null;
    const all = Object.values(values).flat(2).filter((value) => known(value) && (key !== "loss" || value > 0));
    const domain = key === "loss" ? [Math.min(...all), Math.max(...all)] : [0, 1];
    const inside = (value) => Math.max(domain[0], Math.min(domain[1], value));
    const curve = (seed) => steps.map((step, n) => [step, seed[n]]).filter((point) => known(point[1])).map(([a, b]) => [a, inside(b)]);
    const series = section.rows.map((row) => {
      const seeds = (values[row.encoding] || []).map(curve);
      const means = steps.map((step, n) => [step, average((values[row.encoding] || []).map((seed) => seed[n]))]);
      const points = means.filter((point) => known(point[1])).map(([a, b]) => [a, inside(b), row]);
      return { encoding: DATA.encodings[row.encoding], points, seeds };
    });
    const ticks = key === "loss" ? logTicks(domain) : [0, 0.5, 1];
    const chart = lineChart({
      width, height: 220, series, marks: 3, labels: labelRoom(section), name: `${label} over steps, ${section.title}`,
      x: { kind: "linear", domain: [0, steps.at(-1) * 1.02], ticks: roundTicks(0, steps.at(-1), 5), label: "step" },
      y: { kind: key === "loss" ? "log" : "linear", domain, ticks, format: (v) => String(v), label },
    });
    explain(chart, tip, (spot) => [swatch(spot.encoding), make("b", {}, spot.encoding.name), ` step ${steps[spot.n]}`], focusEncoding);
    return chart.root;
  });
  $("training-charts").replaceChildren(...charts.filter(Boolean));
}

function average(values) {
  const measured = values.filter(known);
  return measured.length ? measured.reduce((sum, value) => sum + value, 0) / measured.length : null;
}

function logTicks([first, last]) {
  const all = [-6, -5, -4, -3, -2, -1, 0, 1, 2].flatMap((n) => [1, 3].map((digit) => Number(`${digit}e${n}`)));
  const inside = all.filter((tick) => tick >= first && tick <= last);
  return inside.length > 1 ? inside : [first, last].map((value) => Number(value.toPrecision(2)));
}

/* The page is laid out anew where its width changes. */
function start() {
  buildMatrix();
  buildMultiples();
  const named = decodeURIComponent(location.hash.slice(1));
  const first = DATA.sections.find((section) => section.slug === named);
  if (first) {
    state.sorted = DATA.sections.indexOf(first);
    sortMatrix();
  }
  state.section = first || DATA.sections[0];
  showSection();
  markSelected();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) showSection();
    width = window.innerWidth;
  });
}

/* The folded part: tables and statistics of the selected task. */
function tableOf(caption, headings, rows) {
  const cells = (row) => row.map((cell, n) => make(n ? "td" : "th", n ? {} : { scope: "row" }, ...(Array.isArray(cell) ? cell : [cell])));
  const table = make("table");
  if (caption) table.append(make("caption", {}, caption));
  table.append(make("thead", {}, make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)))));
  table.append(make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || headings.join(", ") }, table);
}

const nameOf = (row) => [swatch(DATA.encodings[row.encoding]), DATA.encodings[row.encoding].name];

function showTables(section) {
  const { rows, lengths } = section;
  const seeds = rows.some((row) => row.seeds > 2) ? ", with Student's 95 % intervals" : "";
  const by = (accuracy) => tableOf(
    `Mean ${DATA.metrics[accuracy].label} by input length${seeds}`,
    ["encoding", ...lengths.map(String)],
    rows.map((row) => [nameOf(row), ...lengths.map((length) => mean(row, `${accuracy}@${length}`))]),
  );
  const parts = [...section.notes.map((note) => make("p", {}, note)), resultTable(section, seeds)];
  if (lengths.length) {
    parts.push(...Object.keys(DATA.metrics).filter((name) => rows.some((row) => known(row[`${name}@${lengths.at(-1)}`]))).map(by));
    const reached = rows.map((row) => [nameOf(row), ...lengths.map((length) => count(row, `reached@${length}`))]);
    if (section.exact) parts.push(tableOf(`Seeds with an exact match of at least ${DATA.solved}, by input length`, ["encoding", ...lengths.map(String)], reached));
  }
  $("tables").replaceChildren(...parts);
  showPairs(section);
}

/* Results of each encoding, without empty columns. */
function resultTable(section, seeds) {
  const { rows } = section;
  const summaries = Object.entries(DATA.metrics).flatMap(([name, { label }]) => [
    [`${label} within the training lengths`, `${name}_in_distribution`],
    [`${label} at 2x`, `${name}_at_2x`],
    [`${label} past training`, `${name}_extrapolation`],
  ]).filter(([, column]) => rows.some((row) => known(row[column])));
  const columns = [
    ["encoding", nameOf, true],
    ["seeds", (row) => String(row.seeds), true],
    ["diverged", (row) => String(row.diverged), rows.some((row) => row.diverged)],
    ["solved the training lengths", (row) => count(row, "solved"), section.exact],
    [`at least ${DATA.solved} at 2x`, (row) => count(row, section.reached), rows.some((row) => known(row[section.reached]))],
    ...summaries.map(([heading, column]) => [heading, (row) => mean(row, column), true]),
    ["horizon", (row) => (row.horizon_censored ? "≥ " : "") + number(row.horizon, 1), section.exact],
  ].filter(([, , applies]) => applies);
  const cells = rows.map((row) => columns.map(([, show]) => show(row)));
  return tableOf(`Means over seeds${seeds}; numbers of seeds`, columns.map(([heading]) => heading), cells);
}

function showPairs(section) {
  const tested = records(section.pairs);
  $("statistics").hidden = !tested.length;
  const headings = ["pair", "difference", "p (permutation)", "after Holm", "significant"];
  const rows = tested.map((row) => [
    `${DATA.encodings[row.encoding].name} − ${DATA.encodings[row.other].name}`, number(row.difference, digitsOf(DATA.metric.column)), p(row.p), p(row.p_holm),
    row.separated ? "yes" : "no",
  ]);
  const parts = section.limits.map((note) => make("p", {}, note));
  if (rows.length) parts.unshift(tableOf(`Differences in mean ${DATA.metric.words}`, headings, rows));
  $("pairs").replaceChildren(...parts);
}

start();
