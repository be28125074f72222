"""Today's code gives the published numbers: of every study, one kind of run per scheme is replayed.

An edit that moves a number fails here by study and scheme; ``python scripts/results.py adopt=all`` replays
everything and takes what agrees.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_experiments.published.adopt import witness
from pe_experiments.published.archive import FILES, read_archive, read_witness
from pe_experiments.published.pages import published
from pe_experiments.published.replay import Kind, kinds_of
from pe_experiments.store.identity import identify
from pe_experiments.terminal.console import Display
from tests.conftest import ROOT

FIRST = 20  # steps
STUDIES = [folder for folder in published(ROOT / "results") if (folder / FILES[-1]).exists()]


def shortest(folder: Path) -> list[Kind]:
    """One kind per scheme."""
    kinds = kinds_of(read_archive(folder), read_witness(folder))
    if not all(kind.has_data for kind in kinds):
        pytest.skip("its data files are not here, as with another Python's standard library")
    return list({kind.label: kind for kind in kinds}.values())


@pytest.mark.slow
@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: str(folder.relative_to(ROOT / "results")))
def test_every_scheme_gives_the_published_numbers(folder: Path, tmp_path: Path) -> None:
    kinds = shortest(folder)
    finding = witness(kinds, 0, FIRST, tmp_path, Display())
    finding.differing |= witness(kinds[-1:], 0, None, tmp_path, Display()).differing
    assert not finding.differing, f"{folder}: {'; '.join(finding.differing.values())}"


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: str(folder.relative_to(ROOT / "results")))
def test_known_code_names_the_published_runs(folder: Path) -> None:
    """They are found again in anybody's results."""
    for kind in shortest(folder):
        if not kind.unknown:
            assert identify(kind.experiment()).hash8 == kind.run[-8:], kind.run
