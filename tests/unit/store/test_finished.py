"""`load_model`: a finished run in Python and its answers to given inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.encodings.rope import Rope
from pe_experiments.evaluation.curve import tally
from pe_experiments.run import run_experiment

Tiny = Callable[..., Experiment]


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
