"""Configurations composed from overrides and from Python mappings, and those that are refused.

Each is refused in one sentence with the key, the value and what is allowed;
`tests/integration/test_command_line.py` has those that only a command can meet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from pe_experiments.configuration.compose import compose_config, config_from_python
from pe_experiments.configuration.experiment import Experiment, trained_sections
from pe_experiments.configuration.hydra_errors import VERSION_BASE
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR
from pe_experiments.training.optimizer import TrainingOptimizer
from tests.conftest import Tiny

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


CALLBACK = "trainer.callbacks=[{{_target_: pytorch_lightning.callbacks.{}}}]"
MISTAKES = {
    "pe=a,b": "pe=a,b: several values need a sweep, -m 'pe=a,b'$",
    "model.d_model=1 model.num_heads=1": "model.d_model=1: a layer norm .* allowed: 2 or more",
    "evaluation.lengths=50": "evaluation.lengths=50: expected a list in brackets",
    "pe=rotary": r"pe=rotary is not a choice. Did you mean rope\? Allowed: sinusoidal, learned, rope",
    "pe=rope +pe.base=3": "pe.base is a setting already; write pe.base=3",
    "pe=[rope,none]": "pe takes one choice; for several runs write -m pe=rope,none",
    "logger=null": "logger needs a choice",
    "evaluation.lengths=[20, 40]": r"'evaluation.lengths=\[20,' cannot be read; write lists .* without",
    "seed=range(5)": r"or a sweep, -m 'seed=range\(5\)'$",
    "training.batch_size=99999999999999999999": "expected at most 2147483647",
    "pe=torch.nn.LayerNorm": "LayerNorm is a module, not a PositionalEncoding; wrap it",
    "results_dir=~/x": r"cannot be read; .*quote special characters, as in 'results_dir=\"~/x\"'",
    "wandb.project=foo": "options of Weights & Biases are logger.wandb.mode",
    "logger=none +logger.mine._target_=Mine": "logger.mine._target_=Mine: expected a logger such as",
    "hydra/sweeper=optuna": r'install --pre -e "\.\[tune\]" in an environment of its own',
    "evaluation.every=13": "evaluation.every=13 is above training.steps=12; allowed: at most 12, or null",
    "evaluation.every=4 trainer=fsdp": "with trainer.strategy=fsdp no device has the whole model",
    "trainer.callbacks=[{_target_: torch.nn.Linear}]": "torch.nn has no Callback of that name",
    CALLBACK.format("StochasticWeightAveraging, swa_lrs: 0.1"): "allowed instead: EMAWeight",
    "optimizer=sgd optimizer.lr=1": r"optimizer.lr is not .* training.learning_rate",
    "optimizer.betas=5": "optimizer cannot be built",
    "task=text training.stop_at_exact_match=0.5": "exact match is not measured on Text",
    "task=text model=encoder": "Text needs a decoder, because an encoder reads the symbols it should predict",
    "positions=task task=majority": "Majority marks no related symbols",
    "positions=task positions.max_positions=5": "max_positions=5 is below the 8 ids",
}


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("pe=NoPE task=Majority positions=Random_Offset", "pe=none task=majority positions=random_offset"),
        ("pe=YaRN pe.factor=2", "pe=rope_yarn pe.factor=2"),
        ("pe=learned-relative model=Decoder", "pe=learned_relative model=decoder"),
        ("pe=by_head pe.encodings=[ALiBi,Linear]", "pe=by_head pe.encodings=[alibi,rope_linear]"),
    ],
)
def test_case_does_not_matter(typed: str, spelled: str, tiny: Tiny) -> None:
    assert tiny(*typed.split()).label == tiny(*spelled.split()).label
    sections, expected = (trained_sections(tiny(*words.split()).full_config) for words in (typed, spelled))
    assert sections == expected


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_sentence(typed: str, tiny: Tiny) -> None:
    overrides = [typed] if "{" in typed else typed.split()
    with pytest.raises(UserError, match=MISTAKES[typed]) as refusal:
        build(tiny(*overrides))
    assert "\n" not in str(refusal.value)


def build(experiment: Experiment) -> None:
    model = experiment.untrained_model()
    TrainingOptimizer(model, experiment.components["optimizer"], experiment.config.training)
