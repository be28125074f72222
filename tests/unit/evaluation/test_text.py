"""Evaluation of language models over context lengths, which all score the same bytes."""

import math
from pathlib import Path

import pytest
import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.evaluation.text import KEY, evaluate_text, slices_of, with_copy
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_csv, read_curve, read_metrics
from pe_experiments.tasks.text import FEWEST_BYTES
from tests.conftest import Tiny
from tests.integration.test_tracking import mirror

LENGTHS = (16, 24, 64, 128)


@pytest.fixture
def experiment(tiny: Tiny, tmp_path: Path) -> Experiment:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes((n * n // 7 + n // 50) % 26 + 97 for n in range(FEWEST_BYTES)))
    lengths = f"evaluation.lengths=[{','.join(map(str, LENGTHS))}]"
    return tiny("task=text", f"task.path={path}", "training.max_length=24", lengths, "logger=wandb")


@pytest.mark.slow
def test_every_length_scores_the_same_bytes(experiment: Experiment) -> None:
    model = experiment.untrained_model()
    source = experiment.evaluation_source
    curve, rows = evaluate_text(model, source, LENGTHS, 120, 24)
    counts = {
        (row["windows"], row["slice"], row["bytes"])
        for row in rows
        if row["windows"] != "copy" and row["slice"] != "index"
    }
    assert len(counts) == 5  # the number of bytes does not depend on the length
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


def test_slices_equal_a_loop_over_earlier_repetitions() -> None:
    texts = torch.randint(3, (20, 60), generator=torch.Generator().manual_seed(0))
    slices = slices_of(texts, 8, 30)
    for row, text in enumerate(texts.tolist()):
        for s, end in enumerate(range(52, 60)):
            gram = text[end - 3 : end + 1]
            starts = [g for g in range(end - 3) if text[g : g + 4] == gram]
            if not starts:
                name = "new"
            elif max(starts) >= 30:
                name = "repeated_near"
            else:
                name = "repeated_far"
            assert [key for key in slices if slices[key][row, s]] == ["all", name]
    assert all(mask.any() for mask in slices.values())


def test_a_copied_key_stands_in_the_window_and_at_its_end() -> None:
    windows = torch.zeros(2, 4 * KEY, dtype=torch.long)
    keys = torch.arange(1, 2 * KEY + 1).view(2, KEY)
    copied = with_copy(windows, keys, torch.tensor([0.0, 0.999]))
    assert torch.equal(copied[0, :KEY], keys[0])
    assert torch.equal(copied[1, 2 * KEY : 3 * KEY], keys[1])
    assert torch.equal(copied[:, -KEY:], keys)
    assert (copied > 0).sum() == 4 * KEY


@pytest.mark.slow
def test_a_run_saves_and_logs_its_text_metrics(experiment: Experiment) -> None:
    run = run_experiment(experiment.config)
    assert run.result["status"] == "completed"
    assert run.result["loss_extrapolation"] > 0
    folder = run.directory.path
    rows, corpus = read_csv(folder / "text.csv"), read_csv(folder / "corpus.csv")
    assert {row["windows"] for row in rows} == {"non_overlapping", "sliding", "copy"}
    assert [row["split"] for row in corpus] == ["training validation evaluation"]
    assert all("exact_match" not in row for row in read_metrics(run.directory.metrics))
    assert [row["exact_match"] for row in read_curve(run.directory.curve)] == [None] * 4
    history, _, _ = mirror(run.directory)
    logged = [row for row in history if "text/sliding_all_bits_per_byte" in row]
    assert [row["extrapolation/length"] for row in logged] == list(LENGTHS)
    assert run_experiment(experiment.config).done == "found"
