"""What tutorials on sinusoidal encodings claim, and what was measured: a verdict per claim, from data alone.

Claims of vectors and code are judged in `untrained`, those of trained models in `trained`. A verdict follows
from a rule, so that other numbers give another one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import yaml  # type: ignore[import-untyped]

from pe_experiments.comparison import Runs
from pe_experiments.comparison.statistics import detectable_difference
from pe_experiments.console import say
from pe_experiments.evaluations import evaluate_run
from pe_experiments.files import CONFIG_DIR
from pe_experiments.plots import drawing, save
from pe_experiments.publishing import compare_archived, markdown_table, mean_in_words, read_table
from pe_experiments.tracking import read_curve

from . import audits
from .figures import ABSOLUTE, figures
from .trained import EXTENSIONS, INSIDE, MODELS, PAST, TWICE, Trained, of_training
from .untrained import DEPENDS, FAILS, HOLDS, OURS, UNSUPPORTED, Verdict, judged

COLUMNS = ("length", "exact_match", "token_accuracy")
HEADING = ("claim", "stands in a document as", "how tested", "finding", "verdict", "figure")


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """``audits.csv``, and ``extension.csv``: every RoPE run read as trained and rescaled, per length."""
    audits.measure().to_csv(folder / "audits.csv", index=False)
    rows = []
    for run in runs.runs[runs.runs["label"] == "rope"].to_dict("records"):
        path = results_dir / "runs" / run["name"]
        quiet = {**runs.saved[run["name"]]["logger"], "mode": "disabled"}
        for scheme in ("rope", *EXTENSIONS):
            curve = read_curve(path / "extrapolation.csv")
            if scheme != "rope":
                say(f"{run['name']}: evaluated as {scheme}")
                pe = yaml.safe_load((CONFIG_DIR / "pe" / f"{scheme}.yaml").read_text())
                curve = evaluate_run(path, {"pe": pe, "logger": quiet}).curve
            common = {"name": run["name"], "seed": run["seed"], "scheme": scheme}
            rows += [common | {key: point[key] for key in COLUMNS} for point in curve]
    pd.DataFrame(rows).to_csv(folder / "extension.csv", index=False)


def pages(folder: Path, runs: Runs) -> None:
    """The comparison, ``README.md``, the verdicts as ``claims.csv``, and their figures."""
    compare_archived(folder, runs)
    write(folder, read_table(folder / "audits.csv"), Trained(runs, read_table(folder / "extension.csv")))


def write(folder: Path, audited: pd.DataFrame, trained: Trained) -> None:
    """The study's own part; the same inputs give the same bytes.

    Raises:
        UserError: a value is missing among the audits, or runs of the study.
    """
    verdicts = [*judged(audited), *of_training(trained)]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    with drawing():
        for name, figure in figures(audited, trained):
            save(figure, folder / "figures", name)
    pd.DataFrame(map(asdict, verdicts)).to_csv(folder / "claims.csv", index=False)
    (folder / "README.md").write_text(readme(verdicts, trained))


def readme(verdicts: list[Verdict], t: Trained) -> str:
    """The page, every number of it from the data."""
    rows = [[v.claim, v.document, v.tested, v.finding, v.verdict, _link(v.figure)] for v in verdicts]
    counts = Counter(verdict.verdict for verdict in verdicts)
    absent = len(verdicts) - sum(counts[kind] for kind in (HOLDS, FAILS, DEPENDS, UNSUPPORTED))
    waiting = f", {absent} wait for runs" if absent else ""
    ours = sum(verdict.document == OURS for verdict in verdicts)
    inside, twice = (mean_in_words(t.of("copy", "sinusoidal")[metric]) for metric in (INSIDE, TWICE))
    seeds = len(t.of("copy", "sinusoidal"))
    return f"""# What tutorials on sinusoidal encodings claim

*Which claims that tutorials make of positional encodings hold when they are measured?*

![Fixed or learned, in distribution and past training](figures/claims-fixed-or-learned.png)

Exact match and token accuracy by input length: training lengths are shaded, lines are means, dots the seeds.

Of {len(verdicts)} claims {counts[HOLDS]} hold, {counts[FAILS]} do not, for {counts[DEPENDS]} it depends on what the finding
names, {counts[UNSUPPORTED]} cannot be decided by any test{waiting}. {ours} claims are ours: no document states them.
Sinusoids copy with an exact match of {inside} in distribution and {twice} at twice
the longest training length.

{markdown_table(HEADING, rows)}

**Set-up.** Claims of vectors, order and code are audited without training. Claims of trained models rest on
exact match in copying (decoder) and precedence (encoder), trained up to {t.longest} symbols, {seeds} seeds per scheme.
Means have Gaffke's 95 % interval; `all {seeds} seeds 1.00` means that the seeds agree. Differences are tested by
permuting the seeds of two schemes, adjusted by Holm within the claim. *Past training* is the area over log
length from the first length not trained to 8x the longest trained, above chance.

A claim about differences *holds* where a test favours it and none speaks against it, *does not hold* where a
test speaks against it and none favours it, *depends* where tests disagree, and is *not supported* where none
decides. That a scheme carries over to twice the length is tested as a mean exact match of at least 0.9
(one-sided, by Gaffke's bound). A scheme that did not learn the task is not tested past training.
{_detectable(t, seeds)}
```
python scripts/train.py sweep=tutorial_claims
python scripts/results.py publish=tutorial_claims    # its CSVs anew; make results: the pages from the CSVs
```
"""


def _detectable(t: Trained, seeds: int) -> str:
    found = {
        task: detectable_difference(
            [list(t.of(task, name)[PAST]) for name in ABSOLUTE if t.learnt(task, name)]
        )
        for task in MODELS
    }
    shown = [f"{value:.2f} on {task} ({MODELS[task]})" for task, value in found.items() if value >= 0]
    if not shown:
        return ""
    return f"""
The smallest difference in exact match past training that {seeds} seeds per scheme detect is {", ".join(shown)}
(two-sided t test at 0.05 with 80 % power, standard deviation pooled over the absolute schemes, one test).
"""


def _link(figure: str) -> str:
    return f"[{figure.removeprefix('claims-').replace('-', ' ')}](figures/{figure}.png)" if figure else ""
