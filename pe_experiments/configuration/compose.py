"""From the keys a person types to a configuration: Hydra composes the choices, settings are put in after."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from omegaconf import OmegaConf

from pe_experiments.configuration.overrides import read_overrides, refuse_several, refuse_unknown_choice
from pe_experiments.configuration.schema import CLI_ONLY, PARTS, SIZES, interpolated
from pe_experiments.terminal.errors import UserError, allowed, nearest, one_line
from pe_experiments.terminal.files import CONFIG_DIR, read_yaml

CHANGEABLE = ("pe", "task", "evaluation", "trainer", "logger")  # of a run that is trained
DERIVED = ("derived", "identity")  # what a run's config.yaml says besides what was set
OF_HYDRA = ("mode", "sweeper")  # what is read of its own section
ConfigMapping = dict[str, Any]


def choices_of(group: str, folder: Path | None = None) -> list[str]:
    """The choices of a config group: those shipped, and those in a folder of the user's own."""
    places = [where / group.replace(".", "/") for where in (CONFIG_DIR, folder) if where]
    return sorted({path.stem for place in places for path in place.glob("*.yaml")})


def groups_of(name: str) -> dict[str, str | None]:
    """The config groups of a command by its ``configs/NAME.yaml``, with the choice each starts from."""
    listed = _read("", name).get("defaults", [])
    entries = [entry for entry in listed if isinstance(entry, dict)]
    return {str(key).split()[-1].replace("/", "."): one for entry in entries for key, one in entry.items()}


def composed(name: str, keys: Iterable[str] | Mapping[str, Any], folder: Path | None = None) -> ConfigMapping:
    """The configuration that these keys describe, the rest as shipped; its settings are still to be checked.

    Keys are ``key=value`` texts, or a mapping: to a choice (``{"pe": "rope"}``), a value, or a section, put
    over the shipped one or, with a ``_target_``, in its place; a run's ``config.yaml`` is such a mapping.
    """
    overrides = _from_python(keys) if isinstance(keys, Mapping) else read_overrides(keys)
    config = _with_settings(name, overrides, folder)
    del config["hydra"]
    return interpolated(config)


def common_to_runs(
    arguments: Iterable[str], folder: Path | None = None
) -> tuple[ConfigMapping, ConfigMapping]:
    """Settings common to all runs of a command line, and its ``hydra`` section (``mode``, ``sweeper``)."""
    overrides = read_overrides(arguments)
    _choices_among(overrides, "config", folder)
    # Arguments of parts may fit only one choice.
    common = [o for o in overrides if o.key_or_group.partition(".")[0] not in PARTS]
    config = _with_settings("config", [o for o in common if not o.is_sweep_override()], folder)
    return config, config.pop("hydra")


def _from_python(keys: Mapping[str, Any]) -> list[Override]:
    groups = groups_of("config")
    given = {str(key).lstrip("+"): value for key, value in keys.items() if key not in DERIVED}
    if not_of_a_run := [key for key in given if key.partition(".")[0] in CLI_ONLY]:
        raise UserError(f"{not_of_a_run[0]} is a setting of train.py; from Python each call makes one run")
    chosen = {key: value for key, value in given.items() if key in groups and isinstance(value, str)}
    settings = [item for item in given.items() if item[0] not in chosen]
    put = [Override(OverrideType.CHANGE, key, ValueType.ELEMENT, value) for key, value in settings]
    return [*read_overrides(f"{key}={value}" for key, value in chosen.items()), *put]


def _choices_among(overrides: Iterable[Override], name: str, folder: Path | None) -> list[Override]:
    """Those that choose one of a group; the others are settings."""
    choices = _choices(name, folder)
    chosen = [o for o in overrides if o.key_or_group in choices and not isinstance(o.value(), Mapping)]
    for override in chosen:
        refuse_unknown_choice(override, choices)
    return chosen


@lru_cache
def _choices(name: str, folder: Path | None) -> dict[str, list[str]]:
    """The choices of every group of a command; ``null`` is one where a group may be left empty."""
    groups = groups_of(name)
    places = [folder / group.replace(".", "/") for group in groups] if folder else []
    for path in (path for place in places for path in sorted(place.glob("*.yaml"))):  # of anybody's
        try:
            read_yaml(path.resolve())
        except (OSError, ValueError) as error:
            if not hasattr(error.__cause__, "problem_mark"):  # of such Hydra's own reading says the line
                raise UserError(f"{path}: {error}") from error
    return {group: choices_of(group, folder) + ["null"] * (start is None) for group, start in groups.items()}


def _with_settings(name: str, overrides: Sequence[Override], folder: Path | None) -> ConfigMapping:
    """Hydra's composition of the choices with the settings in it: sections first, the last of each counts."""
    chosen = _choices_among(overrides, name, folder)
    for override in overrides:
        refuse_several(override)
    choices = {o.key_or_group: str(o.input_line) for o in chosen}
    config = copy.deepcopy(_choose(name, tuple(choices.values()), folder))
    settings: ConfigMapping = {}
    for override in sorted((o for o in overrides if o not in chosen), key=lambda o: "." in o.key_or_group):
        settings = _put(settings, override)
    for part in {*PARTS, "model", "optimizer"} - choices.keys():
        if isinstance(own := settings.get(part), dict) and "_target_" in own:
            # Another class stands without the arguments of the usual choice.
            config[part] = {key: value for key, value in config.get(part, {}).items() if key in SIZES}
    config = _merged(config, settings)
    if unknown := sorted(config["hydra"].keys() - OF_HYDRA):  # no schema sees these
        raise UserError(f"hydra.{unknown[0]} is not a setting.{nearest(unknown[0], OF_HYDRA)}")
    return config


