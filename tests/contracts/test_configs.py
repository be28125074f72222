"""Every YAML under configs composes, resolves and runs; the layers of the house import downwards only."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import load_component, shipped
from pe_experiments.configuration.schema import check
from pe_experiments.data.batches import TrainingStream
from pe_experiments.evaluation.curve import extrapolation_curve
from pe_experiments.sweeps.jobs import Job, look_up
from pe_experiments.sweeps.sweep import Sweep
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import NotApplicable
from pe_experiments.terminal.files import CONFIG_DIR
from pe_experiments.training.loop import batch_loss
from pe_experiments.training.optimizer import TrainingOptimizer
from pe_experiments.training.preflight import preflight
from tests.conftest import ROOT, Outcome

CHOICES = [
    f"{group}={path.stem}"
    for group in (
        "pe",
        "positions",
        "task",
        "model",
        "training",
        "optimizer",
        "evaluation",
        "trainer",
        "logger",
    )
    for path in sorted((CONFIG_DIR / group).glob("*.yaml"))
]


def stepped(experiment: Experiment, length: int) -> dict[str, Any]:
    """The curve at one length after one optimiser step: every part works, and with the others."""
    preflight(experiment)
    training, source = experiment.config.training, experiment.source
    model = experiment.untrained_model()
    before = [parameter.clone() for parameter in model.parameters()]
    batch = TrainingStream(source, training.batch_size, training.batching).batch(0)
    optimizer = TrainingOptimizer(model, experiment.components["optimizer"], training)
    batch_loss(model, batch).backward()
    optimizer.step()
    assert any((old != new).any() for old, new in zip(before, model.parameters(), strict=True))
    (row,) = extrapolation_curve(model, source, [length], 20, experiment.max_length)
    return row


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if not choice.startswith("task=")])
def test_every_choice_trains_and_evaluates(choice: str, tiny: Callable[..., Experiment]) -> None:
    row = stepped(tiny(choice), 9)
    assert (row["length"], row["examples"]) == (9, 20)
    assert 0 < row["loss"] < math.inf


FAMILIES = {section["_target_"].rpartition(".")[0]: task for task, section in shipped("task").items()}
FORMS = [(task, "decoder") for task in shipped("task")] + [(task, "encoder") for task in FAMILIES.values()]


@pytest.mark.parametrize(("task", "model"), FORMS)
def test_every_task_trains_and_one_of_each_family_in_both_forms(
    task: str, model: str, tiny: Callable[..., Experiment]
) -> None:
    """That every task fits both layouts is a check of its contract."""
    choice = (f"task={task}", f"model={model}", "training.max_length=8", "evaluation.lengths=[13]")
    if model == "encoder" and (
        why := getattr(load_component("task", shipped("task")[task]).build(), "decoder_only", None)
    ):
        with pytest.raises(NotApplicable, match=why):
            tiny(*choice)
        return
    row = stepped(tiny(*choice), 13)
    assert (row["length"], row["examples"]) == (13, 20)
    assert 0 < row["loss"] < math.inf


@pytest.mark.parametrize("group", ["pe", "positions", "task", "optimizer"])
def test_component_files_hold_a_target_and_arguments_only(group: str) -> None:
    for name, section in shipped(group).items():
        assert isinstance(section.pop("_target_"), str), name
        assert not any(key.startswith("_") or key == "defaults" for key in section), name


SWEEPS = sorted(path.stem for path in (CONFIG_DIR / "sweep").glob("*.yaml"))


@pytest.mark.parametrize("name", SWEEPS)
def test_every_run_of_a_prepared_sweep_can_be_carried_out(
    name: str, script: Callable[..., Outcome], results: Path
) -> None:
    """Every choice it names exists and nothing in it is a mistake: some run has each of its settings."""
    config = OmegaConf.load(CONFIG_DIR / "sweep" / f"{name}.yaml")
    assert config.hydra.mode == "MULTIRUN"
    folder = name.replace("replicate_", "replications/").replace("text_", "text/")
    assert config.study == {"replicate_text": "text/depth"}.get(name, folder.replace("bank_", "bank/"))
    alone = "sweep.against=null"  # what it is compared with needs not be there
    runs = planned(script, f"sweep={name}", "seed=0", f"results_dir={results}", alone)
    assert len(runs) >= 2
    assert {state for state, _ in runs} <= {"new", "not applicable"}, runs


def planned(script: Callable[..., Outcome], *arguments: str) -> list[tuple[str, str]]:
    """State and name of runs in which every setting occurs, as a dry run lists them before it tries any."""
    jobs: list[Job] = []

    def look(sweep: Sweep) -> tuple[int, list[Job]]:
        seen, some = set[str](), []
        for run in sweep.runs:
            if not seen.issuperset(run):
                seen, some = seen.union(run), [*some, run]
        jobs.extend(look_up(some, None, Display(), False, ()))
        return 0, []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweep, "carry_out", look)
        outcome = script("train", *arguments)
    assert outcome.code == 0, outcome.err
    return [(job.state, job.name) for job in jobs]


def test_the_sweep_of_weights_and_biases_and_the_local_example_compose() -> None:
    sweep = OmegaConf.load(CONFIG_DIR / "wandb_sweep.yaml")
    values = {key: entry.get("values", [entry.get("value")]) for key, entry in sweep.parameters.items()}
    for key, choices in values.items():
        for choice in choices:
            check(composed("config", [f"{key}={choice}"]))
    assert (ROOT / sweep.program).exists()
    example = OmegaConf.load(CONFIG_DIR / "local.example.yaml")
    known = composed("config", [])
    assert set(example) - {"defaults", "hydra"} <= set(known)
    assert set(example.logger) <= set(known["logger"])


def test_files_and_functions_stay_readable() -> None:
    for path in [*(ROOT / "pe_experiments").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        text = path.read_text()
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 62, f"{path}: {node.name}"
    commands = {*(ROOT / "scripts").glob("*.py")} - {ROOT / "scripts" / "catalogue.py"}
    for path in commands:
        assert path.read_text().count("\n") < 60, path
