"""What a person types, ``key=value``: read by Hydra's parser, held against the choices there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

from pe_experiments.terminal.errors import UserError, nearest, shown

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
    if not equals or key[:1] in ("", "~"):  # nothing is taken away: every setting has a value
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
    """The key of an override's text, without ``+``."""
    return text.partition("=")[0].lstrip("+")


def count_of(override: Override, choices: Choices) -> int:
    """How many values `values_of` would list; a range is not listed for that.

    Raises:
        UserError: values that cannot be listed, or a range without any.
    """
    value = override.value()
    if not isinstance(value, RangeSweep):
        return len(values_of(override, choices))
    try:
        count = math.ceil((float(value.stop or 0) - float(value.start or 0)) / float(value.step))
    except (ArithmeticError, ValueError):  # a step of 0, a bound that is infinite or no number
        count = 0
    if count < 1:
        raise UserError(f"{override.input_line}: this range has no values, or no end")
    return count


def values_of(override: Override, choices: Choices) -> list[str]:
    """The texts ``key=value`` that a sweep over this override stands for.

    Raises:
        UserError: values that cannot be listed, such as an interval.
    """
    key, value = override.get_key_element(), override.value()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(choices.get(override.key_or_group, []))]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: a sweep takes values it can list, as in {key}=1,2,3")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def refuse_unknown_choice(override: Override, choices: Choices) -> None:
    """Hold the choice of a group, or the choices of a sweep over it, against what there is.

    Raises:
        UserError: there is none of that name.
    """
    group, value, typed = override.key_or_group, override.value(), shown(override.input_line)
    if isinstance(value, list):
        several = ",".join(map(str, value))
        raise UserError(f"{typed}: {group} takes one choice; for several runs write -m {group}={several}")
    if group == "sweep" and override.is_sweep_override():
        raise UserError(f"{typed}: one sweep at a time")
    texts = [typed] if isinstance(value, RangeSweep) else values_of(override, choices)
    for name in (text.partition("=")[2] for text in texts):
        if name not in choices[group]:
            raise UserError(f"{group}={shown(name)} is not a choice.{nearest(name, choices[group])}")


def refuse_several(override: Override) -> None:
    """Hold an override of a single run to one value.

    Raises:
        UserError: it has several.
    """
    if override.is_sweep_override():
        key, _, values = str(override.input_line).partition("=")
        or_list = f"; a list is written '{key}=[{shown(values)}]'" if "." in key else ""
        raise UserError(
            f"{shown(override.input_line)}: several values are a sweep, made by train.py -m{or_list}"
        )


def put(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The configuration with a value for a setting; whether there is such a one is for its schema to say."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return merged(config, value)


def merged(there: Any, value: Any) -> Any:
    """The value, put over what is there where both are mappings."""
    if not (isinstance(there, Mapping) and isinstance(value, Mapping)):
        return value
    return {**there, **{str(key): merged(there.get(key), item) for key, item in value.items()}}
