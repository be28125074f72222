"""Compose configurations with Hydra outside its applications, and merge them with those of trained runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from types import FunctionType
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_experiments.configuration.choices import COMPONENT_GROUPS, groups_of, read_overrides
from pe_experiments.configuration.component import FROM_PYTHON, is_importable, load_component, signature_of
from pe_experiments.configuration.hydra_errors import VERSION_BASE, explain_error
from pe_experiments.configuration.schema import MODEL_SIZES, TRAINER_OPTIONS_IN_IDENTITY
from pe_experiments.terminal.errors import UserError
from pe_experiments.terminal.files import CONFIG_DIR

DERIVED = ("derived", "identity")  # sections of a run's config.yaml that are computed, not configured
ABSENT = object()


def compose_config(
    overrides: Iterable[str] = (), name: str = "config", with_hydra: bool = False
) -> DictConfig:
    """Return the configuration ``configs/NAME.yaml`` of a command with overrides, not yet checked.

    Hydra's own section is left out, unless ``with_hydra``.

    Raises:
        UserError: Hydra cannot compose it.
    """
    overrides = read_overrides(list(overrides), name)
    outer_application = GlobalHydra.instance().hydra  # if this is called inside a Hydra application
    GlobalHydra.instance().hydra = None
    try:
        with hydra.initialize_config_dir(str(CONFIG_DIR), **VERSION_BASE):
            return hydra.compose(name, overrides=overrides, return_hydra_config=with_hydra)
    except Exception as error:
        raise explain_error(error, overrides, name) from error
    finally:
        GlobalHydra.instance().hydra = outer_application


def config_from_python(keys: Mapping[str, Any], command: str = "config") -> DictConfig:
    """Return the configuration with the keys of a mapping set, not yet checked.

    Args:
        keys: from the keys of the command line to choices (``{"pe": "rope"}``), classes, values or sections.
            A section is merged into the shipped one, or replaces it if it has a ``_target_``. The content of
            a run's ``config.yaml`` is such a mapping.
        command: as in `compose_config`.
    """
    settings = {str(key).lstrip("+"): value for key, value in keys.items() if key not in DERIVED}
    groups = groups_of(command)
    choices = []
    for key, value in list(settings.items()):
        if key.partition(".")[0] in ("dry_run", "sweep"):
            raise UserError(f"{key} is an option of train.py; from Python each call makes one run")
        if key in groups and isinstance(value, str):
            choices.append(f"{key}={settings.pop(key)}")
        elif key == "logger" and isinstance(value, list):  # several choices of the group at once
            choices.append(f"{key}=[{','.join(map(str, settings.pop(key)))}]")
    config = compose_config(choices, command)
    OmegaConf.set_struct(config, False)
    given: dict[str, Any] = {}
    for key in sorted(settings, key=lambda key: "." in key):  # whole sections first
        try:
            value = settings[key]
            _set(config, key, _plain(value, key.startswith("evaluation"), given))
        except (OmegaConfBaseException, AttributeError) as error:
            problem = str(error).splitlines()[0]
            raise UserError(f"{key}: {problem}; allowed: numbers, texts, lists and mappings") from error
    for name, value in given.items():
        FROM_PYTHON.pop(name, None)
        if not is_importable(value):
            FROM_PYTHON[name] = value
    return config


def _set(config: DictConfig, key: str, value: Any) -> None:
    """Set a key in place; a section with a ``_target_`` replaces the arguments of another class."""
    if key in COMPONENT_GROUPS and isinstance(value, dict) and "_target_" in value:
        sizes = {size: config[key][size] for size in MODEL_SIZES if key == "model"}
        config[key] = sizes | value
    elif key.endswith("._target_") and key.partition(".")[0] in COMPONENT_GROUPS:
        _set(config, key.removesuffix("._target_"), {"_target_": value})
    else:
        OmegaConf.update(config, key, value, merge=True, force_add=True)


def _plain(value: Any, functions: bool, given: dict[str, Any]) -> Any:
    """Return a value given from Python as YAML could hold it: a class becomes its section.

    With ``functions`` (``evaluation.metrics``) a function or a `Metric` becomes its name. All are kept in
    ``given`` by name, because they may not be importable, for example in a notebook.
    """
    if functions and isinstance(function := getattr(value, "of", None), FunctionType):
        name = f"{function.__module__}.{value.name}"
        given[name] = value
        return name
    if isinstance(value, type) or (functions and isinstance(value, FunctionType)):
        name = f"{value.__module__}.{value.__qualname__}"
        if given.setdefault(name, value) is not value:
            raise UserError(f"{name} is the name of two different classes; give each a name of its own")
        return {"_target_": name} if isinstance(value, type) else name
    if isinstance(value, Mapping):
        return {str(key): _plain(item, functions, given) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, functions, given) for item in value]
    return fspath(value) if isinstance(value, PathLike) else value


def merged_with_request(
    saved: Mapping[str, Any], requested: Mapping[str, Any], keys: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the configuration of a trained run with the settings of the user.

    Logger, devices and threads are always the user's. Options of ``trainer`` that belong to the identity of
    the run, and everything else, are the user's only if they are among the keys that the user set, such as
    ``training.steps``. The saved configuration may come from a stranger.
    """
    arithmetic = saved["trainer"].keys() & set(TRAINER_OPTIONS_IN_IDENTITY)
    trainer = {**requested.get("trainer", {}), **{key: saved["trainer"][key] for key in arithmetic}}
    content = {**saved, "logger": requested.get("logger", {}), "trainer": trainer}
    merged = OmegaConf.create(content, flags={"allow_objects": True})  # the schema refuses such values
    source = OmegaConf.create(dict(requested), flags={"allow_objects": True})
    # A class comes with its arguments, and a section is set before the values in it.
    for key in sorted({key.removesuffix("._target_") for key in keys} - {"trainer"}):
        value = OmegaConf.select(source, key, default=ABSENT)
        if value is ABSENT:  # deleted by ~
            continue
        if key == "pe" and isinstance(requested["pe"], dict):
            value = _with_trained_arguments(requested["pe"], saved["pe"])
        OmegaConf.update(merged, key, value, merge=False, force_add=True)
    plain: Any = OmegaConf.to_container(merged)
    return plain


def _with_trained_arguments(chosen: dict[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of an encoding that replaces that of a trained run.

    It keeps the run's `PositionalEncoding.trained_arguments`, except those for which the choice itself
    differs from the defaults, such as ``kept_frequencies`` of p_rope.
    """
    cls = load_component("pe", chosen).cls
    defaults = signature_of(cls).defaults
    names: tuple[str, ...] = cls.trained_arguments  # type: ignore[attr-defined]
    if not all(name in trained and name in defaults for name in names):
        return chosen
    trained_values = {
        name: trained[name] for name in names if chosen.get(name, defaults[name]) == defaults[name]
    }
    return chosen | trained_values
