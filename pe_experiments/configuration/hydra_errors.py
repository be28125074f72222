"""Explain errors of Hydra and OmegaConf in one sentence with the key, the value and what is allowed.

What is wrong follows from the attributes of the exception, not from the wording of its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pe_experiments.configuration.config_groups import (
    ALIASES,
    COMPONENT_GROUPS,
    choices_in_folders,
    choices_of,
    encodings_in_catalogue,
    groups_of,
    read_choice,
)
from pe_experiments.configuration.hints import ALSO_CALLED, keys_of, nearest_choice, unknown_key
from pe_experiments.terminal.errors import UserError, allowed, one_line, shown

# Options of Hydra that change nothing here, unless one of these others is given, too.
WITHOUT_EFFECT = {
    "hydra.run.dir": ("hydra.output_subdir", "hydra.job.chdir", "hydra/job_logging"),
    "hydra.sweep.dir": ("hydra/sweeper", "hydra/launcher"),
    "hydra.sweep.subdir": ("hydra/sweeper", "hydra/launcher"),
    "hydra.verbose": ("hydra/job_logging", "hydra/hydra_logging"),
}


OVERRIDE = re.compile(r"([+~]*)([\w/]+)=([\w.,-]*)")  # with one choice or several
RANGE = re.compile(r"([\w.]+)=(\d+)\.\.(\d+)")  # as in a shell
EXAMPLES = {
    "config": "pe=sinusoidal or training.steps=500",
    "benchmark": "parts=quick",
    "check_encoding": "pe=rope against=rope",
    "check_task": "task=copy",
    "compare": "results_dir=results or study=NAME",
    "evaluate": "run=NAME",
    "evaluate_pretrained": "model=FOLDER",
    "export": "run=NAME",
    "results": "publish=NAME",
    "show_encoding": "pe=rope",
    "show_model": "run=NAME",
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
    if mark := getattr(error, "problem_mark", None):  # set by the YAML parser
        return UserError(f"{mark.name}, line {mark.line + 1}: {error.problem}")  # type: ignore[attr-defined]
    if isinstance(error, RecursionError):
        return UserError("the defaults list of a config file is circular")
    if isinstance(error, OverrideParseException):
        return UserError(_unreadable(str(error.override), overrides, command))
    for text in overrides:
        if text.startswith("="):
            return UserError(_unreadable(text, overrides, command))
        if (numbers := RANGE.fullmatch(text)) and isinstance(error, UserError):
            key, first, last = numbers.groups()
            several = ",".join(map(str, range(int(first), min(int(last), int(first) + 9) + 1)))
            return UserError(f"{text}: several values need a sweep: train.py -m {key}={several}")
    multirun = not {"-m", "--multirun", "hydra.mode=MULTIRUN"}.isdisjoint(overrides)
    for text in overrides:
        if "=" in text and not text.startswith("-") and (problem := _mistake(error, text, command, multirun)):
            return UserError(problem)
    if not isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError):
        return error
    parts = [re.split(r"\n\n|\n *full_key:", str(part))[0] for part in (error, error.__cause__) if part]
    if key := getattr(error, "full_key", None):
        parts = [str(key), parts[0]]
    return UserError(one_line(": ".join(dict.fromkeys(" ".join(part.split()) for part in parts))))


def canonical(text: str, command: str = "config") -> str:
    """Return an override with the choices of its group spelled as the files are: ``pe=rope`` for ``pe=RoPE``.

    Upper and lower case do not matter, encodings may have their printed name where only one has it, and
    rescalings of RoPE their own (``yarn``). A file of the user in ``configs/`` keeps its name.
    """
    override = OVERRIDE.fullmatch(text)
    if not override or override[2] not in groups_of(command):
        return text
    prefix, group, values = override.groups()
    names = choices_of(group)
    if set(values.split(",")) <= set(names):
        return text
    by_spelling = {name.lower(): name for name in names}
    if group == "pe":
        by_spelling |= {name.removeprefix("rope_"): name for name in names if name.startswith("rope_")}
        printed = [str(facts["printed"]).lower() for facts in encodings_in_catalogue().values()]
        for name, facts in encodings_in_catalogue().items():
            words = str(facts["printed"]).lower()
            if printed.count(words) == 1:
                by_spelling.setdefault(words, name)
        by_spelling |= ALIASES | {name: name for name in names}

    def spelled(value: str) -> str:
        if value in names or "." in value or Path("configs", group, f"{value}.yaml").exists():
            return value
        return by_spelling.get(value.lower().replace("-", "_"), value)

    return f"{prefix}{group}={','.join(map(spelled, values.split(',')))}"


def refuse_unknown_flags(arguments: Sequence[str]) -> None:
    """Raise an error for a flag that Hydra does not have; its own message is preceded by a page of usage."""
    flags = [text for text in get_args_parser().parse_known_args(arguments)[1] if text.startswith("-")]
    if flags:
        how = "options are typed as key=value, such as seed=1; --help shows them"
        raise UserError(f"{flags[0]} is not a flag of this command; {how}")


def refuse_ignored(overrides: Iterable[str]) -> None:
    """Raise an error for what Hydra would ignore: all choices of a list but one, options without effect."""
    values = {key_of(text): text for text in overrides}
    for key, text in values.items():
        if key in COMPONENT_GROUPS and text.partition("=")[2].startswith("["):
            raise UserError(_takes_one_choice(text))
        others = WITHOUT_EFFECT.get(key, ())
        if others and values.keys().isdisjoint(others):
            hint = "" if key == "hydra.verbose" else "; files of runs are written to results_dir=FOLDER"
            raise UserError(f"{key} has no effect here without {allowed(others)}{hint}")


def refuse_repeated(overrides: Iterable[str]) -> None:
    """Raise an error for a group that is chosen twice, of which Hydra would ignore the first."""
    values: dict[str, str] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if key in values and key in COMPONENT_GROUPS:
            how = f"is given twice; two runs are -m {key}={values[key]},{value}"
            raise UserError(f"{key}={shown(values[key])} {shown(text)}: {key} {how}")
        if equals:
            values[key] = value


def key_of(text: str) -> str:
    """Return the key of an override's text, without ``+``."""
    return text.partition("=")[0].lstrip("+~")


