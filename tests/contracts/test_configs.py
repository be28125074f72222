"""Every YAML under configs composes, resolves and runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from hydra_plugins.pe_experiments.sweeps import grid_runs
from pe_experiments.checking.own_classes import _check_model
from pe_experiments.configuration.choices import choices_of, shipped
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment, trained_sections
from pe_experiments.configuration.hydra_errors import VERSION_BASE
from pe_experiments.configuration.schema import Config, validated
from pe_experiments.store.identity import config_key, identify
from pe_experiments.store.study_folder import published_keys
from pe_experiments.sweeps.launch import _checked
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR
from pe_experiments.training.device import prepare_device
from tests.conftest import ROOT, Tiny

# Golden numbers train every choice of the other groups, and every task with a decoder.
CHOICES = [
    f"{group}={path.stem}" for group in ("trainer", "logger") for path in (CONFIG_DIR / group).glob("*")
]
WITHOUT_DEVICE = {
    "trainer=gpu": "finds no CUDA device",
    "trainer=mps": "finds no Apple GPU",
    "trainer=fsdp": "trainer.strategy=fsdp needs CUDA devices",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_or_says_which_device_is_missing(
    choice: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = tiny(choice).config
    if choice in WITHOUT_DEVICE:
        with pytest.raises(UserError, match=WITHOUT_DEVICE[choice]):
            prepare_device(config)
    else:
        assert prepare_device(config) == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", sorted(shipped("pe")))
def test_the_checks_of_own_classes_accept_every_shipped_encoding(encoding: str, tiny: Tiny) -> None:
    _check_model(tiny(f"pe={encoding}", "evaluation.lengths=[9]"))


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
        sweeper = self.config.hydra.sweeper
        self.runs = grid_runs(sweeper.params, sweeper.grids, command.split())

    def experiment(self, run: Sequence[str]) -> Experiment:
        return Experiment(_checked(self.loader.load_sweep_config(self.config, list(run)), run))


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
    """A small subset of the runs in which every override of every command occurs."""
    seen: set[tuple[Sweep, str]] = set()
    chosen = []
    for fewest in (3, 2, 1):  # first the runs with several overrides that no earlier one has
        for sweep, run in runs:
            overrides = {(sweep, override) for override in run}
            if len(overrides - seen) >= fewest:
                seen |= overrides
                chosen.append((sweep, run))
    return chosen


UNPUBLISHED = [name for name in SWEEPS if STUDIES[name] not in PUBLISHED]


@pytest.mark.parametrize(
    "name",
    [name if name == "first_look" else pytest.param(name, marks=pytest.mark.slow) for name in UNPUBLISHED],
)
def test_unpublished_presets_expand_to_valid_configurations(name: str) -> None:
    needed = " pe=rope" if name == "versus" else ""
    commands = [command + needed for command in commands_of(name)]
    runs = with_every_value(runs_of(commands, STUDIES[name]))
    names = {identify(sweep.experiment(run)).name for sweep, run in runs}
    different = {tuple(run) for _, run in runs}  # several commands may name the same run
    assert len(names) == len(different), "two runs of the preset are the same"


@pytest.mark.slow
@pytest.mark.parametrize("study", PUBLISHED)
def test_presets_expand_to_the_configurations_of_the_published_runs(study: str) -> None:
    published = published_keys(ROOT / "results" / study).keys()
    commands = [command for preset in PUBLISHED[study] for command in commands_of(preset)]
    runs = runs_of(commands, study)

    def is_published(sweep: Sweep, run: Sequence[str]) -> bool:
        experiment = sweep.experiment(run)
        return config_key(trained_sections(experiment.full_config), identify(experiment).data) in published

    if len({tuple(run) for _, run in runs}) == len(published):
        assert all(is_published(*run) for run in with_every_value(runs))
    else:  # not all are published, or the plan prints commands that begin with the preset
        assert any(is_published(*run) for run in runs)
        for group, _, choice in {override.partition("=") for _, run in runs for override in run}:
            in_folder = (CONFIG_DIR / group / f"{choice}.yaml").exists()  # as pe=released/gemma3
            assert in_folder or choice in (choices_of(group) or [choice]), f"{group}={choice}"


def test_the_wandb_sweep_composes() -> None:
    sweep = OmegaConf.load(CONFIG_DIR / "wandb_sweep.yaml")
    for key, entry in sweep.parameters.items():
        for value in entry.get("values", [entry.get("value")]):
            validated(Config, compose_config([f"{key}={value}"]))
    assert (ROOT / sweep.program).exists()
