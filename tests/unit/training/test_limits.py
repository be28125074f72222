"""Limits: what a configuration may ask for, the memory estimate, and where files are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pe_experiments.configuration import schema as config
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import Config
from pe_experiments.data import batches as data
from pe_experiments.data import randomness
from pe_experiments.drawing import run_figure
from pe_experiments.store.directory import refuse_among_runs
from pe_experiments.terminal.errors import UserError, one_line, shown
from pe_experiments.training.preflight import needed_bytes, parameters, refuse_large

Tiny = Callable[..., Experiment]


def test_the_limits_of_a_configuration_are_those_of_the_random_streams() -> None:
    assert config.LONGEST == (1 << randomness.LENGTH_BITS) - 1
    assert config.MOST_EXAMPLES == data.BLOCK_EXAMPLES << randomness.BLOCK_BITS
    assert config.MOST_BATCHES == 1 << randomness.INDEX_BITS


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluation.lengths=[16384]", "evaluation.examples=1"],
        ["evaluation.lengths=[500,1000]", "evaluation.examples=1000", "task=sqrt"],
        ["model.d_model=512", "model.num_heads=8", "model.num_layers=6", "training.max_length=40"],
        ["training.max_length=500", "training.batch_size=32"],
    ],
)
def test_ordinary_configurations_fit_into_memory(overrides: list[str]) -> None:
    experiment = resolve(Config.checked(compose_config(overrides)))
    assert refuse_large(experiment) is None  # nothing is raised


def test_the_memory_estimate_counts_parameters_batch_and_logits(tiny: Tiny) -> None:
    experiment = tiny("model.d_model=64", "pe=none")
    counted = sum(p.numel() for p in experiment.untrained_model().parameters())
    assert parameters(experiment) == pytest.approx(counted, rel=0.05)
    larger = needed_bytes(tiny("model.d_model=64", "pe=none", "training.batch_size=8000"))
    assert larger > 100 * needed_bytes(experiment)
    few, many = tiny("task.vocab_size=10000"), tiny("task.vocab_size=100000")
    of_parameters = 16 * (parameters(many) - parameters(few))
    logits = 8 * 90_000 * few.config.training.batch_size
    assert needed_bytes(many) - needed_bytes(few) - of_parameters > logits


@pytest.mark.parametrize("length", [1, 40])
def test_a_figure_with_one_length_is_drawn_without_a_warning(length: int, tmp_path: Path) -> None:
    row = dict.fromkeys(("exact_match", "exact_match_low", "exact_match_high", "token_accuracy"), 0.5)
    row |= {"length": length, "content_length": length, "chance": 0.1}
    run_figure([row], "rope", "copy", 6, tmp_path / "figure.png")  # a warning is an error
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("out", ["runs", "runs/a/figures", "study/../runs"])
def test_output_folders_among_the_runs_are_refused(out: str, tmp_path: Path) -> None:
    refuse_among_runs(tmp_path / "runs_of_others", tmp_path)
    with pytest.raises(UserError, match="is among the runs"):
        refuse_among_runs(tmp_path / out, tmp_path)


def test_messages_escape_control_characters_and_shorten_long_values() -> None:
    assert shown("a\x1b[31m\nb\u202e") == r"a\x1b[31m b\u202e"
    assert one_line(f"no {'x' * 5000}\x07") == f"no {'x' * 60}..."
