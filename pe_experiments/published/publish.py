"""Publish finished runs: add runs of committed code to the CSVs of a study."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pe_experiments.published.archive as archive
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.configuration.compose import OURS, composed, targets
from pe_experiments.published.pages import load_study, make_pages, mirror
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.terminal.files import CONFIG_DIR


def publish(named: str, results_dir: Path) -> None:
    """Add the finished runs of a study or sweep to its CSVs and regenerate its pages, all or nothing.

    Published runs stay; finished runs with the same configuration are ignored.
    """
    sweep = CONFIG_DIR / "sweep" / f"{named}.yaml"
    preset = composed("config", [f"sweep={named}"]) if sweep.exists() else {}  # includes inherited options
    study = str(preset.get("study") or named)
    folder = results_dir / study
    code = load_study(folder)
    finished = read_runs(results_dir, study)
    if not finished.saved:
        reasons = [f"{name}: {reason}" for name, reason in finished.left_out.items()]
        why = f": {few(reasons)}" if reasons else ""
        raise UserError(f"publish={study}: the study has no finished runs{why}")
    require_committed_code(study, finished)
    published = finished
    if (folder / archive.FILES[-1]).exists():
        published = archive.merge_runs(archive.read_archive(folder), finished)
    runs_left_out = {name for name in finished.left_out if "/" not in name}  # a slash names a part of a run
    waiting = runs_left_out - set(published.saved)
    if waiting:
        say(f"{study}: {len(waiting)} runs have not finished")
    new = set(finished.saved) & set(published.saved)
    say(f"{study}: {len(published.saved)} runs, {len(new)} of them from {results_dir / 'runs'}")
    with TemporaryDirectory() as scratch:
        fresh = Path(scratch) / study
        archive.write_archive(published, fresh)
        if hasattr(code, "measure"):
            code.measure(fresh, published, results_dir)
        make_pages(fresh, code)
        mirror(fresh, folder)


def require_committed_code(study: str, runs: Runs) -> None:
    """Raise a UserError for runs of edited or unknown source code, or with classes from outside."""
    edited = []
    for name, environment in sorted(runs.environments.items()):
        if environment.get("edited") or not environment.get("commit"):
            edited.append(name)
    if edited:
        some = f"{len(edited)} of {len(runs.saved)} runs have edited or unknown source code ({few(edited)})"
        raise UserError(f"study={study}: {some}; commit the code and train them again")
    for name, saved in runs.saved.items():
        outside = [target for target in targets(saved["identity"]["trained"]) if not OURS.fullmatch(target)]
        if outside:
            raise UserError(f"study={study}: {few(outside)} of {name} is not code of this project")
