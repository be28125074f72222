"""Every figure of the evaluation, on curves made by hand, and the counting behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import binomtest

from pe_experiments.config import Experiment
from pe_experiments.data import TrainingStream, micro_batches
from pe_experiments.evaluation import extrapolation_curve, summarise, tally, wilson_interval
from pe_experiments.instantiation import build_model, source_of


def curve(points: dict[int, float]) -> list[dict[str, Any]]:
    return [{"content_length": n, "exact_match": y, "token_accuracy": y} for n, y in points.items()]


def test_summary_of_a_curve() -> None:
    summary = summarise(curve({5: 1.0, 10: 0.98, 20: 0.96, 30: 0.9, 40: 0.5, 80: 0.1, 160: 0.0}), 20)
    assert summary["exact_match_in_distribution"] == pytest.approx((1 + 0.98 + 0.96) / 3)
    assert summary["exact_match_at_2x"] == 0.5
    assert summary["solved_in_distribution"] is True
    assert summary["horizon"] == 30
    assert summary["horizon_ratio"] == 1.5
    assert summary["horizon_censored"] is False


def test_area_does_not_depend_on_the_density_of_the_grid() -> None:
    coarse = summarise(curve({20: 1.0, 160: 0.0}), 20)["exact_match_extrapolation"]
    dense = summarise(curve({20: 1.0, 40: 2 / 3, 80: 1 / 3, 160: 0.0}), 20)["exact_match_extrapolation"]
    assert coarse == pytest.approx(0.5)
    assert dense == pytest.approx(coarse)
    beyond = summarise(curve({20: 1.0, 160: 1.0, 320: 0.0}), 20)["exact_match_extrapolation"]
    assert beyond == pytest.approx(1.0)  # nothing past 8x counts


def test_what_the_grid_cannot_tell_is_none() -> None:
    summary = summarise(curve({5: 1.0, 20: 1.0}), 20)
    assert summary["exact_match_at_2x"] is None
    assert summary["exact_match_extrapolation"] is None
    assert summary["horizon"] == 20
    assert summary["horizon_censored"] is True
    assert summarise(curve({5: 0.5, 20: 1.0}), 20)["horizon"] == 0


def test_area_of_a_grid_that_ends_early_is_taken_up_to_there() -> None:
    assert summarise(curve({20: 1.0, 40: 0.0}), 20)["exact_match_extrapolation"] == pytest.approx(0.5)


@pytest.mark.parametrize(("successes", "trials"), [(0, 50), (1, 50), (25, 50), (50, 50), (989, 1000)])
def test_wilson_interval_is_scipys(successes: int, trials: int) -> None:
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_counts_of_a_model_that_knows_the_answer(tiny: Callable[..., Experiment]) -> None:
    """An oracle in place of the model; one wrong EOS costs exact match and no token accuracy."""
    experiment = tiny()
    source = source_of(experiment)
    batch = source.evaluation_block(6, 0)
    model = Oracle(batch.labels_BT, experiment.format.vocab_size)
    counts = tally(model, [batch], experiment.format.eos)  # type: ignore[arg-type]
    assert (counts.exact_match, counts.token_accuracy) == (1.0, 1.0)
    assert counts.tokens == 600
    model.answers[0, -1] = 0  # the EOS of one example
    model.answers[1, -2] = (model.answers[1, -2] + 1) % 10  # a symbol of another
    counts = tally(model, [batch], experiment.format.eos)  # type: ignore[arg-type]
    assert counts.exact == 98
    assert counts.right_tokens == 599


class Oracle(torch.nn.Module):
    """Answers with given tokens; hidden states are one-hot answers and the head the identity."""

    def __init__(self, labels_BT: torch.Tensor, vocabulary: int):
        super().__init__()
        self.answers = labels_BT.clamp(min=0).clone()
        self.head = torch.nn.Linear(vocabulary, vocabulary, bias=False)
        torch.nn.init.eye_(self.head.weight)

    def hidden(self, *batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(self.answers, self.head.in_features).float()


def test_evaluation_does_not_depend_on_the_batch_size(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny("positions=random_offset", "evaluation.examples=150")
    model, source = build_model(experiment), source_of(experiment)
    whole = list(extrapolation_curve(model, source, [4, 9], 150, 6))
    monkeypatch.setattr("pe_experiments.evaluation.TOKENS_AT_ONCE", 60)
    pieces = list(extrapolation_curve(model, source, [4, 9], 150, 6))
    for row, other in zip(whole, pieces, strict=True):
        assert row["loss"] == pytest.approx(other.pop("loss"), abs=1e-6)
        assert {key: value for key, value in row.items() if key != "loss"} == other
    assert whole[0]["examples"] == 150


def test_curve_says_what_was_asked_and_what_was_made(tiny: Callable[..., Experiment]) -> None:
    experiment = tiny("task=unique_copy", "task.vocab_size=12", "evaluation.lengths=[6,40]")
    rows = list(extrapolation_curve(build_model(experiment), source_of(experiment), [6, 40], 20, 6))
    assert [(row["length"], row["content_length"], row["split"]) for row in rows] == [
        (6, 6, "in_distribution"),
        (40, 12, "extrapolation"),
    ]
    assert [row["tokens"] for row in rows] == [14, 26]
    assert [row["largest_position"] for row in rows] == [13, 25]
    assert [row["untrained_positions"] for row in rows] == [0, 12]


def test_streams_hold_other_examples_than_evaluation(tiny: Callable[..., Experiment]) -> None:
    experiment = tiny("training.min_length=6", "task.vocab_size=50", "training.batch_size=64")
    source = source_of(experiment)
    seen = set()
    for name in ("training", "validation"):
        stream = TrainingStream(source, 64, "mixed", name)
        rows = {tuple(row) for i in range(40) for row in stream.batch(i).tokens_BT.tolist()}
        assert not rows & seen
        seen |= rows
    assert not {tuple(row) for row in source.evaluation_block(6, 0).tokens_BT.tolist()} & seen


@pytest.mark.parametrize("batching", ["mixed", "single_length"])
def test_batches_are_pure_functions_of_their_index(tiny: Callable[..., Experiment], batching: str) -> None:
    experiment = tiny("positions=random_offset")
    first, second = (TrainingStream(source_of(experiment), 8, batching) for _ in range(2))
    forwards = [first.batch(i) for i in range(40)]
    for index in (39, 17, 16, 0):
        for part, again in zip(forwards[index], second.batch(index), strict=True):
            assert torch.equal(part, again)
    lengths = [set(batch.lengths_B.tolist()) for batch in forwards]
    assert all(len(each) == 1 for each in lengths) == (batching == "single_length")
    assert set.union(*lengths) == {2 * n + 2 for n in range(1, 7)}


@pytest.mark.parametrize("batching", ["mixed", "single_length"])
def test_declared_lengths_leave_room_for_the_longest_answer(
    tiny: Callable[..., Experiment], batching: str
) -> None:
    """Ids are drawn for them: a row has as many whatever the length of its answer."""
    experiment = tiny("task=deduplicate", "positions=random_subset", "training.batch_size=64")
    room = {experiment.format.tokens(n, min(n, 10)) for n in range(1, 7)}
    batch = TrainingStream(source_of(experiment), 64, batching).batch(0)
    block = source_of(experiment).evaluation_block(9, 0)
    assert set(block.declared_B.tolist()) == {9 + 9 + 2}
    for rows in (batch, block, *micro_batches(batch, experiment.shape.train_length)):
        assert (rows.lengths_B <= rows.declared_B).all()
        assert rows.positions_BP.shape[1] >= rows.declared_B.max()
        for ids, declared in zip(rows.positions_BP, rows.declared_B.tolist(), strict=True):
            assert len(ids[:declared].unique()) == declared
            assert (ids.diff()[: declared - 1] > 0).all()
    assert set(batch.declared_B.tolist()) <= room
    assert (block.lengths_B < block.declared_B).any()


def test_batches_are_the_same_for_every_scheme_and_policy(tiny: Callable[..., Experiment]) -> None:
    reference = TrainingStream(source_of(tiny()), 8, "mixed").batch(5)
    for overrides in (["pe=learned"], ["pe=none"], ["positions=random_offset"]):
        other = TrainingStream(source_of(tiny(*overrides)), 8, "mixed").batch(5)
        assert torch.equal(other.tokens_BT, reference.tokens_BT)
        assert torch.equal(other.labels_BT, reference.labels_BT)
