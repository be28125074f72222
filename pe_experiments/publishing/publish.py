"""From finished runs to the CSVs of a study, and from these to its tables, figures and pages.

Only the CSVs are facts; everything else under ``results/<study>`` is made from them, byte for byte, by
`regenerate`, and so are the lines of the project's README that a study answers for.
"""

from __future__ import annotations

import filecmp
import importlib.util
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from omegaconf import OmegaConf
from PIL import Image

from pe_experiments.comparison.runs_table import Runs, load_runs
from pe_experiments.console import say
from pe_experiments.errors import UserError, few
from pe_experiments.files import CONFIG_DIR
from pe_experiments.publishing.archive import EVALUATED, FILES, joined, only, read_archive, write_archive
from pe_experiments.publishing.pages import compare_archived
from pe_experiments.publishing.provenance import repeat_some, require_one_known_source
from pe_experiments.runs import COMPLETED, run_directory, seed_and_hash

FACTS = ("*.csv", "*.json")  # what a study keeps; a sweep leaves its manifest there, too
OTHER = (".svg", ".pdf", ".tex")  # what a comparison makes and is not published: half of the space
CODE = (".py", ".pyc")
DEPTHS = ("*", "*/*")  # core, bank/v1
COLOURS = 64  # of a published picture; a third of its size
BLOCK = re.compile(r"(<!-- from results/([\w/]+): make results -->\n).*?(<!-- end -->)", re.DOTALL)


def publish(named: str, results_dir: Path) -> None:
    """Write the CSVs of a study and everything that follows from them; all of it or nothing.

    Only seeds whose runs are all finished are published. With ``sweep.publish: finished`` in the study's
    sweep every finished run is, and runs published earlier stay.

    Args:
        named: the study, or the sweep that makes it.
        results_dir: holds the runs; the study is written there too.

    Raises:
        UserError: no such study, nothing of it that is finished, or runs that `provenance` refuses.
    """
    sweep = CONFIG_DIR / "sweep" / f"{named}.yaml"
    said = OmegaConf.load(sweep) if sweep.exists() else OmegaConf.create()
    study = str(OmegaConf.select(said, "study") or named)
    folder, grows = results_dir / study, OmegaConf.select(said, "sweep.publish") == "finished"
    found = load_runs(results_dir, study)
    if not (found.saved or found.left_out):
        raise UserError(f"publish={study}: it has no runs")
    for name, saved in found.saved.items():
        result = run_directory(results_dir, name).read_result() or {}
        saved[EVALUATED] = result["evaluation"]["code"] if result.get("status") == COMPLETED else {}
    published = joined(read_archive(folder), found) if grows and (folder / FILES[-1]).exists() else found
    require_one_known_source(study, published)
    if not grows:
        published = found = only(found, _finished_seeds(study, found))
    elif waiting := set(found.left_out) - set(published.saved):
        say(f"{study}: {len(waiting)} runs are not finished yet")
    earlier = len(published.saved) - len(found.saved)
    say(f"{study}: {len(published.saved)} runs" + f", {earlier} of them published earlier" * bool(earlier))
    repeat_some(study, found, results_dir)
    code = code_of(folder)
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / study
        write_archive(published, made)
        if hasattr(code, "measure"):
            code.measure(made, published, results_dir)
        _make(made, code)
        _mirror(made, folder)


def _finished_seeds(study: str, runs: Runs) -> set[str]:
    """Names of the runs of those seeds whose every combination is finished; reports the other seeds."""
    unfinished = {name.partition("/")[0] for name in runs.left_out}
    names = {*runs.saved, *unfinished}
    seeds = {name: int(seed_and_hash(name)[2:].partition("-")[0]) for name in names}
    combinations = runs.runs.groupby(["protocol", "scheme"]).ngroups if runs.saved else 0
    needed = max(combinations, *Counter(seeds.values()).values())
    finished = Counter(seeds[name] for name in names - unfinished)
    left = sorted({seed for seed in seeds.values() if finished[seed] < needed})
    why = [f"{name}: {reason}" for name, reason in runs.left_out.items()]
    said = f"not finished is seed {', '.join(map(str, left))}" + (f" ({few(why)})" if why else "")
    if len(left) == len(set(seeds.values())):
        raise UserError(f"publish={study}: {said}; finish one seed of every combination first")
    if left:
        say(f"{study}: left out, {said}")
    return {name for name, seed in seeds.items() if seed not in left}


