"""Explain errors of Hydra and OmegaConf in one sentence with the key, the value and what is allowed.

What is wrong follows from the attributes of the exception, not from the wording of its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

import yaml  # type: ignore[import-untyped]
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from pe_experiments.configuration.groups import (
    ALIASES,
    COMPONENT_GROUPS,
    choices_of,
    groups_of,
    read_choice,
)
from pe_experiments.configuration.hints import ALSO_CALLED, HINTS, nearest
from pe_experiments.configuration.schema import Config, fields_of, not_a_setting
from pe_experiments.terminal.errors import UserError, allowed, one_line, shown

# Options of Hydra that change nothing here, unless one of these others is given, too.
WITHOUT_EFFECT = {
    "hydra.run.dir": ("hydra.output_subdir", "hydra.job.chdir", "hydra/job_logging"),
    "hydra.sweep.dir": ("hydra/sweeper", "hydra/launcher"),
    "hydra.sweep.subdir": ("hydra/sweeper", "hydra/launcher"),
    "hydra.verbose": ("hydra/job_logging", "hydra/hydra_logging"),
}


def explain_error(
    error: BaseException, overrides: Sequence[str] = (), command: str = "config"
) -> BaseException:
    """Return a `UserError` that explains an error of Hydra, OmegaConf or YAML; return other errors unchanged.

    Args:
        error: the exception.
        overrides: the arguments of the command, with or without its flags; with ``-m`` several values of a
            key are allowed.
        command: name of the primary configuration.
    """
    texts = [text for text in overrides if not text.startswith("-") and "=" in text]
    if mark := getattr(error, "problem_mark", None):  # set by the YAML parser
        return UserError(f"{mark.name}, line {mark.line + 1}: {error.problem}")  # type: ignore[attr-defined]
    if isinstance(error, RecursionError):
        return UserError("the defaults list of a config file is circular")
    if isinstance(error, ValueError) and not isinstance(error, UserError):
        for text in texts:  # Hydra expects a text for a group
            if key_of(text) in groups_of(command) and text.endswith("=null"):
                return UserError(_takes_one_choice(text))
    if not isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError):
        return error
    multirun = not {"-m", "--multirun", "hydra.mode=MULTIRUN"}.isdisjoint(overrides)
    if problem := _mistake(error, texts, command, multirun):
        return UserError(problem)
    parts = [str(part).split("\n\n")[0].strip() for part in (error, error.__cause__) if part]
    if key := getattr(error, "full_key", None):
        parts = [str(key), str(error).splitlines()[0]]
    return UserError(one_line(": ".join(dict.fromkeys(" ".join(part.split()) for part in parts))))


def refuse_lists(overrides: Iterable[str]) -> None:
    """Raise an error for ``pe=[rope,none]``, of which Hydra would silently take the last choice."""
    for text in overrides:
        if key_of(text) in COMPONENT_GROUPS and text.partition("=")[2].startswith("["):
            raise UserError(_takes_one_choice(text))


def refuse_two_encodings(overrides: Iterable[str]) -> None:
    """Raise an error for ``pe=rope`` together with ``bank/encoding``, which sets pe."""
    values = dict(text.partition("=")[::2] for text in overrides)
    encoding = values.get("bank/encoding", "own")
    if encoding not in ("own", "null") and ("pe" in values or "positions" in values):
        key = "pe" if "pe" in values else "positions"
        hint = "choose it there, or add bank/encoding=own to use pe and positions"
        raise UserError(f"{key}={values[key]}: bank/encoding={encoding} sets the encoding; {hint}")


def refuse_without_effect(overrides: Iterable[str]) -> None:
    """Raise an error for an option of Hydra that would be ignored silently."""
    keys = set(map(key_of, overrides))
    for key in sorted(keys & WITHOUT_EFFECT.keys()):
        others = WITHOUT_EFFECT[key]
        if keys.isdisjoint(others):
            hint = "" if key == "hydra.verbose" else "; files of runs are written to results_dir=FOLDER"
            raise UserError(f"{key} has no effect here without {allowed(others)}{hint}")


def key_of(text: str) -> str:
    """Return the key of an override's text, without ``+``."""
    return text.partition("=")[0].lstrip("+~")


def _mistake(error: BaseException, texts: Sequence[str], command: str, multirun: bool) -> str:
    """Return what is wrong with the overrides according to the error, or an empty string."""
    if isinstance(error, OverrideParseException):
        return _unreadable(str(error.override))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        name = error.missing_cfg_file.rpartition("/")[2]
        if any(name in text for text in texts):  # else a file of the user names it
            return _unknown_choice(error.missing_cfg_file, error.options, texts)
    unknown = getattr(error.__cause__, "full_key", None)  # of ``training`` for ``training.stepz``, too
    for text in texts:
        if unknown and f"{key_of(text)}.".startswith(f"{unknown}."):
            return _unknown_key(key_of(text), text, texts, command)
    for text in texts:
        key = key_of(text)
        if choices_of(key) and key not in groups_of(command):
            options = sorted(groups_of(command).keys() - {"application", "local"})
            return f"{key} is no option of this command; only {allowed(options)} can be chosen"
        with suppress(HydraException):
            if not multirun and OverridesParser.create().parse_override(text).is_sweep_override():
                return _several_values(text, command)
    return ""


