"""Explain errors of Hydra and OmegaConf in one sentence with the key, the value and what is allowed.

The explanation is found by checking each override of the command, not by reading Hydra's messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
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
    error: BaseException,
    overrides: Sequence[str] = (),
    command: str = "config",
    config_dirs: Sequence[Path] = (),
    multirun: bool = False,
) -> BaseException:
    """Return a `UserError` that explains an error of Hydra, OmegaConf or YAML; return other errors unchanged.

    Args:
        error: the exception.
        overrides: the arguments of the command, with or without its flags.
        command: name of the primary configuration.
        config_dirs: further folders of config files.
        multirun: whether several values of a key are allowed.
    """
    mark = getattr(error, "problem_mark", None)  # set by the YAML parser
    if mark:
        return UserError(f"{mark.name}, line {mark.line + 1}: {error.problem}")  # type: ignore[attr-defined]
    if isinstance(error, RecursionError):
        return UserError("the defaults list of a config file is circular")
    explained = isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError)
    hidden = isinstance(error, ValueError) and not isinstance(error, UserError)  # Hydra's for pe=null
    if not explained and not hidden:
        return error
    texts = [text for text in overrides if not text.startswith("-") and "=" in text]
    for text in texts:
        if problem := _mistake(text, texts, command, [Path("configs"), *config_dirs]):
            return UserError(problem)
    for text in [] if multirun else texts:
        if OverridesParser.create().parse_override(text).is_sweep_override():
            return UserError(several_values(text, command))
    if not explained:
        return error
    for word in set(overrides) - set(texts):
        if not word.startswith(("-", "~")) and not Path(word).exists() and "=" not in word:
            return UserError(f"{shown(word)} is not key=value; for example pe=sinusoidal or seed=1")
    parts = [str(part).split("\n\n")[0].strip() for part in (error, error.__cause__) if part]
    if key := getattr(error, "full_key", None):
        parts = [str(key), str(error).splitlines()[0]]
    return UserError(one_line(": ".join(dict.fromkeys(" ".join(part.split()) for part in parts))))


def refuse_lists(overrides: Iterable[str]) -> None:
    """Raise an error for ``pe=[rope,none]``, of which Hydra would silently take the last choice."""
    for text in overrides:
        group, _, value = text.partition("=")
        if group in COMPONENT_GROUPS and value.startswith("["):
            raise UserError(_mistake(text, [text], "config"))


def refuse_without_effect(overrides: Sequence[str]) -> None:
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


def _mistake(text: str, overrides: Sequence[str], command: str, config_dirs: Sequence[Path] = ()) -> str:
    """Return what is wrong with an override, or an empty string if nothing is found."""
    try:
        override = OverridesParser.create().parse_override(text)
    except (HydraException, ValueError):
        return unreadable(text)
    key = key_of(text)
    group = key.partition("@")[0]
    if choices_of(group) and command != "config" and group not in groups_of(command):
        options = sorted(groups_of(command).keys() - {"application", "local"})
        return f"{key} is no option of this command; only {allowed(options)} can be chosen"
    if choices := list(dict.fromkeys([*choices_of(group), *_user_choices(group, config_dirs)])):
        if group == "pe":
            choices += ALIASES
        if problem := _unknown_choice(override, group, choices):
            return problem
        return ""
    if override.is_sweep_override() and command != "config":
        return several_values(text, command)
    return _unknown_key(key, text, overrides, command)


def _user_choices(group: str, config_dirs: Iterable[Path]) -> Iterable[str]:
    return (path.stem for folder in config_dirs for path in (folder / group).glob("*.yaml"))


def _values(override: Override) -> list[str]:
    """Return the values of an override as texts."""
    if override.is_sweep_override():
        return list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    value = override.value()
    if isinstance(value, list):
        return [str(item) for item in value]
    return [] if isinstance(value, dict) else [override.get_value_element_as_str()]


def _unknown_choice(override: Override, group: str, choices: Sequence[str]) -> str:
    """Return the error for the first value that is not a choice of the group, or an empty string."""
    value = override.value()
    if group in COMPONENT_GROUPS and (not value or isinstance(value, list)):
        values = ",".join(map(str, value or []))
        how = f"; for several runs write -m {group}={values}" if values else ""
        return f"{shown(override.input_line)}: {group} takes one choice{how}.{nearest('', choices)}"
    for choice in _values(override):
        name = choice.strip("'\"")
        is_class = group in COMPONENT_GROUPS and "." in name
        if name not in choices and name != "null" and not is_class:
            where = f"task={name} is not in the bank" if group == "bank/task" else ""
            return (where or f"{group}={shown(name)} is not a choice") + f".{nearest(name, choices)}"
    return ""


def _unknown_key(key: str, text: str, overrides: Sequence[str], command: str) -> str:
    """Return the error for a key that the configuration does not have, or an empty string."""
    section, _, argument = key.partition(".")
    if section == "hydra" or (section.startswith("hydra/") and not choices_of(section)):
        plugin = "/".join(key.split(".")[:2])
        if key in HINTS:
            return f"{key} is not a setting; {HINTS[key]}"
        if section == "hydra":
            return (
                f"{shown(text)} is not an option of the {plugin} in use; another is chosen with {plugin}=NAME"
            )
        kind = section.rpartition("/")[2]
        name = text.partition("=")[2]
        others = f"or one of a package such as hydra-{name}-{kind}"
        ours = {"launcher": "processes, slurm, submitit_local, ray", "sweeper": "grid, basic"}.get(kind, "")
        return f"{shown(text)}: no such {kind} is installed; allowed: {ours}, {others}"
    if command != "config":
        known = {**read_choice("", command), **groups_of(command)}.keys() - {"defaults", "application"}
        chosen = any(key_of(item) == section for item in overrides)
        if section in ("pe", "task") and argument and not chosen and text[0] != "+":
            return f"{key} keeps the run's value; to change it, add a plus: +{text}"
        if section in known:
            return _unknown_option(section, argument)
        if command == "evaluate" and section in Config.model_fields:
            return f"{key} is fixed by the training; only evaluation, logger, pe, task or trainer can change"
        return f"{key} is not a setting.{nearest(key, known)}"
    if section not in Config.model_fields and section not in groups_of("config"):
        return not_a_setting(key.split("."), Config)
    if section not in COMPONENT_GROUPS or not argument:
        if problem := _unknown_option(section, argument):
            return problem
        if text.startswith("+") and not text.startswith("++"):
            return f"{shown(text)}: the key already has a value; omit the +"
        return ""
    return _unknown_argument(key, text, overrides)


def _unknown_option(section: str, option: str) -> str:
    """Return the error for an option that a section of the schema does not have, or an empty string."""
    fields = fields_of(Config.model_fields[section].annotation) if section in Config.model_fields else {}
    for name in option.split(".") if option else ():
        if fields and name not in fields:
            return not_a_setting([section, *option.split(".")], Config)
        fields = fields_of(fields[name].annotation) if name in fields else {}
    return ""


def _unknown_argument(key: str, text: str, overrides: Sequence[str]) -> str:
    """Return the error for an argument that the chosen class does not have, or an empty string."""
    section, _, argument = key.partition(".")
    chosen = [item.partition("=")[2] for item in overrides if key_of(item) == section]
    if not chosen and any(item.startswith("init_from=") for item in overrides):
        return f"{key}: an argument of the parent's {section} is written with two plus: ++{text.lstrip('+')}"
    choice = chosen[-1] if chosen else str(groups_of("config").get(section))
    choices = choices_of(section)
    if choice not in choices or choice == "custom":
        return f"{key} is not yet among the arguments; add it with a plus: +{text.lstrip('+')}"
    arguments = read_choice(section, choice)
    if argument.partition(".")[0] in arguments:
        plus = text.startswith("+") and not text.startswith("++")
        return f"{shown(text)}: the key already has a value; omit the +" if plus else ""
    setting = ALSO_CALLED.get(argument, argument)
    for name, field in Config.model_fields.items():
        if name not in COMPONENT_GROUPS and setting in getattr(field.annotation, "model_fields", ()):
            return f"{key} is not a setting. Did you mean {name}.{setting}?"
    names = [name for name in arguments if name != "_target_"]
    hint = nearest(argument, names) if names else " It takes no arguments."
    having = [other for other in choices if argument in read_choice(section, other)]
    if having and "Did you mean" not in hint:
        hint = f"{hint} {allowed(f'{section}={other}' for other in having[:3])} has it."
    return f"{key} is not an argument of {section}={choice}.{hint}"


def unreadable(text: str) -> str:
    """Return the error for a text that Hydra cannot parse as an override."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        return f"{shown(text)!r} is not key=value; for example pe=sinusoidal or training.steps=500"
    if value.endswith(","):
        return f"{shown(text)!r} ends in a comma; write several values without spaces, as in pe=none,rope"
    quoted = f"""'{key}="{value}"'"""
    return f"{shown(text)!r} cannot be read; quote special characters, as in {shown(quoted)}"


def several_values(text: str, command: str = "config") -> str:
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
