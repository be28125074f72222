"""Rewrite errors of Hydra and OmegaConf as one sentence with the key, the value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import yaml  # type: ignore[import-untyped]
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from pe_experiments.configuration.groups import COMPONENT_GROUPS, choices_of, groups_of, read_choice
from pe_experiments.configuration.overrides import key_of, several_values, unreadable
from pe_experiments.configuration.schema import Config, not_a_setting
from pe_experiments.terminal.errors import ALSO_CALLED, UserError, allowed, nearest, one_line, shown

SUBMITIT = ("hydra/launcher=slurm", "hydra/launcher=submitit_local")
Explanation = Callable[[re.Match[str], Sequence[str]], UserError]


def explain_error(
    error: BaseException, overrides: Sequence[str] = (), command: str = "config"
) -> BaseException:
    """Return a `UserError` that explains an error of Hydra, OmegaConf or YAML; return other errors unchanged.

    ``command`` is the name of the primary configuration.
    """
    mark = getattr(error, "problem_mark", None)  # set by the YAML parser
    if mark:
        return UserError(f"{mark.name}, line {mark.line + 1}: {error.problem}")  # type: ignore[attr-defined]
    if isinstance(error, RecursionError):
        return UserError("the defaults list of a config file is circular")
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    if isinstance(error, yaml.YAMLError):
        return UserError(f"a config file is not valid YAML: {one_line(str(error))}")
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return error
    text = "\n".join(str(part) for part in (error, error.__cause__) if part)
    for pattern, explanation in EXPLANATIONS.items():
        match = re.search(pattern, text, re.DOTALL)
        if not match:
            continue
        if explanation is _unknown_key and command != "config":
            known = {**read_choice("", command), **groups_of(command)}.keys() - {"defaults", "application"}
            return UserError(f"{match['key']} is not a setting.{nearest(match['key'], known)}")
        if explanation is _several_values and command != "config":
            text = match["text"].removeprefix("++")
            key, _, values = text.partition("=")
            return UserError(f"{text}: this command takes one value; a list is written '{key}=[{values}]'")
        if isinstance(explanation, str):
            return UserError(explanation.format(**match.groupdict()))
        return explanation(match, overrides)
    return UserError(one_line(" ".join(line for line in text.splitlines()[:3] if line.strip())))


def unknown_key(key: str, text: str, overrides: Sequence[str]) -> UserError:
    """Return the error for an unknown key; ``text`` is its override, ``overrides`` are all overrides."""
    section, _, argument = key.partition(".")
    if key.startswith("hydra.launcher.parameters.") and set(overrides) & set(SUBMITIT):
        return UserError(
            f"{key} is not yet among the parameters of submitit; add it with a plus: +{text.lstrip('+')}"
        )
    if section == "hydra":
        plugin = "/".join(key.split(".")[:2])
        return UserError(
            f"{key} is not a setting of the {plugin} in use; another is chosen with {plugin}=NAME"
        )
    if section not in COMPONENT_GROUPS or not argument:
        return UserError(not_a_setting(key.split("."), Config))
    setting = ALSO_CALLED.get(argument, argument)
    elsewhere = [
        name for name, field in Config.model_fields.items()
        if name not in COMPONENT_GROUPS and setting in getattr(field.annotation, "model_fields", ())
    ]  # fmt: skip
    if elsewhere:
        return UserError(f"{key} is not a setting. Did you mean {elsewhere[0]}.{setting}?")
    chosen = next((item.partition("=")[2] for item in overrides if key_of(item) == section), None)
    chosen = chosen or groups_of("config").get(section)
    if chosen not in choices_of(section) or chosen == "custom":
        return UserError(f"{key} is not yet among the arguments; add it with a plus: +{text.lstrip('+')}")
    arguments = [name for name in read_choice(section, chosen) if name != "_target_"]
    hint = nearest(argument, arguments) if arguments else " It takes no arguments."
    choices_with_argument = [
        choice for choice in choices_of(section) if argument in read_choice(section, choice)
    ]
    if choices_with_argument and "Did you mean" not in hint:
        hint = f"{hint} {allowed(f'{section}={choice}' for choice in choices_with_argument[:3])} has it."
    return UserError(f"{key} is not an argument of {section}={chosen}.{hint}")


def _unknown_choice(match: re.Match[str], overrides: Sequence[str]) -> UserError:
    group, _, choice = match["path"].rpartition("/")
    for text in overrides:  # the choice may contain a slash
        if "=" in text and text.replace("=", "/", 1).lstrip("+") == match["path"]:
            group, _, choice = text.lstrip("+").partition("=")
            break
    options = re.findall(r"^\t(\S+)$", match["options"], re.MULTILINE)
    options = options or match["options"].rpartition(":")[2].replace(",", " ").split()
    if group == "bank/task":
        return UserError(f"task={choice} is not in the bank.{nearest(choice, options)}")
    return unknown_choice_error(group, choice, options)


def unknown_choice_error(group: str, choice: str, options: Sequence[str]) -> UserError:
    """Return the error for an unknown choice of a group."""
    return UserError(f"{group}={shown(choice)} is not a choice.{nearest(choice, options)}")


def _unknown_among_several(match: re.Match[str], overrides: Sequence[str]) -> UserError:
    return unknown_choice_error(match["group"], match["choice"], choices_of(match["group"]))


def _unknown_key(match: re.Match[str], overrides: Sequence[str]) -> UserError:
    text = next((item for item in overrides if key_of(item) == match["key"]), f"{match['key']}=...")
    return unknown_key(match["key"], text, overrides)


def _missing_choice(match: re.Match[str], overrides: Sequence[str]) -> UserError:
    options = re.findall(r"^\t(\S+)$", match["options"], re.MULTILINE)
    return UserError(f"{match['group']} is missing; allowed: {allowed(options)}")


def _several_values(match: re.Match[str], overrides: Sequence[str]) -> UserError:
    return several_values(match["text"])


def _not_one_of(match: re.Match[str], overrides: Sequence[str]) -> UserError:
    options = allowed(match["options"].split(", "))
    return UserError(f"{match['key']}={match['value']}: expected {options}")


# By pattern of a message of Hydra or OmegaConf: a function that returns the error, or a text with the
# pattern's named groups.
EXPLANATIONS: dict[str, Explanation | str] = {
    r"Could not find '(?P<path>[^'\n]+)'(?P<options>.*)": _unknown_choice,
    r"Could not load '(?P<group>[^'/\n]+)/(?P<choice>[^'\n]+)'": _unknown_among_several,
    r"You must specify '(?P<group>[^']+)'(?P<options>.*)": _missing_choice,
    r"(?:Sweep parameters|Ambiguous value for argument) '(?P<text>[^'\n]+)'": _several_values,
    r"Could not override '(?P<key>[^'\n]+)'": _unknown_key,
    r"Could not append to config. An item is already at '(?P<key>[^']+)'": (
        "+{key}: the key already has a value; omit the +"
    ),
    r"Error merging override (?P<key>[^=\n]+)=(?P<value>[^\n]*).*one of \[(?P<options>[^\]]*)\]": _not_one_of,
    r"Cannot find primary config '(?P<name>[^']*)'": (
        "--config-name {name}: this file does not exist in configs/"
    ),
}
