"""The bank: schemes x tasks under one protocol, each tuned, eight seeds; and how early a verdict on a new one is."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pe_experiments.bank.bank import METRIC
from pe_experiments.bank.stopping import CHANGE
from pe_experiments.comparison import Runs
from pe_experiments.comparison.compare import Options
from pe_experiments.evaluation import SOLVED
from pe_experiments.publishing import compare_archived, read_archive

from . import figures, leave_one_out
from .answer import order, sentences, titled, tuning_table, values_table

AGREEMENT = "agreement.csv"
CONTROL = "majority"
TESTED = (
    "**Bold**: the scheme with the highest mean at twice the training length, and those that do not differ significantly from it "
    "(permutation tests over seeds, Holm's method); in brackets the range of their means."
)


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """The leave-one-out table, which takes a minute or two."""
    del results_dir
    leave_one_out.leave_one_out(runs).to_csv(folder / AGREEMENT, index=False)


def pages(folder: Path, runs: Runs) -> None:
    """The comparison, three figures, and ``README.md``."""
    compare_archived(folder, runs, Options(metric=METRIC))
    table, agreement = titled(runs), pd.read_csv(folder / AGREEMENT)
    schemes, tasks = order(table)
    drawn = folder / "figures"
    figures.matrix(table, tasks, schemes, drawn)
    figures.profile(table[table["task"] != CONTROL], schemes, drawn)
    figures.stopping(leave_one_out.by_threshold(agreement), CHANGE, drawn)
    pairs = pd.read_csv(folder / "pairs.csv")
    (folder / "README.md").write_text(page(runs, table, pairs, agreement))


def readme(folder: Path) -> str:
    """The answer in the project's README."""
    table = titled(read_archive(folder))
    return f"""![Schemes and tasks: exact match at twice the training length](results/bank/v1/figures/answer.png)

{_scope(table)}

{sentences(table, pd.read_csv(folder / "pairs.csv"))}

{TESTED} Intervals, all tests, learning rates: [the bank](results/bank/v1/README.md).

*Limits:* small decoders trained to ten symbols; this says nothing about large models or fine-tuning at longer lengths.
"""


def _scope(table: pd.DataFrame) -> str:
    titles = table[["task", "title"]].drop_duplicates()
    return (
        f"{table['label'].nunique()} schemes, {len(titles)} tasks (`{CONTROL}` is a control), {_seeds(table)} seeds each, the "
        f"learning rate tuned per scheme and task on two further seeds. Colour: mean exact match at twice the training length; "
        f"in the cell: seeds with at least {SOLVED:g} there. *Not learned*: with the task's number of training steps, "
        f"fewer than half of the seeds reached {SOLVED:g} at the training lengths; such a cell says nothing about longer ones. The best scheme on "
        f"average is first."
    )


def _seeds(table: pd.DataFrame) -> str:
    """``8``, or ``4 to 8``."""
    seeds = table.groupby(["label", "title"]).size()
    return f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"


def page(runs: Runs, table: pd.DataFrame, pairs: pd.DataFrame, agreement: pd.DataFrame) -> str:
    """``README.md``."""
    schemes, tasks = order(table)
    seconds = runs.runs["seconds_per_step"] * [
        runs.saved[name]["identity"]["trained"]["training"]["steps"] for name in runs.runs["name"]
    ]
    losses = [row for choice in runs.tuning for row in choice["losses"]]
    return f"""# Which positional encoding should I use?

![Schemes and tasks: exact match at twice the training length](figures/answer.png)

{_scope(table)}

{sentences(table, pairs)}

{TESTED}

![Share of runs that reach a score](figures/profile.png)

Share of runs whose exact match at 2x is at least the value on the horizontal axis, over all tasks but the control `{CONTROL}`; tasks
that a scheme did not learn are included. Grey: the other schemes; band: 95 % bootstrap over seeds.

## A verdict on a scheme of yours

```
python scripts/train.py sweep=versus pe._target_=mine.Recency
```

This trains only your scheme, tuned and repeated in the same way, and says for each scheme above whether yours is better, worse or
not separated, or which of the two learned the task. A task is stopped as soon as at most {100 * CHANGE:.0f} % of its verdicts are expected
to change with the seeds that are left. Check, with each scheme of the bank in turn as the new one: {leave_one_out.in_words(agreement)}.

![Agreement with the verdicts of all seeds over the share of runs](figures/stopping.png)

## Values

{values_table(table, schemes, tasks)}

Mean over seeds with [Gaffke's interval](../../../docs/statistics.md). Tests of all pairs, curves and methods:
[report.html](report.html), [report.md](report.md). All runs, each with the command that repeats it: [runs.csv](runs.csv).

## Learning rates

Chosen by the mean loss on fresh examples of the training lengths over two seeds that are not reported; \\*: the best rate was
still an end of the grid after one further value, so a rate beyond it might do better.

{tuning_table(runs, schemes, tasks)}

## What this cannot tell

- Two layers of width 64, trained to ten symbols for at most {int(_steps(runs).max()):,} steps: a scheme that needs more of either is not
  seen here. [Robustness](../../robustness/README.md): copying under other learning rates, vocabularies, lengths and models.
- {_seeds(table)} seeds: a scheme that succeeds in one training out of four shows no success in eight of them one time in ten.
- Language models: nothing.

## How it was made

[Protocol v1](../../../configs/protocol/v1.yaml) fixes all but the scheme. {len(runs.runs):,} runs reported, {len(losses):,} to tune;
a reported run took {seconds.mean():.0f} s of one core on average.

```
python scripts/train.py sweep=bank       # trains what is missing: more schemes (configs/sweep/bank.yaml), hours
python scripts/results.py publish=bank   # adds what is finished, keeps what is published
make results                             # tables, figures and pages from the CSVs
```
"""


def _steps(runs: Runs) -> pd.Series:
    return pd.Series([saved["identity"]["trained"]["training"]["steps"] for saved in runs.saved.values()])
