"""Commands on many runs: compare compares those of a user, results regenerates the published studies."""

import gc
from pathlib import Path
from typing import Annotated, Literal

from omegaconf import DictConfig
from pydantic import Field

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.schema import Folder, Section, StudyName, Words, validated
from pe_experiments.terminal.console import Lines, say
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import write_atomically


class CompareSettings(Section):
    results_dir: Folder
    study: StudyName | None
    out: Folder | None
    encodings: Annotated[list[Words], Field(min_length=1)] | None
    baseline: Words | None
    metric: Words | None
    difference: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    spread: Literal["sd", "interval"]


@command("compare", renamed={"pe": "encodings"})
def compare(cfg: DictConfig) -> None:
    """Compare finished runs: statistics, figures and an HTML page.

    python scripts/compare.py results_dir=results [study=NAME] [out=DIR]
    python scripts/compare.py 'pe=[rope,"rope(base=500)"]' baseline=rope      only these encodings
    python scripts/compare.py study=NAME difference=0.05      how many seeds it takes to find this difference
    """
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


class ResultsSettings(Section):
    results_dir: Folder
    publish: StudyName | None
    check: bool
    reproduce: StudyName | None
    trust: bool
    runs: Annotated[int, Field(ge=1)] | None


@command("results")
def results(cfg: DictConfig) -> None:
    """Regenerate every table, figure and page under results/ from the CSVs of the studies (`make results`).

    python scripts/results.py                      regenerate everything
    python scripts/results.py check=true           write nothing; list the files that would change
    python scripts/results.py publish=text         add the finished runs of train.py sweep=text to its CSVs
    python scripts/results.py reproduce=text runs=2     train two published runs again and compare them
    """
    options = validated(ResultsSettings, cfg)
    from pe_experiments.studies import blocks, pages, reproduce

    modes = {"check=true": options.check, "publish": options.publish, "reproduce": options.reproduce}
    requested_modes = [key for key, value in modes.items() if value not in (False, None)]
    if len(requested_modes) > 1:
        raise UserError(f"{' and '.join(requested_modes)} cannot be combined")
    if options.runs is not None and options.reproduce is None:
        raise UserError(f"runs={options.runs} needs reproduce=STUDY")
    results_dir = Path(options.results_dir)
    if options.reproduce is not None:
        count = options.runs or 2
        agrees = reproduce.reproduce(options.reproduce, count, results_dir, Lines(), options.trust)
        raise SystemExit(not agrees)
    differing: list[Path] = []
    if options.publish is not None:
        pages.publish(options.publish, results_dir)
    else:
        for folder in pages.list_studies(results_dir):
            say(f"{folder}: regenerated")
            if options.check:
                differing += pages.changed_files(folder)
            else:
                pages.regenerate(folder)
    index = results_dir / "README.md"
    if index.exists():
        text = blocks.fill_index(index.read_text("utf-8"), results_dir)
        if not options.check:
            write_atomically(index, text)
        elif text != index.read_text("utf-8"):
            differing.append(index)
    for path in differing:
        say(f"differs from the CSVs: {path}")
    if differing:
        raise SystemExit(1)
