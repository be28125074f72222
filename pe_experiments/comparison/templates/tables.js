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
