"""The tables under configs are generated from the catalogue, and recipes of tasks are commands that work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.schema import Config
from pe_experiments.terminal.files import CONFIG_DIR
from scripts.catalogue import cards, encodings, tasks

CARDS = {card.name: card for card in cards()}
QUICK = [name for name, card in CARDS.items() if card.tier == "quick"]


@pytest.mark.parametrize(("group", "page"), [("task", tasks), ("pe", encodings)])
def test_the_table_is_up_to_date(group: str, page: Callable[[], str]) -> None:
    assert (CONFIG_DIR / group / "README.md").read_text() == page(), "run python scripts/catalogue.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_recipes_are_complete_commands(name: str) -> None:
    recipe = CARDS[name].recipe.split()
    for key in ("model=", "pe=", "training.steps=", "training.max_length="):  # defaults may change
        assert any(part.startswith(key) for part in recipe), key
    experiment = Experiment(Config.checked(compose_config([f"task={name}", *recipe])))
    assert experiment.config.training.steps <= 4000
