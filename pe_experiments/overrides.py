"""What a person types, ``key=value``: read by Hydra's parser, held against what there is.

Every mistake is found here, before anything is composed, and is a sentence that names key, value and what
is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from pe_experiments.config import PARTS
from pe_experiments.errors import UserError, allowed, nearest, shown

ALIASES = {"pe": {"nope": "none"}}
Choices = Mapping[str, list[str]]  # group -> what it may be


def read_overrides(arguments: Iterable[str]) -> list[Override]:
    """The arguments as Hydra reads them, aliases resolved.

    Raises:
        UserError: one is no ``key=value``, or cannot be read.
    """
    return [_read(argument) for argument in arguments]


@lru_cache(maxsize=100_000)  # the runs of a sweep say the same again and again
def _read(argument: str) -> Override:
    key, equals, value = argument.partition("=")
    if not key or (not equals and not key.startswith("~")):
        example = "for example pe=sinusoidal or training.steps=500"
        raise UserError(f"{shown(argument)!r} is no key=value; {example}")
    for alias, name in ALIASES.get(key, {}).items():
        value = ",".join(name if part == alias else part for part in value.split(","))
    if key == "sweep.baselines" and value and value[0] not in "[\"'":  # one list, not several sweeps
        value = f"[{value}]"
    try:
        return OverridesParser.create().parse_override(f"{key}{equals}{value}")
    except (HydraException, ValueError) as error:
        quoted = "quote special signs, as in 'evaluation.lengths=[50,100]'"
        raise UserError(f"{shown(argument)!r} cannot be read; {quoted}") from error


def key_of(text: str) -> str:
    """The key of an override's text, without ``+`` or ``~``."""
    return text.partition("=")[0].lstrip("+~")


def values_of(override: Override, choices: Choices) -> list[str]:
    """The texts ``key=value`` that a sweep over this override stands for.

    Raises:
        UserError: values that cannot be listed, such as an interval.
    """
    key, value = override.get_key_element(), override.value()
    if override.is_delete():
        return [override.input_line or key]
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(choices.get(override.key_or_group, []))]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: a sweep takes values it can list, as in {key}=1,2,3")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def refuse_unknown_choice(override: Override, choices: Choices, optional: Iterable[str]) -> None:
    """Hold the choice of a group, or the choices of a sweep over it, against what there is.

    Raises:
        UserError: there is none of that name, or none is named and the group is not ``optional``.
    """
    group, value, typed = override.key_or_group, override.value(), shown(override.input_line)
    if isinstance(value, list):
        several = ",".join(map(str, value))
        raise UserError(f"{typed}: {group} takes one choice; for several runs write -m {group}={several}")
    if group == "sweep" and override.is_sweep_override():
        raise UserError(f"{typed}: one sweep at a time")
    if value in (None, "") and not override.is_sweep_override():
        if group in optional:
            return
        raise UserError(f"{typed}: {group} needs a choice.{nearest('', choices[group])}")
    for name in (text.partition("=")[2] for text in values_of(override, choices)):
        if name.endswith(".yaml"):
            raise UserError(f"{typed}: choices are written without .yaml")
        if name not in choices[group]:
            raise UserError(f"{group}={shown(name)} is not a choice.{nearest(name, choices[group])}")


def refuse_several(override: Override) -> None:
    """Hold an override of a single run to one value.

    Raises:
        UserError: it has several.
    """
    if override.is_sweep_override():
        key, _, values = str(override.input_line).partition("=")
        or_list = f", or write a list: '{key}=[{shown(values)}]'" if "." in key else ""
        raise UserError(
            f"{shown(override.input_line)}: several values are a sweep; put -m before them{or_list}"
        )


def apply(config: dict[str, Any], override: Override) -> None:
    """Make one setting in a composed configuration; ``+`` adds one, ``~`` takes one away.

    Raises:
        UserError: several values, or no such setting.
    """
    refuse_several(override)
    adds = override.is_add() or override.is_force_add()
    value = GONE if override.is_delete() else override.value()
    put(config, override.key_or_group, value, adds)


GONE = object()


def put(config: dict[str, Any], key: str, value: Any, adds: bool) -> None:
    """Give a setting a value, over what is there where both are mappings, or take it away (`GONE`).

    Raises:
        UserError: there is no such setting, and none is to be added.
    """
    node = config
    *path, last = key.split(".")
    for depth, part in enumerate(path, 1):
        inner = node.setdefault(part, {}) if adds else node.get(part)
        if part in node and not isinstance(inner, dict):
            raise UserError(f"{shown(key)} is not a setting: {'.'.join(path[:depth])} holds no settings")
        if inner is None:
            raise UserError(_unknown(config, key))
        node = inner
    if last not in node and not adds:
        raise UserError(_unknown(config, key))
    if value is GONE:
        del node[last]
    else:
        node[last] = merged(node.get(last), value)


def merged(there: Any, value: Any) -> Any:
    """The value, put over what is there where both are mappings."""
    if not (isinstance(there, dict) and isinstance(value, Mapping)):
        return value
    return {**there, **{str(key): merged(there.get(key), item) for key, item in value.items()}}


def _unknown(config: dict[str, Any], key: str) -> str:
    head, _, last = key.rpartition(".")
    if head in PARTS:
        return (
            f"{key} is not a setting of the chosen {head}; see configs/{head}, or give your own class an "
            f"argument with +{key}=..."
        )
    known = config
    for part in head.split(".") if head else []:
        known = known.get(part, config) if isinstance(known.get(part), dict) else config
    sections = {name: section for name, section in config.items() if isinstance(section, dict)}
    inside = [f"{name}.{setting}" for name, section in sections.items() for setting in section]
    close = difflib.get_close_matches(last, {name.partition(".")[2] for name in inside}, 1, 0.8)
    if close and (last in close or not difflib.get_close_matches(last, known, 1, 0.8)):
        meant = [name for name in inside if name.partition(".")[2] in close]
        return f"{shown(key)} is not a setting. Did you mean {allowed(meant)}?"
    return f"{shown(key)} is not a setting.{nearest(last or key, known)}"
