"""Test what all pages of studies say about how far their runs are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pe_experiments.studies.blocks import NUMBER, TABLE
from pe_experiments.studies.pages import list_studies, load_study, progress
from tests import recomputation
from tests.conftest import ROOT

RESULTS = ROOT / "results"
PAGES = sorted(RESULTS.rglob("README.md"))
# What becomes false when a study grows; beside a count, only a generated sentence may say so.
STALE = re.compile(
    r"\b(un)?finished\b|\bnot (yet )?(measured|complete)\b|\bso far\b|\b(one|two) of three\b",
    re.I,
)
COUNT = re.compile(r"\d|\b(one|two|three|four|five|six|ten|twelve|no|none|all)\b", re.I)


def stale_sentences(page: str) -> list[str]:
    """Return the typed sentences that say how far runs are, beside a count."""
    typed = NUMBER.sub("", TABLE.sub("", page))
    sentences = re.split(r"(?<=[.:;!?])\s+", typed)
    return [sentence for sentence in sentences if STALE.search(sentence) and COUNT.search(sentence)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.parent.name)
def test_no_sentence_typed_by_hand_counts_runs_that_are_still_to_come(page: Path) -> None:
    sentences = stale_sentences(page.read_text("utf-8"))
    if page.parent.name == "bank" and largest_models_are_as_the_page_says():
        sentences = [sentence for sentence in sentences if not sentence.startswith("At 6.3 million")]
    assert sentences == []


def largest_models_are_as_the_page_says() -> bool:
    """Return whether the bank's largest models have no run of copying and one seed of `flip_flop`."""
    rows = recomputation.read_csv(RESULTS / "bank" / "runs.csv")
    cases = {(row["task"], row["seed"]) for row in rows if float(row["parameters"]) > 5e6}
    tasks = [task for task, _ in cases]
    return tasks.count("copy") == 0 and tasks.count("flip_flop") == 1


def test_a_stale_sentence_is_seen_and_a_generated_one_is_not() -> None:
    assert stale_sentences("Good. Two of three seeds are finished, none of the larger.") != []
    assert stale_sentences("This study has <!-- {progress} -->3 of 9 runs finished<!-- end -->.") == []


def test_pages_are_short() -> None:
    """As `wc -w` counts, generated tables and the marks of numbers included."""
    words = {page.parent.name: len(page.read_text("utf-8").split()) for page in PAGES}
    assert words.pop("bank") <= 2_500
    assert max(words.values()) <= 1_500
    assert sum(words.values()) <= 12_500


def test_every_page_of_a_study_with_runs_says_how_many_planned_runs_are_published() -> None:
    checked = []
    for folder in list_studies(RESULTS):
        study = load_study(folder)
        if (study.sweep or study.planned) and (folder / "README.md").exists():
            page = (folder / "README.md").read_text("utf-8")
            assert f"<!-- {{progress}} -->{progress(folder, study)}<!-- end -->" in page
            checked.append(folder.name)
    assert {"bank", "text", "extension", "precision", "tutorial_claims"} <= set(checked)
