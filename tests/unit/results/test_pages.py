"""Test that pages of studies are short and say how many of their planned runs are published."""

from __future__ import annotations

from pe_experiments.studies.blocks import NUMBER, TABLE
from pe_experiments.studies.pages import list_studies, load_study, progress
from tests.conftest import ROOT

RESULTS = ROOT / "results"
PAGES = sorted(RESULTS.rglob("README.md"))


def test_pages_are_short() -> None:
    """In words of their text, without generated tables and the marks of numbers."""
    words = {}
    for page in PAGES:
        text = NUMBER.sub(lambda mark: mark[2], TABLE.sub("", page.read_text("utf-8")))
        words[page.parent.name] = len(text.split())
    assert max(words.values()) <= 1_400
    assert sum(words.values()) <= 8_000


def test_every_page_of_a_study_with_runs_says_how_many_planned_runs_are_published() -> None:
    checked = []
    for folder in list_studies(RESULTS):
        study = load_study(folder)
        if (study.sweep or study.planned) and (folder / "README.md").exists():
            page = (folder / "README.md").read_text("utf-8")
            assert f"<!-- {{progress}} -->{progress(folder, study)}<!-- end -->" in page
            checked.append(folder.name)
    assert {"bank", "text", "extension", "precision", "tutorial_claims"} <= set(checked)
