"""Compose configurations outside Hydra applications: from Python and for the runs of a sweep.

Hydra composes the choices of groups; plain values are set afterwards.
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
from pe_experiments.configuration.hydra_errors import explained, unknown_key
from pe_experiments.configuration.overrides import normalised, read_overrides, refuse_several
from pe_experiments.configuration.schema import CLI_ONLY, PARTS, SIZES, Config, interpolated
from pe_experiments.terminal.errors import UserError, allowed
from pe_experiments.terminal.files import CONFIG_DIR

DERIVED = ("derived", "identity")  # sections of a run's config.yaml that are not configuration
ENCODING = {"pe", "positions", "bank/encoding"}  # groups that fill the sections pe and positions
ConfigMapping = dict[str, Any]


class Composer:
    """Compose many configurations: compose each set of choices once and set plain values in a copy."""

    def __init__(self, loader: ConfigLoader, name: str | None, hydra: Sequence[str] = ()):
        """Create a composer; ``hydra`` are overrides of Hydra's options, common to all configurations."""
        self.loader = loader
        self.name = name
        self.hydra = list(hydra)
        self._composed: dict[tuple[str, ...], ConfigMapping] = {}
        self._groups: dict[str, bool] = {}
        primary = loader.repository.load_config(name) if name else None
        entries = (primary.defaults_list or []) if primary else []
        # Such as ``optional tuned: ${task}_${pe}`` in a configuration of the user.
        values = [str(vars(entry).get("value")) for entry in entries]
        self._depends_on_encoding = any(f"${{{group}}}" in value for group in ENCODING for value in values)

    def compose(self, texts: Iterable[str]) -> ConfigMapping:
        """Return the configuration of these overrides, not yet validated."""
        texts = list(texts)
        overrides = read_overrides(texts)
        choices = [override for override in overrides if self._chooses(override)]
        config = pickle.loads(pickle.dumps(self._chosen(choices)))  # copies much faster than deepcopy
        for override in overrides:
            if override not in choices:
                _apply(config, override, texts)
        return interpolated(config)

    def _chooses(self, override: Override) -> bool:
        """Return whether the override is the choice of a config group."""
        key = override.key_or_group
        if key not in self._groups:
            self._groups[key] = self.loader.repository.group_exists(key)
        return self._groups[key] and not isinstance(override.value(), Mapping)

    def _chosen(self, choices: Sequence[Override]) -> ConfigMapping:
        """Return the composition of these choices.

        Encodings fill separate sections, so that n encodings in m configurations take n + m compositions of
        50 to 100 ms instead of n * m. If sections overlap, all choices are composed together.
        """
        encoding = [o for o in choices if o.key_or_group in ENCODING]
        others = [o for o in choices if o.key_or_group not in ENCODING]
        if not (encoding and others) or self._depends_on_encoding:
            return self._compose(choices)
        plain, of_encoding, of_others = (self._compose(some) for some in ([], encoding, others))
        filled = {key for key in of_encoding if of_encoding[key] != plain.get(key)}
        separate = all(of_others.get(key) == plain.get(key) for key in ("pe", "positions"))
        if separate and filled <= {"pe", "positions"}:
            return of_others | {key: of_encoding[key] for key in filled}
        return self._compose(choices)

    def _compose(self, choices: Sequence[Override]) -> ConfigMapping:
        texts = tuple(str(override.input_line) for override in choices)
        if texts not in self._composed:
            try:
                config = self.loader.load_configuration(
                    self.name, [*self.hydra, *texts], RunMode.RUN, from_shell=False
                )
            except Exception as error:
                raise explained(error, texts) from error
            config._set_flag("struct", False)
            del config["hydra"]
            plain: Any = OmegaConf.to_container(config, enum_to_str=True)
            self._composed[texts] = plain
        return self._composed[texts]


