"""Test the limits of truncated models with simulated predictors that read a window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pe_experiments.tasks import IGNORE
from pe_experiments.tasks.copying import Copy
from pe_experiments.tasks.local import Lag
from pe_experiments.tasks.recall import Induction
from pe_experiments.tasks.state import FlipFlop
from results.bank.truncated import study
from tests import recomputation

EXAMPLES = 4_000
FOLDER = Path(study.__file__).parent


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


def test_independent_code_finds_the_means_and_the_tests() -> None:
    values = study.blocks(FOLDER)
    truncated = recomputation.bank_runs(FOLDER, floors_of=study.MIRRORED, rates=1)
    scores = recomputation.over_tasks(recomputation.bank_runs(study.MIRRORED), study.TASKS, "score")
    rope = recomputation.over_tasks(truncated, study.TASKS, "score")["rope"]
    assert len(rope) == 12
    assert values["RoPE, truncated"] == pytest.approx(np.mean([*rope.values()]))
    tests = [recomputation.sign_flip_p(scores[label], rope) for label in ("fox", "kerple_log")]
    adjusted = recomputation.holm([p for _, p, _ in tests])
    cells = [row.split(" | ") for row in values["tests"].splitlines()[2:]]
    assert [row[1] for row in cells] == [f"{difference:+.2f}" for difference, _, _ in tests]
    assert [row[3] for row in cells] == [f"{p:.3f}" for p in adjusted]
