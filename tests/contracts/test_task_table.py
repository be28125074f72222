"""The pages of encodings and tasks are generated, and recipes of tasks are commands that work."""

from __future__ import annotations

import re

import pytest

from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.terminal.files import CATALOGUE, read_yaml
from scripts.catalogue import PAGES, pages

# Read without checks: a missing entry fails the test of the table, not the collection of all tests.
ENTRIES = read_yaml(CATALOGUE)["tasks"]
QUICK = [name for name, entry in ENTRIES.items() if isinstance(entry, dict) and entry.get("tier") == "quick"]


def test_the_pages_are_up_to_date() -> None:
    generated = pages()
    stale = [path.name for path, text in generated.items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run python scripts/catalogue.py"
    assert {*PAGES.glob("*.md")} <= generated.keys()


def test_every_family_has_a_picture_of_its_encodings() -> None:
    """Matplotlib writes the texts of a drawing, such as the names of encodings, as comments."""
    for page in PAGES.glob("*.md"):
        titles = re.findall(r"<!-- (\w+)(?: \*)? -->", page.with_suffix(".svg").read_text())
        assert [title for title in titles if not title.isdigit()] == re.findall(
            r"^## (\w+)$", page.read_text(), re.M
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_recipes_are_complete_commands(name: str) -> None:
    recipe = ENTRIES[name]["recipe"].split()
    for key in ("model=", "pe=", "training.steps=", "training.max_length="):  # defaults may change
        assert any(part.startswith(key) for part in recipe), key
    experiment = Experiment(validated(Config, compose_config([f"task={name}", *recipe])))
    assert experiment.config.training.steps <= 4000
