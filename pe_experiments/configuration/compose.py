"""Compose configurations outside Hydra applications: from Python and for the runs of a sweep.

Hydra composes the choices of config groups. Other values are set afterwards, which is faster.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from pe_experiments.configuration.groups import groups_of
from pe_experiments.configuration.hydra_errors import explain_error, unknown_key
from pe_experiments.configuration.overrides import normalise_overrides, read_overrides, refuse_several
from pe_experiments.configuration.schema import (
    CLI_ONLY,
    ENCODING_AND_TASK,
    SIZES,
    Config,
    resolve_interpolations,
)
from pe_experiments.terminal.errors import UserError, allowed
from pe_experiments.terminal.files import CONFIG_DIR

DERIVED = ("derived", "identity")  # sections of a run's config.yaml that are computed, not configured
ENCODING = {"pe", "positions", "bank/encoding"}  # groups that fill the sections pe and positions
ConfigMapping = dict[str, Any]


class Composer:
    """Compose many configurations: Hydra composes each set of choices once, and values are set in a copy."""

    def __init__(self, loader: ConfigLoader, name: str | None, hydra: Sequence[str] = ()):
        """Create a composer; ``hydra`` are overrides of Hydra's options for all configurations."""
        self.loader = loader
        self.name = name
        self.hydra = list(hydra)
        self._composed: dict[tuple[str, ...], ConfigMapping] = {}
        self._groups: dict[str, bool] = {}
        primary = loader.repository.load_config(name) if name else None
        entries = (primary.defaults_list or []) if primary else []
        # For example, the user's defaults list contains ``optional tuned: ${task}_${pe}``.
        values = [str(vars(entry).get("value")) for entry in entries]
        self._depends_on_encoding = any(f"${{{group}}}" in value for group in ENCODING for value in values)

    def compose(self, texts: Iterable[str]) -> ConfigMapping:
        """Return the configuration with these overrides, not yet validated."""
        texts = list(texts)
        overrides = read_overrides(texts)
        choices = [override for override in overrides if self._is_choice(override)]
        config = pickle.loads(pickle.dumps(self._compose_choices(choices)))  # much faster than deepcopy
        for override in overrides:
            if override not in choices:
                _apply(config, override, texts)
        return resolve_interpolations(config)

    def _is_choice(self, override: Override) -> bool:
        """Return whether the override selects a choice of a config group."""
        key = override.key_or_group
        if key not in self._groups:
            self._groups[key] = self.loader.repository.group_exists(key)
        return self._groups[key] and not isinstance(override.value(), Mapping)

    def _compose_choices(self, choices: Sequence[Override]) -> ConfigMapping:
        """Return the configuration with these choices, composed separately for the encoding if possible.

        A composition takes 50 to 100 ms. This needs n + m compositions instead of n * m for n encodings and m
        other sets of choices. Choices that change the same sections are composed together.
        """
        encoding_choices = [choice for choice in choices if choice.key_or_group in ENCODING]
        other_choices = [choice for choice in choices if choice.key_or_group not in ENCODING]
        if not encoding_choices or not other_choices or self._depends_on_encoding:
            return self._compose(choices)
        defaults = self._compose([])
        with_encoding = self._compose(encoding_choices)
        with_others = self._compose(other_choices)
        changed = {key for key in with_encoding if with_encoding[key] != defaults.get(key)}
        separate = all(with_others.get(key) == defaults.get(key) for key in ("pe", "positions"))
        if separate and changed <= {"pe", "positions"}:
            return with_others | {key: with_encoding[key] for key in changed}
        return self._compose(choices)

    def _compose(self, choices: Sequence[Override]) -> ConfigMapping:
        """Return the configuration with these choices, composed by Hydra and cached."""
        texts = tuple(str(override.input_line) for override in choices)
        if texts not in self._composed:
            try:
                config = self.loader.load_configuration(
                    self.name, [*self.hydra, *texts], RunMode.RUN, from_shell=False
                )
            except Exception as error:
                raise explain_error(error, texts) from error
            config._set_flag("struct", False)
            del config["hydra"]
            plain: Any = OmegaConf.to_container(config, enum_to_str=True)
            self._composed[texts] = plain
        return self._composed[texts]