def _apply(config: ConfigMapping, override: Override, texts: Sequence[str]) -> None:
    """Set the value of an override in a configuration, as Hydra does."""
    key = override.key_or_group
    adds = override.is_add() or override.is_force_add()
    *path, last = key.split(".")
    section: Any = config
    for name in path:
        if isinstance(section, list):  # the parts of a composition
            section = section[int(name)] if name.isdigit() and int(name) < len(section) else None
        else:
            section = section.setdefault(name, {}) if adds else section.get(name)
        if not isinstance(section, dict | list):
            raise unknown_key(key, str(override.input_line), texts)
    if not isinstance(section, dict):
        raise UserError(f"{override.input_line}: {key.rpartition('.')[0]} is a list; replace it as a whole")
    value = override.value()
    if override.is_delete() and last in section:
        del section[last]
    elif override.is_add() and section.get(last) is not None and not isinstance(value, Mapping | list):
        raise UserError(f"{override.input_line}: the key already has a value; omit the +")
    elif last not in section and not adds:
        raise unknown_key(key, str(override.input_line), texts)
    else:
        section[last] = _merged(section.get(last), value)


def composed(name: str, keys: Iterable[str] | Mapping[str, Any]) -> ConfigMapping:
    """Return the configuration of these keys with shipped values for the rest, not yet validated.

    Keys are ``key=value`` texts, or a mapping to choices (``{"pe": "rope"}``), classes, values or sections. A
    section is merged into the shipped one, or replaces it if it has a ``_target_``. A run's ``config.yaml``
    is such a mapping.
    """
    user_configs = Path.cwd() / "configs"
    files = (
        user_configs.rglob("*.yaml") if user_configs.is_dir() and user_configs.resolve() != CONFIG_DIR else ()
    )
    composer = _composer(name, user_configs, tuple((path, path.stat().st_mtime_ns) for path in sorted(files)))
    if isinstance(keys, Mapping):
        return _from_python(composer, keys)
    texts = normalised(list(keys))
    for override in read_overrides(texts):
        refuse_several(override)
    return composer.compose(texts)


@lru_cache(maxsize=16)
def _composer(name: str, user_configs: Path, files: tuple[tuple[Path, int], ...]) -> Composer:
    """Return the composer of a command, cached while the files of the working directory are unchanged."""
    everything = GlobalHydra.instance()
    # also inside another Hydra application
    outer = everything.hydra
    everything.hydra = None
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return Composer(GlobalHydra.instance().config_loader(), name)
    finally:
        everything.hydra = outer


def _from_python(composer: Composer, keys: Mapping[str, Any]) -> ConfigMapping:
    groups = groups_of(str(composer.name))
    given = {str(key).lstrip("+"): value for key, value in keys.items() if key not in DERIVED}
    if not_of_a_run := [key for key in given if key.partition(".")[0] in CLI_ONLY]:
        raise UserError(f"{not_of_a_run[0]} is an option of train.py; from Python each call makes one run")
    given = {key: _named(value) if isinstance(value, type) else value for key, value in given.items()}
    choices = {key: value for key, value in given.items() if key in groups and isinstance(value, str)}
    if isinstance(loggers := given.get("logger"), list):  # several at once
        choices["logger"] = f"[{','.join(map(str, loggers))}]"
    config = composer.compose(f"{group}={choice}" for group, choice in choices.items())
    settings: ConfigMapping = {}
    for key, value in sorted(given.items(), key=lambda item: "." in item[0]):  # sections first
        if key not in choices:
            settings = _merged(settings, _nested(key, value))
    for part in {*PARTS, "model", "optimizer"} - choices.keys():
        section = settings.get(part)
        if isinstance(section, dict) and "_target_" in section:
            # Another class does not take the arguments of the default choice.
            config[part] = {key: value for key, value in config.get(part, {}).items() if key in SIZES}
    return interpolated(_merged(config, settings))


NAMED: dict[str, type] = {}  # classes given from Python, by their substitute names


