"""Compare finished runs: statistics, figures and an HTML page.

python scripts/compare.py results_dir=results [study=NAME] [out=DIR]
python scripts/compare.py 'pe=[rope,"rope(base=500)"]' baseline=rope      only these encodings
python scripts/compare.py study=NAME difference=0.05          how many seeds it takes to find this difference
"""

import gc
from pathlib import Path
from typing import Annotated, Literal

from omegaconf import DictConfig
from pydantic import Field

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.schema import Folder, Section, Study, Words, validated
from pe_experiments.terminal.console import Lines, say
from pe_experiments.terminal.errors import UserError


class CompareSettings(Section):
    """The options of ``configs/compare.yaml``."""

    results_dir: Folder
    study: Study | None
    out: Folder | None
    encodings: Annotated[list[Words], Field(min_length=1)] | None
    baseline: Words | None
    metric: Words | None
    difference: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    spread: Literal["sd", "interval"]


@command("compare", __doc__, renamed={"pe": "encodings"})
def run(cfg: DictConfig) -> None:
    gc.set_threshold(1_000_000)  # otherwise the collector repeatedly scans all loaded data
    options = validated(CompareSettings, cfg).model_dump()
    from pe_experiments.comparison.compare_runs import compare, is_published, output_of, show

    options["pe"] = options.pop("encodings")
    folder = Path(options["results_dir"]) / str(options["study"])
    if options["out"] is None and (folder / "verdicts.csv").exists() and not is_published(folder):
        raise UserError(f"study={options['study']}: {folder} holds a page of verdicts; add out=FOLDER")
    options["out"] = options["out"] or output_of(options["results_dir"], options["study"])
    say(f"reading {options['results_dir']}/runs")
    show(compare(**options, display=Lines()))
