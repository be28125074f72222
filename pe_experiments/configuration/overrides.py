"""Read typed overrides ``key=value`` with Hydra's parser, expand short forms and report mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from pe_experiments.configuration.groups import PARTS, choices_of, groups_of
from pe_experiments.terminal.errors import ALSO_CALLED, UserError, nearest, shown
from pe_experiments.terminal.files import CONFIG_DIR

PATHS = ("run", "init_from")  # names of runs contain brackets and commas, which Hydra would interpret
FLAGS_WITH_VALUE = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--cfg", "-c",
                    "--package", "-p", "--experimental-rerun")  # fmt: skip
PLUGINS = ("hydra.sweeper", "hydra.launcher")


def read_overrides(texts: Iterable[str]) -> list[Override]:
    """Return the texts as parsed by Hydra."""
    return [_read(text) for text in texts]


@lru_cache(maxsize=100_000)  # the runs of a sweep repeat the same texts
def _read(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except (HydraException, ValueError) as error:
        raise unreadable(text) from error


def unreadable(text: str) -> UserError:
    """Return the error for a text that is not an override."""
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


def normalised(arguments: Sequence[str], command: str = "config") -> list[str]:
    """Return command-line arguments for Hydra: the overrides, then the flags.

    ``pe._target_=mine.X`` implies ``pe=custom``, and names of runs need no quotes.

    Raises:
        UserError: a choice is invalid, or a plugin of Hydra is written as an option.
    """
    typed: list[str] = []
    flags: list[str] = []
    for text in arguments:
        takes_value = bool(flags) and flags[-1] in FLAGS_WITH_VALUE
        optional = bool(flags) and flags[-1] in ("--info", "-i") and "=" not in text
        (flags if text.startswith("-") or takes_value or optional else typed).append(text)
    keys = [key_of(text) for text in typed]
    groups = groups_of(command)
    for text in typed:
        key, _, value = text.partition("=")
        if not key:
            raise unreadable(text)
        if key == "hydra":
            raise UserError(f"{shown(text)}: hydra is a section; set its options with hydra.KEY=...")
        if key_of(text) in groups and value.replace(" ", "") == "{}":
            raise UserError(f"{shown(text)} changes nothing")
        if key in PARTS and key in groups and (value in ("null", "") or value.startswith("[")):
            several = value.strip("[]").replace(" ", "")
            how = f"; for several runs write -m {key}={several}" if several != "null" and several else ""
            raise UserError(f"{shown(text)}: {key} takes one choice{how}.{nearest('', choices_of(key))}")
        if key in groups:
            for choice in set(value.split(",")) & set(choices_of(key)):
                _refuse_shipped_name(text, Path("configs", key, f"{choice}.yaml"))
        if key in PLUGINS:
            raise UserError(f"{shown(text)} is not a choice; write {key.replace('.', '/')}={shown(value)}")
    for path in sorted(CONFIG_DIR.glob("*/custom.yaml")):
        group = path.parent.name
        if f"{group}._target_" in keys and group not in keys:
            typed.append(f"{group}=custom")
    if "init_from" in keys:  # the arguments of a part that is not chosen are those of the run
        chosen = {key_of(text) for text in typed}
        for index, text in enumerate(typed):
            part, dot, _ = key_of(text).partition(".")
            if dot and part in PARTS and part not in chosen and text[0] not in "+~":
                typed[index] = f"++{text}"
    return [*map(_quoted, typed), *flags]


def _refuse_shipped_name(text: str, file: Path) -> None:
    """Raise an error for a file of the user that would be ignored; a copy of this project has all of them."""
    if file.exists() and not Path("configs", "config.yaml").exists():
        raise UserError(f"{shown(text)}: {file} has the name of a shipped file, which is read; rename yours")


def _quoted(text: str) -> str:
    """Return the text with the name of a run in quotes, and with mappings in the form that merges them."""
    key, equals, value = text.partition("=")
    if key == "+trainer.callbacks":  # also valid, since the shipped list is empty
        return f"+{text}"
    if value.startswith("{") and text[0] not in "+~":
        return f"++{text}"
    if key == "init_from" and "," in value and value[0] not in "'\"":  # several runs, of a sweep
        names = [_quoted(f"{key}={name}").partition("=")[2] for name in value.split(",")]
        return f"{key}={','.join(names)}"
    if key in PATHS and equals and not re.fullmatch(r"""[\w./~-]*|'.*'|".*"|\?\?\?|null""", value):
        return f"{key}='{value.replace(chr(92), chr(92) * 2).replace(chr(39), chr(92) + chr(39))}'"
    return text


def refuse_several(override: Override) -> None:
    """Raise an error if an override of a single run has several values."""
    if override.is_sweep_override():
        raise several_values(str(override.input_line))


def several_values(text: str) -> UserError:
    """Return the error for several values in a command that makes one run."""
    text = text.removeprefix("++")  # evaluate.py adds it
    key, _, values = text.partition("=")
    how = f"train.py -m {ALSO_CALLED.get(key, key)}={shown(values)}"
    how += f"; a list is written '{key}=[{shown(values)}]'" if "." in key else ""
    return UserError(f"{shown(text)}: several values need a sweep: {how}")
