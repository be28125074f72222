"""Test the page of the newer encodings in the mirrored configurations, with stand-ins for their runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pe_experiments.comparison import Runs
from pe_experiments.drawing import drawing
from pe_experiments.published import read_archive
from pe_experiments.published.archive import select_runs, write_archive
from pe_experiments.published.blocks import fill_page
from results.bank.new_mirrored import study
from tests import recomputation

# The encodings whose runs stand for those of the newer ones.
STAND_INS = dict(zip(("fire", "none", "fox", "rope"), study.NEW, strict=True))
PAGE = Path(study.__file__).with_name("README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def stand_ins() -> Runs:
    archive = read_archive(study.MIRRORED)
    chosen = select_runs(archive, archive.runs["label"].isin(STAND_INS))
    frames: dict[str, Any] = {}
    for key in ("runs", "curves", "training", "depth"):
        frame = getattr(chosen, key)
        frames[key] = frame.assign(label=frame["label"].replace(STAND_INS)) if "label" in frame else frame
    return replace(chosen, **frames)


def published(runs: Runs, folder: Path) -> dict[str, Any]:
    """Publish runs, draw the figure, and return the values of the page, which has a mark for each table."""
    write_archive(runs, folder)
    (folder / "figures").mkdir()
    with drawing(["png"]):
        study.pages(folder)
    values = study.blocks(folder)
    fill_page(PAGE, values)
    return values


def test_complete_results_have_the_planned_tests(stand_ins: Runs, tmp_path: Path) -> None:
    values = published(stand_ins, tmp_path)
    assert values["settings"] == 12
    verdicts = recomputation.read_csv(tmp_path / "verdicts.csv")
    scores = recomputation.over_tasks(recomputation.bank_runs(study.MIRRORED), study.bank.TELLING, "score")
    original = {new: old for old, new in STAND_INS.items()}
    tests = [
        recomputation.sign_flip_p(scores[original[row["encoding"]]], scores[row["other"]]) for row in verdicts
    ]
    assert len(tests) == 8
    assert [float(row["p"]) for row in verdicts] == pytest.approx(
        recomputation.holm([p for _, p, _ in tests])
    )
    by_pair = {(row["encoding"], row["other"]): row for row in verdicts}
    assert by_pair["cope", "fox"]["verdict"] == "tied"  # the same runs
    assert by_pair["cpb_linear", "fox"]["verdict"] == "refuted"
    ranking = recomputation.read_csv(tmp_path / "ranking.csv")
    assert len(ranking) == 16
    assert {row["encoding"] for row in ranking[:2]} == {"fox", "cope"}
    assert [row["tied"] for row in ranking[:4]] == ["True", "True", "True", "False"]
    assert "significantly" in values["outcome"]
    assert values["ranking"].startswith("| ")