def _named(cls: type) -> ConfigMapping:
    """Return the section of a class object, which need not be importable."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    NAMED[name] = cls
    return {"_target_": name}


def _merged(present: Any, value: Any) -> Any:
    """Return the value, merged into the present one if both are mappings."""
    if not (isinstance(present, Mapping) and isinstance(value, Mapping)):
        return value
    return {**present, **{str(key): _merged(present.get(key), item) for key, item in value.items()}}


def changed_sections(saved: ConfigMapping, texts: Iterable[str], chosen: ConfigMapping) -> ConfigMapping:
    """Return the sections of a trained run that overrides such as ``evaluation.lengths=[50]`` change.

    ``texts`` are the typed overrides; ``chosen`` is their composition by evaluate.py.
    """
    config = with_local_logger(saved)
    changed: dict[str, None] = {}
    changeable = sorted(groups_of("evaluate").keys() & saved.keys())
    overrides = read_overrides(texts)
    for override in sorted(overrides, key=lambda o: "." in o.key_or_group):  # choices first
        section, _, setting = override.key_or_group.partition(".")
        if section not in changeable or (not setting and section not in (*PARTS, "logger")):
            raise unchangeable(override.key_or_group)
        if setting:
            config[section] = _merged(config.get(section, {}), _nested(setting, override.value()))
        elif section == "logger":
            config[section] = chosen.get(section, {})
        else:
            keys = [override.key_or_group for override in overrides]
            config[section] = other_choice(config[section], chosen[section], keys)
        changed[section] = None
    return {section: config[section] for section in changed}


def unchangeable(key: str) -> UserError:
    """Return the error for an option that cannot change for a trained run."""
    changeable = sorted(groups_of("evaluate").keys() & Config.model_fields.keys())
    only = f"only {allowed(changeable)} can change, as in pe=NAME or evaluation.lengths=..."
    return UserError(f"{key} is fixed by the training; {only}")


def _nested(key: str, value: Any) -> ConfigMapping:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def with_local_logger(saved: ConfigMapping) -> ConfigMapping:
    """Return a saved configuration with the user's loggers; only ``none`` is taken from the run."""
    recorded = saved.get("logger")  # with the loggers of a stranger, an evaluation would be uploaded to them
    none = isinstance(recorded, dict) and all(section is None for section in recorded.values())
    return saved | {"logger": composed("config", ["logger=none"] if none else []).get("logger", {})}


# Arguments that a RoPE variant shares with the trained model, and their defaults.
FREQUENCIES = {"base": 10_000.0, "rotary_fraction": 1.0, "kept_frequencies": 1.0}


def other_choice(trained: ConfigMapping, chosen: ConfigMapping, typed: Iterable[str]) -> ConfigMapping:
    """Return another choice for a trained run; a RoPE variant keeps the trained frequencies.

    ``typed`` are keys, such as ``pe.base``.
    """
    # Except where the choice itself differs from plain RoPE, as in kept_frequencies of p_rope.
    if not all(key in chosen and key in trained for key in FREQUENCIES):
        return chosen
    typed_arguments = {key.partition(".")[2] for key in typed}
    same = [key for key, start in FREQUENCIES.items() if chosen[key] == start and key not in typed_arguments]
    return chosen | {key: trained[key] for key in same}


OURS = re.compile(
    r"(pe_experiments\.(encodings|positions|tasks|models)|torch\.optim|pytorch_lightning\.callbacks)(\.\w+)+"
)


def targets(node: Any) -> Iterator[str]:
    """Yield every ``_target_`` in a configuration, at any depth."""
    if isinstance(node, dict) and node.get("_target_") is not None:
        yield str(node["_target_"])
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from targets(value)


def outside(node: Any) -> list[str]:
    """Return the classes and files from outside the catalogue that building the parts would use."""
    if isinstance(node, str):  # looks like a file name
        return [node] if set(node) & {".", "/", os.sep} else []
    if isinstance(node, list):
        return [name for value in node for name in outside(value)]
    if not isinstance(node, dict):
        return []
    named = [str(node[key]) for key in ("_target_", "path") if node.get(key) is not None]
    named = [name for name in named if not OURS.fullmatch(name)]
    return named + [name for key, value in node.items() if key != "_target_" for name in outside(value)]
