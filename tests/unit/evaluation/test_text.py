"""Language models over context length: the same bytes at each, held against passes of whole windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.evaluation.summary import summarise
from pe_experiments.evaluation.text import KEY, Scorer, evaluate_text, slices_of, with_copy
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_csv, read_curve, read_metrics
from pe_experiments.tasks.text import FEWEST_BYTES
from tests.integration.test_tracking import mirror

Tiny = Callable[..., Experiment]
LENGTHS = (16, 24, 64, 128)


@pytest.fixture
def experiment(tiny: Tiny, tmp_path: Path) -> Experiment:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes((n * n // 7 + n // 50) % 26 + 97 for n in range(FEWEST_BYTES)))
    lengths = f"evaluation.lengths=[{','.join(map(str, LENGTHS))}]"
    more = ("pe=sinusoidal", "training.max_length=24", lengths, "logger=wandb")
    return tiny("task=text", f"task.path={path}", *more)


def test_every_window_is_scored_as_if_read_alone(experiment: Experiment) -> None:
    model = experiment.untrained_model().eval()
    source = experiment.evaluation_source
    stretches, _ = source.task.sample(128, 3, torch.Generator().manual_seed(0))
    for length in (24, 128):
        losses, right = Scorer(model, source).cut(stretches, length)
        window = stretches[:, -length:]
        tokens = torch.cat([torch.full((3, 1), source.format.bos), window], dim=1)
        logits = model(tokens)[:, 1:-1]
        alone = F.cross_entropy(logits.mT, window[:, 1:], reduction="none")
        torch.testing.assert_close(losses[:, 1 - length :], alone.double(), atol=1e-5, rtol=0)
        assert torch.equal(right[:, 1 - length :], logits.argmax(dim=-1) == window[:, 1:])
        assert losses.shape == right.shape == (3, 127)


@pytest.mark.slow
def test_every_length_scores_the_same_bytes(experiment: Experiment) -> None:
    model = experiment.untrained_model()
    source = experiment.evaluation_source
    shown: list[int] = []
    curve, rows = evaluate_text(model, source, LENGTHS, 120, 24, shown.append)
    assert shown[-1] == 120 * len(LENGTHS)
    counts = {
        (row["windows"], row["slice"], row["bytes"])
        for row in rows
        if row["windows"] != "copy" and row["slice"] != "index"
    }
    assert len(counts) == 5  # one number of bytes for each, whatever the length
    sliding = {name: number for windows, name, number in counts if windows == "sliding"}
    assert sliding["all"] == 4 * 120 == sum(sliding.values()) - sliding["all"]
    assert [row["split"] for row in curve] == ["in_distribution"] * 2 + ["extrapolation"] * 2
    whole = {
        row["length"]: row["bits_per_byte"]
        for row in rows
        if (row["windows"], row["slice"]) == ("non_overlapping", "all")
    }
    for point in curve:
        assert point["loss"] == pytest.approx(whole[point["length"]] * math.log(2))
        assert point["exact_match"] is None
    by_index = [row for row in rows if row["slice"] == "index"]
    assert by_index[0]["first_index"] == 1
    assert by_index[-1]["last_index"] == 127
    total = sum(row["bytes"] * row["bits_per_byte"] for row in by_index)
    assert total / (120 * 127) == pytest.approx(whole[128])
    assert [row["length"] for row in rows if row["windows"] == "copy"] == [64, 128]
    assert evaluate_text(model, source, LENGTHS, 120, 24) == (curve, rows)


def test_slices_are_those_of_a_loop() -> None:
    texts = torch.randint(3, (20, 60), generator=torch.Generator().manual_seed(0))
    found = slices_of(texts, 8, 30)
    for row, text in enumerate(texts.tolist()):
        for s, end in enumerate(range(52, 60)):
            gram = text[end - 3 : end + 1]
            starts = [g for g in range(end - 3) if text[g : g + 4] == gram]
            near = any(g >= 30 for g in starts)
            name = "repeated_near" if near else "repeated_far" if starts else "new"
            assert [key for key in found if found[key][row, s]] == ["all", name]
    assert all(mask.any() for mask in found.values())


def test_a_key_stands_twice() -> None:
    windows = torch.zeros(2, 4 * KEY, dtype=torch.long)
    keys = torch.arange(1, 2 * KEY + 1).view(2, KEY)
    made = with_copy(windows, keys, torch.tensor([0.0, 0.999]))
    assert torch.equal(made[0, :KEY], keys[0])
    assert torch.equal(made[1, 2 * KEY : 3 * KEY], keys[1])
    assert torch.equal(made[:, -KEY:], keys)
    assert (made > 0).sum() == 4 * KEY


def test_summary_of_losses() -> None:
    rows = [
        {"content_length": n, "exact_match": None, "token_accuracy": 0.5, "loss": 1.0 + (n > 8) * n / 16}
        for n in (4, 8, 16, 32)
    ]
    summary = summarise(rows, 8)
    assert (summary["loss_in_distribution"], summary["loss_at_2x"]) == (1.0, 2.0)
    assert summary["loss_extrapolation"] == 2.5
    assert summary["token_accuracy_extrapolation"] == 0.5
    assert {summary[key] for key in ("exact_match_in_distribution", "solved_in_distribution", "horizon")} == {
        None
    }


@pytest.mark.slow
def test_a_run_keeps_and_mirrors_what_was_measured(experiment: Experiment) -> None:
    done = run_experiment(experiment)
    assert done.result["status"] == "completed"
    assert done.result["loss_extrapolation"] > 0
    folder = done.directory.path
    rows, corpus = read_csv(folder / "text.csv"), read_csv(folder / "corpus.csv")
    assert {row["windows"] for row in rows} == {"non_overlapping", "sliding", "copy"}
    assert [row["split"] for row in corpus] == ["training validation evaluation"]
    assert all("exact_match" not in row for row in read_metrics(done.directory.metrics))
    assert [row["exact_match"] for row in read_curve(done.directory.curve)] == [None] * 4
    history, _, _ = mirror(done.directory)
    logged = [row for row in history if "text/sliding_all_bits_per_byte" in row]
    assert [row["extrapolation/length"] for row in logged] == list(LENGTHS)
    assert run_experiment(experiment).done == "found"
