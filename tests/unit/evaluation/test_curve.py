"""The metrics of a curve, how answers are counted, and the batches of training and evaluation."""

import math
from typing import Any

import pytest
import torch
from scipy.stats import binomtest

from pe_experiments.checking import small_shape
from pe_experiments.data.batches import Batch, TrainingStream, seen_in_training
from pe_experiments.evaluation.curve import extrapolation_curve, tally
from pe_experiments.evaluation.evaluate_model import evaluate_model
from pe_experiments.evaluation.metrics import summarise, wilson_interval
from pe_experiments.evaluation.tables import Details
from pe_experiments.terminal.console import Display
from pe_experiments.training import cpu
from tests.conftest import Tiny


def curve(points: dict[int, float]) -> list[dict[str, Any]]:
    return [{"content_length": n, "exact_match": y, "token_accuracy": y} for n, y in points.items()]


def test_summary_of_a_curve() -> None:
    summary = summarise(curve({5: 1.0, 10: 0.98, 20: 0.96, 30: 0.9, 40: 0.5, 80: 0.1, 160: 0.0}), 20)
    assert summary["exact_match_in_distribution"] == pytest.approx((1 + 0.98 + 0.96) / 3)
    assert summary["exact_match_at_2x"] == 0.5
    strips = math.log2(4 / 3) * 0.7 + 0.3 + 0.05  # over log length, from the first length not trained to 8x
    assert summary["exact_match_extrapolation"] == pytest.approx(strips / math.log2(16 / 3))
    assert summary["solved_in_distribution"] is True
    assert summary["horizon"] == pytest.approx(30)
    assert summary["horizon_ratio"] == pytest.approx(1.5)
    assert summary["horizon_censored"] is False


def test_metrics_that_the_lengths_do_not_determine_are_none() -> None:
    within = summarise(curve({5: 1.0, 20: 1.0}), 20)
    assert (within["exact_match_at_2x"], within["exact_match_extrapolation"]) == (None, None)
    beyond = summarise(curve({100: 0.5}), 20)
    for metric in ("exact_match_in_distribution", "solved_in_distribution", "horizon"):
        assert beyond[metric] is None
    assert summarise(curve({20: 1.0, 320: 0.5}), 20)["exact_match_extrapolation"] is None  # past 8x


def test_lengths_of_which_half_was_seen_in_training_do_not_count() -> None:
    points = curve({2: 1.0, 5: 0.5, 10: 0.3})
    for seen, mean in (((100, 49, 0), 0.4), ((100, 50, 0), 0.3), ((100, 100, 100), 0.6)):  # unless all were
        rows = [row | {"seen": n, "examples": 100} for row, n in zip(points, seen, strict=True)]
        assert summarise(rows, 10)["exact_match_in_distribution"] == pytest.approx(mean)


