"""From the keys a person types to a whole configuration: choices, sections and single settings.

The command line hands text; Python hands a mapping of the same keys, or a run's own ``config.yaml``. Hydra
composes the files of the choices; settings are put in after, so that runs with equal choices share that work.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from pe_experiments.config import CLI_ONLY, PARTS, SIZES
from pe_experiments.errors import UserError, allowed, one_line, sentence, shown
from pe_experiments.files import CONFIG_DIR
from pe_experiments.overrides import (
    Choices,
    apply,
    put,
    read_overrides,
    refuse_several,
    refuse_unknown_choice,
)

CHOICES = ("pe", "positions", "task", "model", "training", "evaluation", "hardware", "logger")
CHANGEABLE = ("pe", "task", "evaluation", "hardware", "logger")  # of a run that is trained
DERIVED = ("derived", "identity")  # what a run's config.yaml says besides what was set
ConfigMapping = dict[str, Any]


def choices_of(group: str, folder: Path | None = None) -> list[str]:
    """The choices of a config group: those shipped, and those in a folder of the user's own."""
    folders = [CONFIG_DIR, *([folder] if folder else [])]
    return sorted({path.stem for where in folders for path in (where / group).glob("*.yaml")})


def groups_of(name: str) -> dict[str, str | None]:
    """The config groups of a command by its ``configs/NAME.yaml``, with the choice each starts from."""
    listed = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / f"{name}.yaml"))
    assert isinstance(listed, dict)
    entries = [entry for entry in listed.get("defaults", []) if isinstance(entry, dict)]
    return {str(key).split()[-1]: choice for entry in entries for key, choice in entry.items()}


def composed(name: str, arguments: Iterable[str], folder: Path | None = None) -> DictConfig:
    """The configuration a command's arguments describe.

    Args:
        name: of the command's file under ``configs``.
        arguments: ``key=value`` texts.
        folder: of config files of the user's own (``--config-dir``).

    Raises:
        UserError: an unknown key or choice, a value that cannot be read.
    """
    return OmegaConf.create(composed_mapping(name, arguments, folder))


def composed_mapping(name: str, arguments: Iterable[str], folder: Path | None = None) -> ConfigMapping:
    """As `composed`, as a plain mapping; interpolations are left to whoever reads it."""
    return _put_in(name, read_overrides(arguments), folder)[0]


def master(arguments: Iterable[str], folder: Path | None = None) -> tuple[ConfigMapping, ConfigMapping]:
    """What a command line says for all of its runs, and its ``hydra`` section (``mode``, ``sweeper``).

    Left out are the values a sweep varies, and arguments of parts, which may fit only one choice.

    Raises:
        UserError: as `composed`.
    """
    parsed = read_overrides(arguments)
    _refuse_unknown_choices("config", parsed, folder)
    common = [o for o in parsed if o.key_or_group.partition(".")[0] not in PARTS]
    return _put_in("config", [o for o in common if not o.is_sweep_override()], folder)


@lru_cache
def _choices(name: str, folder: Path | None) -> tuple[Choices, tuple[str, ...]]:
    """The choices of every group of a command, and the groups that may be left empty."""
    groups = groups_of(name)
    choices = {group: choices_of(group, folder) for group in groups}
    return choices, tuple(group for group, start in groups.items() if start is None)


def _refuse_unknown_choices(name: str, parsed: Iterable[Override], folder: Path | None) -> Choices:
    choices, optional = _choices(name, folder)
    for override in parsed:
        if override.key_or_group in choices:
            refuse_unknown_choice(override, choices, optional)
    return choices


def _put_in(name: str, parsed: list[Override], folder: Path | None) -> tuple[ConfigMapping, ConfigMapping]:
    groups = _refuse_unknown_choices(name, parsed, folder)
    of_groups = [o for o in parsed if o.key_or_group in groups or "/" in o.key_or_group]
    for override in of_groups:
        refuse_several(override)
    config = copy.deepcopy(_compose(name, tuple(str(o.input_line) for o in of_groups), folder))
    hydra = {"hydra": config.pop("hydra")}
    _make_room(config, {o.key_or_group for o in parsed})
    for override in parsed:
        if override not in of_groups:
            apply(hydra if override.key_or_group.startswith("hydra.") else config, override)
    return config, hydra["hydra"]


def _make_room(config: ConfigMapping, typed: Container[str]) -> None:
    """Take away the arguments of a choice where a class is named in its place (``pe._target_``)."""
    for part in PARTS:
        if f"{part}._target_" in typed and part not in typed:
            config[part] = {"_target_": None}
    if "model._target_" in typed:  # its sizes stay; the other settings are those of the class
        config["model"] = {"_target_": None} | {key: config["model"][key] for key in SIZES}


