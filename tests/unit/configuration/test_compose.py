"""Configurations composed from overrides and from Python mappings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from pe_experiments.configuration.compose import Composer, compose_config
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.overrides import normalise_overrides
from pe_experiments.configuration.schema import Config
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR

ROPE = "pe_experiments.encodings.rope.Rope"


@pytest.mark.parametrize(
    ("keys", "overrides"),
    [
        ({"pe": "rope", "training.steps": 100}, ["pe=rope", "training.steps=100"]),
        ({"pe._target_": ROPE, "+pe.base": 500.0}, [f"pe._target_={ROPE}", "+pe.base=500.0"]),
        ({"pe": "rope", "pe.base": 500.0}, ["pe=rope", "pe.base=500.0"]),
        ({"pe": {"_target_": ROPE}}, [f"pe._target_={ROPE}"]),
        ({"training": {"steps": 10}}, ["training.steps=10"]),
    ],
)
def test_python_keys_equal_command_line_overrides(keys: dict[str, Any], overrides: list[str]) -> None:
    assert Config.checked(compose_config(keys)) == Config.checked(compose_config(overrides))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learning_rate": 0.1}, "Did you mean training.learning_rate?"),
        ({"training.step": 10}, "Did you mean steps?"),
        ({"training": {"step": 10}}, "Did you mean steps?"),
        ({"nonsense": 1}, "nonsense is not a setting"),
        ({"dry_run": True}, "dry_run is an option of train.py; from Python each call makes one run"),
        ({"sweep.jobs": 2}, "sweep is not a setting"),
        ({"engine": "ray"}, "engine is not a setting"),
        ({"init_from": "somewhere"}, "parent is not a setting; it follows from init_from"),
    ],
)
def test_unknown_keys_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        Config.checked(compose_config(keys))


def composer() -> Composer:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return Composer(GlobalHydra.instance().config_loader(), "config")


@pytest.mark.slow
@pytest.mark.parametrize(
    "choices",
    [
        ["pe=rope", "task=reverse", "model=encoder"],
        ["pe=rope", "positions=random_offset", "sweep=text", "bank/encoding=own"],
        ["bank/encoding=rope_random_subset", "bank/setting=s4", "task=kth"],
        ["bank/encoding=learned_random_offset_2048", "sweep=text"],
        ["pe=alibi", "condition=huang_majority"],
    ],
)
def test_separately_composed_encodings_equal_the_full_composition(choices: list[str]) -> None:
    """Some of these choices override the encoding."""
    separate, full = composer(), composer()
    full._compose_choices = full._compose  # type: ignore[method-assign]
    assert separate.compose(choices) == full.compose(choices)


@pytest.mark.parametrize(
    ("choices", "values"),
    [
        ([], ["training={steps: 12, batch_size: 4}"]),
        (["pe=rope_nope"], ["pe.encodings.0.encodings.0.base=500"]),
        (["pe=rope"], ["+pe={base: 300.0}"]),
    ],
)
def test_values_are_set_as_hydra_sets_them(choices: list[str], values: list[str]) -> None:
    overrides = normalise_overrides([*choices, *values])
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        by_hydra = loader.load_configuration("config", overrides, RunMode.RUN)
    section = values[0].lstrip("+").partition("=")[0].partition(".")[0]
    assert composer().compose(overrides)[section] == OmegaConf.to_container(by_hydra[section])


def test_changing_a_composed_configuration_changes_no_later_one() -> None:
    shared = composer()
    shared.compose(["seed=3"])["pe"]["base"] = 7
    config = shared.compose([])
    assert (config["pe"]["base"], config["seed"]) == (10_000, 0)


def test_interpolations_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABEL", "my_run")
    overrides = ["training.batch_size=${training.steps}", "training.steps=30", "label=${oc.env:LABEL}"]
    config = Config.checked(compose_config(overrides))
    assert (config.training.batch_size, config.label) == (30, "my_run")
    for override, reason in (("seed=${a.b}", "key 'a.b' not found$"), ("seed=${seed}", "Recursive")):
        with pytest.raises(UserError, match=f"^seed: .*{reason}"):
            Config.checked(compose_config([override]))


def test_command_options_are_not_part_of_a_run() -> None:
    config = Config.checked(compose_config(["dry_run=true", "bank/setting=s4"]))
    assert (config.dry_run, config.bank["symbols"], config.seed) == (True, 40, 4)
    assert not {"dry_run", "bank"} & set(config.model_dump())


def test_a_class_is_named_in_three_ways() -> None:
    for overrides in (["pe=my.X"], ["pe._target_=my.X"], ["pe=custom", "pe._target_=my.X"]):
        assert compose_config(overrides)["pe"] == {"_target_": "my.X"}
    assert compose_config(["pe=nope"])["pe"] == compose_config(["pe=none"])["pe"]
    model = compose_config(["model=my.M", "+model.width=3"])["model"]
    assert model == compose_config(["model=custom"])["model"] | {"_target_": "my.M", "width": 3}


def test_a_python_class_can_be_passed_directly() -> None:
    class Local(PositionalEncoding):
        pass

    experiment = resolve(Config.checked(compose_config({"pe": Local})))
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
    assert compose_config({"pe": "new"})["pe"]["slope"] == 0.25


def test_a_file_with_the_name_of_a_shipped_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs" / "sweep").mkdir(parents=True)
    (tmp_path / "configs" / "sweep" / "first_look.yaml").write_text("# @package _global_\nstudy: s\n")
    normalise_overrides(["sweep=first_look"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"sweep=first_look: configs/sweep/first_look.yaml has the name of a"):
        normalise_overrides(["sweep=first_look"])


def test_arguments_are_ordered_and_quoted_for_hydra() -> None:
    flags = ["-m", "--config-dir", "d"]
    assert normalise_overrides(["-m", "pe=a", "--config-dir", "d", "seed=1"]) == ["pe=a", "seed=1", *flags]
    run = "results/runs/copy-decoder-rope(base=500,x)-s0-1"
    assert normalise_overrides([f"run={run}"]) == [f"run='{run}'"]
    assert normalise_overrides(["--info", "defaults", "task._target_=a.B"])[:2] == [
        "task._target_=a.B",
        "task=custom",
    ]