def _apply(config: ConfigMapping, override: Override, texts: Sequence[str]) -> None:
    """Apply an override to a configuration in place, as Hydra does; ``texts`` are all overrides."""
    key = override.key_or_group
    may_add = override.is_add() or override.is_force_add()
    *path, last = key.split(".")
    section: Any = config
    for name in path:
        if isinstance(section, list):  # such as the encodings of a composition
            section = section[int(name)] if name.isdigit() and int(name) < len(section) else None
        elif may_add:
            section = section.setdefault(name, {})
        else:
            section = section.get(name)
        if not isinstance(section, dict | list):
            raise unknown_key(key, str(override.input_line), texts)
    if not isinstance(section, dict):
        raise UserError(f"{override.input_line}: {key.rpartition('.')[0]} is a list; replace it as a whole")
    value = override.value()
    if override.is_delete() and last in section:
        del section[last]
    elif override.is_add() and section.get(last) is not None and not isinstance(value, Mapping | list):
        raise UserError(f"{override.input_line}: the key already has a value; omit the +")
    elif last not in section and not may_add:
        raise unknown_key(key, str(override.input_line), texts)
    else:
        section[last] = _merged(section.get(last), value)


def compose_config(name: str, keys: Iterable[str] | Mapping[str, Any]) -> ConfigMapping:
    """Return the configuration of a command with these keys set, not yet validated.

    Args:
        name: of the primary configuration, such as ``config``.
        keys: overrides ``key=value``, or a mapping from keys to choices (``{"pe": "rope"}``), classes, values
            or sections. A section is merged into the shipped one, or replaces it if it has a ``_target_``.
            For example, the content of a run's ``config.yaml`` is such a mapping.
    """
    user_configs = Path.cwd() / "configs"
    files: list[Path] = []
    if user_configs.is_dir() and user_configs.resolve() != CONFIG_DIR:
        files = sorted(user_configs.rglob("*.yaml"))
    composer = _composer(name, user_configs, tuple((path, path.stat().st_mtime_ns) for path in files))
    if isinstance(keys, Mapping):
        return _from_python(composer, keys)
    texts = normalise_overrides(list(keys))
    for override in read_overrides(texts):
        refuse_several(override)
    return composer.compose(texts)


@lru_cache(maxsize=16)
def _composer(name: str, user_configs: Path, files: tuple[tuple[Path, int], ...]) -> Composer:
    """Return the composer of a command, cached while the user's config files are unchanged."""
    global_hydra = GlobalHydra.instance()
    outer_application = global_hydra.hydra  # if this is called inside another Hydra application
    global_hydra.hydra = None
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return Composer(GlobalHydra.instance().config_loader(), name)
    finally:
        global_hydra.hydra = outer_application


def _from_python(composer: Composer, keys: Mapping[str, Any]) -> ConfigMapping:
    """Return the configuration with the keys of a mapping set, as described in `compose_config`."""
    groups = groups_of(str(composer.name))
    settings = {str(key).lstrip("+"): value for key, value in keys.items() if key not in DERIVED}
    for key, value in list(settings.items()):
        if key.partition(".")[0] in CLI_ONLY:
            raise UserError(f"{key} is an option of train.py; from Python each call makes one run")
        if isinstance(value, type):
            settings[key] = _class_section(value)
    choices = {key: value for key, value in settings.items() if key in groups and isinstance(value, str)}
    loggers = settings.get("logger")
    if isinstance(loggers, list):  # several choices of the group at once
        choices["logger"] = f"[{','.join(map(str, loggers))}]"
    config = composer.compose(f"{group}={choice}" for group, choice in choices.items())
    sections: ConfigMapping = {}
    for key, value in sorted(settings.items(), key=lambda item: "." in item[0]):  # whole sections first
        if key not in choices:
            sections = _merged(sections, _nested(key, value))
    for group in {*ENCODING_AND_TASK, "model", "optimizer"} - choices.keys():
        section = sections.get(group)
        if isinstance(section, dict) and "_target_" in section:
            # Another class does not take the arguments of the default choice.
            config[group] = {key: value for key, value in config.get(group, {}).items() if key in SIZES}
    return resolve_interpolations(_merged(config, sections))


CLASSES_FROM_PYTHON: dict[str, type] = {}  # by their name in ``_target_``


def _class_section(cls: type) -> ConfigMapping:
    """Return a section for a class object and register the class, because it may not be importable."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    CLASSES_FROM_PYTHON[name] = cls
    return {"_target_": name}


def _merged(old: Any, new: Any) -> Any:
    """Return the new value, merged into the old one if both are mappings."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return {**old, **{str(key): _merged(old.get(key), value) for key, value in new.items()}}


