/* The folded part: tables and statistics of the selected task, settings, methods, commands. */
"use strict";

function tableOf(caption, headings, rows) {
  const cells = (row) => row.map((cell, n) => make(n ? "td" : "th", n ? {} : { scope: "row" }, ...(Array.isArray(cell) ? cell : [cell])));
  const table = make("table");
  if (caption) table.append(make("caption", {}, caption));
  table.append(make("thead", {}, make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)))));
  table.append(make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || headings.join(", ") }, table);
}

const nameOf = (row) => [swatch(DATA.schemes[row.scheme]), DATA.schemes[row.scheme].name];

function showTables(section) {
  const { rows, lengths } = section;
  const seeds = rows.some((row) => known(row.solved_low)) ? ", with Gaffke's 95 % intervals" : "";
  const by = (accuracy) => tableOf(
    `Mean ${ACCURACIES[accuracy]} by input length${accuracy === "loss" ? "" : seeds}`,
    ["scheme", ...lengths.map(String)],
    rows.map((row) => [nameOf(row), ...lengths.map((length) => mean(row, `${accuracy}@${length}`))]),
  );
  const made = [...section.notes.map((note) => make("p", {}, note)), resultTable(section, seeds)];
  if (lengths.length) {
    if (section.exact) made.push(by("exact_match"));
    if (!section.one_token) made.push(by("token_accuracy"));
    if (section.shown.includes("loss")) made.push(by("loss"));
    const reached = rows.map((row) => [nameOf(row), ...lengths.map((length) => count(row, `reached@${length}`))]);
    if (section.exact) made.push(tableOf(`Seeds with an exact match of at least ${DATA.solved}, by input length`, ["scheme", ...lengths.map(String)], reached));
  }
  for (const other of section.other_tasks) {
    const cells = other.rows.map((row) => [nameOf({ scheme: row[0] }), ...row.slice(1).map((cell) => (cell ? `${number(cell[0])} (${cell[1]})` : ""))]);
    made.push(tableOf(`Also evaluated on ${other.task}: exact match by length, mean over seeds (number of seeds)`, ["scheme", ...other.lengths.map(String)], cells));
  }
  at("tables").replaceChildren(...made);
  showPairs(section);
}

/* What each scheme reached; a column that says nothing is left out. */
function resultTable(section, seeds) {
  const { rows } = section;
  const twice = `reached@${2 * section.max_length}`;
  const columns = [
    ["scheme", nameOf, true],
    ["group", (row) => row.group || "–", rows.some((row) => row.group)],
    ["seeds", (row) => String(row.seeds), true],
    ["diverged", (row) => String(row.diverged), rows.some((row) => row.diverged)],
    ["solved the training lengths", (row) => count(row, "solved"), section.exact],
    ["exact match within the training lengths", (row) => mean(row, "exact_match_in_distribution"), section.exact],
    ["at 2x", (row) => mean(row, "exact_match_at_2x"), rows.some((row) => known(row.exact_match_at_2x))],
    [`at least ${DATA.solved} at 2x`, (row) => count(row, twice), rows.some((row) => known(row[twice]))],
    ["exact match past training", (row) => mean(row, "exact_match_extrapolation"), section.exact],
    ["loss within the training lengths", (row) => mean(row, "loss_in_distribution"), section.shown.includes("loss")],
    ["loss past training", (row) => mean(row, "loss_extrapolation"), section.shown.includes("loss")],
    ["past training, of runs that solved", (row) => number(row.exact_match_extrapolation_solved), rows.some((row) => known(row.solved) && row.solved % row.seeds)],
    ["token accuracy past training", (row) => mean(row, "token_accuracy_extrapolation"), !section.one_token],
    ["horizon", (row) => (row.horizon_censored ? "≥ " : "") + number(row.horizon, 1), section.exact],
  ].filter(([, , applies]) => applies);
  const cells = rows.map((row) => columns.map(([, show]) => show(row)));
  return tableOf(`Means over seeds${seeds}; numbers of seeds`, columns.map(([heading]) => heading), cells);
}

function showPairs(section) {
  const tested = section.pairs.rows.map((row) => Object.fromEntries(section.pairs.columns.map((column, n) => [column, row[n]])));
  at("statistics").hidden = !tested.length;
  const paired = tested.some((row) => known(row.p_paired));
  const headings = ["pair", "difference", "p (permutation)", "after Holm", "separated", "probability of improvement"];
  if (paired) headings.push("pairs of seeds", "p (sign flip)", "after Holm");
  const rows = tested.map((row) => {
    const cells = [
      `${DATA.schemes[row.scheme].name} − ${DATA.schemes[row.other].name}`, number(row.difference, DATA.metric.lower ? 3 : 2), p(row.p), p(row.p_holm),
      row.separated ? "yes" : "no", number(row.probability_of_improvement),
    ];
    return paired ? [...cells, String(row.pairs), p(row.p_paired), p(row.p_paired_holm)] : cells;
  });
  const made = section.pairs.notes.map((note) => make("p", {}, note));
  if (rows.length) made.unshift(tableOf(`Differences in mean ${DATA.metric.words}`, headings, rows));
  at("pairs").replaceChildren(...made);
}

/* What does not depend on the selected task. */
function buildAppendix() {
  at("settings").append(...DATA.tables.map((table) => tableOf(table.caption, table.headings, table.rows)));
  at("methods").append(...DATA.methods.map((text) => make("p", {}, text)));
  at("bibtex").textContent = DATA.bibtex;
  const list = (entries) => make("ul", {}, ...entries.map(([text, runs]) => make("li", {}, make("code", {}, text), ` (${plural(runs, "run")})`)));
  at("commands").append(list(DATA.commands), make("p", {}, "On these versions and machines:"), list(DATA.versions));
  const left = Object.entries(DATA.left_out);
  const reasons = left.map(([name, reason]) => make("li", {}, make("code", {}, name), `: ${reason}`));
  at("left-out").append(left.length ? make("ul", {}, ...reasons) : make("p", {}, "No run directory was left out."));
  at("left-out-title").append(left.length ? ` (${left.length})` : ": none");
}

start();
