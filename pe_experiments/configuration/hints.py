"""Suggest what a user may have meant by an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pe_experiments.terminal import errors
from pe_experiments.terminal.process import typed_command

# Names that other projects use for options and choices of this one.
ALSO_CALLED = {
    "theta": "base",
    "rope_theta": "base",
    "lr": "learning_rate",
    "hidden_size": "d_model",
    "encoding": "pe",
    "positional_encoding": "pe",
    "dataset": "task",
    "seeds": "seed",
    "max_steps": "steps",
    "max_epochs": "steps",
    "gradient_clip_val": "clip_norm",
    "rotary": "rope",
    "rotary_embedding": "rope",
    "llama": "rope",
    "absolute": "sinusoidal",
    "vaswani": "sinusoidal",
    "bert": "learned",
    "gpt2": "learned",
    "relative": "shaw",
    "xl": "transformer_xl",
    "swa": "sliding_window",
    "pi": "rope_linear",
    "forgetting": "fox",
}
# Options that are listed first if there are too many to list.
FIRST = ("sinusoidal", "learned", "rope", "alibi", "none", "copy", "reverse", "text", "pe", "task", "model",
         "training", "evaluation", "seed", "steps", "batch_size", "max_length", "learning_rate")  # fmt: skip
RESUMES = "an interrupted run resumes from its last checkpoint when its command is repeated"
PARALLEL = "a sweep trains hydra.launcher.jobs=N runs at a time, by default one per core"
# What takes the place of keys that users of other Hydra and Lightning projects try first.
HINTS = {
    "ckpt_path": RESUMES,
    "resume": RESUMES,
    "ckpt": RESUMES,
    "resume_from_checkpoint": RESUMES,
    "wandb": "options of Weights & Biases are logger.wandb.mode, project, entity and tags",
    "trainer.fast_dev_run": "for a short trial write training.steps=3, or dry_run=true to train nothing",
    "fast_dev_run": "for a short trial write training.steps=3, or dry_run=true to train nothing",
    **dict.fromkeys(("n_jobs", "jobs", "num_jobs", "workers", "num_workers", "parallel"), PARALLEL),
    **dict.fromkeys((f"hydra.launcher.{key}" for key in ("n_jobs", "num_jobs", "workers")), PARALLEL),
}


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the error for a key that is not among the known ones, with those that were perhaps meant.

    Args:
        key: with its sections, as ``training.lr``.
        known: keys of the values of a configuration, as ``training.learning_rate``.
    """
    problem = f"{key} is not a setting"
    for typed_by_habit in (key, key.partition(".")[0]):
        if typed_by_habit in HINTS:
            return f"{problem}; {HINTS[typed_by_habit]}"
    section, dot, name = key.rpartition(".")
    others = [other for other in known if not f"{other}.".startswith(f"{key}.")]
    names = {other: other.rpartition(".")[2] for other in others}
    similar = [ALSO_CALLED.get(name, name)]
    if similar[0] not in names.values():
        similar = difflib.get_close_matches(name, set(names.values()), 1, 0.85)
    meant = [other for other in others if names[other] in similar]
    if meant:
        return f"{problem}. Did you mean {errors.allowed(meant)}?"
    within = f"{section}{dot}"
    siblings = {other.removeprefix(within).partition(".")[0] for other in others if other.startswith(within)}
    siblings.discard("_target_")
    return f"{problem}.{nearest(name, siblings) if siblings else ''}"


def nearest(word: str, options: Iterable[str]) -> str:
    """Return the end of an error message: `` Did you mean a?`` if an option is similar, then the options."""
    ordered = sorted(options, key=lambda option: (FIRST.index(option) if option in FIRST else 99, option))
    synonym = ALSO_CALLED.get(word, word)
    return errors.nearest(synonym if synonym in ordered else word, ordered)


def nearest_choice(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message as `nearest`; after a list that is cut, the command that shows all."""
    options = list(choices)
    command = " ".join(typed_command("train"))
    more = f" {command} --help shows all." if len(options) > errors.LISTED else ""
    return nearest(word.lower(), options) + more


def keys_of(config: Mapping[str, Any], *above: str) -> Iterator[str]:
    """Yield the keys of all values of a configuration, as ``training.steps``."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from keys_of(value, *above, str(key))
        else:
            yield ".".join([*above, str(key)])