def _put(there: ConfigMapping, override: Override) -> ConfigMapping:
    """What is there with a value for a setting; whether there is such a one is for its schema to say."""
    value = override.value()
    for name in reversed(override.key_or_group.split(".")):
        value = {name: value}
    return _merged(there, value)


def _merged(there: Any, value: Any) -> Any:
    """The value, put over what is there where both are mappings."""
    if not (isinstance(there, Mapping) and isinstance(value, Mapping)):
        return value
    return {**there, **{str(key): _merged(there.get(key), item) for key, item in value.items()}}


@lru_cache(maxsize=1024)
def _choose(name: str, choices: tuple[str, ...], folder: Path | None) -> ConfigMapping:
    """As `_compose`, which is slow, once for all shipped schemes and policies: they fill no other section."""
    chosen = dict(text.split("=") for text in choices if text.startswith(("pe=", "positions=")))
    others = [text for text in choices if text.partition("=")[0] not in chosen]
    try:
        parts = {group: _read(group, choice) for group, choice in chosen.items()}
        config = _compose(name, (*others, *(f"~{group}" for group in sorted(chosen))), folder)
    except (OSError, UserError):  # one is not shipped, or a file of somebody's own chooses it too
        return _compose(name, choices, folder)
    return config | {group: _merged(part, config.get(group, {})) for group, part in parts.items()}


def _read(group: str, choice: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / group / f"{choice}.yaml"))


@lru_cache(maxsize=1024)
def _compose(name: str, choices: tuple[str, ...], folder: Path | None) -> ConfigMapping:
    """Hydra's composition of files, also inside somebody's own Hydra application."""
    search = [f"hydra.searchpath=['file://{folder.resolve()}']"] if folder else []
    everything = GlobalHydra.instance()
    outer, everything.hydra = everything.hydra, None
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            config = compose(name, overrides=[*search, *choices], return_hydra_config=True)
    except RecursionError as error:
        chosen = f"{' '.join(choices)}{f' in {folder}' if folder else ''}"
        raise UserError(f"{chosen}: the defaults of a config file lead back to itself") from error
    except Exception as error:
        mark, lines = getattr(error, "problem_mark", None), str(error).splitlines()[:2]
        said = f"{mark.name}, line {mark.line + 1}: {error.problem}" if mark else one_line(" ".join(lines))  # type: ignore[attr-defined]
        raise UserError(said) from error
    finally:
        everything.hydra = outer
    plain: Any = OmegaConf.to_container(config, enum_to_str=True)
    return plain | {"hydra": {key: plain["hydra"][key] for key in OF_HYDRA}}


def changed_sections(saved: ConfigMapping, arguments: Iterable[str]) -> ConfigMapping:
    """The sections of a trained run's configuration that ``pe=NAME``, ``evaluation.lengths=[50]`` change."""
    config, changed = own_logger(saved), set()
    for override in sorted(read_overrides(arguments), key=lambda o: "." in o.key_or_group):  # choices first
        refuse_several(override)
        section, _, setting = override.key_or_group.partition(".")
        if section not in CHANGEABLE or (not setting and section not in PARTS):
            only = f"only {allowed(CHANGEABLE)} can change, as in pe=NAME or evaluation.lengths=..."
            raise UserError(f"{override.key_or_group}: this run is trained; {only}")
        if setting:
            config = _put(config, override)
        else:
            refuse_unknown_choice(override, {section: choices_of(section)})
            config[section] = _other_choice(config[section], section, str(override.value()))
        changed.add(section)
    return {section: config[section] for section in changed}


def own_logger(saved: ConfigMapping) -> ConfigMapping:
    """A saved configuration with the logger of whoever reads it; only ``disabled`` is taken from the run."""
    theirs = saved.get("logger")  # maybe a stranger's, to whom an evaluation would be uploaded
    disabled = isinstance(theirs, dict) and theirs.get("mode") == "disabled"
    return saved | {"logger": composed("config", ["logger.mode=disabled"] if disabled else [])["logger"]}


# What a model with RoPE was trained with, whatever scheme extends it, and where its classes start.
FREQUENCIES = {"base": 10_000.0, "rotary_fraction": 1.0, "kept_frequencies": 1.0}


def _other_choice(trained: ConfigMapping, section: str, choice: str) -> ConfigMapping:
    """Another choice for a trained run; a RoPE variant keeps the frequencies that were trained."""
    chosen = _read(section, choice)
    # Except where the choice itself differs from plain RoPE, as in the share that p_rope keeps.
    if all(key in chosen and key in trained for key in FREQUENCIES):
        chosen |= {key: trained[key] for key, start in FREQUENCIES.items() if chosen[key] == start}
    return chosen


CATALOGUE = tuple(f"pe_experiments.{room}." for room in ("encodings", "positions", "tasks", "models"))
OURS = re.compile(
    r"(pe_experiments\.(encodings|positions|tasks|models)|torch\.optim|pytorch_lightning\.callbacks)(\.\w+)+"
)


def targets(node: Any) -> Iterator[str]:
    """Every ``_target_`` in a configuration, at any depth."""
    if isinstance(node, dict) and node.get("_target_") is not None:
        yield str(node["_target_"])
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from targets(value)


def outside(node: Any) -> list[str]:
    """The classes and files outside this package's catalogue that building the parts imports and reads."""
    if isinstance(node, str):  # like a file's name
        return [node] if set(node) & {".", "/", os.sep} else []
    if isinstance(node, list):
        return [name for value in node for name in outside(value)]
    if not isinstance(node, dict):
        return []
    named = [str(node[key]) for key in ("_target_", "path") if node.get(key) is not None]
    named = [name for name in named if not OURS.fullmatch(name)]
    return named + [name for key, value in node.items() if key != "_target_" for name in outside(value)]
