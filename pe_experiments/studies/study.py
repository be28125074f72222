"""What a study declares: the sweep that trains its runs, and what is generated from its CSVs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from hydra_plugins.pe_experiments.sweeps import grid_runs
from pe_experiments.configuration.compose import compose_config
from pe_experiments.store.published import published_keys
from pe_experiments.terminal.errors import UserError

PROGRESS = "progress"  # the value that says how many planned runs are published


@dataclass(frozen=True)
class Study:
    """A published study, generated from the CSVs of its folder.

    Attributes:
        sweep: the presets that list all planned runs; none if the study trains no runs.
        planned: the number of planned runs, where no preset lists them: runs that continue others.
        load: reads what the functions below receive; by default the folder itself.
        values: returns the tables (as text) and the numbers of the page, ``README.md``, by name.
        figures: functions that draw ``figures/NAME.png``; each receives the data and the folder.
        tables: functions that return ``NAME.csv``.
        measures: functions that write further CSVs from the runs when the study is published; each receives
            the folder, the runs and the results directory.
        compare: also write the files of `compare.py`.
    """

    sweep: tuple[str, ...] = ()
    planned: int = 0
    load: Callable[[Path], Any] = field(default=lambda folder: folder)
    values: Callable[[Any], Mapping[str, Any]] = field(default=lambda data: {})
    figures: tuple[Callable[[Any, Path], None], ...] = ()
    tables: Mapping[str, Callable[[Any], pd.DataFrame]] = field(default_factory=dict)
    measures: tuple[Callable[[Path, Any, Path], None], ...] = ()
    compare: bool = False


def progress(folder: Path, study: Study) -> str:
    """Return how many planned runs of a study are published, such as ``3,792 of 4,442 planned runs``.

    Raises:
        UserError: more runs are published than were planned.
    """
    planned = study.planned
    for preset in study.sweep:
        sweeper = compose_config([f"sweep={preset}"], with_hydra=True).hydra.sweeper
        planned += len(grid_runs(sweeper.params, sweeper.grids))
    published = len(published_keys(folder))
    if published > planned:
        raise UserError(f"{folder.name}: {published:,} runs are published, but {planned:,} were planned")
    if published == planned:
        return f"all {planned:,} planned runs"
    return f"{published:,} of {planned:,} planned runs"
