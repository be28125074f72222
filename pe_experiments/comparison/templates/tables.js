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
  const seeds = rows.some((row) => known(row.solved_low)) ? ", with Gaffke's 95 % intervals" : "";
  const by = (accuracy) => tableOf(
    `Mean ${DATA.names[accuracy]} by input length${accuracy === "loss" ? "" : seeds}`,
    ["encoding", ...lengths.map(String)],
    rows.map((row) => [nameOf(row), ...lengths.map((length) => mean(row, `${accuracy}@${length}`))]),
  );
  const parts = [...section.notes.map((note) => make("p", {}, note)), resultTable(section, seeds)];
  if (lengths.length) {
    if (section.exact) parts.push(by("exact_match"));
    parts.push(by("token_accuracy"));
    if (section.drawn.includes("loss")) parts.push(by("loss"));
    const reached = rows.map((row) => [nameOf(row), ...lengths.map((length) => count(row, `reached@${length}`))]);
    if (section.exact) parts.push(tableOf(`Seeds with an exact match of at least ${DATA.solved}, by input length`, ["encoding", ...lengths.map(String)], reached));
  }
  $("tables").replaceChildren(...parts);
  showPairs(section);
}

/* Results of each encoding, without empty columns. */
function resultTable(section, seeds) {
  const { rows } = section;
  const columns = [
    ["encoding", nameOf, true],
    ["seeds", (row) => String(row.seeds), true],
    ["diverged", (row) => String(row.diverged), rows.some((row) => row.diverged)],
    ["solved the training lengths", (row) => count(row, "solved"), section.exact],
    ["exact match within the training lengths", (row) => mean(row, "exact_match_in_distribution"), section.exact],
    ["at 2x", (row) => mean(row, "exact_match_at_2x"), rows.some((row) => known(row.exact_match_at_2x))],
    [`at least ${DATA.solved} at 2x`, (row) => count(row, section.reached), rows.some((row) => known(row[section.reached]))],
    ["exact match past training", (row) => mean(row, "exact_match_extrapolation"), section.exact],
    ["loss within the training lengths", (row) => mean(row, "loss_in_distribution"), section.drawn.includes("loss")],
    ["loss past training", (row) => mean(row, "loss_extrapolation"), section.drawn.includes("loss")],
    ["token accuracy past training", (row) => mean(row, "token_accuracy_extrapolation"), true],
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
    `${DATA.encodings[row.encoding].name} − ${DATA.encodings[row.other].name}`, number(row.difference, DATA.metric.lower ? 3 : 2), p(row.p), p(row.p_holm),
    row.separated ? "yes" : "no",
  ]);
  const parts = section.limits.map((note) => make("p", {}, note));
  if (rows.length) parts.unshift(tableOf(`Differences in mean ${DATA.metric.words}`, headings, rows));
  $("pairs").replaceChildren(...parts);
}

start();
