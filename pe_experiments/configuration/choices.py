"""The choices of each config group under ``configs/`` as users type them, and what unknown names may mean."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from pe_experiments.terminal import errors
from pe_experiments.terminal.errors import UserError, allowed, shown, user_errors
from pe_experiments.terminal.files import CONFIG_DIR
from pe_experiments.terminal.process import typed_command

# Groups whose choices are classes with arguments.
COMPONENT_GROUPS = ("pe", "positions", "task", "model", "optimizer")

CHOICES = re.compile(r"[\w.,-]+")  # one or several
COMMENT = re.compile("^# (?!@package)(.*)", re.MULTILINE)
ALIASES = {"nope": "none"}  # synonyms of encodings
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
# Options of Hydra that change nothing here, unless one of these others is given, too.
WITHOUT_EFFECT = {
    "hydra.run.dir": ("hydra.output_subdir", "hydra.job.chdir", "hydra/job_logging"),
    "hydra.sweep.dir": ("hydra/sweeper", "hydra/launcher"),
    "hydra.sweep.subdir": ("hydra/sweeper", "hydra/launcher"),
    "hydra.verbose": ("hydra/job_logging", "hydra/hydra_logging"),
}
RESUMES = "an interrupted run resumes from its last checkpoint when its command is repeated"
PARALLEL = "a sweep trains hydra.launcher.jobs=N runs at a time, by default one per core"
# What takes the place of keys that users of other Hydra and Lightning projects try first.
HINTS = {
    **dict.fromkeys(("ckpt_path", "ckpt", "resume", "resume_from_checkpoint"), RESUMES),
    "wandb": "options of Weights & Biases are logger.wandb.mode, project, entity and tags",
    **dict.fromkeys(("fast_dev_run", "trainer.fast_dev_run"), "for a short trial write training.steps=3"),
    **dict.fromkeys(("n_jobs", "jobs", "num_jobs", "workers", "num_workers", "parallel"), PARALLEL),
    **dict.fromkeys((f"hydra.launcher.{key}" for key in ("n_jobs", "num_jobs", "workers")), PARALLEL),
}


def choices_of(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def choices_in_folders(group: str) -> list[str]:
    """Return those in folders, such as ``released/gemma3`` of ``pe``."""
    folder = CONFIG_DIR / group
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml"))


def read_choice(group: str, choice: str) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / group / f"{choice}.yaml"))
    return content


def description(group: str, choice: str) -> str:
    """Return the description of a shipped choice, the first comment of its YAML file, or an empty text."""
    comments = COMMENT.findall((CONFIG_DIR / group / f"{choice}.yaml").read_text("utf-8"))
    return comments[0] if comments else ""


@cache
def groups_of(name: str) -> dict[str, str | None]:
    """Return the config groups of ``configs/NAME.yaml`` with their default choices."""
    groups: dict[str, str | None] = {}
    for entry in read_choice("", name).get("defaults", []):
        if isinstance(entry, dict):
            for key, choice in entry.items():
                groups[str(key).split()[-1]] = choice  # without a prefix such as ``optional``
    return groups


@cache
def shipped(group: str) -> Mapping[str, dict[str, Any]]:
    """Return the sections of the shipped components of a group by name; they must not be changed."""
    sections: dict[str, Any] = {}
    for path in sorted((CONFIG_DIR / group).glob("*.yaml")):
        with user_errors(f"configs/{group}/{path.name}", "cannot be read"):
            section: Any = OmegaConf.to_container(OmegaConf.load(path))
        if "_target_" in section and path.stem != "custom":  # which has no class
            sections[path.stem] = section
    return MappingProxyType(sections)


def spelled(group: str, text: str) -> str:
    """Return a shipped choice as its file spells it, ``rope`` for ``RoPE``, and other texts unchanged.

    Rescalings of RoPE may have their own names, such as ``YaRN``.
    """
    names = {name.lower(): name for name in choices_of(group)}
    if group == "pe":
        names = {name.removeprefix("rope_"): name for name in names} | ALIASES | names
    return names.get(text.lower().replace("-", "_"), text)


def section_of(group: str, text: str) -> dict[str, Any]:
    """Return the section that a text means: a shipped component, or a class by its dotted name.

    It reads no file of the user, because the text may be in the configuration of a stranger.

    Raises:
        UserError: the group has no such choice.
    """
    sections = shipped(group)
    name = spelled(group, text)
    if sections and name not in sections and "." not in name:
        raise UserError(f"{group}={name} is not a choice.{nearest_choice(name, [*sections])}")
    return dict(sections.get(name, {"_target_": name}))


def read_overrides(arguments: Sequence[str], command: str = "config") -> list[str]:
    """Return arguments with choices in the case of the files: ``pe=rope`` for ``pe=RoPE``.

    The dotted name of a class and a file of the user in ``configs/`` keep their names.

    Raises:
        UserError: for an unknown flag, for which Hydra would print a page of usage, and for what Hydra would
            ignore: all choices of a list or of a repeated group but one, and options without effect.
    """
    flags = [text for text in get_args_parser().parse_known_args(arguments)[1] if text.startswith("-")]
    if flags:
        how = "options are typed as key=value, such as seed=1; --help shows them"
        raise UserError(f"{flags[0]} is not a flag of this command; {how}")
    overrides = []
    values: dict[str, str] = {}
    for text in arguments:
        key, _, value = text.lstrip("+~").partition("=")
        if key in COMPONENT_GROUPS and value.startswith("["):
            how = f"{key} takes one choice; for several runs write -m {key}={value.strip('[]')}"
            raise UserError(f"{shown(text)}: {how}.{nearest_choice('', choices_of(key))}")
        if key in COMPONENT_GROUPS and key in values:
            how = f"is given twice; two runs are -m {key}={values[key]},{value}"
            raise UserError(f"{key}={shown(values[key])} {shown(text)}: {key} {how}")
        if re.search(r"[^\s,/]{1000}", value):
            raise UserError(f"{shown(text)}: words and numbers have at most 1000 characters")
        values[key] = value
        # Most arguments choose nothing, or a file as it is spelled. For them the configuration of the command
        # need not be read.
        folder = CONFIG_DIR / key
        is_choice = CHOICES.fullmatch(value) is not None and folder.is_dir()
        if is_choice and not os.path.exists(folder / f"{value}.yaml") and key in groups_of(command):
            choices = []
            for choice in value.split(","):
                is_users = "." in choice or os.path.exists(Path("configs", key, f"{choice}.yaml"))
                choices.append(choice if is_users else spelled(key, choice))
            text = f"{text.removesuffix(value)}{','.join(choices)}"
        overrides.append(text)
    for key, others in WITHOUT_EFFECT.items():
        if key in values and values.keys().isdisjoint(others):
            hint = "" if key == "hydra.verbose" else "; files of runs are written to results_dir=FOLDER"
            raise UserError(f"{key} has no effect here without {allowed(others)}{hint}")
    return overrides


def key_of(text: str) -> str:
    """Return the key of an override's text, without ``+``."""
    return text.partition("=")[0].lstrip("+~")


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the error for a key, such as ``training.lr``, that is not among the known ones."""
    problem = f"{key} is not a setting"
    if hint := HINTS.get(key) or HINTS.get(key.partition(".")[0]):
        return f"{problem}; {hint}"
    section, dot, name = key.rpartition(".")
    others = [other for other in known if not f"{other}.".startswith(f"{key}.")]
    names = {other: other.rpartition(".")[2] for other in others}
    similar = [ALSO_CALLED.get(name, name)]
    if similar[0] not in names.values():
        similar = difflib.get_close_matches(name, set(names.values()), 1, 0.85)
    if similar_options := [other for other in others if names[other] in similar]:
        return f"{problem}. Did you mean {allowed(similar_options)}?"
    within = f"{section}{dot}"
    siblings = {other.removeprefix(within).partition(".")[0] for other in others if other.startswith(within)}
    siblings.discard("_target_")
    return f"{problem}.{nearest_option(name, siblings) if siblings else ''}"


def nearest_option(word: str, options: Iterable[str]) -> str:
    """Return the end of a message as `errors.nearest`, which knows synonyms and lists usual options first."""
    ordered = sorted(options, key=lambda option: (FIRST.index(option) if option in FIRST else 99, option))
    synonym = ALSO_CALLED.get(word, word)
    return errors.nearest(synonym if synonym in ordered else word, ordered)


def nearest_choice(word: str, choices: Sequence[str]) -> str:
    """Return the end of a message as `nearest_option`; after a cut list, the command that shows all."""
    cut = f" {' '.join(typed_command('train'))} --help shows all." if len(choices) > errors.LISTED else ""
    return nearest_option(word.lower(), choices) + cut


def keys_of(config: Mapping[str, Any], *above: str) -> Iterator[str]:
    """Yield the keys of all values of a configuration, as ``training.steps``."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from keys_of(value, *above, str(key))
        else:
            yield ".".join([*above, str(key)])
