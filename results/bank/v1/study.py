"""The bank: schemes x tasks under one protocol, each tuned, over seeds; and how early a verdict on a new one is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pe_experiments.bank.bank import METRIC
from pe_experiments.bank.stopping import CHANGE
from pe_experiments.comparison import Options, Runs
from pe_experiments.comparison.protocols import sections_of
from pe_experiments.comparison.statistics import mean_interval
from pe_experiments.comparison.words import listed
from pe_experiments.evaluation import SOLVED
from pe_experiments.publishing import compare_archived, markdown_table, mean_in_words, read_archive

from . import figures, leave_one_out

AGREEMENT = "agreement.csv"
HALF = 0.5
# What a sentence is about, and the tasks it must hold for.
QUESTIONS = {
    "Copying, with 10 and with 100 symbols": ("copy",),
    "Copying backwards": ("reverse",),
    "Repeating a token a fixed distance back": ("lag",),
    "Recalling what followed a mark, or was written last": ("induction", "flip_flop"),
    "Finding the third token": ("kth",),
}
CONTROL = "majority"


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """The leave-one-out table, which takes a minute or two."""
    del results_dir
    leave_one_out.leave_one_out(runs).to_csv(folder / AGREEMENT, index=False)


def titled(runs: Runs) -> pd.DataFrame:
    """The runs with the title of their task, ``copy, vocab_size=100``."""
    titles = {s.protocol: ", ".join([s.task, *s.told_apart_by]) for s in sections_of(runs)}
    return runs.runs.assign(title=runs.runs["protocol"].map(titles))


def order(table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Schemes, the best first, and tasks, the easiest last."""
    means = table.groupby(["label", "title"])[METRIC].mean().unstack()
    schemes = means.mean(axis=1).sort_values(ascending=False, kind="stable").index
    return [str(name) for name in schemes], [str(name) for name in means.mean().sort_values().index]


def carries(values: pd.Series) -> str:
    """Whether a scheme keeps half of its exact match: ``yes`` or ``no`` where the interval tells, else ``open``."""
    interval = mean_interval(values.to_numpy(float))
    return "yes" if interval.low > HALF else "no" if interval.high < HALF else "open"


def answer(table: pd.DataFrame, tasks: Sequence[str], schemes: Sequence[str]) -> dict[str, list[str]]:
    """The schemes that carry over on every one of the tasks, that fail on one, and the others."""
    mine = table[table["task"].isin(tasks)]
    found: dict[str, list[str]] = {"yes": [], "no": [], "open": []}
    for scheme in schemes:
        each = {carries(v) for _, v in mine[mine["label"] == scheme].groupby("protocol")[METRIC]}
        if not each:
            continue
        found["no" if "no" in each else "open" if "open" in each else "yes"].append(scheme)
    return found


def sentences(table: pd.DataFrame, schemes: Sequence[str]) -> str:
    """What the intervals say about each question that was run."""
    found = {what: answer(table, tasks, schemes) for what, tasks in QUESTIONS.items()}
    return "\n".join(_sentence(what, by) for what, by in found.items() if any(by.values()))


def _sentence(what: str, found: dict[str, list[str]]) -> str:
    kept, lost, unclear = found["yes"], found["no"], found["open"]
    if not kept and not unclear:
        return f"- *{what}*: every scheme is below one half."
    clauses = [f"{listed(kept) if kept else 'no scheme'} {'are' if len(kept) > 1 else 'is'} above one half"]
    if lost and len(lost) > len(kept) and not unclear:
        clauses.append("every other scheme is below it")
    elif lost:
        clauses.append(f"{listed(lost)} {'are' if len(lost) > 1 else 'is'} below it")
    if unclear:
        clauses.append(f"for {listed(unclear)} the intervals do not tell")
    return f"- *{what}*: {'; '.join(clauses)}."


def tuning_table(runs: Runs, schemes: Sequence[str]) -> str:
    """The learning rate chosen per scheme and task; an asterisk where it is the edge of those tried."""
    names = {}
    for choice in runs.tuning:
        tried = sorted(map(float, choice["tried"]))
        edge = "*" if float(choice["chosen"]) in (tried[0], tried[-1]) else ""
        settings = choice["settings"]
        task = choice["task"] + (f" ({settings['vocab_size']})" if choice["task"] == "copy" else "")
        names[choice["scheme"], task] = f"{float(choice['chosen']):g}{edge}"
    tasks = sorted({task for _, task in names})
    rows = [[scheme, *(names.get((scheme, task), "–") for task in tasks)] for scheme in schemes]
    return markdown_table(["learning rate", *tasks], rows)


def values_table(table: pd.DataFrame, schemes: Sequence[str], tasks: Sequence[str]) -> str:
    """Exact match at 2x: the mean with its interval."""
    cells = {key: mean_in_words(v) for key, v in table.groupby(["label", "title"])[METRIC]}
    rows = [[scheme, *(cells.get((scheme, task), "–") for task in tasks)] for scheme in schemes]
    return markdown_table(["exact match at 2x", *tasks], rows)


