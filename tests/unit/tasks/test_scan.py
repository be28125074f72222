"""SCAN: the commands of the released data set, and which commands belong to which split."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
import torch

from pe_experiments.tasks.base import Split
from pe_experiments.tasks.scan import Scan, all_phrases
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny

# SHA-256 of the sorted lines "command -> actions" of tasks.txt of brendenlake/SCAN, with the actions' names
# of its README.
PUBLISHED_DIGEST = "7fb62387ead052a263c4ea6cd3788572b343067ad72cb3e92620b7c1ca32ca2c"
TESTED_BY_KAZEMNEJAD = [26, 27, 28, 30, 32, 33, 36, 40, 48]


def commands(task: Scan, length: int) -> set[bytes]:
    """Return all commands of a length, by drawing until none is missing."""
    inputs, _ = task.sample(length, 20_000, torch.Generator().manual_seed(length))
    return set(map(bytes, inputs.numpy()))


def test_the_grammar_makes_the_commands_of_the_released_data_set() -> None:
    phrases = all_phrases()
    assert len(phrases) == 20_910
    lines = sorted(f"{' '.join(words)} -> {' '.join(actions)}" for words, actions in phrases.items())
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == PUBLISHED_DIGEST


def test_splits_share_no_command_and_lose_none() -> None:
    task = Scan()
    counts = Counter(map(len, all_phrases().values()))
    splits: tuple[Split, ...] = ("training", "validation", "evaluation")
    for length in (1, 2, 13, 25):
        parts = [commands(task.for_split(split), length) for split in splits]
        assert all(parts)
        assert len(set.union(*parts)) == sum(map(len, parts)) == counts[length]
        assert len(parts[0]) >= 0.6 * counts[length]
    assert sorted(n for n in counts if n > 25) == TESTED_BY_KAZEMNEJAD
    for length in TESTED_BY_KAZEMNEJAD:
        assert len(commands(task.for_split("evaluation"), length)) == counts[length]
        assert task.for_split("training").nearest_length(length) == 25


def test_an_experiment_has_the_split_by_length(tiny: Tiny) -> None:
    experiment = tiny("task=scan", "training.max_length=25", "evaluation.lengths=null")
    assert max(experiment.train_lengths) == 25
    assert experiment.source.train_length == 1 + 9 + 1 + 25
    block = experiment.source.evaluation_block(48, 0)
    assert block.tokens_BT.shape == (100, 1 + 9 + 1 + 48)
    with pytest.raises(UserError, match="cannot make an input of length 49; its longest is 48"):
        tiny("task=scan", "evaluation.lengths=[49]")
