"""Explain errors of Hydra and OmegaConf in one sentence with the key, the value and what is allowed.

What is wrong follows from the attributes of the exception, not from the wording of its message. What Hydra
1.3 and 1.4 need differently is here, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hydra
import yaml  # type: ignore[import-untyped]
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pe_experiments.configuration.choices import (
    ALIASES,
    COMPONENT_GROUPS,
    choices_in_folders,
    choices_of,
    groups_of,
    key_of,
    keys_of,
    nearest_choice,
    read_choice,
    unknown_key,
)
from pe_experiments.terminal.errors import UserError, one_line, shown

IS_1_3 = hydra.__version__.startswith("1.3.")
# Hydra 1.3 behaves as 1.1 without this argument, Hydra 1.4 deprecates it.
VERSION_BASE: dict[str, str] = {"version_base": "1.3"} if IS_1_3 else {}
# Hydra 1.4 instantiates callbacks, launchers and sweepers only from the packages that an application names.
# Plugins of the user are in the namespace package hydra_plugins.
PLUGINS = ("pe_experiments.*", "hydra_plugins.*", "hydra.*", "optuna.*")
MAIN: dict[str, Any] = VERSION_BASE if IS_1_3 else {"execution_whitelist": PLUGINS}


def explain_error(
    error: BaseException, overrides: Sequence[str] = (), command: str = "config"
) -> BaseException:
    """Return a `UserError` that explains an error of Hydra, OmegaConf or YAML; return other errors unchanged.

    With ``-m`` among the arguments several values of a key are allowed; ``command`` names its primary
    configuration.
    """
    if mark := getattr(error, "problem_mark", None):  # set by the YAML parser
        return UserError(f"{mark.name}, line {mark.line + 1}: {error.problem}")  # type: ignore[attr-defined]
    if isinstance(error, RecursionError):
        return UserError("the defaults list of a config file is circular")
    if isinstance(error, OverrideParseException):
        return UserError(_unreadable(str(error.override)))
    for text in overrides:
        if text.startswith("="):
            return UserError(_unreadable(text))
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


def _mistake(error: BaseException, text: str, command: str, multirun: bool) -> str:
    """Return what is wrong with an override according to the error, or an empty string."""
    key, _, value = text.lstrip("+").partition("=")
    cause = error.__cause__
    if type(error) is ValueError and value == "null" and key in groups_of(command):  # Hydra expects a text
        hint = "; without an encoding it is pe=none" if key == "pe" else ""
        options = nearest_choice("", [*choices_of(key), *choices_in_folders(key)])
        return f"{text}: {key} needs a choice{hint}.{options}"
    if not isinstance(error, HydraException):
        return ""
    is_added = text.startswith("+") and type(error) is ConfigCompositionException and cause is None
    if is_added and re.search(rf"\b{re.escape(key)}\b", str(error)):
        return f"{text}: {key} is a setting already; write {key}={value}"
    if isinstance(error, MissingConfigException):
        group, _, choice = str(error.missing_cfg_file).partition(f"{key}/")
        if group or choice not in value:  # a file of the user names the choice
            return ""
        aliases = ALIASES if key == "pe" else ()
        hint = nearest_choice(choice, [*(error.options or ()), *choices_in_folders(key), *aliases])
        if choice == "optuna":
            hint += ' It comes with pip install --pre -e ".[tune]" in an environment of its own.'
        elif key.startswith("hydra/"):
            hint += f" Others come with a package such as hydra-{choice}-{key.rpartition('/')[2]}."
        return f"{key}={shown(choice)} is not a choice.{hint}"
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        if not f"{key}.".startswith(f"{cause.full_key}."):
            return ""
        composed: Any = OmegaConf.to_container(cause.parent_node._get_root())
        section = key_of(text).partition(".")[0]
        if section != "hydra":
            composed.pop("hydra", None)
        if section not in {*composed, *COMPONENT_GROUPS}:
            return unknown_key(section, keys_of(composed))
        problem = unknown_key(key_of(text), keys_of(composed))
        if section in COMPONENT_GROUPS and "Did you mean" not in problem:
            problem += f" An argument of the class that is not listed is written +{text}."
        return problem
    if choices_of(key) and key not in groups_of(command):
        known = {**groups_of(command), **read_choice("", command)}.keys()
        return unknown_key(key, known - {"defaults", "application", "local"})
    with suppress(HydraException):
        if not multirun and OverridesParser.create().parse_override(text).is_sweep_override():
            ways = [] if choices_of(key) else [f"brackets, '{key}=[{shown(value)}]'"]
            if command == "config":
                ways.append(f"a sweep, -m '{shown(text)}'")
            needs = f"several values need {', or '.join(ways)}" if ways else "this command takes one value"
            return f"{shown(text)}: {needs}"
    return ""


def _unreadable(text: str) -> str:
    """Return the error for a text that Hydra cannot parse as an override."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        return f"{shown(text)!r} is not key=value; --help lists the options"
    quoted = f"""'{key}="{value}"'"""
    how = "write lists and several values without spaces, and quote special characters, as in"
    return f"{shown(text)!r} cannot be read; {how} {shown(quoted)}"
