"""What tutorials on sinusoidal encodings claim, and what was measured: a verdict per claim, from data alone.

Claims about vectors and code are judged in `untrained`, claims about trained models in `trained`. Each verdict
follows from the data by a fixed rule.
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
from .trained import EXTENSIONS, IN_DISTRIBUTION, MODELS, PAST, TWICE, Trained, of_training
from .untrained import DEPENDS, FAILS, HOLDS, OURS, UNSUPPORTED, Verdict, judged

COLUMNS = ("length", "exact_match", "token_accuracy")
HEADING = ("claim", "wording of the source", "how tested", "measured", "verdict", "figure")


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """``audits.csv``, and ``extension.csv``: every RoPE run evaluated as trained and rescaled, per length."""
    audits.audited().to_csv(folder / "audits.csv", index=False)
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
    rows = [[v.claim, v.document, v.tested, v.measured, v.verdict, _link(v.figure)] for v in verdicts]
    counts = Counter(verdict.verdict for verdict in verdicts)
    absent = len(verdicts) - sum(counts[kind] for kind in (HOLDS, FAILS, DEPENDS, UNSUPPORTED))
    waiting = f"; {absent} are not tested yet (their runs are not finished)" if absent else ""
    ours = sum(verdict.document == OURS for verdict in verdicts)
    in_distribution, twice = (
        mean_in_words(t.of("copy", "sinusoidal")[metric]) for metric in (IN_DISTRIBUTION, TWICE)
    )
    seeds = len(t.of("copy", "sinusoidal"))
    return f"""# What tutorials on sinusoidal encodings claim

*Which claims of tutorials about positional encodings hold when they are measured?*

![Fixed or learned, in distribution and past training](figures/claims-fixed-or-learned.png)

Exact match and token accuracy by input length: training lengths are shaded, lines are means, dots the seeds.

Of {len(verdicts)} claims {counts[HOLDS]} hold, {counts[FAILS]} do not, {counts[DEPENDS]} depend on conditions (column *measured*), and
{counts[UNSUPPORTED]} are not supported (no test is significant){waiting}.
{ours} of the claims are ours: no source states them. With sinusoids, copying reaches an exact match of {in_distribution}
within the training lengths and of {twice} at twice the longest.

{markdown_table(HEADING, rows)}

**Set-up.** Claims about vectors, order and code are tested without training. Claims about trained models are tested by
exact match on copying and lag (decoder) and precedence (encoder), trained on up to {t.longest} symbols, {seeds} seeds per scheme.
Means have Gaffke's 95 % interval. Differences between two schemes are tested by permuting their seeds; p values are
adjusted by Holm's method within the claim. *Past training* is the area under exact match (above chance) over log length,
from the first length past training to 8x the longest trained.

A claim about a difference *holds* if at least one test is significant for it and none against it, *does not hold* if
at least one is significant against it and none for it, *depends* if significant tests disagree, and is *not supported*
if no test is significant. A claim that a scheme works at twice the length is tested as a mean exact match of at least
0.9 (one-sided, by Gaffke's bound). A scheme that did not learn the task is not tested past the training lengths.
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
    shown = [
        f"{value:.2f} on {task} ({MODELS[task]})"
        if value >= 0.005
        else f"below 0.005 on {task}, where seeds hardly differ"
        for task, value in found.items()
        if value >= 0
    ]
    if not shown:
        return ""
    return f"""
The smallest difference in exact match past training that {seeds} seeds per scheme can detect is
{" and ".join(shown)} (one two-sided t test at 0.05 with 80 % power; standard deviation pooled over the schemes at the embedding).
"""


def _link(figure: str) -> str:
    return f"[{figure.removeprefix('claims-').replace('-', ' ')}](figures/{figure}.png)" if figure else ""
