"""The tables under configs are generated from the catalogue, and recipes of tasks are commands that work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.terminal.files import CATALOGUE, CONFIG_DIR, read_yaml
from scripts.catalogue import encodings, read_card, tasks

# Read without checks: a missing entry fails the test of the table, not the collection of all tests.
ENTRIES = read_yaml(CATALOGUE)["tasks"]
QUICK = [name for name, entry in ENTRIES.items() if isinstance(entry, dict) and entry.get("tier") == "quick"]


@pytest.mark.parametrize(("group", "page"), [("task", tasks), ("pe", encodings)])
def test_the_table_is_up_to_date(group: str, page: Callable[[], str]) -> None:
    assert (CONFIG_DIR / group / "README.md").read_text() == page(), "run python scripts/catalogue.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_recipes_are_complete_commands(name: str) -> None:
    recipe = read_card(name).recipe.split()
    for key in ("model=", "pe=", "training.steps=", "training.max_length="):  # defaults may change
        assert any(part.startswith(key) for part in recipe), key
    experiment = Experiment(validated(Config, compose_config([f"task={name}", *recipe])))
    assert experiment.config.training.steps <= 4000
