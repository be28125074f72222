"""`load_model`: a finished run in Python and its answers to given inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]

from pe_experiments.analysis.trained_model import TrainedModel, load_model
from pe_experiments.encodings.rope import Rope
from pe_experiments.encodings.rope_hf import RopeHf
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.evaluation.curve import tally
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.finished import finished_run
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny
from tests.synthetic import fading, opened, write_run, write_trained_run


def test_a_diverged_run_is_found_whatever_the_evaluation(tiny: Tiny) -> None:
    write_run(tiny(), fading(1, 0), status="diverged")
    result = run_experiment(tiny("evaluation.lengths=[5,7]").config)
    assert (result.status, result.curve) == ("diverged", [])


def test_a_run_is_found_without_the_section_of_its_loggers(tiny: Tiny) -> None:
    run = write_trained_run(tiny())
    saved = yaml.safe_load(run.config.read_text())
    del saved["logger"]
    run.config.write_text(yaml.safe_dump(saved))
    assert evaluate_run(run.path, {}).done == "found"


def test_the_files_of_a_replaced_encoding_do_not_count(tiny: Tiny, tmp_path: Path) -> None:
    released = tmp_path / "config.json"
    released.write_text('{"model_type": "llama", "rope_theta": 10000.0, "max_position_embeddings": 64}')
    rope_hf = ("pe=rope_hf", f"+pe.config={released}")
    run = write_trained_run(tiny("pe=rope"))
    evaluated = opened(run, *rope_hf, trust=True)
    assert evaluated.experiment.components["pe"].cls is RopeHf
    other = write_trained_run(tiny(*rope_hf))
    released.write_text(released.read_text().replace("10000.0", "500.0"))
    assert opened(run, *rope_hf, trust=True).evaluation != evaluated.evaluation
    assert opened(other, "pe=rope", trust=True).experiment.components["pe"].cls is Rope
    with pytest.raises(UserError, match=r"config\.json changed since it was trained"):
        finished_run(other, trust=True)


def test_a_section_of_another_encoding_keeps_the_trained_arguments_that_it_lacks(tiny: Tiny) -> None:
    run = write_trained_run(tiny("pe=rope", "pe.base=500"))
    yarn = {"_target_": "pe_experiments.encodings.rope_extension.RopeYarn"}
    for given, label in ((yarn, "rope_yarn(base=500)"), (yarn | {"base": 10000.0}, "rope_yarn")):
        evaluated = evaluate_run(run.path, {"pe": given, "evaluation": {"lengths": [7], "examples": 4}})
        assert evaluated.result["label"] == f"rope(base=500) evaluated as {label}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pe": None}, "^pe=null: expected "),
        ({"evaluation.lengths": "x"}, "^evaluation.lengths=x"),
        ({"training": {"steps": 3}}, "training is fixed by the training; allowed: evaluation, logger"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(changes: dict[str, Any], sentence: str, tiny: Tiny) -> None:
    with pytest.raises(UserError, match=sentence):
        evaluate_run(write_trained_run(tiny()).path, changes)


def test_keys_and_sections_of_an_evaluation_change_what_they_name(tiny: Tiny) -> None:
    run = write_trained_run(tiny("evaluation.examples=5"))
    results = [
        evaluate_run(run.path, changes)
        for changes in (
            {"evaluation.lengths": [7]},
            {"evaluation": {"lengths": [7]}},
            {"+evaluation.lengths": [7], "pe": Sinusoidal},
        )
    ]
    assert [row["length"] for row in results[0].curve] == [7]
    assert results[0].curve[0]["examples"] == 5
    assert [result.done for result in results] == ["evaluated", "found", "found"]


@pytest.mark.parametrize("inputs", [[], [3.5], "314", [[3], [1, 2]], [[-1]]])
def test_answers_to_what_is_no_input_are_refused(tiny: Tiny, inputs: Any) -> None:
    trained = TrainedModel(tiny(), tiny().untrained_model())
    assert len(trained.answers([3, 1, 4])) == 1
    with pytest.raises(UserError, match="inputs: expected symbols of the task, 0 to "):
        trained.answers(inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [("task=first", "training.steps=100"), ("model=encoder",), ("task=addition", "positions=task")],
)
def test_answers_agree_with_the_evaluation(tiny: Tiny, settings: tuple[str, ...]) -> None:
    experiment = tiny("pe=rope", "training.learning_rate=0.01", *settings)
    result = run_experiment(experiment.config)
    trained = load_model(result.directory.path)
    assert isinstance(trained.encoding, Rope)
    assert not trained.model.training
    inputs_BN, targets_BM = experiment.task.sample(6, 40, torch.Generator().manual_seed(0))
    answers = trained.answers(inputs_BN)
    targets = [[token for token in target if token >= 0] for target in targets_BM.tolist()]
    right = sum(answer == target for answer, target in zip(answers, targets, strict=True))
    assert tally(trained.model, [trained.batch(inputs_BN)], experiment.format.eos).exact == right
    if "task=first" in settings:  # so short a training learns only this task
        assert right > 0
