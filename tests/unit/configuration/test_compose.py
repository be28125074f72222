"""Configurations composed from overrides and from Python mappings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from pe_experiments.configuration.compose import compose_config, config_from_python
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.hydra_errors import VERSION_BASE
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR

ROPE = "pe_experiments.encodings.rope.Rope"


@pytest.mark.parametrize(
    ("keys", "overrides"),
    [
        ({"pe": "rope", "training.steps": 100}, ["pe=rope", "training.steps=100"]),
        ({"pe._target_": ROPE, "+pe.base": 500.0}, [f"pe={ROPE}", "+pe.base=500.0"]),
        ({"pe": "rope", "pe.base": 500.0}, ["pe=rope", "pe.base=500.0"]),
        ({"pe": {"_target_": ROPE}}, [f"pe={ROPE}"]),
        ({"training": {"steps": 10}}, ["training.steps=10"]),
        (
            {"results_dir": Path("x"), "evaluation": {"lengths": (4, 6)}},
            ["results_dir=x", "evaluation.lengths=[4,6]"],
        ),
        ({"logger": ["csv", "wandb"]}, ["logger=[csv,wandb]"]),
    ],
)
def test_python_keys_equal_command_line_overrides(keys: dict[str, Any], overrides: list[str]) -> None:
    assert validated(Config, config_from_python(keys)) == validated(Config, compose_config(overrides))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"training": {"step": 10}}, "Did you mean training.steps?"),
        ({"sweep": "first_look"}, "sweep is an option of train.py; from Python each call makes one run"),
        ({"init_from": "somewhere"}, "parent is not a setting; it follows from init_from"),
        ({"optimizer": "sdg"}, "optimizer=sdg is not a choice. Did you mean sgd"),
        ({"pe.base": lambda: 1}, "pe.base: .* allowed: numbers, texts, lists and mappings"),
        ({"pe": {"base": torch.zeros(3)}}, "pe: .* allowed: numbers, texts, lists and mappings"),
    ],
)
def test_keys_and_values_that_cannot_be_set_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        validated(Config, config_from_python(keys))


def test_a_configuration_is_composed_inside_another_application() -> None:
    with initialize_config_dir(str(CONFIG_DIR / "model"), **VERSION_BASE):
        outer = GlobalHydra.instance().hydra
        assert compose_config(["seed=3"]).seed == 3
        assert GlobalHydra.instance().hydra is outer


def test_interpolations_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABEL", "my_run")
    overrides = ["training.batch_size=${training.steps}", "training.steps=30", "label=${oc.env:LABEL}"]
    config = validated(Config, compose_config(overrides))
    assert (config.training.batch_size, config.label) == (30, "my_run")
    for override, reason in (("seed=${a.b}", "key 'a.b' not found$"), ("seed=${seed}", "Recursive")):
        with pytest.raises(UserError, match=f"^seed: .*{reason}"):
            validated(Config, compose_config([override]))


def test_a_class_is_named_in_two_ways() -> None:
    for overrides in (["pe=my.X"], ["pe=custom", "pe._target_=my.X"]):
        assert compose_config(overrides)["pe"] == {"_target_": "my.X"}
    assert compose_config(["pe=nope"])["pe"] == compose_config(["pe=none"])["pe"]
    model = compose_config(["model=my.M", "+model.width=3"])["model"]
    custom = compose_config(["model=custom", "model._target_=my.M", "+model.width=3"])["model"]
    assert model == custom
    assert (model["_target_"], model["width"]) == ("my.M", 3)


def test_a_python_class_can_be_passed_directly() -> None:
    class Local(PositionalEncoding):
        pass

    experiment = Experiment(validated(Config, config_from_python({"pe": Local})))
    assert experiment.components["pe"].cls is Local
    assert experiment.label == "Local"


def test_yaml_files_of_the_working_directory_are_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs" / "pe").mkdir(parents=True)
    file = tmp_path / "configs" / "pe" / "new.yaml"
    file.write_text("_target_: my.X\nslope: 0.1\n")
    monkeypatch.chdir(tmp_path)
    assert compose_config(["pe=new"])["pe"]["slope"] == 0.1
    file.write_text("_target_: my.X\nslope: 0.25\n")
    assert config_from_python({"pe": "new"})["pe"]["slope"] == 0.25