def _takes_one_choice(text: str) -> str:
    """Return the error for a list, or for nothing, as the choice of a group."""
    group = key_of(text)
    values = text.partition("=")[2].strip("[]").replace("null", "")
    how = f"; for several runs write -m {group}={values}" if values else ""
    return f"{shown(text)}: {group} takes one choice{how}.{nearest('', choices_of(group))}"


def _typed_label(group: str, value: str) -> str:
    """Return how the label of an encoding, such as ``fox(initial_bias=4)+random_subset``, is typed, or ""."""
    label = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?(?:\+(\w+))?", value.strip("'\""))
    if group != "pe" or not label or label[1] not in choices_of("pe") or not (label[2] or label[3]):
        return ""
    arguments = [f"pe.{argument}" for argument in label[2].split(",")] if label[2] else []
    positions = [f"positions={label[3]}"] if label[3] else []
    return f"the label {value} is typed as {' '.join([f'pe={label[1]}', *arguments, *positions])}"


def _unknown_choice(file: str, options: Sequence[str] | None, texts: Sequence[str]) -> str:
    """Return the error for a choice ``group/name`` that no config file has."""
    group, _, name = file.rpartition("/")
    for key in map(key_of, texts):
        if file.startswith(f"{key}/"):  # the name may contain a slash
            group, name = key, file.removeprefix(f"{key}/")
    if typed := _typed_label(group, name):
        return f"{group}={shown(name)} is not a choice; {typed}"
    choices = list(options or choices_of(group))
    if group == "bank/task":
        return f"task={shown(name)} is not in the bank.{nearest(name, choices)}"
    if group == "pe":
        choices += ALIASES
    hint = nearest(name, choices)
    if group.startswith("hydra/"):
        hint += f" Others come with a package such as hydra-{name}-{group.rpartition('/')[2]}."
    return f"{group}={shown(name)} is not a choice.{hint}"


def _unknown_key(key: str, text: str, overrides: Sequence[str], command: str) -> str:
    """Return the error for a key that the configuration does not have."""
    section, _, argument = key.partition(".")
    if key in HINTS:
        return f"{key} is not a setting; {HINTS[key]}"
    if section == "hydra":
        plugin = "/".join(key.split(".")[:2])
        return f"{shown(text)} is not an option of the {plugin} in use; another is chosen with {plugin}=NAME"
    if command != "config":
        known = {**read_choice("", command), **groups_of(command)}.keys() - {"defaults", "application"}
        if section in ("pe", "task") and argument and section in known:
            return f"{key} keeps the run's value; to change it, add a plus: +{text}"
        if section in known:
            return not_a_setting(key.split("."), Config)
        if command == "evaluate" and section in Config.model_fields:
            return f"{key} is fixed by the training; only evaluation, logger, pe, task or trainer can change"
        return f"{key} is not a setting.{nearest(key, known)}"
    if section in COMPONENT_GROUPS and argument:
        return _unknown_argument(key, text, overrides)
    return not_a_setting(key.split("."), Config)


def _unknown_argument(key: str, text: str, overrides: Sequence[str]) -> str:
    """Return the error for an argument that the chosen class does not have."""
    section, _, argument = key.partition(".")
    chosen = [item.partition("=")[2] for item in overrides if key_of(item) == section]
    if not chosen and any(item.startswith("init_from=") for item in overrides):
        return f"{key}: an argument of the parent's {section} is written with two plus: ++{text}"
    choice = chosen[-1] if chosen else str(groups_of("config").get(section))
    choices = choices_of(section)
    if choice not in choices or choice == "custom":
        return f"{key} is not yet among the arguments; add it with a plus: +{text}"
    setting = ALSO_CALLED.get(argument, argument)
    for name, field in Config.model_fields.items():
        if name not in COMPONENT_GROUPS and setting in fields_of(field.annotation):
            return f"{key} is not a setting. Did you mean {name}.{setting}?"
    names = [name for name in read_choice(section, choice) if name != "_target_"]
    hint = nearest(argument, names) if names else " It takes no arguments."
    having = [other for other in choices if argument in read_choice(section, other)]
    if having and "Did you mean" not in hint:
        hint = f"{hint} {allowed(f'{section}={other}' for other in having[:3])} has it."
    return f"{key} is not an argument of {section}={choice}.{hint}"


def _unreadable(text: str) -> str:
    """Return the error for a text that Hydra cannot parse as an override."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        return f"{shown(text)!r} is not key=value; for example pe=sinusoidal or training.steps=500"
    if typed := _typed_label(key, value):
        return f"{shown(text)!r} cannot be read; {typed}"
    if value.endswith(","):
        return f"{shown(text)!r} ends in a comma; write several values without spaces, as in pe=none,rope"
    quoted = f"""'{key}="{value}"'"""
    return f"{shown(text)!r} cannot be read; quote special characters, as in {shown(quoted)}"


def _several_values(text: str, command: str) -> str:
    """Return the error for several values in a command that makes only one run."""
    key, _, values = text.partition("=")
    as_list = f"a list is written '{key}=[{shown(values)}]'"
    if command != "config":
        return f"{shown(text)}: this command takes one value; {as_list}"
    if values.startswith(("range(", "interval(")):
        return (
            f"{shown(text)}: this range is empty or infinite, or lacks -m; a sweep needs values such as 1,2,3"
        )
    how = f"train.py -m {ALSO_CALLED.get(key, key)}={shown(values)}"
    return f"{shown(text)}: several values need a sweep: {how}" + (f"; {as_list}" if "." in key else "")
