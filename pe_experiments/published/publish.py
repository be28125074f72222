"""From finished runs to the CSVs of a study, and from these to its tables, figures and pages.

Only the CSVs are facts; everything else under ``results/<study>`` is made from them, byte for byte, by
`regenerate`. In a README that is the text between ``<!-- from NAME: make results -->`` and ``<!-- end -->``;
the rest of it is written by hand.
"""

from __future__ import annotations

import filecmp
import importlib.util
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from omegaconf import OmegaConf
from PIL import Image

from pe_experiments.comparison.runs import Runs, load_runs
from pe_experiments.drawing import drawing
from pe_experiments.published.adopt import register
from pe_experiments.published.archive import (
    EVALUATED,
    FILES,
    SHIPPED,
    WITNESS,
    joined,
    only,
    read_archive,
    read_witness,
    write_archive,
)
from pe_experiments.published.pages import compare_archived
from pe_experiments.published.provenance import repeat_some, require_one_known_source
from pe_experiments.store.directory import COMPLETED, run_directory, seed_and_hash
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.terminal.files import CONFIG_DIR, write_atomically

FACTS = (".csv", ".json")
PUBLISHED = (*FACTS, ".md", ".html", ".png", ".bib")  # a comparison makes other formats, half of the space
DEPTHS = ("*", "*/*")  # core, bank/v1
COLOURS = 64  # of a published picture; a third of its size
BLOCK = re.compile(r"(<!-- from ([\w/.]+): make results -->\n).*?(<!-- end -->)", re.DOTALL)


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
    witnessed = repeat_some(study, found, published, read_witness(folder))
    code = code_of(folder)
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / study
        write_archive(published, made)
        write_atomically(made / WITNESS, witnessed.to_csv(index=False))
        if hasattr(code, "measure"):
            code.measure(made, published, results_dir)
        _make(made, code)
        _mirror(made, folder)
    if results_dir.resolve() == SHIPPED:  # nobody else's studies say which code the project's is
        register(published)


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
        for path in folder.iterdir():
            if _kept(path) and path.suffix in FACTS:
                shutil.copy(path, made)
        _make(made, code_of(folder))
        _mirror(made, out or folder)


def code_of(folder: Path) -> ModuleType:
    """The ``study.py`` of a folder, or of the project's study of that name; without one, nothing."""
    name = re.sub(r"\W", "_", f"study_{folder.name}")
    places = (folder, SHIPPED / folder.name, SHIPPED / folder.parent.name / folder.name)
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
    (folder / "figures").mkdir(exist_ok=True)
    with drawing():
        if hasattr(code, "pages"):
            code.pages(folder)
        elif not hasattr(code, "blocks"):
            compare_archived(folder)
    if hasattr(code, "blocks") and (page := Path(str(code.__file__)).with_name("README.md")).exists():
        (folder / page.name).write_text(with_blocks(page.read_text("utf-8"), code.blocks(folder)), "utf-8")
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
    """Whether a file is published; a sweep leaves its manifest there, too."""
    hidden = path.name[0] == "." or path.name == "manifest.json"
    return path.is_file() and not hidden and path.suffix in PUBLISHED


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
    own = {path.parent for depth in DEPTHS for path in results_dir.glob(f"{depth}/study.py")}
    found |= {folder for folder in own if any(_kept(path) for path in folder.iterdir())}
    if not found:
        raise UserError(f"results_dir={results_dir}: no published study there; publish=STUDY makes one")
    return sorted(found)


def with_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """A page with the text between its marks made anew.

    Raises:
        UserError: the page has a mark of a block that is not made.
    """
    if unknown := {name for _, name, _ in BLOCK.findall(text)} - set(blocks):
        raise UserError(f"README.md: no block {few(sorted(unknown))} is made, only {few(sorted(blocks))}")
    return BLOCK.sub(lambda block: f"{block[1]}{blocks[block[2]].strip()}\n{block[3]}", text)


def project_readme(text: str, results_dir: Path) -> str:
    """The project's README; each of its blocks is named by a study and holds the block ``answer`` of it."""
    studies = {name: results_dir / name.removeprefix("results/") for _, name, _ in BLOCK.findall(text)}
    return with_blocks(text, {name: code_of(at).blocks(at)["answer"] for name, at in studies.items()})
