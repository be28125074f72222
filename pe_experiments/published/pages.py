"""From the CSVs of a study to its tables, figures and pages, byte for byte, and what the pages share."""

from __future__ import annotations

import filecmp
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from pe_experiments.comparison import Comparison, Runs, compared, write_comparison
from pe_experiments.comparison.statistics import FEWEST, ROUNDING, mean_interval
from pe_experiments.comparison.words import number
from pe_experiments.drawing import drawing
from pe_experiments.published.archive import FILES, SHIPPED, read_archive
from pe_experiments.terminal.console import Lines
from pe_experiments.terminal.errors import UserError, few
from pe_experiments.terminal.files import READY, finish_replacing, make_folder, replace_together

FACTS = (".csv", ".json")
PUBLISHED = (*FACTS, ".md", ".html", ".png", ".bib")  # a comparison makes other formats, half of the space
BY_HAND = ("plan.md",)  # written before the runs
DEPTHS = ("*", "*/*")  # text, bank/v2
COLOURS = 128  # of a published picture; a third of its size
BLOCK = re.compile(r"(<!-- from ([\w/.]+): make results -->\n).*?(<!-- end -->)", re.DOTALL)


def regenerate(folder: Path, results_dir: Path | None = None) -> None:
    """Make everything in a study's folder from its CSVs."""
    with _made_anew(folder) as made:
        mirror(made, folder, results_dir or folder.parent)


def differences(folder: Path) -> list[Path]:
    """Files of a study that its CSVs would make otherwise, or not at all."""
    with _made_anew(folder) as made:
        # Beside the explorer lie the pictures and pages that show_encoding.py writes.
        bases = (folder, made) if (folder / FILES[-1]).exists() else (made,)
        found = [(base, path) for base in bases for path in (*base.glob("*"), *base.glob("figures/*"))]
        names = {str(path.relative_to(base)) for base, path in found if _kept(path)}  # no study inside it
        names -= set(BY_HAND)
        same, _, _ = filecmp.cmpfiles(folder, made, names, shallow=False)
        return sorted(folder / name for name in names.difference(same))


@contextmanager
def _made_anew(folder: Path) -> Iterator[Path]:
    with TemporaryDirectory() as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        for path in folder.iterdir():
            if _kept(path) and path.suffix in FACTS:
                shutil.copy(path, made)
        make(made, code_of(folder))
        yield made


def published(results_dir: Path) -> list[Path]:
    """Return the folders of the studies that are there."""
    named = [f"{depth}/{name}" for depth in DEPTHS for name in (FILES[-1], "study.py")]
    found = {path.parent for pattern in named for path in results_dir.glob(pattern)}
    found = {folder for folder in found if folder.name != READY and any(map(_kept, folder.iterdir()))}
    for folder in found:
        finish_replacing(folder)
    if not found:
        raise UserError(f"results_dir={results_dir}: no published study there; publish=STUDY makes one")
    return sorted(found)


def code_of(folder: Path) -> ModuleType:
    """The ``study.py`` of a folder, or of the project's study of that name; without one, nothing."""
    name = re.sub(r"\W", "_", f"study_{folder.name}")
    ours = folder.resolve().is_relative_to(SHIPPED)  # what came with others' results is not run
    places = [folder] if ours else [SHIPPED / folder.name, SHIPPED / folder.parent.name / folder.name]
    path = next((place / "study.py" for place in places if (place / "study.py").exists()), None)
    if path is None:
        return ModuleType(name)
    beside = [str(path.parent)]  # for ``from .other import ...``
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=beside)
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(folder: Path, code: ModuleType) -> None:
    """Add to a folder of CSVs what the code of its study makes of them."""
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


def mirror(made: Path, folder: Path, results_dir: Path) -> None:
    """Replace the files of a study by those that were made, all or none; figures made no more are deleted."""
    names = {path.relative_to(made) for path in made.rglob("*") if _kept(path)}
    replace_together(made, make_folder(folder, results_dir), names)
    for path in folder.glob("figures/*.png"):
        if path.relative_to(folder) not in names:
            path.unlink()


def _kept(path: Path) -> bool:
    hidden = path.name[0] == "." or path.name == "manifest.json"
    return path.is_file() and not hidden and path.suffix in PUBLISHED


def with_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """A page with the text between its marks made anew."""
    if unknown := {name for _, name, _ in BLOCK.findall(text)} - set(blocks):
        raise UserError(f"README.md: no block {few(sorted(unknown))} is made, only {few(sorted(blocks))}")
    return BLOCK.sub(lambda block: f"{block[1]}{blocks[block[2]].strip()}\n{block[3]}", text)


def project_readme(text: str, results_dir: Path) -> str:
    """The project's README; each of its blocks is named by a study and holds the block ``answer`` of it."""
    studies = {name: results_dir / name.removeprefix("results/") for _, name, _ in BLOCK.findall(text)}
    return with_blocks(text, {name: code_of(at).blocks(at)["answer"] for name, at in studies.items()})


def compare_archived(folder: Path) -> Comparison:
    """Tables, figures and report of a published study, in its folder; its CSVs stay as they are."""
    runs, facts = read_archive(folder), {folder / name: (folder / name).read_bytes() for name in FILES}
    title = f"Comparison: {folder.name}"
    made = write_comparison(compared(runs), title, folder, Lines())
    for path, content in facts.items():
        path.write_bytes(content)
    return made


def with_settings(runs: Runs, **keys: str) -> pd.DataFrame:
    """The runs with a column per setting, as ``with_settings(runs, width="model.d_model")``."""
    trained = [runs.saved[name]["identity"]["trained"] for name in runs.runs["name"]]
    where = {column: key.split(".") for column, key in keys.items()}
    columns = {column: [one[group].get(key) for one in trained] for column, (group, key) in where.items()}
    return runs.runs.assign(**columns)


def rate_in_words(choice: Mapping[str, Any]) -> str:
    """The learning rate chosen; an asterisk where it is the edge of those tried."""
    tried, chosen = sorted(map(float, choice["tried"])), float(choice["chosen"])
    return f"{chosen:g}" + "*" * (chosen in (tried[0], tried[-1]))


def mean_in_words(values: Iterable[float], of: str = "seed") -> str:
    """``0.32 [0.08, 0.70]``; ``1.00 in all 5 seeds`` where they agree; no interval under three."""
    numbers = list(values)
    interval = mean_interval(numbers)
    estimate, low, high = map(number, (interval.estimate, interval.low, interval.high))
    if len(numbers) < FEWEST:
        return f"{estimate} ({len(numbers)} {of}{'s' * (len(numbers) > 1)})"
    if np.ptp(numbers) <= ROUNDING:
        return f"{estimate} in all {len(numbers)} {of}s"
    return f"{estimate} [{low}, {high}]"
