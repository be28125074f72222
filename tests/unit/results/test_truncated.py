"""Test the limits of truncated models with simulated predictors that read a window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pe_experiments.published import read_archive
from pe_experiments.published.archive import select_runs, write_archive
from pe_experiments.tasks import IGNORE
from pe_experiments.tasks.copying import Copy
from pe_experiments.tasks.local import Lag
from pe_experiments.tasks.recall import Induction
from pe_experiments.tasks.state import FlipFlop
from results.bank.truncated import study
from tests import recomputation

EXAMPLES = 4_000
BANK = study.MIRRORED.parent


def share_right(task: str, symbols: int, ignore: float, longest: int, length: int) -> float:
    """Return the exact match of a predictor that sees the last `study.window` tokens of each prefix."""
    sampler = {
        "copy": Copy(symbols),
        "lag": Lag(vocab_size=symbols),
        "induction": Induction(symbols),
        "flip_flop": FlipFlop(ignore),
    }[task]
    inputs, targets = sampler.sample(length, EXAMPLES, torch.Generator().manual_seed(2))
    right = 0
    for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        is_right = True
        for place, answer in enumerate(answers):
            if answer == IGNORE:
                continue
            aligned = task in ("lag", "flip_flop")
            read = row[: place + 1] if aligned else [*row, "separator", *answers[:place]]
            first = max(0, len(read) - study.window(task, longest))
            window = read[first:]
            guess = 0
            if task == "copy" and first <= place:
                guess = row[place]
            elif task == "lag":
                guess = window[-4]
            elif task == "induction":
                before = window[:-2]  # without the trigger at the end and the separator
                guess = before[before.index(symbols) + 1] if symbols in before else before[0]
            elif task == "flip_flop" and 2 in window:
                last_write = len(window) - 1 - window[::-1].index(2)
                guess = window[last_write + 1]
            is_right &= guess == answer
        right += is_right
    return right / EXAMPLES


@pytest.mark.parametrize("task", study.TASKS)
@pytest.mark.parametrize(("longest", "length"), [(12, 12), (12, 14), (12, 24), (24, 48), (12, 48)])
def test_a_predictor_with_a_window_reaches_the_limit(task: str, longest: int, length: int) -> None:
    """On copying to the length at which the first symbol leaves the window."""
    limit = study.ceiling(task, 10, 0.8, longest, length)
    assert share_right(task, 10, 0.8, longest, length) == pytest.approx(limit, abs=0.03)


def test_published_runs_are_compared_with_fox_and_kerple(tmp_path: Path) -> None:
    """The published runs of RoPE stand for the truncated ones."""
    archive = read_archive(study.MIRRORED)
    rows = recomputation.read_csv(study.MIRRORED / "scores.csv")
    names = [row["name"] for row in rows if row["label"] == "rope" and row["task"] in study.TASKS]
    write_archive(select_runs(archive, archive.runs["name"].isin(names[1:])), tmp_path)
    values = study.blocks(tmp_path)
    assert (values["runs"], values["measured"]) == ("47 of 48", "not measured")
    assert "No test" in values["tests"]
    write_archive(select_runs(archive, archive.runs["name"].isin(names)), tmp_path)
    values = study.blocks(tmp_path)
    scores = recomputation.over_tasks(recomputation.bank_runs(study.MIRRORED), study.TASKS, "score")
    assert values["measured"] == f"{np.mean([*scores['rope'].values()]):.2f}"
    tests = [recomputation.sign_flip_p(scores[label], scores["rope"]) for label in ("fox", "kerple_log")]
    adjusted = recomputation.holm([p for _, p, _ in tests])
    cells = [row.split(" | ") for row in values["tests"].splitlines()[2:]]
    assert [row[1] for row in cells] == [f"{difference:+.2f}" for difference, _, _ in tests]
    assert [row[3] for row in cells] == [f"{p:.3f}" for p in adjusted]
    assert "better" in values["tests"]