def _mistake(error: BaseException, text: str, command: str, multirun: bool) -> str:
    """Return what is wrong with an override according to the error, or an empty string."""
    key, _, value = text.lstrip("+").partition("=")
    cause = error.__cause__
    if type(error) is ValueError and value == "null" and key in groups_of(command):  # Hydra expects a text
        hint = "; without an encoding it is pe=none" if key == "pe" else ""
        allowed = nearest_choice("", [*choices_of(key), *choices_in_folders(key)])
        return f"{text}: {key} needs a choice{hint}.{allowed}"
    if not isinstance(error, HydraException):
        return ""
    is_added = text.startswith("+") and type(error) is ConfigCompositionException and cause is None
    if is_added and re.search(rf"\b{re.escape(key)}\b", str(error)):
        return f"{text}: {key} is a setting already; write {key}={value}"
    if isinstance(error, MissingConfigException):
        group, _, choice = str(error.missing_cfg_file).partition(f"{key}/")
        # Else a file of the user names the choice.
        return _unknown_choice(key, choice, error.options or ()) if not group and choice in value else ""
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return _unknown_key(text, cause) if f"{key}.".startswith(f"{cause.full_key}.") else ""
    if choices_of(key) and key not in groups_of(command):
        known = {**groups_of(command), **read_choice("", command)}.keys()
        return unknown_key(key, known - {"defaults", "application", "local"})
    with suppress(HydraException):
        if not multirun and OverridesParser.create().parse_override(text).is_sweep_override():
            is_list = re.fullmatch(r"[\w.,+-]+", value)  # not range(5) or choice(a,b)
            as_list = f"; a list is written '{key}=[{shown(value)}]'" if is_list else ""
            if command != "config":
                return f"{shown(text)}: this command takes one value{as_list}"
            sweep = f"{ALSO_CALLED.get(key, key)}={shown(value)}"
            how = f"train.py -m {sweep}" if is_list else f"train.py -m '{sweep}'"
            return f"{shown(text)}: several values need a sweep: {how}{as_list}"
    return ""


def _takes_one_choice(text: str) -> str:
    """Return the error for a list, or for nothing, as the choice of a group."""
    group, _, value = text.partition("=")
    how = f"{group} takes one choice; for several runs write -m {group}={value.strip('[]')}"
    return f"{shown(text)}: {how}.{nearest_choice('', choices_of(group))}"


def _unknown_choice(group: str, name: str, options: Sequence[str]) -> str:
    """Return the error for a choice that no config file has."""
    hint = nearest_choice(name, [*options, *choices_in_folders(group), *(ALIASES if group == "pe" else ())])
    if group.startswith("hydra/"):
        package = f"a package such as hydra-{name}-{group.rpartition('/')[2]}"
        if name == "optuna":
            package = 'pip install --pre -e ".[tune]" in an environment of its own (docs/training.md)'
        hint += f" Others come with {package}."
    return f"{group}={shown(name)} is not a choice.{hint}"


def _unknown_key(text: str, error: ConfigKeyError | ConfigAttributeError) -> str:
    """Return the error for a key that the composed configuration does not have."""
    composed: Any = OmegaConf.to_container(error.parent_node._get_root())
    section = key_of(text).partition(".")[0]
    if section != "hydra":
        composed.pop("hydra", None)
    if section not in {*composed, *COMPONENT_GROUPS}:
        return unknown_key(section, keys_of(composed))
    problem = unknown_key(key_of(text), keys_of(composed))
    if section in COMPONENT_GROUPS and "Did you mean" not in problem:
        problem += f" An argument of the class that is not listed is written +{text}."
    return problem


def _unreadable(text: str, overrides: Sequence[str], command: str) -> str:
    """Return the error for a text that Hydra cannot parse as an override."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        return f"{shown(text)!r} is not key=value; for example {EXAMPLES.get(command, EXAMPLES['config'])}"
    if value[:1] in ("[", "{") and text in overrides:
        end = {"[": "]", "{": "}"}[value[0]]
        rest = list(overrides[overrides.index(text) :])
        ends = [index for index, part in enumerate(rest) if part.endswith(end)]
        if ends and ends[0]:
            whole = "".join(rest[: ends[0] + 1])
            return f"{shown(text)!r} ends within a list; write it without spaces: {shown(whole)!r}"
    if value.endswith(",") and text in overrides:
        whole = "".join(overrides[overrides.index(text) :][:2])
        return f"{shown(text)!r} ends with a comma; write several values without spaces: {shown(whole)}"
    quoted = f"""'{key}="{value}"'"""
    how = f"quote special characters, as in {shown(quoted)}, and write several values without spaces"
    return f"{shown(text)!r} cannot be read; {how}"
