"""SCAN: commands of a small language and the sequences of actions they stand for."""

import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from pe_experiments.tasks.base import IGNORE, Split, Task
from pe_experiments.terminal.errors import at_least

VOCABULARY = (
    *("walk", "look", "run", "jump", "turn", "left", "right"),
    *("opposite", "around", "twice", "thrice", "and", "after"),
)
BLANK = len(VOCABULARY)
ACTIONS = ("WALK", "LOOK", "RUN", "JUMP", "LTURN", "RTURN")
FIRST_ACTION = BLANK + 1
MOST_WORDS = 9  # of a command
TURNS = {"left": "LTURN", "right": "RTURN"}

Phrases = dict[tuple[str, ...], tuple[str, ...]]  # actions by the words of a phrase
# Inputs [C, N] and targets [C, M] of commands with the same number of actions, in a fixed random order.
Commands = tuple[Tensor, Tensor]


class Scan(Task):
    """Translate a command into actions: "turn left and jump twice" -> LTURN JUMP JUMP.

    Symbols: the words walk, look, run, jump, turn, left, right, opposite, around, twice, thrice, and, after
    are 0 to 12, a blank 13, the actions WALK, LOOK, RUN, JUMP, LTURN, RTURN 14 to 19. Blanks fill commands up
    to nine words:

    >>> task = Scan()
    >>> task.solve(task.encode("turn left and jump twice")).tolist()
    [[18, 17, 17]]
    >>> task.solve(task.encode("walk opposite right after look")).tolist()
    [[15, 19, 19, 14]]

    A length is the number of actions, here 3 and 4. Of the lengths up to 48, fifteen have no command.
    Commands of a length are uniform; all lengths are trained equally often, while the source draws all 20,910
    commands equally often. Up to ``trained_to`` actions a tenth of the commands of each length is kept for
    validation and another tenth for evaluation; all longer commands are for evaluation. Bag ceilings count
    all commands.

    Sources: Lake and Baroni 2018, arXiv:1711.00350 (grammar and commands; their split by length trains on up
    to 22 actions); split at 25 actions: Kazemnejad et al. 2023, arXiv:2305.19466, whose inputs have no
    blanks (one length of input per number of actions is a need of this project).

    Args:
        trained_to: largest number of actions of commands for training, from 1 to 48.
    """

    vocab_size = FIRST_ACTION + len(ACTIONS)
    answers = len(ACTIONS)

    def __init__(self, trained_to: int = 25):
        self.trained_to = at_least(1, "trained_to", trained_to)
        self.split: Split | None = None  # all commands

    def for_split(self, split: Split) -> Self:
        task = copy.copy(self)
        task.split = split
        return task

    def encode(self, command: str) -> Tensor:
        """Return the symbols [1, 9] of a command given as words."""
        return torch.tensor([_encode_words(tuple(command.split()))])

    def nearest_length(self, length: int) -> int | None:
        """Return the largest number of actions of at most ``length`` for which there is a command."""
        return max((actions for actions in self._lengths() if actions <= length), default=None)

    def input_length(self, length: int) -> int:
        return MOST_WORDS

    def target_length(self, length: int) -> int:
        return length

    def num_inputs(self, length: int) -> float:
        return len(self._commands(length)[0])

    def sample(self, length: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs_CN, targets_CM = self._commands(length)
        chosen_B = torch.randint(len(inputs_CN), (batch_size,), generator=generator)
        return inputs_CN[chosen_B], targets_CM[chosen_B]

    def solve(self, inputs_BN: Tensor) -> Tensor:
        answers = [self.solve_row(row) for row in inputs_BN.tolist()]
        longest = max(map(len, answers))
        return torch.tensor([answer + [IGNORE] * (longest - len(answer)) for answer in answers])

    def solve_row(self, row: list[int]) -> list[int]:
        words = [VOCABULARY[symbol] if symbol < BLANK else "" for symbol in row]
        while words and not words[-1]:
            words.pop()
        try:
            return [FIRST_ACTION + ACTIONS.index(action) for action in interpret(words)]
        except ValueError:
            return []  # not a command

    def bag_ceiling(self, length: int, prefix: bool = False) -> float:
        return _bag_ceiling(length, prefix)

    def input_blind(self, length: int) -> float:
        modal_M = [actions_C.bincount().max() for actions_C in _all_commands()[length][1].T]
        return float(sum(modal_M) / len(modal_M) / self.num_inputs(length))

    def _lengths(self) -> list[int]:
        """Return the numbers of actions of the commands of this split."""
        if self.split in ("training", "validation"):
            return [actions for actions in _all_commands() if actions <= self.trained_to]
        return list(_all_commands())

    def _commands(self, length: int) -> Commands:
        """Return the commands of this split with ``length`` actions.

        Raises:
            ValueError: there are none.
        """
        if length not in self._lengths():
            raise ValueError(
                f"SCAN has no command of {length} actions for split={self.split} with "
                f"trained_to={self.trained_to}; the nearest length below is {self.nearest_length(length)}"
            )
        inputs_CN, targets_CM = _all_commands()[length]
        tenth = -(-len(inputs_CN) // 10)
        if self.split is None or length > self.trained_to:
            rows = slice(None)
        elif self.split == "evaluation":
            rows = slice(tenth)
        elif self.split == "validation":
            rows = slice(tenth, 2 * tenth)
        else:
            rows = slice(2 * tenth, None)
        return inputs_CN[rows], targets_CM[rows]


def all_phrases() -> Phrases:
    """Return all 20,910 commands with their actions, built from the grammar of Lake and Baroni's figure 6.

    A verb phrase is repeated once, twice or thrice; a command is one such phrase, or two with "and" or
    "after" between them.
    """
    repeated: Phrases = {}
    for words, actions in _verb_phrases():
        repeated[words] = actions
        repeated[*words, "twice"] = 2 * actions
        repeated[*words, "thrice"] = 3 * actions
    commands = dict(repeated)
    for left, left_actions in repeated.items():
        for right, right_actions in repeated.items():
            commands[*left, "and", *right] = left_actions + right_actions
            commands[*left, "after", *right] = right_actions + left_actions
    return commands


def _verb_phrases() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the 34 phrases without repetition and their actions. The verb "turn" needs a direction."""
    verbs: Phrases = {(action.lower(),): (action,) for action in ACTIONS[:4]}
    yield from verbs.items()
    verbs["turn",] = ()
    for verb, action in verbs.items():
        for direction, turn in TURNS.items():
            yield (*verb, direction), (turn, *action)
            yield (*verb, "opposite", direction), (turn, turn, *action)
            yield (*verb, "around", direction), 4 * (turn, *action)


def interpret(words: list[str]) -> list[str]:
    """Return the actions of a command by reading it; the reference for `all_phrases`.

    Raises:
        ValueError: it is not a command.
    """
    for conjunction in ("and", "after"):
        if conjunction in words:
            place = words.index(conjunction)
            left = _interpret_phrase(words[:place])
            right = _interpret_phrase(words[place + 1 :])
            return left + right if conjunction == "and" else right + left
    return _interpret_phrase(words)


def _interpret_phrase(words: list[str]) -> list[str]:
    """Return the actions of a command without "and" and "after"."""
    times = {"twice": 2, "thrice": 3}.get(words[-1], 1) if words else 1
    match words[:-1] if times > 1 else words:
        case ["walk" | "look" | "run" | "jump" as verb]:
            return times * [verb.upper()]
        case ["turn", *direction]:
            verb_actions = []
        case ["walk" | "look" | "run" | "jump" as verb, *direction]:
            verb_actions = [verb.upper()]
        case _:
            raise ValueError("no verb")
    match direction:
        case ["left" | "right" as side]:
            return times * [TURNS[side], *verb_actions]
        case ["opposite", "left" | "right" as side]:
            return times * [TURNS[side], TURNS[side], *verb_actions]
        case ["around", "left" | "right" as side]:
            return times * 4 * [TURNS[side], *verb_actions]
    raise ValueError("no direction")


@cache
def _all_commands() -> dict[int, Commands]:
    """Return the commands by number of actions, in the order of a hash of their words."""
    by_length: dict[int, list[tuple[str, ...]]] = {}
    phrases = all_phrases()
    for words in sorted(phrases, key=lambda words: hashlib.sha256(" ".join(words).encode()).digest()):
        by_length.setdefault(len(phrases[words]), []).append(words)
    commands = {}
    for length, listed in sorted(by_length.items()):
        inputs_CN = torch.tensor([_encode_words(words) for words in listed])
        actions = [[FIRST_ACTION + ACTIONS.index(action) for action in phrases[words]] for words in listed]
        commands[length] = inputs_CN, torch.tensor(actions)
    return commands


def _encode_words(words: tuple[str, ...]) -> list[int]:
    return [VOCABULARY.index(word) for word in words] + [BLANK] * (MOST_WORDS - len(words))


@cache
def _bag_ceiling(length: int, prefix: bool) -> float:
    """Return the share of actions that the best guess from a command's words without order gets right.

    With ``prefix`` the guess also knows the actions before.
    """
    inputs_CN, targets_CM = _all_commands()[length]
    bags_CN = inputs_CN.sort(dim=1).values.numpy()
    targets = targets_CM.numpy()
    correct = 0
    for index in range(length):
        visible = np.concatenate([bags_CN, targets[:, :index]], axis=1) if prefix else bags_CN
        counts = Counter(zip(map(bytes, visible), targets[:, index], strict=True))
        best: Counter[bytes] = Counter()
        for (seen, _), count in counts.items():
            best[seen] = max(best[seen], count)
        correct += best.total()
    return correct / targets.size