def regenerate(folder: Path, out: Path | None = None) -> None:
    """Make everything in a study's folder from its CSVs, there or in ``out``.

    Raises:
        UserError: no published study there.
    """
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        for source in [path for pattern in FACTS for path in folder.glob(pattern) if _kept(path)]:
            shutil.copy(source, made)
        _make(made, code_of(folder))
        _mirror(made, out or folder)


def code_of(folder: Path) -> ModuleType:
    """The ``study.py`` of a folder, or of the project's study of that name; without one, nothing."""
    name = re.sub(r"\W", "_", f"study_{folder.name}")
    shipped = CONFIG_DIR.parent / "results"
    places = (folder, shipped / folder.name, shipped / folder.parent.name / folder.name)
    found = (place / "study.py" for place in places)
    path = next((path for path in found if path.exists()), None)
    if path is None:
        return ModuleType(name)
    beside = [str(path.parent)]  # for ``from .other import ...``
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=beside)
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make(folder: Path, code: ModuleType) -> None:
    if hasattr(code, "pages_without_runs"):
        code.pages_without_runs(folder)
        return
    facts = {name: (folder / name).read_bytes() for name in FILES}
    getattr(code, "pages", compare_archived)(folder, read_archive(folder))
    for name, content in facts.items():  # the comparison writes its own of the same names
        (folder / name).write_bytes(content)
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as picture:  # in few colours; its lines look the same
            small = picture.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
        small.save(path, optimize=True)


def _mirror(made: Path, folder: Path) -> None:
    """Copy what was made, and drop pictures that no longer are."""
    names = {path.relative_to(made) for path in made.rglob("*") if _kept(path)}
    for path in folder.glob("figures/*.png"):
        if path.relative_to(folder) not in names:
            path.unlink()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made / name, folder / name)


def _kept(path: Path) -> bool:
    """Whether a file is published; a sweep leaves its manifest and other formats, a study its code."""
    hidden = path.name[0] == "." or path.name == "manifest.json"
    return path.is_file() and not hidden and path.suffix not in (*OTHER, *CODE)


def differences(folder: Path) -> list[Path]:
    """Files of a study that its CSVs would make otherwise, or not at all."""
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / folder.name
        regenerate(folder, made)
        # Beside the explorer lie the pictures and pages that show_encoding.py writes.
        bases = (folder, made) if (folder / FILES[-1]).exists() else (made,)
        names = {str(path.relative_to(base)) for base in bases for path in base.rglob("*") if _kept(path)}
        same, _, _ = filecmp.cmpfiles(folder, made, names, shallow=False)
        return sorted(folder / name for name in names.difference(same))


def published(results_dir: Path) -> list[Path]:
    """Folders of the studies that are there.

    Raises:
        UserError: there is none.
    """
    found = {path.parent for depth in DEPTHS for path in results_dir.glob(f"{depth}/{FILES[-1]}")}
    own = (path.parent for depth in DEPTHS for path in results_dir.glob(f"{depth}/study.py"))
    found |= {folder for folder in own if hasattr(code_of(folder), "pages_without_runs")}
    if not found:
        raise UserError(f"results_dir={results_dir}: no published study there; publish=STUDY makes one")
    return sorted(found)


def project_readme(text: str, results_dir: Path) -> str:
    """The project's README with the lines made anew that studies answer for with ``readme(folder)``."""

    def made(block: re.Match[str]) -> str:
        folder = results_dir / block[2]
        return block[1] + code_of(folder).readme(folder) + block[3]

    return BLOCK.sub(made, text)