def pages(folder: Path, runs: Runs) -> None:
    """The comparison, three figures, and ``README.md``."""
    compare_archived(folder, runs, Options(metric=METRIC))
    table, agreement = titled(runs), pd.read_csv(folder / AGREEMENT)
    schemes, tasks = order(table)
    drawn = folder / "figures"
    figures.matrix(table, tasks, schemes, drawn)
    figures.profile(table[table["task"] != CONTROL], schemes, drawn)
    figures.stopping(leave_one_out.by_threshold(agreement), CHANGE, drawn)
    (folder / "README.md").write_text(page(runs, table, agreement))


def readme(folder: Path) -> str:
    """The answer in the project's README."""
    runs = read_archive(folder)
    table = titled(runs)
    schemes, _ = order(table)
    return f"""![Schemes and tasks: exact match at twice the training length](results/bank/v1/figures/answer.png)

{_scope(table)} ([the bank](results/bank/v1/README.md)). *Not learned*: fewer than half of
the seeds solved the training lengths. Exact match at twice the training length, by the 95 % intervals of the means:

{sentences(table, schemes)}

*Limits:* small decoders trained to ten symbols; this says nothing about language models or fine-tuning at longer lengths.
"""


def _scope(table: pd.DataFrame) -> str:
    return (
        f"{table['label'].nunique()} schemes, {table['title'].nunique()} tasks, {_seeds(table)} seeds each, the learning rate "
        f"tuned per scheme and task on two more. Colour: mean exact match at twice the training length; in the cell: seeds "
        f"that reach {SOLVED:g}"
    )


def _seeds(table: pd.DataFrame) -> str:
    """``8``, or ``4 to 8``."""
    seeds = table.groupby(["label", "title"]).size()
    return f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"


def page(runs: Runs, table: pd.DataFrame, agreement: pd.DataFrame) -> str:
    """``README.md``."""
    schemes, tasks = order(table)
    seconds = runs.runs["seconds_per_step"] * [
        runs.saved[name]["identity"]["trained"]["training"]["steps"] for name in runs.runs["name"]
    ]
    losses = [row for choice in runs.tuning for row in choice["losses"]]
    return f"""# Which positional encoding should I use?

![Schemes and tasks: exact match at twice the training length](figures/answer.png)

{_scope(table)}. *Not learned*: fewer than half of the seeds solved the training lengths.

{sentences(table, schemes)}

Exact match at twice the training length: *above* or *below one half* if the 95 % interval of its mean is, on every task named.

![Share of runs that reach a score](figures/profile.png)

The share of runs, over all tasks but the control `{CONTROL}`, that reach an exact match at 2x. Grey: the other schemes; band: 95 %
bootstrap over seeds.

## A verdict on a scheme of yours

```
python scripts/train.py sweep=versus pe=mine
```

runs only yours, tuned and repeated in the same way, and compares it with each scheme above. A task is stopped as soon as at most
{100 * CHANGE:.0f} % of its verdicts (better, worse, not separated) are expected to change with the seeds that are left. Each scheme of the
bank taken as the new one: {leave_one_out.in_words(agreement)}.

![Agreement with the verdicts of all seeds over the share of runs](figures/stopping.png)

## Values

{values_table(table, schemes, tasks)}

Mean over seeds with [Gaffke's interval](../../../docs/statistics.md). Tests of all pairs, curves and methods:
[report.html](report.html), [report.md](report.md). All runs, each with the command that repeats it: [runs.csv](runs.csv).

## Learning rates

Chosen by the mean loss on fresh examples of the training lengths over two seeds that are not reported; \\*: the largest or smallest
one tried, after one more step outwards.

{tuning_table(runs, schemes)}

## What this cannot tell

- Two layers of width 64, trained to ten symbols for at most {int(_steps(runs).max()):,} steps: a scheme that needs more of either is not
  seen here. [core](../../core/README.md) asks whether the answers on copying survive other learning rates and vocabularies.
- {_seeds(table)} seeds: a scheme that succeeds in one training out of four often succeeds in none of them. Intervals say how far that goes.
- Language models: nothing.

## How it was made

[Protocol v1](../../../configs/protocol/v1.yaml) fixes all but the scheme. {len(runs.runs):,} runs reported, {len(losses):,} to tune;
a reported run took {seconds.mean():.0f} s of one core on average.

```
python scripts/train.py sweep=bank       # goes on with what is neither here nor published
python scripts/results.py publish=bank   # adds what is finished, keeps what is published
make results                             # tables, figures and pages from the CSVs
```
"""


def _steps(runs: Runs) -> pd.Series:
    return pd.Series([saved["identity"]["trained"]["training"]["steps"] for saved in runs.saved.values()])