def changed_sections(saved: ConfigMapping, texts: Iterable[str], chosen: ConfigMapping) -> ConfigMapping:
    """Return the sections of a run's saved configuration that overrides change for an evaluation.

    Args:
        saved: the configuration of the run.
        texts: the overrides, such as ``evaluation.lengths=[50]``.
        chosen: the configuration that evaluate.py composed with these overrides.
    """
    config = with_local_logger(saved)
    changed: dict[str, None] = {}  # an ordered set
    changeable = sorted(groups_of("evaluate").keys() & saved.keys())
    overrides = read_overrides(texts)
    keys = [override.key_or_group for override in overrides]
    for override in sorted(overrides, key=lambda override: "." in override.key_or_group):  # choices first
        section, _, setting = override.key_or_group.partition(".")
        if section not in changeable or (not setting and section not in (*ENCODING_AND_TASK, "logger")):
            raise fixed_setting_error(override.key_or_group)
        if setting:
            config[section] = _merged(config.get(section, {}), _nested(setting, override.value()))
        elif section == "logger":
            config[section] = chosen.get(section, {})
        else:
            config[section] = choice_for_trained_run(config[section], chosen[section], keys)
        changed[section] = None
    return {section: config[section] for section in changed}


def fixed_setting_error(key: str) -> UserError:
    """Return the error for an option that cannot change for a trained run."""
    changeable = sorted(groups_of("evaluate").keys() & Config.model_fields.keys())
    only = f"only {allowed(changeable)} can change, as in pe=NAME or evaluation.lengths=..."
    return UserError(f"{key} is fixed by the training; {only}")


def _nested(key: str, value: Any) -> ConfigMapping:
    """Return ``{"a": {"b": value}}`` for the key ``a.b``."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def with_local_logger(saved: ConfigMapping) -> ConfigMapping:
    """Return a saved configuration with the user's own loggers, or none if the run had none.

    The run's loggers are not used, because a stranger's run would send the evaluation to the stranger.
    """
    loggers = saved.get("logger")
    had_none = isinstance(loggers, dict) and all(section is None for section in loggers.values())
    return saved | {"logger": compose_config("config", ["logger=none"] if had_none else []).get("logger", {})}


# Arguments of RoPE and its variants that determine the trained frequencies, and their defaults.
FREQUENCIES = {"base": 10_000.0, "rotary_fraction": 1.0, "kept_frequencies": 1.0}


def choice_for_trained_run(
    trained: ConfigMapping, chosen: ConfigMapping, explicit_keys: Iterable[str]
) -> ConfigMapping:
    """Return a choice that replaces one of a trained run; a RoPE variant keeps the trained frequencies.

    Args:
        trained: the section of the trained run.
        chosen: the section of the new choice.
        explicit_keys: keys that the user set, such as ``pe.base``. They and arguments for which the choice
            itself differs from plain RoPE, such as ``kept_frequencies`` of p_rope, are not changed.
    """
    if not all(key in chosen and key in trained for key in FREQUENCIES):
        return chosen
    explicit = {key.partition(".")[2] for key in explicit_keys}
    inherited = {
        key: trained[key]
        for key, default in FREQUENCIES.items()
        if chosen[key] == default and key not in explicit
    }
    return chosen | inherited


OURS = re.compile(  # classes whose code comes with this package, PyTorch or Lightning
    r"(pe_experiments\.(encodings|positions|tasks|models)|torch\.optim|pytorch_lightning\.callbacks)(\.\w+)+"
)


def targets(node: Any) -> Iterator[str]:
    """Yield every ``_target_`` in a configuration, at any depth."""
    values: Iterable[Any] = ()
    if isinstance(node, dict):
        if node.get("_target_") is not None:
            yield str(node["_target_"])
        values = node.values()
    elif isinstance(node, list):
        values = node
    for value in values:
        yield from targets(value)


def names_outside_package(node: Any) -> list[str]:
    """Return names of classes and files in a configuration that do not come with the package.

    A text is taken for the name of a file if it contains a dot or a slash.
    """
    names: list[str] = []
    if isinstance(node, str):
        if set(node) & {".", "/", os.sep}:
            names.append(node)
    elif isinstance(node, list):
        for value in node:
            names += names_outside_package(value)
    elif isinstance(node, dict):
        for key in ("_target_", "path"):
            if node.get(key) is not None and not OURS.fullmatch(str(node[key])):
                names.append(str(node[key]))
        for key, value in node.items():
            if key != "_target_":
                names += names_outside_package(value)
    return names
