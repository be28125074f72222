"""From a command line to the list of runs it stands for, each with its composed configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from pe_experiments.command_line import sentence
from pe_experiments.config import SweepConfig
from pe_experiments.console import Display
from pe_experiments.errors import UserError

Overrides = tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """One run that was asked for.

    Attributes:
        overrides: what train.py would be given for it alone.
        config: composed; empty where that failed.
        problem: why it failed.
    """

    overrides: Overrides
    config: dict[str, Any]
    problem: str = ""


def expand(
    config: DictConfig, settings: SweepConfig, loader: ConfigLoader, display: Display
) -> list[Request]:
    """The runs a sweep stands for, each once, in the order of the command.

    Args:
        config: of the sweep, with its ``hydra`` section.
        settings: its ``sweep`` section.
        loader: composes the runs.
        display: shows how far that is.

    Raises:
        UserError: another sweeper than Hydra's basic one, or values that cannot be enumerated.
    """
    if not str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        raise UserError("hydra/sweeper: a sweep enumerates its runs; allowed: basic")
    typed = [str(override) for override in config.hydra.overrides.task]
    prepared = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    parsed = OverridesParser.create(config_loader=loader).parse_overrides([*prepared, *typed])
    for override in parsed:
        if override.is_sweep_override() and (override.key_or_group or "").startswith("sweep."):
            key, _, value = str(override.input_line).partition("=")
            raise UserError(
                f"{key}={value}: said once for the whole sweep; a list is written '{key}=[{value}]'"
            )
    wanted = list(combinations(parsed))
    if settings.cases:
        wanted = [run for one in wanted for run in _in_cases(one, settings.cases, typed)]
    if not wanted:
        chosen = " ".join(text for text in typed if "." not in _key(text) and _key(text) != "sweep")
        raise UserError(f"no case of this sweep has {chosen}; see sweep.cases in its file")
    if settings.baselines:
        wanted = [run for one in wanted for run in (one, *_baselines(one, settings.baselines))]
    requests: list[Request] = []
    runs = dict.fromkeys(wanted)
    display.start("composing runs", len(runs))
    for request in _compose(runs, config, loader):
        requests.append(request)
        display.step(len(requests))
    display.stop()
    return requests


def value_of(overrides: Iterable[str], key: str) -> str | None:
    """What the last override of that key says."""
    values = [text.partition("=")[2] for text in overrides if _key(text) == key]
    return values[-1] if values else None


def without(overrides: Overrides, *keys: str) -> Overrides:
    """The overrides of other keys."""
    return tuple(text for text in overrides if _key(text) not in keys)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _in_cases(run: Overrides, cases: Sequence[Sequence[str]], typed: Sequence[str]) -> Iterable[Overrides]:
    """The run under each case. What was typed narrows: a case that says otherwise is left out."""
    named = {_key(text) for text in typed}
    for case in _single(cases):
        choices = [text for text in case if "." not in _key(text) and _key(text) in named]
        if all(value_of(run, _key(text)) == text.partition("=")[2] for text in choices):
            kept = (text for text in case if _key(text) not in named)
            yield (*without(run, *map(_key, case)), *kept, *(t for t in run if _key(t) in map(_key, case)))


def _single(cases: Sequence[Sequence[str]]) -> Iterable[tuple[str, ...]]:
    """The cases with one value per setting: ``pe=rope,alibi`` in a case stands for two."""
    for case in cases:
        yield from combinations(OverridesParser.create().parse_overrides(list(case)))


def _baselines(run: Overrides, baselines: Sequence[str]) -> Iterable[Overrides]:
    """The run with other schemes; what is said about its own scheme does not concern them."""
    others = tuple(t for t in run if _key(t) not in ("pe", "label") and not _key(t).startswith("pe."))
    return ((*others, f"pe={name}") for name in baselines)


def combinations(parsed: Sequence[Override]) -> Iterator[Overrides]:
    """Every combination of the values that overrides stand for, the last key varying fastest.

    Raises:
        UserError: values that cannot be enumerated, such as an interval.
    """
    texts: dict[str, list[str]] = {}
    for override in parsed:
        key = override.get_key_element()
        if not override.is_sweep_override():
            texts[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            texts[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise UserError(f"{override.input_line}: a sweep takes values it can list, as in {key}=1,2,3")
        if override.is_delete():
            texts[key] = [override.input_line or f"~{key}"]
    yield from product(*texts.values())


def _compose(wanted: Iterable[Overrides], config: DictConfig, loader: ConfigLoader) -> Iterable[Request]:
    """Composing takes 60 ms, so runs that make the same choices share it; their settings are put in after."""
    composed: dict[Overrides, DictConfig | str] = {}
    parser = OverridesParser.create(config_loader=loader)
    for overrides in wanted:
        settings = [text for text in overrides if text[0] not in "+~" and _is_setting(_key(text), config)]
        shared = tuple(text for text in overrides if text not in settings)
        if shared not in composed:
            try:
                composed[shared] = loader.load_sweep_config(config, list(shared))
            except Exception as error:
                composed[shared] = sentence(error)
        one = composed[shared]
        if isinstance(one, str):
            yield Request(overrides, {}, one)
            continue
        try:
            HydraConfig.instance().set_config(one)  # for ${hydra:...} in a user's own configuration
            own = OmegaConf.masked_copy(one, [str(key) for key in one if key != "hydra"])
            for text in settings:
                OmegaConf.update(own, _key(text), parser.parse_override(text).value())
            plain = OmegaConf.to_container(own, resolve=True)
        except Exception as error:
            yield Request(overrides, {}, sentence(error))
            continue
        assert isinstance(plain, dict)
        yield Request(overrides, {str(key): value for key, value in plain.items()})


def _is_setting(key: str, config: DictConfig) -> bool:
    """Whether a key names a value that every choice has, so that it can be set after composing."""
    return key == "seed" or (
        key.startswith("training.") and OmegaConf.select(config, key, default=key) != key
    )
