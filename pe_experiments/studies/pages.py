"""Publish a study, and regenerate its tables, figures and page from its CSVs, byte for byte."""

import filecmp
import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from PIL import Image

from hydra_plugins.pe_experiments.sweeps import grid_runs
from pe_experiments.comparison import build_comparison, write_comparison
from pe_experiments.comparison.runs import Runs, read_runs
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.foreign import foreign_targets
from pe_experiments.drawing import drawing
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.study_folder import PROVENANCE, published_keys
from pe_experiments.studies.archive import FILES, SHIPPED, merge_runs, read_archive, write_archive
from pe_experiments.studies.blocks import fill_page
from pe_experiments.terminal.console import Lines, say
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.terminal.files import CONFIG_DIR, consistent_files, make_folder, replace_together

DATA = (".csv", ".json")
SUFFIXES = (*DATA, ".md", ".html", ".png", ".bib")  # other formats of a comparison would double the size
WRITTEN_BY_HAND = ("plan.md",)
FOLDERS = ("*", "*/*")  # where studies are in the results directory, such as text and text/rope
PROGRESS = "progress"  # the value that says how many planned runs are published
COLOURS = 128  # in a published image; the reduced palette makes files three times smaller


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
        compare: also write the files of `compare.py`.
    """

    sweep: tuple[str, ...] = ()
    planned: int = 0
    load: Callable[[Path], Any] = field(default=lambda folder: folder)
    values: Callable[[Any], Mapping[str, Any]] = field(default=lambda data: {})
    figures: tuple[Callable[[Any, Path], None], ...] = ()
    tables: Mapping[str, Callable[[Any], pd.DataFrame]] = field(default_factory=dict)
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


def publish(name: str, results_dir: Path) -> None:
    """Add the finished runs of a study to its CSVs and regenerate its pages, all or nothing.

    ``name`` is that of the study or of the sweep that trains it. Runs that are already published are kept;
    finished runs with the same configuration are ignored.

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
    for run in finished.saved:  # the CSVs of a study do not record a window
        result = RunDirectory(results_dir / "runs" / run).read_result() or {}
        window = result.get("evaluation", {}).get("window")
        if window is not None:
            problem = f"{run} was evaluated with evaluation.window={window}"
            raise UserError(f"publish={study}: {problem}; allowed: null, so repeat it with rerun=true")
    published = finished
    if (folder / PROVENANCE).exists():
        published = merge_runs(read_archive(folder), finished)
    runs_left_out = {run for run in finished.left_out if "/" not in run}  # a slash names a part of a run
    unfinished = runs_left_out - set(published.saved)
    if unfinished:
        say(f"{study}: {len(unfinished)} runs have not finished")
    local_runs = set(finished.saved) & set(published.saved)
    say(f"{study}: {len(published.saved)} runs, {len(local_runs)} of them from {results_dir / 'runs'}")
    with TemporaryDirectory() as scratch:
        fresh = Path(scratch) / folder.name
        _copy_data(folder, fresh)  # a study may read tables that runs alone do not make
        write_archive(published, fresh)
        _make_pages(fresh, declared, folder)
        _mirror(fresh, folder)


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


def regenerate(folder: Path) -> None:
    """Regenerate everything in a study's folder from its CSVs."""
    with _regenerated(folder) as fresh:
        _mirror(fresh, folder)


def changed_files(folder: Path) -> list[Path]:
    """Return the files of a study that regenerating it from its CSVs would change, add or remove."""
    with _regenerated(folder) as fresh:
        # In the folder of the explorer page, show_encoding.py writes files that are not published.
        bases = (folder, fresh) if (folder / PROVENANCE).exists() else (fresh,)
        names = set()
        for base in bases:
            paths = [*base.glob("*"), *base.glob("figures/*")]  # not in nested studies
            names |= {str(path.relative_to(base)) for path in paths if _is_published(path)}
        names -= set(WRITTEN_BY_HAND)
        identical, _, _ = filecmp.cmpfiles(folder, fresh, names, shallow=False)
        return sorted(folder / name for name in names.difference(identical))


