"""Estimates before a start: what cannot fit is refused, what is used is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pe_experiments.configuration import schema as config
from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.schema import check
from pe_experiments.data import batches as data
from pe_experiments.data import randomness
from pe_experiments.drawing import run_figure
from pe_experiments.store.directory import refuse_among_runs
from pe_experiments.terminal.errors import UserError, one_line, shown
from pe_experiments.training.preflight import needed_bytes, parameters, refuse_large

Tiny = Callable[..., Experiment]


def test_what_the_streams_can_number_is_what_a_configuration_may_ask_for() -> None:
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
def test_what_people_run_is_not_refused(overrides: list[str]) -> None:
    experiment = resolve(check(composed("config", overrides)))
    assert refuse_large(experiment) is None  # nothing is raised


def test_the_estimate_counts_parameters_and_grows_with_the_batch(tiny: Tiny) -> None:

    experiment = tiny("model.d_model=64", "pe=none")
    counted = sum(p.numel() for p in experiment.untrained_model().parameters())
    assert parameters(experiment) == pytest.approx(counted, rel=0.05)
    larger = needed_bytes(tiny("model.d_model=64", "pe=none", "training.batch_size=8000"))
    assert larger > 100 * needed_bytes(experiment)


@pytest.mark.parametrize("length", [1, 40])
def test_a_figure_of_one_length_beside_the_training_lengths_can_be_laid_out(
    length: int, tmp_path: Path
) -> None:
    row = dict.fromkeys(("exact_match", "exact_match_low", "exact_match_high", "token_accuracy"), 0.5)
    row |= {"length": length, "content_length": length, "chance": 0.1}
    run_figure([row], "rope", "copy", 6, tmp_path / "figure.png")  # a warning is an error
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_vocabulary_counts_into_the_memory(tiny: Tiny) -> None:
    logits = 8 * 90_000 * tiny().config.training.batch_size
    more = needed_bytes(tiny("task.vocab_size=100000")) - needed_bytes(tiny("task.vocab_size=10000"))
    of_parameters = 16 * (
        parameters(tiny("task.vocab_size=100000")) - parameters(tiny("task.vocab_size=10000"))
    )
    assert more - of_parameters > logits


@pytest.mark.parametrize("out", ["runs", "runs/mine/figures", "study/../runs"])
def test_nothing_is_written_among_the_runs(out: str, tmp_path: Path) -> None:
    refuse_among_runs(tmp_path / "runs of mine", tmp_path)
    with pytest.raises(UserError, match="is among the runs"):
        refuse_among_runs(tmp_path / out, tmp_path)


def test_what_a_terminal_would_obey_is_spelt_out() -> None:
    assert shown("a\x1b[31m\nb\u202e") == r"a\x1b[31m b\u202e"
    assert one_line(f"no {'x' * 5000}\x07") == f"no {'x' * 60}..."