@lru_cache(maxsize=1024)
def _compose(name: str, choices: tuple[str, ...], folder: Path | None) -> ConfigMapping:
    """Hydra's composition of files, also inside somebody's own Hydra application."""
    search = [f"hydra.searchpath=['file://{folder.resolve()}']"] if folder else []
    everything = GlobalHydra.instance()
    outer, everything.hydra = everything.hydra, None
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            config = compose(name, overrides=[*search, *choices], return_hydra_config=True)
    except Exception as error:
        of_a_file = error.__cause__ if isinstance(error.__cause__, OSError) else None
        said = sentence(of_a_file) if of_a_file else one_line(" ".join(str(error).splitlines()[:2]))
        raise UserError(said) from error
    finally:
        everything.hydra = outer
    mode = getattr(config.hydra.mode, "name", None)
    params = config.hydra.sweeper.get("params")
    own: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, [str(k) for k in config if k != "hydra"]))
    return {**own, "hydra": {"mode": mode, "sweeper": {"params": params and OmegaConf.to_container(params)}}}


def configuration(keys: Mapping[str, Any]) -> DictConfig:
    """The configuration that these keys describe, the rest as shipped.

    Args:
        keys: of the command line: a choice (``pe="rope"``), a setting (``{"training.steps": 100}``), or a
            section, whose settings are put over the shipped ones (``training={"steps": 100}``) or, with a
            ``_target_``, in place of them. A run's ``config.yaml`` is such a mapping.

    Raises:
        UserError: no such choice or setting, or one that is not about a run (``dry_run``, ``sweep``).
            Settings of the wrong kind are found by `config.check`.
    """
    given = {str(key).lstrip("+"): value for key, value in keys.items() if key not in DERIVED}
    if not_of_a_run := [key for key in given if key.partition(".")[0] in CLI_ONLY]:
        raise UserError(f"{not_of_a_run[0]} is a setting of train.py; from Python each call makes one run")
    chosen = {group: given.pop(group) for group in CHOICES if isinstance(given.get(group), str)}
    config = composed_mapping("config", [f"{group}={choice}" for group, choice in chosen.items()])
    _make_room(config, {*given, *chosen})
    for key, value in sorted(given.items(), key=lambda item: "." in item[0]):  # sections come first
        if isinstance(value, Mapping) and "_target_" in value:
            config[key] = {}
        put(config, key, value, adds=key.partition(".")[0] in (*PARTS, "model"))
    return OmegaConf.create(config)


def changed_sections(saved: ConfigMapping, arguments: Iterable[str], trusted: bool = False) -> ConfigMapping:
    """The sections of a trained run's configuration that these changes make different.

    Args:
        saved: the run's ``config.yaml``.
        arguments: ``pe=NAME``, ``evaluation.lengths=[50]`` and the like.
        trusted: parts from outside this package may be imported.

    Raises:
        UserError: a change of what was trained, an unknown choice, or untrusted parts from outside.
    """
    config, changed = copy.deepcopy(saved), set()
    parsed = read_overrides(arguments)
    for override in sorted(parsed, key=lambda o: "." in o.key_or_group):  # choices come first
        key, value = override.key_or_group, override.value()
        section, _, rest = key.partition(".")
        if override.is_sweep_override():
            raise UserError(f"{override.input_line}: one evaluation at a time; a list is written '[3,4]'")
        if section not in CHANGEABLE or (not rest and section not in ("pe", "task")):
            raise UserError(
                f"{key}: this run is trained; only {allowed(CHANGEABLE)} can change, as in pe=NAME or "
                f"evaluation.lengths=..."
            )
        if rest:
            put(config, key, value, adds=True)
        else:
            refuse_unknown_choice(override, {section: choices_of(section)}, ())
            config[section] = _other_choice(config[section], section, str(value))
        changed.add(section)
    named = {str(o.value()).rpartition(".")[0] for o in parsed}  # one that was typed is known to who typed it
    built = [config[part] for part in (*PARTS, "model") if part in config]
    strange = [part for part in parts_outside(built) if part.rpartition(".")[0] not in named]
    if strange and not trusted:
        raise UserError(
            f"its config.yaml names {shown(strange[0])}, from outside this package; evaluating it imports "
            f"that module and runs its code. If you trust it, add trust=true"
        )
    return {section: config[section] for section in changed}


# What a model with RoPE was trained with, whatever scheme extends it, and where its classes start.
FREQUENCIES = {"base": 10_000.0, "rotary_fraction": 1.0, "kept_frequencies": 1.0}


def _other_choice(trained: ConfigMapping, section: str, choice: str) -> ConfigMapping:
    """Another choice for a trained run; a RoPE variant keeps the frequencies that were trained.

    Except where the choice itself differs from plain RoPE, as in the share that p_rope keeps.
    """
    chosen: Any = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / section / f"{choice}.yaml"))
    if all(key in chosen and key in trained for key in FREQUENCIES):
        chosen |= {key: trained[key] for key, start in FREQUENCIES.items() if chosen[key] == start}
    return chosen


def parts_outside(config: Any) -> list[str]:
    """Every ``_target_`` in a configuration's parts that is not of this package: building it imports it."""
    if isinstance(config, dict):
        here = [str(target) for key, target in config.items() if key == "_target_"]
        below = [name for value in config.values() for name in parts_outside(value)]
        return [name for name in here if not name.startswith("pe_experiments.")] + below
    return [name for value in config for name in parts_outside(value)] if isinstance(config, list) else []
