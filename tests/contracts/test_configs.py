"""Every YAML under configs composes, resolves and runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf

from hydra_plugins.pe_experiments.sweeps import GridSweeper
from pe_experiments.checking.own_classes import _check_model
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.hydra_versions import VERSION_BASE
from pe_experiments.configuration.parts import load_component, shipped
from pe_experiments.configuration.schema import Config
from pe_experiments.data.batches import TrainingStream
from pe_experiments.evaluation.curve import extrapolation_curve
from pe_experiments.published.archive import published_keys, read_table
from pe_experiments.store.identity import config_key, identify
from pe_experiments.sweeps.launch import _checked
from pe_experiments.terminal.errors import NotApplicable
from pe_experiments.terminal.files import CONFIG_DIR
from pe_experiments.training.loop import batch_loss
from pe_experiments.training.optimizer import TrainingOptimizer
from tests.conftest import ROOT

GROUPS = ("pe", "positions", "model", "training", "optimizer", "evaluation", "trainer", "logger")
CHOICES = {f"{group}={path.stem}" for group in GROUPS for path in (CONFIG_DIR / group).glob("*.yaml")}
WITHOUT_CLASS = {f"{group}=custom" for group in GROUPS}
WITHOUT_DEVICE = {
    "trainer=gpu": "finds no CUDA device",
    "trainer=mps": "finds no Apple GPU",
    "trainer=fsdp": "trainer.strategy=fsdp needs CUDA devices",
}


def stepped(experiment: Experiment, length: int) -> dict[str, Any]:
    """The evaluation at one length after one optimizer step, which changes the weights."""
    training = experiment.config.training
    source = experiment.source
    _check_model(experiment)  # which every run does only for classes of the user
    model = experiment.untrained_model()
    before = [parameter.clone() for parameter in model.parameters()]
    batch = TrainingStream(source, training.batch_size, training.batching).batch(0)
    optimizer = TrainingOptimizer(model, experiment.components["optimizer"], training)
    batch_loss(model, batch).backward()
    optimizer.step()
    assert any((old != new).any() for old, new in zip(before, model.parameters(), strict=True))
    (row,) = extrapolation_curve(model, source, [length], 20, experiment.max_length)
    return row


@pytest.mark.slow
@pytest.mark.parametrize("choice", sorted(CHOICES - WITHOUT_CLASS - WITHOUT_DEVICE.keys()))
def test_every_choice_trains_and_evaluates(choice: str, tiny: Callable[..., Experiment]) -> None:
    row = stepped(tiny(choice), 9)
    assert (row["length"], row["examples"]) == (9, 20)
    assert 0 < row["loss"] < math.inf


FAMILIES = {section["_target_"].rpartition(".")[0]: task for task, section in shipped("task").items()}
FORMS = [(task, "decoder") for task in shipped("task")] + [(task, "encoder") for task in FAMILIES.values()]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "model"), FORMS)
def test_every_task_trains_and_one_of_each_family_in_both_forms(
    task: str, model: str, tiny: Callable[..., Experiment]
) -> None:
    """The contract of tasks covers the layout of the others."""
    overrides = (f"task={task}", f"model={model}", "training.max_length=8", "evaluation.lengths=[13]")
    decoder_only = getattr(load_component("task", shipped("task")[task]).build(), "decoder_only", None)
    if model == "encoder" and decoder_only:
        with pytest.raises(NotApplicable, match=decoder_only):
            tiny(*overrides)
        return
    row = stepped(tiny(*overrides), 13)
    assert (row["length"], row["examples"]) == (13, 20)
    assert 0 < row["loss"] < math.inf


SWEEPS = sorted(path.stem for path in (CONFIG_DIR / "sweep").glob("*.yaml"))
STUDIES = {name: OmegaConf.load(CONFIG_DIR / "sweep" / f"{name}.yaml").study for name in SWEEPS}
PUBLISHED: dict[str, list[str]] = {}
for preset, study in STUDIES.items():
    if (ROOT / "results" / study / "provenance.csv").exists():
        PUBLISHED.setdefault(study, []).append(preset)


class Sweep:
    """A sweep of train.py: its shared configuration, and the overrides of each of its runs."""

    def __init__(self, command: str):
        with initialize_config_dir(str(CONFIG_DIR), **VERSION_BASE):
            self.loader = GlobalHydra.instance().config_loader()
        self.config = self.loader.load_configuration("config", command.split(), RunMode.MULTIRUN)
        varied = [f"{key}={value}" for key, value in self.config.hydra.sweeper.params.items()]
        parser = OverridesParser.create(config_loader=self.loader)
        (self.runs,) = GridSweeper.split_arguments(parser.parse_overrides([*varied, *command.split()]), None)

    def experiment(self, run: Sequence[str]) -> Experiment:
        return resolve(_checked(self.loader.load_sweep_config(self.config, list(run)), run))


def commands_of(preset: str) -> list[str]:
    """The preset alone, and the commands for the same study in its comment."""
    text = (CONFIG_DIR / "sweep" / f"{preset}.yaml").read_text()
    more = re.findall(rf"^#   (?:python scripts/train.py )?(sweep={preset} .*?)(?:  |$)", text, re.MULTILINE)
    return [f"sweep={preset}", *(command for command in more if not re.search("study=|my_module", command))]


Runs = list[tuple[Sweep, Sequence[str]]]


def runs_of(commands: Iterable[str], study: str) -> Runs:
    """All runs of these commands, which belong to this study."""
    sweeps = [Sweep(command) for command in commands]
    assert {sweep.config.study for sweep in sweeps} == {study}
    return [(sweep, run) for sweep in sweeps for run in sweep.runs]


def with_every_value(runs: Runs) -> Runs:
    """A subset of the runs in which every override of every command occurs."""
    seen: set[tuple[Sweep, str]] = set()
    chosen = []
    for sweep, run in runs:
        overrides = {(sweep, override) for override in run}
        if overrides - seen:
            seen |= overrides
            chosen.append((sweep, run))
    return chosen


SEED = r"\b(?:seed=|bank/setting=s)(\d+)"
UNPUBLISHED = [name for name in SWEEPS if STUDIES[name] not in PUBLISHED]


@pytest.mark.parametrize(
    "name",
    [name if name == "first_look" else pytest.param(name, marks=pytest.mark.slow) for name in UNPUBLISHED],
)
def test_unpublished_presets_expand_to_valid_configurations(name: str) -> None:
    needed = " pe=rope" if name == "versus" else ""
    commands = [command + needed for command in commands_of(name)]
    runs = with_every_value(runs_of(commands, STUDIES[name]))
    names = {identify(sweep.experiment(run)).name() for sweep, run in runs}
    different = {tuple(run) for _, run in runs}  # several commands may name the same run
    assert len(names) == len(different), "two runs of the preset are the same"


@pytest.mark.slow
@pytest.mark.parametrize("study", PUBLISHED)
def test_presets_expand_to_the_configurations_of_the_published_runs(study: str) -> None:
    published = published_keys(ROOT / "results" / study)
    provenance = read_table(ROOT / "results" / study / "provenance.csv").ffill()
    keys = {
        config_key(json.loads(row.trained), json.loads(row.data)): row.name
        for row in provenance[["name", "trained", "data"]].itertuples(index=False)
        if "parent" not in json.loads(row.trained)  # presets name no parent
    }
    assert keys.keys() <= published.keys()
    commands = [command for preset in PUBLISHED[study] for command in commands_of(preset)]
    expanded = runs_of(commands, study)
    complete = len(keys) == len({tuple(run) for _, run in expanded})
    if complete:
        expanded = with_every_value(expanded)
    else:  # compare only the first seed, in the bank the first setting, and the first of several tasks
        seeds = {key: int(name.rpartition("-s")[2].partition("-")[0]) for key, name in keys.items()}
        listed = {int(number) for _, run in expanded for number in re.findall(SEED, " ".join(run))}
        assert listed >= set(seeds.values())
        first = min(seeds.values())
        chosen = {f"seed={first}", f"bank/setting=s{first}"}
        expanded = [(sweep, run) for sweep, run in expanded if chosen & set(run)]
        keys = {key: name for key, name in keys.items() if seeds[key] == first}
        task = min(keys.values()).partition("-")[0]
        of_task = [(sweep, run) for sweep, run in expanded if f"task={task}" in run]
        if of_task:
            expanded = of_task
            keys = {key: name for key, name in keys.items() if name.startswith(f"{task}-")}
    expanded_keys = set()
    for sweep, run in expanded:
        experiment = sweep.experiment(run)
        expanded_keys.add(config_key(experiment.trained, identify(experiment).data))
    if complete:
        assert expanded_keys <= keys.keys()
    else:
        assert expanded_keys >= keys.keys()


def test_the_wandb_sweep_composes() -> None:
    sweep = OmegaConf.load(CONFIG_DIR / "wandb_sweep.yaml")
    for key, entry in sweep.parameters.items():
        for value in entry.get("values", [entry.get("value")]):
            Config.checked(compose_config([f"{key}={value}"]))
    assert (ROOT / sweep.program).exists()