def test_inputs_seen_in_training_are_counted(tiny: Tiny) -> None:
    """The reference lists every input of training and of evaluation."""
    source = tiny("training.max_length=10", "positions=random_offset").source
    for batching, steps in (("mixed", 50), ("single_length", 41)):
        stream = TrainingStream(source, 8, batching)
        trained = {tuple(row[: n // 2]) for i in range(steps) for row, n in _rows_of(stream.batch(i))}
        counts = seen_in_training(stream, steps, source, [2, 3, 5, 12], 150)
        for length, count in counts.items():
            blocks = [source.evaluation_block(length, block) for block in range(2)]
            rows = [tuple(row[: n // 2]) for block in blocks for row, n in _rows_of(block)][:150]
            assert count == sum(row in trained for row in rows), length
        assert counts[12] == 0 < counts[2] < 150


def test_inputs_of_accumulated_batches_count_as_seen(tiny: Tiny) -> None:
    seen_counts = []
    for steps, accumulated in ((48, 1), (12, 4)):
        options = (f"training.steps={steps}", f"trainer.accumulate_grad_batches={accumulated}")
        experiment = tiny(*options, "evaluation.lengths=[2,3]", "evaluation.examples=100")
        rows, _ = evaluate_model(experiment, experiment.untrained_model(), steps, Display())
        seen_counts.append([row["seen"] for row in rows])
    assert seen_counts[0] == seen_counts[1]
    assert 0 < seen_counts[0][1] < 100


def _rows_of(batch: Batch) -> list[tuple[list[int], int]]:
    """Token rows of the copy task with their lengths. A row is BOS x SEP y; its first half is BOS and x."""
    return list(zip(batch.tokens_BT.tolist(), batch.lengths_B.tolist(), strict=True))


@pytest.mark.parametrize(("successes", "trials"), [(0, 50), (1, 50), (25, 50), (50, 50), (989, 1000)])
def test_the_wilson_interval_equals_scipy(successes: int, trials: int) -> None:
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_wrong_eos_costs_exact_match_but_no_token_accuracy(tiny: Tiny) -> None:
    experiment = tiny()
    source = experiment.source
    batch = source.evaluation_block(6, 0)
    model = Oracle(batch.labels_BT, experiment.format.vocab_size)
    counts = tally(model, [batch], experiment.format.eos)  # type: ignore[arg-type]
    assert (counts.exact_match, counts.token_accuracy) == (1.0, 1.0)
    assert counts.tokens == 600
    model.answers[0, -1] = 0  # the EOS of one example
    model.answers[1, -2] = (model.answers[1, -2] + 1) % 10  # a symbol of another
    counts = tally(model, [batch], experiment.format.eos)  # type: ignore[arg-type]
    assert counts.exact == 98
    assert counts.without_end == 99
    assert counts.right_tokens == 599


class Oracle(torch.nn.Module):
    """A model that answers with given tokens: one-hot hidden states and an identity as head."""

    shape = small_shape()

    def __init__(self, labels_BT: torch.Tensor, vocabulary: int):
        super().__init__()
        self.answers = labels_BT.clamp(min=0).clone()
        self.embedding = torch.nn.Embedding(vocabulary, 1)
        self.head = torch.nn.Linear(vocabulary, vocabulary, bias=False)
        torch.nn.init.eye_(self.head.weight)

    def hidden(self, *batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(self.answers, self.head.in_features).float()


def test_evaluation_does_not_depend_on_the_batch_size(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("positions=random_offset", "evaluation.examples=150")
    model = experiment.untrained_model()
    source = experiment.source
    whole = list(extrapolation_curve(model, source, [4, 9], 150, 6))
    monkeypatch.setattr("pe_experiments.evaluation.curve.TOKENS_AT_ONCE", 60)
    monkeypatch.setattr("pe_experiments.evaluation.curve.NUMBERS_AT_ONCE", 60)
    pieces = list(extrapolation_curve(model, source, [4, 9], 150, 6))
    for row, row_in_pieces in zip(whole, pieces, strict=True):
        assert row.pop("loss") == pytest.approx(row_in_pieces.pop("loss"), abs=1e-6)
        assert row == row_in_pieces
    assert whole[0]["examples"] == 150


@pytest.mark.parametrize("decoding", ["teacher_forcing", "greedy"])
def test_depths_add_up_to_the_curve(tiny: Tiny, decoding: Any) -> None:
    experiment = tiny("task=needle", "task.k=1", "task.symbols=2")
    model = experiment.untrained_model()
    source = experiment.source
    details = Details(source)
    curve = extrapolation_curve(model, source, [6, 20], 150, 6, decoding, details=details)
    for row in curve:
        length, depths = row["content_length"], details.tables["depth"]
        of_length = [depth for depth in depths if depth["length"] == length]
        blocks = [source.evaluation_block(length, block).tokens_BT[:, 1 : length + 1] for block in (0, 1)]
        share_B = experiment.task.depth(torch.cat(blocks)[:150])
        counts = share_B.clamp(max=0.99).mul(5).long().bincount(minlength=5).tolist()
        assert [depth["examples"] for depth in of_length] == [count for count in counts if count]
        for metric in ("exact_match", "token_accuracy"):
            mean = sum(depth["examples"] * depth[metric] for depth in of_length) / 150
            assert mean == pytest.approx(row[metric])
    assert [depth["depth"] for depth in depths if depth["length"] == 20] == [0.1, 0.3, 0.5, 0.7, 0.9]


def test_a_curve_reports_requested_and_possible_lengths_and_untrained_positions(
    tiny: Tiny,
) -> None:
    experiment = tiny("task=modular_arithmetic", "evaluation.lengths=[5,40]")  # its lengths are odd
    rows = list(extrapolation_curve(experiment.untrained_model(), experiment.source, [5, 40], 20, 5))
    assert [(row["length"], row["content_length"], row["split"]) for row in rows] == [
        (5, 5, "in_distribution"),
        (40, 39, "extrapolation"),
    ]
    assert [row["tokens"] for row in rows] == [8, 42]
    assert [row["largest_position"] for row in rows] == [7, 41]
    assert [row["untrained_positions"] for row in rows] == [0, 34]
    drawn = tiny("pe=rope", "positions=random_float", "positions.span=100.0")
    rows = list(extrapolation_curve(drawn.untrained_model(), drawn.source, [4, 40], 20, 6))
    assert [row["untrained_positions"] for row in rows] == [0, 0]


@pytest.mark.parametrize("batching", ["mixed", "single_length"])
def test_declared_lengths_leave_room_for_the_longest_answer(tiny: Tiny, batching: str) -> None:
    """A row has position ids for the longest answer, so their number does not tell the answer's length."""
    experiment = tiny("task=deduplicate", "positions=random_subset", "training.batch_size=64")
    room = {experiment.format.tokens(n, min(n, 10)) for n in range(1, 7)}
    batch = TrainingStream(experiment.source, 64, batching).batch(0)
    block = experiment.source.evaluation_block(9, 0)
    assert set(block.declared_B.tolist()) == {9 + 9 + 2}
    for rows in (batch, block, *cpu.micro_batches(batch, experiment.shape.train_length)):
        assert (rows.lengths_B <= rows.declared_B).all()
        assert rows.positions_BP.shape[1] >= rows.declared_B.max()
        for ids, declared in zip(rows.positions_BP, rows.declared_B.tolist(), strict=True):
            assert len(ids[:declared].unique()) == declared
            assert (ids.diff()[: declared - 1] > 0).all()
    assert set(batch.declared_B.tolist()) <= room
    assert (block.lengths_B < block.declared_B).any()
