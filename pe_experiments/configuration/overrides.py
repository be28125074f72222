"""Parse overrides ``key=value`` with Hydra's parser, expand short forms and report mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from pe_experiments.configuration.groups import COMPONENT_GROUPS, choices_of, groups_of
from pe_experiments.terminal.errors import ALSO_CALLED, UserError, nearest, shown
from pe_experiments.terminal.files import CONFIG_DIR

PATHS = ("run", "init_from")  # values that Hydra must not parse: names of runs have brackets and commas
FLAGS_WITH_VALUE = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--cfg", "-c",
                    "--package", "-p", "--experimental-rerun")  # fmt: skip
PLUGINS = ("hydra.sweeper", "hydra.launcher")


def read_overrides(texts: Iterable[str]) -> list[Override]:
    """Return the overrides as parsed by Hydra."""
    return [_parse(text) for text in texts]


@lru_cache(maxsize=100_000)  # the runs of a sweep repeat the same texts
def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except (HydraException, ValueError) as error:
        raise unreadable(text) from error


def unreadable(text: str) -> UserError:
    """Return the error for a text that Hydra cannot parse as an override."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        example = "for example pe=sinusoidal or training.steps=500"
        return UserError(f"{shown(text)!r} is not key=value; {example}; write several values without spaces")
    if value.endswith(","):
        return UserError(
            f"{shown(text)!r} ends in a comma; write several values without spaces, as in pe=none,rope"
        )
    return UserError(
        f"{shown(text)!r} cannot be read; quote special characters, as in 'evaluation.lengths=[50,100]'"
    )


def key_of(text: str) -> str:
    """Return the key of an override's text, without ``+``."""
    return text.partition("=")[0].lstrip("+~")


def normalise_overrides(arguments: Sequence[str], command: str = "config") -> list[str]:
    """Return command-line arguments for Hydra: the overrides, then the flags.

    ``pe._target_=mine.X`` implies ``pe=custom``, and names of runs need no quotes.

    Raises:
        UserError: a choice is invalid, or a plugin of Hydra is written as an option.
    """
    overrides: list[str] = []
    flags: list[str] = []
    for text in arguments:
        previous = flags[-1] if flags else ""
        is_value = previous in FLAGS_WITH_VALUE or (previous in ("--info", "-i") and "=" not in text)
        if text.startswith("-") or is_value:
            flags.append(text)
        else:
            overrides.append(text)
    keys = [key_of(text) for text in overrides]
    groups = groups_of(command)
    for text in overrides:
        key, _, value = text.partition("=")
        if not key:
            raise unreadable(text)
        if key == "hydra":
            raise UserError(f"{shown(text)}: hydra is a section; set its options with hydra.KEY=...")
        if key_of(text) in groups and value.replace(" ", "") == "{}":
            raise UserError(f"{shown(text)} changes nothing")
        if key in COMPONENT_GROUPS and key in groups and (value in ("null", "") or value.startswith("[")):
            values = value.strip("[]").replace(" ", "")
            how = f"; for several runs write -m {key}={values}" if values not in ("", "null") else ""
            raise UserError(f"{shown(text)}: {key} takes one choice{how}.{nearest('', choices_of(key))}")
        if key in groups:
            for choice in set(value.split(",")) & set(choices_of(key)):
                _refuse_shipped_name(text, Path("configs", key, f"{choice}.yaml"))
        if key in PLUGINS:
            raise UserError(f"{shown(text)} is not a choice; write {key.replace('.', '/')}={shown(value)}")
    for path in sorted(CONFIG_DIR.glob("*/custom.yaml")):
        group = path.parent.name
        if f"{group}._target_" in keys and group not in keys:
            overrides.append(f"{group}=custom")
    if "init_from" in keys:
        # The class of a group that is not chosen comes from the parent run, so that Hydra does not know its
        # arguments.
        chosen = {key_of(text) for text in overrides}
        for index, text in enumerate(overrides):
            group, dot, _ = key_of(text).partition(".")
            if dot and group in COMPONENT_GROUPS and group not in chosen and text[0] not in "+~":
                overrides[index] = f"++{text}"
    return [*map(_quoted, overrides), *flags]


def _refuse_shipped_name(text: str, file: Path) -> None:
    """Raise an error if the user's file has the name of a shipped file, because Hydra would ignore it."""
    # In a checkout of this project, which has a config.yaml, the files in configs/ are the shipped ones.
    if file.exists() and not Path("configs", "config.yaml").exists():
        raise UserError(f"{shown(text)}: {file} has the name of a shipped file, which is read; rename yours")


def _quoted(text: str) -> str:
    """Return an override with quotes around the name of a run, and ``++`` before a mapping to merge."""
    key, equals, value = text.partition("=")
    if key == "+trainer.callbacks":  # also valid, since the shipped list is empty
        return f"+{text}"
    if value.startswith("{") and text[0] not in "+~":
        return f"++{text}"
    if key == "init_from" and "," in value and value[0] not in "'\"":  # several runs, of a sweep
        names = [_quoted(f"{key}={name}").partition("=")[2] for name in value.split(",")]
        return f"{key}={','.join(names)}"
    if key in PATHS and equals and not re.fullmatch(r"""[\w./~-]*|'.*'|".*"|\?\?\?|null""", value):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"{key}='{escaped}'"
    return text


def refuse_several(override: Override) -> None:
    """Raise an error if an override has several values, which only a sweep accepts."""
    if override.is_sweep_override():
        raise several_values(str(override.input_line))


def several_values(text: str) -> UserError:
    """Return the error for several values in a command that makes only one run."""
    text = text.removeprefix("++")  # added by evaluate.py
    key, _, values = text.partition("=")
    how = f"train.py -m {ALSO_CALLED.get(key, key)}={shown(values)}"
    how += f"; a list is written '{key}=[{shown(values)}]'" if "." in key else ""
    return UserError(f"{shown(text)}: several values need a sweep: {how}")
