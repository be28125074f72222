"""Expand the user's overrides and the parameters of a preset into one list of overrides per run."""

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

from pe_experiments.configuration.groups import ALIASES, COMPONENT_GROUPS
from pe_experiments.configuration.hydra_errors import unknown_choice_error
from pe_experiments.terminal.errors import UserError, shown

SINGLE_VALUED = ("sweep", "dry_run", "rerun")  # options that apply to the whole sweep
SLOWEST = "seed"  # changes slowest, so that encodings can be compared before the sweep has finished
ENCODING = "bank/encoding"


def expand(
    user_overrides: Sequence[str], params: Mapping[str, Any], loader: ConfigLoader, config: DictConfig
) -> list[list[str]]:
    """Return the overrides of every run: each combination of values once.

    Args:
        user_overrides: arguments of the command, which take precedence over ``params``.
        params: values of a preset (``hydra.sweeper.params``).
        loader: Hydra's config loader, which knows the choices of each group.
        config: configuration of the sweep.

    Raises:
        UserError: a choice is unknown, a range is infinite, or runs exceed ``hydra.launcher.max_runs``.
    """
    parser = OverridesParser.create(config_loader=loader)
    prefix = f"{ENCODING}="
    encodings = [text.removeprefix(prefix) for text in user_overrides if text.startswith(prefix)]
    if encodings and encodings[-1] != "own":  # replaces the encodings of a preset
        params = {key: value for key, value in params.items() if key not in ("pe", "positions")}
    preset = [f"{key}={'null' if value is None else value}" for key, value in params.items()]
    overrides = parser.parse_overrides([*preset, *user_overrides])
    _refuse_two_encodings(user_overrides, overrides)
    for override in overrides:
        key = override.key_or_group
        value = str(override.input_line).partition("=")[2]
        if override.is_sweep_override() and key in SINGLE_VALUED:
            raise UserError(
                f"{override.input_line}: {key} takes one value for the whole sweep, not {shown(value)}"
            )
    factors = {override.get_key_element(): override for override in overrides}  # the last override of a key
    max_runs = config.hydra.launcher.get("max_runs") or math.inf
    runs = math.prod(_count(override) for override in factors.values())
    if runs > max_runs:
        problem = f"this sweep has {runs} runs, more than hydra.launcher.max_runs={max_runs}"
        raise UserError(f"{problem}; vary less, or raise the limit")
    for override in factors.values():
        _refuse_unknown_choices(override, loader)
    keys = sorted(factors, key=lambda key: key.lstrip("+") != SLOWEST)  # the first key changes slowest
    combinations = product(*(_expanded(factors[key]) for key in keys))
    return [list(run) for run in dict.fromkeys(combinations)]


def _refuse_two_encodings(user_overrides: Sequence[str], overrides: Sequence[Override]) -> None:
    """Raise an error for ``pe=rope`` together with ``bank/encoding``, which sets pe."""
    encodings = [str(override.value()) for override in overrides if override.key_or_group == ENCODING]
    conflicting = [text for text in user_overrides if text.partition("=")[0] in ("pe", "positions")]
    if conflicting and encodings and encodings[-1] != "own":
        hint = f"choose it there, as in {ENCODING}=rope, or add {ENCODING}=own to use pe"
        raise UserError(f"{conflicting[0]}: {ENCODING} sets the encoding; {hint}")


def _count(override: Override) -> int:
    """Return the number of values of an override, without listing a range."""
    value = override.value()
    if not override.is_sweep_override():
        return 1
    if not isinstance(value, RangeSweep):
        count = len(_expanded(override))
        if count == 0:
            raise UserError(f"{override.input_line}: no choice has such a name")
        return count
    try:
        count = math.ceil((float(value.stop or 0) - float(value.start or 0)) / float(value.step))
    except (ArithmeticError, ValueError):  # a step of 0, or a bound that is not finite
        count = 0
    if count < 1:
        raise UserError(f"{override.input_line}: this range is empty or infinite")
    return count


def _expanded(override: Override) -> list[str]:
    """Return one override ``key=value`` for each value of an override."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        if override.is_delete():
            return [key]
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: a sweep needs a list of values, as in {key}=1,2,3")
    values = list(override.sweep_string_iterator())
    if isinstance(override.value(), Glob):  # `custom` needs a class, so it cannot be run as it is
        values = [value for value in values if value != "custom"]
    return [f"{key}={value}" for value in values]


def _refuse_unknown_choices(override: Override, loader: ConfigLoader) -> None:
    """Raise an error for an unknown choice of a config group."""
    group = override.key_or_group
    options = loader.get_group_options(group, ObjectType.CONFIG)
    if not options or not override.is_sweep_override():
        return  # Hydra has already composed a fixed choice
    for text in _expanded(override):
        choice = text.partition("=")[2].strip("'\"")
        if choice.startswith("{"):  # a mapping that is merged into the section
            continue
        is_class = group in COMPONENT_GROUPS and "." in choice
        is_alias = group == "pe" and choice in ALIASES
        if choice not in (*options, "null") and not is_class and not is_alias:
            raise unknown_choice_error(group, choice, options)