@contextmanager
def _regenerated(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder with the CSVs of a study and everything generated from them."""
    with TemporaryDirectory() as scratch:
        fresh = Path(scratch) / folder.name
        _copy_data(folder, fresh)
        try:
            _make_pages(fresh, load_study(folder), folder)
        except UserError as error:  # the user knows the folder of the study, not its copy
            raise UserError(str(error).replace(str(fresh), str(folder))) from error
        yield fresh


def _copy_data(folder: Path, fresh: Path) -> None:
    """Copy the published tables and numbers of a study, if any, to a new folder."""
    fresh.mkdir()
    for path in folder.glob("*"):
        if _is_published(path) and path.suffix in DATA:
            shutil.copy(path, fresh)


def list_studies(results_dir: Path) -> list[Path]:
    """Return the folders of the published studies.

    Raises:
        UserError: no study is published there.
    """
    patterns = [f"{pattern}/{name}" for pattern in FOLDERS for name in (PROVENANCE, "study.py")]
    candidates = {path.parent for pattern in patterns for path in results_dir.glob(pattern)}
    studies = []
    for folder in sorted(candidates):
        if folder.name[0] != "." and any(map(_is_published, folder.iterdir())):
            studies.append(folder)
    for folder in studies:
        with consistent_files(folder):
            pass
    if not studies:
        raise UserError(f"results_dir={results_dir} has no published study; create one with publish=STUDY")
    return studies


def load_study(folder: Path) -> Study:
    """Return the declaration ``STUDY`` in the ``study.py`` of the shipped study of this name.

    A study without that file has the tables, figures and page of a comparison. Code in other results
    directories is never executed.
    """
    names = [folder.name, f"{folder.parent.name}/{folder.name}"]
    if folder.resolve().is_relative_to(SHIPPED):
        names = [folder.resolve().relative_to(SHIPPED).as_posix()]
    name = next((name for name in names if (SHIPPED / name / "study.py").exists()), None)
    if name is None:
        return Study(compare=True)
    path = SHIPPED / name / "study.py"
    if not is_tracked(path):
        raise UserError(f"{path} is not tracked by git, so it is not executed; git add it if it is yours")
    checkout = str(SHIPPED.parent)
    if sys.path[0] != checkout:  # studies are ``results.bank.study``, and scripts/ has a results.py
        sys.path.insert(0, checkout)
    package = importlib.import_module(SHIPPED.name)
    if list(getattr(package, "__path__", [])) != [str(SHIPPED)]:
        raise UserError(f"another package than {SHIPPED} is called results; run this command elsewhere")
    study: Study = importlib.import_module(f"results.{name.replace('/', '.')}.study").STUDY
    return study


def _make_pages(folder: Path, study: Study, source: Path) -> None:
    """Add figures, tables and the page to a folder with the CSVs of a study.

    ``source`` is the study's folder in the results directory, with the ``README.md`` that is filled in.
    """
    (folder / "figures").mkdir(exist_ok=True)
    data = study.load(folder)
    for name, make_table in study.tables.items():
        make_table(data).to_csv(folder / f"{name}.csv", index=False)
    with drawing(["png"]):  # other formats are not published, and drawing PDF takes most of the time
        if study.compare:
            comparison = build_comparison(read_archive(folder))
            with TemporaryDirectory() as scratch:
                fresh = Path(scratch) / folder.name
                write_comparison(comparison, f"Comparison: {folder.name}", fresh, Lines())
                for name in FILES:  # the CSVs of `archive` stay as they are
                    (fresh / name).unlink(missing_ok=True)
                shutil.copytree(fresh, folder, dirs_exist_ok=True)
        for draw in study.figures:
            draw(data, folder / "figures")
    page = source / "README.md"
    if page.exists() and not page.is_symlink():  # a link may lead out of the folder
        values = dict(study.values(data))
        if study.sweep or study.planned:
            values[PROGRESS] = progress(folder, study)
        (folder / page.name).write_text(fill_page(page.read_text("utf-8"), values), "utf-8")
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image:
            quantized = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
        quantized.save(path, optimize=True)


def _mirror(fresh: Path, folder: Path) -> None:
    """Replace a study's files by those in ``fresh``, all or none, and remove figures that ``fresh`` lacks."""
    names = {path.relative_to(fresh) for path in fresh.rglob("*") if _is_published(path)}
    replace_together(fresh, make_folder(folder), names)
    figures = folder / "figures"
    if figures.is_symlink():
        return
    for path in figures.glob("*.png"):
        if path.relative_to(folder) not in names:
            path.unlink()


def _is_published(path: Path) -> bool:
    """Return whether a file belongs to the published files of a study, by its name."""
    is_internal = path.name[0] == "." or path.name == "manifest.json" or path.is_symlink()
    return path.is_file() and not is_internal and path.suffix in SUFFIXES


def is_tracked(path: Path) -> bool:
    """Return whether a file is tracked by the git repository of this checkout."""
    command = ["git", "-C", str(Path(__file__).parents[2]), "ls-files", "--error-unmatch", str(path)]
    try:
        return subprocess.run(command, capture_output=True, timeout=5).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
