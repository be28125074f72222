"""Regenerate the tables, figures and page of a study from its CSVs, byte for byte."""

import filecmp
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from PIL import Image

from pe_experiments.comparison import Comparison, compared, write_comparison
from pe_experiments.drawing import drawing
from pe_experiments.published.archive import FILES, SHIPPED, read_archive
from pe_experiments.published.blocks import fill_page
from pe_experiments.terminal.console import Lines
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import READY, finish_replacing, make_folder, replace_together

DATA = (".csv", ".json")
PUBLISHED = (*DATA, ".md", ".html", ".png", ".bib")  # other formats of a comparison would double the size
BY_HAND = ("plan.md",)  # not generated
DEPTHS = ("*", "*/*")  # e.g. text and bank/v2
COLOURS = 128  # of a published image, which reduces its size to a third


def regenerate(folder: Path) -> None:
    """Regenerate everything in a study's folder from its CSVs."""
    with _regenerated(folder) as fresh:
        mirror(fresh, folder)


def differences(folder: Path) -> list[Path]:
    """Return the files of a study that differ from what its CSVs give."""
    with _regenerated(folder) as fresh:
        # show_encoding.py writes other files to the folder of the explorer.
        bases = (folder, fresh) if (folder / FILES[-1]).exists() else (fresh,)
        names = set()
        for base in bases:
            paths = [*base.glob("*"), *base.glob("figures/*")]  # without those of a nested study
            names |= {str(path.relative_to(base)) for path in paths if _is_published(path)}
        names -= set(BY_HAND)
        same, _, _ = filecmp.cmpfiles(folder, fresh, names, shallow=False)
        return sorted(folder / name for name in names.difference(same))


@contextmanager
def _regenerated(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder with the CSVs of a study and everything generated from them."""
    with TemporaryDirectory() as scratch:
        fresh = Path(scratch) / folder.name
        fresh.mkdir()
        for path in folder.iterdir():
            if _is_published(path) and path.suffix in DATA:
                shutil.copy(path, fresh)
        make_pages(fresh, load_study(folder))
        yield fresh


def list_studies(results_dir: Path) -> list[Path]:
    """Return the folders of the published studies.

    Raises:
        UserError: no study is published there.
    """
    patterns = [f"{depth}/{name}" for depth in DEPTHS for name in (FILES[-1], "study.py")]
    folders = {path.parent for pattern in patterns for path in results_dir.glob(pattern)}
    folders = {
        folder for folder in folders if folder.name != READY and any(map(_is_published, folder.iterdir()))
    }
    for folder in folders:
        finish_replacing(folder)
    if not folders:
        raise UserError(f"results_dir={results_dir} has no published study; create one with publish=STUDY")
    return sorted(folders)


def load_study(folder: Path) -> ModuleType:
    """Import the ``study.py`` of a folder or of the shipped study of that name, or return an empty module."""
    name = re.sub(r"\W", "_", f"study_{folder.parent.name}_{folder.name}")
    places = [SHIPPED / folder.name, SHIPPED / folder.parent.name / folder.name]
    if folder.resolve().is_relative_to(SHIPPED):  # never run code that came with other results
        places = [folder]
    path = next((place / "study.py" for place in places if (place / "study.py").exists()), None)
    if path is None:
        return ModuleType(name)
    # Imported as a package, so that ``from .other import ...`` works.
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_pages(folder: Path, study: ModuleType) -> None:
    """Add figures, tables and the page to a folder of CSVs with the code of the study."""
    (folder / "figures").mkdir(exist_ok=True)
    with drawing(["png"]):  # the other formats are not published, and PDF takes most of the time
        if hasattr(study, "pages"):
            study.pages(folder)
        elif not hasattr(study, "blocks"):
            compare_archived(folder)
    if hasattr(study, "blocks"):
        page = Path(str(study.__file__)).with_name("README.md")
        if page.exists():
            filled = fill_page(page.read_text("utf-8"), study.blocks(folder))
            (folder / page.name).write_text(filled, "utf-8")
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as picture:  # few colours suffice for line drawings
            small = picture.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
        small.save(path, optimize=True)


def mirror(fresh: Path, folder: Path) -> None:
    """Replace a study's files by those of a temporary folder, all or none, and remove obsolete figures."""
    names = {path.relative_to(fresh) for path in fresh.rglob("*") if _is_published(path)}
    replace_together(fresh, make_folder(folder), names)
    figures = folder / "figures"
    for path in () if figures.is_symlink() else figures.glob("*.png"):
        if path.relative_to(folder) not in names:
            path.unlink()


def _is_published(path: Path) -> bool:
    hidden = path.name[0] == "." or path.name == "manifest.json"
    return path.is_file() and not hidden and path.suffix in PUBLISHED


def compare_archived(folder: Path) -> Comparison:
    """Write tables, figures and report of a published study into its folder without changing its CSVs."""
    data = {folder / name: (folder / name).read_bytes() for name in FILES}
    comparison = write_comparison(
        compared(read_archive(folder)), f"Comparison: {folder.name}", folder, Lines()
    )
    for path, content in data.items():
        path.write_bytes(content)
    return comparison
