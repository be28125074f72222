"""Publish a study: add its finished runs, trained with committed code, to its CSVs."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pe_experiments.studies.archive as archive
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.foreign import foreign_targets
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.published import PROVENANCE
from pe_experiments.studies.pages import copy_data, load_study, make_pages, mirror
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.terminal.files import CONFIG_DIR


def publish(name: str, results_dir: Path) -> None:
    """Add the finished runs of a study to its CSVs and regenerate its pages, all or nothing.

    Runs that are already published are kept; finished runs with the same configuration are ignored.

    ``name`` is that of the study or of the sweep that trains it.

    Raises:
        UserError: no run has finished, or a run was not trained with committed code of this project or
            evaluated in a window.
    """
    study = name
    if (CONFIG_DIR / "sweep" / f"{name}.yaml").exists():
        study = str(compose_config([f"sweep={name}"]).study or name)
    folder = results_dir / study
    declared = load_study(folder)
    finished = read_runs(results_dir, study)
    if not finished.saved:
        reasons = [f"{name}: {reason}" for name, reason in finished.left_out.items()]
        details = f": {few(reasons)}" if reasons else ""
        raise UserError(f"publish={study}: the study has no finished runs{details}")
    damaged = [part for part in finished.left_out if part.endswith("/metrics.csv")]
    if damaged:
        reason = finished.left_out[damaged[0]]
        raise UserError(f"publish={study}: {few(damaged)} would be published without its curve: {reason}")
    require_committed_code(study, finished)
    _refuse_windows(study, finished, results_dir)
    published = finished
    if (folder / PROVENANCE).exists():
        published = archive.merge_runs(archive.read_archive(folder), finished)
    runs_left_out = {run for run in finished.left_out if "/" not in run}  # a slash names a part of a run
    unfinished = runs_left_out - set(published.saved)
    if unfinished:
        say(f"{study}: {len(unfinished)} runs have not finished")
    local_runs = set(finished.saved) & set(published.saved)
    say(f"{study}: {len(published.saved)} runs, {len(local_runs)} of them from {results_dir / 'runs'}")
    with TemporaryDirectory() as scratch:
        fresh = Path(scratch) / folder.name
        copy_data(folder, fresh)  # a study may read tables that runs alone do not make
        archive.write_archive(published, fresh)
        for measure in declared.measures:
            measure(fresh, published, results_dir)
        make_pages(fresh, declared, folder)
        mirror(fresh, folder)


def require_committed_code(study: str, runs: Runs) -> None:
    """Raise a UserError if a run used edited or unknown source code, or classes of other packages."""
    edited = []
    for name, environment in sorted(runs.environments.items()):
        is_complete = "torch" in environment.get("libraries", {}) and "command" in environment
        if environment.get("edited") or not (environment.get("commit") and is_complete):
            edited.append(name)
    if edited:
        problem = (
            f"{len(edited)} of {len(runs.saved)} runs have edited or unknown source code ({few(edited)})"
        )
        raise UserError(f"study={study}: {problem}; commit the code and train them again")
    for name, saved in runs.saved.items():
        if outside := foreign_targets(saved.trained):
            raise UserError(f"study={study}: {few(outside)} of {name} is not code of this project")


def _refuse_windows(study: str, runs: Runs, results_dir: Path) -> None:
    """Raise a UserError if a run was evaluated in a window, which the CSVs of a study do not record."""
    for name in runs.saved:
        result = RunDirectory(results_dir / "runs" / name).read_result() or {}
        window = result.get("evaluation", {}).get("window")
        if window is not None:
            problem = f"{name} was evaluated with evaluation.window={window}"
            raise UserError(f"publish={study}: {problem}; allowed: null, so repeat it with rerun=true")
