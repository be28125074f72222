"""From Python the keys of the command line mean the same, and mistakes are the same sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from pe_experiments.configuration.compose import Composer, composed
from pe_experiments.configuration.experiment import resolve
from pe_experiments.configuration.overrides import normalised
from pe_experiments.configuration.schema import check
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR

ROPE = "pe_experiments.encodings.rope.Rope"


@pytest.mark.parametrize(
    ("keys", "typed"),
    [
        ({"pe": "rope", "training.steps": 100}, ["pe=rope", "training.steps=100"]),
        ({"pe._target_": ROPE, "+pe.base": 500.0}, [f"pe._target_={ROPE}", "+pe.base=500.0"]),
        ({"pe": "rope", "pe.base": 500.0}, ["pe=rope", "pe.base=500.0"]),
        ({"pe": {"_target_": ROPE}}, [f"pe._target_={ROPE}"]),
        ({"task": "text", "seed": 3}, ["task=text", "seed=3"]),
        ({"training": {"steps": 10}}, ["training.steps=10"]),
    ],
)
def test_keys_from_python_are_those_of_the_command_line(keys: dict[str, Any], typed: list[str]) -> None:
    assert check(composed("config", keys)) == check(composed("config", typed))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learning_rate": 0.1}, "Did you mean training.learning_rate?"),
        ({"steps": 10}, "Did you mean training.steps?"),
        ({"training.step": 10}, "Did you mean steps?"),
        ({"training": {"step": 10}}, "Did you mean steps?"),
        ({"nonsense": 1}, "nonsense is not a setting"),
        ({"dry_run": True}, "dry_run is an option of train.py; from Python each call makes one run"),
        ({"sweep.jobs": 2}, "sweep is not a setting"),
        ({"engine": "ray"}, "engine is not a setting"),
    ],
)
def test_what_is_no_setting_of_a_run_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        check(composed("config", keys))


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
def test_encodings_composed_apart_are_those_composed_together(choices: list[str]) -> None:
    """Also where another choice overrides the encoding."""
    made, whole = composer(), composer()
    whole._compose_choices = whole._compose  # type: ignore[method-assign]
    assert made.compose(choices) == whole.compose(choices)


@pytest.mark.parametrize(
    ("choices", "texts"),
    [
        ([], ["training={steps: 12, batch_size: 4}"]),
        (["pe=rope_nope"], ["pe.encodings.0.encodings.0.base=500"]),
        (["pe=rope"], ["+pe={base: 300.0}"]),
    ],
)
def test_values_are_set_as_hydra_sets_them(choices: list[str], texts: list[str]) -> None:
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        whole = loader.load_configuration("config", normalised([*choices, *texts]), RunMode.RUN)
    section = texts[0].lstrip("+").partition("=")[0].partition(".")[0]
    there = OmegaConf.to_container(whole[section])
    assert composer().compose(normalised([*choices, *texts]))[section] == there


def test_what_was_composed_stays_as_it_is() -> None:
    made = composer()
    made.compose(["seed=3"])["pe"]["base"] = 7
    assert made.compose([])["pe"]["base"] == 10_000
    assert made.compose([])["seed"] == 0


def test_interpolations_are_those_of_omegaconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "mine")
    typed = ["training.batch_size=${training.steps}", "training.steps=30", "label=${oc.env:MINE}"]
    config = check(composed("config", typed))
    assert (config.training.batch_size, config.label) == (30, "mine")
    for text, why in (("seed=${a.b}", "key 'a.b' not found$"), ("seed=${seed}", "Recursive")):
        with pytest.raises(UserError, match=f"^seed: .*{why}"):
            check(composed("config", [text]))


def test_what_is_said_to_a_command_is_no_part_of_a_run() -> None:
    typed = check(composed("config", ["dry_run=true", "bank/setting=s4"]))
    assert (typed.dry_run, typed.bank["symbols"], typed.seed) == (True, 40, 4)
    assert not {"dry_run", "bank"} & set(typed.model_dump())


def test_classes_are_named_in_three_ways() -> None:
    ways = (["pe=mine.X"], ["pe._target_=mine.X"], ["pe=custom", "pe._target_=mine.X"])
    assert [composed("config", typed)["pe"] for typed in ways] == [{"_target_": "mine.X"}] * 3
    assert composed("config", ["pe=nope"])["pe"] == composed("config", ["pe=none"])["pe"]
    model = composed("config", ["model=mine.M", "+model.width=3"])["model"]
    assert model == composed("config", ["model=custom"])["model"] | {"_target_": "mine.M", "width": 3}


def test_a_class_given_from_python_stands_for_itself() -> None:
    class Local(PositionalEncoding):
        pass

    experiment = resolve(check(composed("config", {"pe": Local})))
    assert experiment.components["pe"].cls is Local
    assert experiment.label == "Local"


def test_yaml_files_of_the_working_directory_are_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs" / "pe").mkdir(parents=True)
    mine = tmp_path / "configs" / "pe" / "mine.yaml"
    mine.write_text("_target_: mine.X\nslope: 0.1\n")
    monkeypatch.chdir(tmp_path)
    assert composed("config", ["pe=mine"])["pe"]["slope"] == 0.1
    mine.write_text("_target_: mine.X\nslope: 0.25\n")
    assert composed("config", {"pe": "mine"})["pe"]["slope"] == 0.25


def test_a_file_with_the_name_of_a_shipped_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs" / "sweep").mkdir(parents=True)
    (tmp_path / "configs" / "sweep" / "first_look.yaml").write_text("# @package _global_\nstudy: mine\n")
    normalised(["sweep=first_look"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"sweep=first_look: configs/sweep/first_look.yaml has the name of a"):
        normalised(["sweep=first_look"])


def test_arguments_as_hydra_takes_them() -> None:
    run = "run=results/runs/copy-decoder-rope(base=500,x)-s0-1"
    assert normalised(["-m", "pe=a", "--config-dir", "d", "seed=1"]) == [
        "pe=a",
        "seed=1",
        "-m",
        "--config-dir",
        "d",
    ]
    assert normalised([run]) == ["run='results/runs/copy-decoder-rope(base=500,x)-s0-1'"]
    assert normalised(["--info", "defaults", "task._target_=a.B"])[:2] == ["task._target_=a.B", "task=custom"]
