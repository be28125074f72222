"""Expand typed overrides and the parameters of a preset into the runs of a sweep, as lists of overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from omegaconf import DictConfig

from pe_experiments.configuration.groups import PARTS
from pe_experiments.configuration.hydra_errors import not_a_choice
from pe_experiments.terminal.errors import UserError, shown

ONCE = ("sweep", "dry_run", "rerun")  # given once for a whole sweep
SLOWEST = "seed"  # varies last, so that partial results of a sweep can be compared
ENCODING = "bank/encoding"


def expand(
    typed: Sequence[str], params: Mapping[str, Any], loader: ConfigLoader, config: DictConfig
) -> list[list[str]]:
    """Return every combination of the values once; typed values replace those of a preset.

    Raises:
        UserError: a choice is unknown, a range is infinite, or runs exceed ``hydra.launcher.max_runs``.
    """
    parser = OverridesParser.create(config_loader=loader)
    chosen = [text.partition("=")[2] for text in typed if text.startswith(f"{ENCODING}=")]
    if chosen and chosen[-1] != "own":  # it takes the place of the encodings of a preset
        params = {key: value for key, value in params.items() if key not in ("pe", "positions")}
    preset = (f"{key}={'null' if value is None else value}" for key, value in params.items())
    overrides = parser.parse_overrides([*preset, *typed])
    _refuse_two_encodings(typed, overrides)
    for override in overrides:
        key = override.key_or_group
        value = str(override.input_line).partition("=")[2]
        if override.is_sweep_override() and key in ONCE:
            raise UserError(
                f"{override.input_line}: {key} takes one value for the whole sweep, not {shown(value)}"
            )
    factors = {override.get_key_element(): override for override in overrides}  # the last of a key
    most = config.hydra.launcher.get("max_runs") or math.inf
    runs = math.prod(_count(override) for override in factors.values())
    if runs > most:
        many = f"this sweep has {runs} runs, more than hydra.launcher.max_runs={most}"
        raise UserError(f"{many}; vary less, or raise the limit")
    for override in factors.values():
        _refuse_unknown_choices(override, loader)
    values = {
        key: _texts(factors[key]) for key in sorted(factors, key=lambda key: key.lstrip("+") != SLOWEST)
    }
    return [list(run) for run in dict.fromkeys(product(*values.values()))]


def _refuse_two_encodings(typed: Sequence[str], overrides: Sequence[Override]) -> None:
    """Raise an error for ``pe=rope`` together with ``bank/encoding``, which sets pe."""
    chosen = [str(override.value()) for override in overrides if override.key_or_group == ENCODING]
    both = [text for text in typed if text.partition("=")[0] in ("pe", "positions")]
    if both and chosen and chosen[-1] != "own":
        how = f"choose it there, as in {ENCODING}=rope, or add {ENCODING}=own to use pe"
        raise UserError(f"{both[0]}: {ENCODING} sets the encoding; {how}")


def _count(override: Override) -> int:
    """Return the number of values of an override, without listing a range."""
    value = override.value()
    if not override.is_sweep_override():
        return 1
    if not isinstance(value, RangeSweep):
        if not (count := len(_texts(override))):
            raise UserError(f"{override.input_line}: no choice has such a name")
        return count
    try:
        count = math.ceil((float(value.stop or 0) - float(value.start or 0)) / float(value.step))
    except (ArithmeticError, ValueError):  # a step of 0, or a bound that is not finite
        count = 0
    if count < 1:
        raise UserError(f"{override.input_line}: this range is empty or infinite")
    return count


def _texts(override: Override) -> list[str]:
    """Return the texts ``key=value`` of the values."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"] if not override.is_delete() else [key]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: a sweep needs a list of values, as in {key}=1,2,3")
    values = list(override.sweep_string_iterator())
    if isinstance(override.value(), Glob):  # `custom` names no class yet
        values = [value for value in values if value != "custom"]
    return [f"{key}={value}" for value in values]


def _refuse_unknown_choices(override: Override, loader: ConfigLoader) -> None:
    """Raise an error for unknown choices of a group, before any run starts."""
    group = override.key_or_group
    options = loader.get_group_options(group, ObjectType.CONFIG)
    if not options or not override.is_sweep_override():
        return  # Hydra has already composed a fixed choice
    for text in _texts(override):
        choice = text.partition("=")[2].strip("'\"")
        if choice.startswith("{"):  # a mapping that is merged into the section
            continue
        is_class = group in PARTS and ("." in choice or choice == "nope")
        if choice not in (*options, "null") and not is_class:
            raise not_a_choice(group, choice, options)
