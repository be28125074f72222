"""From finished runs to the CSVs of a study, and from these to its tables, figures and pages.

Only the CSVs are facts; everything else under ``results/<study>`` is made from them, byte for byte, by
`regenerate`, and so are the numbers in the project's README.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from PIL import Image

from pe_experiments.comparison.compare import Options, write_comparison
from pe_experiments.comparison.runs_table import Runs, load_runs
from pe_experiments.console import Display, say
from pe_experiments.errors import UserError, allowed
from pe_experiments.files import write_atomically
from pe_experiments.studies import core, precision, tutorial_claims
from pe_experiments.studies.archive import FILES, read_archive, require_finished, write_archive
from pe_experiments.studies.audits import measure
from pe_experiments.studies.extension import evaluate_extensions
from pe_experiments.studies.figures_in_words import Figures, Timed, render
from pe_experiments.studies.provenance import repeat_some, require_one_known_source

END = "<!-- end -->"
OTHER = (".svg", ".pdf", ".tex")  # what compare.py makes and is not published: half of the space
COLOURS = 64  # of a published picture; a third of its size


@dataclass(frozen=True)
class Study:
    """Attributes:
    finish: makes the study's own tables when it is published, from the runs.
    write: makes its figures and pages from its CSVs.
    """

    finish: Callable[[Path, Runs, Path], None]
    write: Callable[[Path, Runs, Display], None]


def publish(study: str, results_dir: Path) -> Path:
    """Write the CSVs of a finished study and everything that follows from them; all of it or nothing.

    Raises:
        UserError: no such study, one that is not finished, or one that `provenance` refuses.
    """
    _known(study, "publish")
    runs = load_runs(results_dir, study)
    folder = results_dir / study
    say(f"{study}: {len(runs.runs)} runs")
    require_finished(runs, study)
    require_one_known_source(study, runs, results_dir)
    repeat_some(study, runs, results_dir)
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / study
        write_archive(runs, made)
        STUDIES[study].finish(made, runs, results_dir)
        _make(made, Display())
        _mirror(made, folder)
    return folder


def regenerate(folder: Path, out: Path | None = None, display: Display | None = None) -> None:
    """Make everything in a study's folder from its CSVs.

    Args:
        folder: with the CSVs.
        out: where to write; default the folder itself.
        display: shows how far the figures are.

    Raises:
        UserError: no published study there.
    """
    _known(folder.name, "study")
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        for source in folder.glob("*.csv"):
            (made / source.name).write_bytes(source.read_bytes())
        _make(made, display or Display())
        _mirror(made, out or folder)


def _make(folder: Path, display: Display) -> None:
    facts = {name: (folder / name).read_bytes() for name in FILES}
    STUDIES[folder.name].write(folder, read_archive(folder), display)
    for name, content in facts.items():  # `compare` writes its own of the same names
        (folder / name).write_bytes(content)
    for path in sorted(folder.rglob("*")):
        if path.suffix in OTHER or path.name[0] == ".":
            path.unlink()
        elif path.suffix == ".png":
            _shrink(path)


def _mirror(made: Path, folder: Path) -> None:
    """Copy what was made, and drop pictures that no longer are."""
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    for path in folder.glob("figures/*.png"):
        if path.relative_to(folder) not in names:
            path.unlink()
    for name in sorted(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((made / name).read_bytes())


def differences(folder: Path) -> list[Path]:
    """Files of a study that its CSVs would make otherwise, or not at all."""
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / folder.name
        regenerate(folder, made)
        names = {path.relative_to(base) for base in (folder, made) for path in base.rglob("*") if _ours(path)}
        return sorted(folder / name for name in names if not _same(folder / name, made / name))


def _ours(path: Path) -> bool:
    """Whether it belongs to what is published; a sweep leaves its manifest and other formats there too."""
    return (
        path.is_file() and path.name[0] != "." and path.name != "manifest.json" and path.suffix not in OTHER
    )


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def published(results_dir: Path) -> list[Path]:
    """Folders of the studies that are there.

    Raises:
        UserError: there is none.
    """
    found = [results_dir / name for name in STUDIES if (results_dir / name / FILES[-1]).exists()]
    if not found:
        raise UserError(f"results_dir={results_dir}: no published study there; allowed: {allowed(STUDIES)}")
    return found


def project_readme(text: str, results_dir: Path) -> str:
    """The project's README with the numbers of ``core`` and of the benchmark put in anew.

    Raises:
        UserError: the marks they stand between are gone.
    """
    timed = Timed.read(results_dir / "benchmark")
    blocks = {
        "core": render("which.md.j2", f=Figures(read_archive(results_dir / "core"))),
        "benchmark": render("speed.md.j2", b=timed, machine=timed.machine),
    }
    for name, block in blocks.items():
        mark = f"<!-- from results/{name}: make results -->\n"
        before, found, rest = text.partition(mark)
        _, end, after = rest.partition(END)
        if not (found and end):
            raise UserError(f"README.md: the line {mark.strip()} is missing; numbers stand from it to {END}")
        text = before + mark + block + END + after
    return text


def _shrink(path: Path) -> None:
    """A picture in few colours; its lines look the same."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
    few.save(path, optimize=True)


def _known(study: str, key: str) -> None:
    if study not in STUDIES:
        raise UserError(f"{key}={study} is not one of the choices: {allowed(STUDIES)}")


def _nothing_more(folder: Path, runs: Runs, results_dir: Path) -> None:
    """The runs say it all."""


def _finish_claims(folder: Path, runs: Runs, results_dir: Path) -> None:
    write_atomically(folder / "audits.csv", measure().to_csv(index=False))
    extended = evaluate_extensions(results_dir, runs)
    write_atomically(folder / "extension.csv", extended.to_csv(index=False))


def _compare(folder: Path, runs: Runs, display: Display) -> pd.DataFrame:
    return write_comparison(runs, f"Comparison: {folder.name}", folder, Options(), display=display).table


def _write_core(folder: Path, runs: Runs, display: Display) -> None:
    _compare(folder, runs, display)
    write_atomically(folder / "README.md", core.page(runs))


def _write_precision(folder: Path, runs: Runs, display: Display) -> None:
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    precision.draw(runs, folder / "figures")
    write_atomically(folder / "README.md", precision.page(runs))


def _write_claims(folder: Path, runs: Runs, display: Display) -> None:
    table = _compare(folder, runs, display)
    audits, extension = (
        pd.read_csv(folder / name, keep_default_na=False, na_values=[""], engine="python")
        for name in ("audits.csv", "extension.csv")
    )
    tutorial_claims.write(folder, audits, runs, table, extension)


STUDIES = {
    "core": Study(_nothing_more, _write_core),
    "tutorial_claims": Study(_finish_claims, _write_claims),
    "precision": Study(_nothing_more, _write_precision),
}
