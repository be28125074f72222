"""What a comparison with the bank ends with: a table in the terminal, and one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from markupsafe import Markup

from pe_experiments.comparison import compared, write_comparison
from pe_experiments.comparison.statistics import ALPHA, difference_interval
from pe_experiments.drawing import render
from pe_experiments.published.verdicts import CHANGE, METRIC, SIDES, SIGNS
from pe_experiments.published.versus import Standing, Versus
from pe_experiments.terminal.console import Lines, say, say_files
from pe_experiments.terminal.files import write_atomically

KEY = "+ better, - worse, = not separated; (+) only yours learned the task, (-) only the other, 0 neither"


def report(versus: Versus) -> None:
    """Write tables, figures and page of the scheme beside the bank, and print what the page says."""
    standings, runs = versus.standings()
    rows, done = verdict_rows(standings), [len(one.mine.values) for one in standings]
    left = sum(one.seeds for one in standings) - sum(done)
    cost = f"{sum(done)} runs of {versus.label} on {len(standings)} tasks; {left} were not needed"
    folder, title = versus.results_dir / str(versus.study), f"{versus.label} against {versus.bank}"
    panel = render(
        Path(__file__).with_name("verdicts.html.j2"),
        label=versus.label,
        tasks=rows.drop_duplicates("task").to_dict("records"),
        cells={(row["baseline"], row["task"]): row for row in rows.to_dict("records")},
        baselines=list(dict.fromkeys(rows["baseline"])),
        cost=cost,
        sides=SIDES,
        change=CHANGE,
    )
    made = compared(runs, METRIC, baseline=versus.label)
    made = write_comparison(made, title, folder, Lines(), Markup(panel))
    write_atomically(folder / "verdicts.csv", rows.to_csv(index=False))
    signs = rows.assign(verdict=rows["verdict"].map(SIGNS))
    say(signs.pivot(index="baseline", columns="task", values="verdict").to_string(na_rep=""))
    say(f"{KEY}\n{cost}")
    say_files([path for path in made.files if path.suffix == ".html"])


def verdict_rows(standings: Sequence[Standing]) -> pd.DataFrame:
    """One row per task and baseline; the intervals of one task hold jointly (Bonferroni)."""
    rows: list[dict[str, Any]] = []
    for one in standings:
        for name, other in one.baselines.items():
            apart = difference_interval(one.mine.values, other.values, ALPHA / len(one.baselines))
            rows.append(
                {
                    "section": one.protocol.slug,
                    "task": one.protocol.title,
                    "baseline": name,
                    **vars(one.forecasts[name]),  # verdict, change
                    "mean": fmean(one.mine.values),
                    "baseline_mean": fmean(other.values),
                    "difference": apart.estimate,
                    "low": apart.low,
                    "high": apart.high,
                    "seeds": len(one.mine.values),
                    "of": one.seeds,
                    "baseline_seeds": len(other.values),
                }
            )
    return pd.DataFrame(rows)
