"""Typed overrides, ``key=value``: read by Hydra's parser, held against the choices there are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

from pe_experiments.terminal.errors import ALSO_CALLED, UserError, nearest, shown

ALIASES = {"nope": "none"}  # of schemes
Choices = Mapping[str, list[str]]  # group -> what it may be


def read_overrides(arguments: Iterable[str]) -> list[Override]:
    """The arguments as Hydra reads them, aliases resolved."""
    return [_read(argument) for argument in arguments]


@lru_cache(maxsize=100_000)  # the runs of a sweep say the same again and again
def _read(argument: str) -> Override:
    key, equals, value = argument.partition("=")
    if not equals or key[:1] in ("", "~"):  # nothing is taken away: every setting has a value
        example = "for example pe=sinusoidal or training.steps=500"
        raise UserError(f"{shown(argument)!r} is no key=value; {example}")
    if key == "pe":
        value = ",".join(ALIASES.get(part, part) for part in value.split(","))
    try:
        return OverridesParser.create().parse_override(f"{key}{equals}{value}")
    except (HydraException, ValueError) as error:
        quoted = "quote special signs, as in 'evaluation.lengths=[50,100]'"
        raise UserError(f"{shown(argument)!r} cannot be read; {quoted}") from error


def key_of(text: str) -> str:
    """The key of an override's text, without ``+``."""
    return text.partition("=")[0].lstrip("+")


def count_of(override: Override, choices: Choices) -> int:
    """How many values `values_of` would list; a range is not listed for that."""
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
    """The texts ``key=value`` that a sweep over this override stands for."""
    key, value = override.get_key_element(), override.value()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(choices.get(override.key_or_group, []))]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: a sweep takes values it can list, as in {key}=1,2,3")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def refuse_unknown_choice(override: Override, choices: Choices) -> None:
    """Hold the choice of a group, or the choices of a sweep over it, against what there is."""
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
    """Hold an override of a single run to one value."""
    if override.is_sweep_override():
        key, _, values = str(override.input_line).partition("=")
        how = f"train.py -m {ALSO_CALLED.get(key, key)}={shown(values)}"
        how += f"; a list is written '{key}=[{shown(values)}]'" if "." in key else ""
        raise UserError(f"{shown(override.input_line)}: several values are a sweep, made by {how}")
