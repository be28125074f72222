"""Identify runs by the configuration of their training, their data and the source code of user classes.

The code of this package enters as one number, `NUMERICS`, which is raised when its results change on purpose.
"""

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from pe_experiments import NUMERICS
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import CALLBACKS, Component, load_component
from pe_experiments.configuration.schema import ENCODING_AND_TASK, SIZES, TrainerConfig, TrainingConfig
from pe_experiments.store.names import file_digest, jsonable, leaves, safe_name, short_hash, text_digest
from pe_experiments.terminal.errors import UserError

LONGEST_LABEL = 120  # characters in a run's name
MOST_FILES = 20  # data files with a separate digest; more files share one digest
PACKAGES = {"pe_experiments", "torch", "pytorch_lightning"}  # whose classes do not count as user classes
UNTRACKED = "no source"  # recorded for a class whose source is not available


@dataclass(frozen=True)
class Identity:
    """The ``identity`` section of a run's ``config.yaml``."""

    name: str  # task, model, label, seed and hash
    # ``numerics``, ``config`` without defaults, and digests of ``data`` and ``classes``.
    hashed: dict[str, Any]
    trained: dict[str, Any]  # the configuration with all arguments, including defaults
    label: str  # of the encoding


def identify(experiment: Experiment) -> Identity:
    """Return the identity of the training of an experiment."""
    components = experiment.components
    trained = jsonable(experiment.trained)
    classes = {group: class_digests(component.classes) for group, component in components.items()}
    classes["trainer"] = class_digests(cls for callback in experiment.callbacks for cls in callback.classes)
    hashed = {
        "numerics": NUMERICS,
        "config": without_defaults(trained),
        "data": data_digests(experiment.task.data_files, components.values()),
        "classes": {group: digests for group, digests in classes.items() if digests},
    }
    label = safe_name(experiment.label.replace(" -> ", "-to-"))[:LONGEST_LABEL]
    name = f"{components['task'].choice}-{experiment.model_choice}-{label}-s{experiment.config.seed}"
    return Identity(f"{name}-{short_hash(hashed)}", hashed, trained, experiment.label)


def without_defaults(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without default arguments, so that new arguments do not change hashes."""
    model = dict(trained["model"])
    sizes = {key: model.pop(key) for key in SIZES}
    sections = {
        group: _component_without_defaults(group, trained[group])
        for group in (*ENCODING_AND_TASK, "optimizer")
    }
    sections["model"] = _component_without_defaults("model", model) | sizes
    for group, schema in (("training", TrainingConfig), ("trainer", TrainerConfig)):
        defaults = vars(schema.model_construct())
        options = trained[group].items()
        sections[group] = {key: value for key, value in options if value != defaults.get(key, ...)}
    if callbacks := sections["trainer"].get("callbacks"):
        sections["trainer"]["callbacks"] = [
            _component_without_defaults(CALLBACKS, callback) for callback in callbacks
        ]
    for key in ("seed", "parent"):
        if key in trained:
            sections[key] = trained[key]
    return jsonable(sections)


def _component_without_defaults(group: str, section: dict[str, Any]) -> dict[str, Any]:
    return load_component(group, section).section_without_defaults


def config_key(trained: Mapping[str, Any], data: Mapping[str, str]) -> str:
    """Return a hash of a configuration that does not depend on the version of the package."""
    return short_hash([without_defaults(trained), dict(data)])


def evaluation_key(experiment: Experiment) -> dict[str, Any]:
    """Return what identifies an evaluation among those of a run; default decoding and task are left out."""
    evaluation = experiment.config.evaluation
    key: dict[str, Any] = {"lengths": list(experiment.evaluation_lengths), "examples": evaluation.examples}
    if experiment.decoding != "teacher_forcing":
        key["decoding"] = experiment.decoding
    if task := experiment.other_task:
        key["task"] = task.section | data_digests(experiment.evaluation_task.data_files, [task])
    key["pe"] = experiment.components["pe"].section
    return jsonable(key)


def class_digests(classes: Iterable[type]) -> dict[str, str]:
    """Return a digest of the source of each user class by name; for an installed library, its version."""
    digests = {}
    for cls in user_classes(classes):
        file = file_of(cls)
        library = cls.__module__.partition(".")[0]
        if file and {"site-packages", "dist-packages"} & set(file.parts):
            digests[library] = " ".join(map(version, packages_distributions().get(library, [])))
        else:
            text = source_text(cls)
            digests[f"{cls.__module__}.{cls.__qualname__}"] = text_digest(text) if text else UNTRACKED
    return digests


def user_classes(classes: Iterable[type]) -> list[type]:
    """Return these classes and their ancestors, except those of Python and of `PACKAGES`."""
    known_packages = PACKAGES | sys.stdlib_module_names
    ancestors = dict.fromkeys(ancestor for cls in classes for ancestor in cls.__mro__)
    return [cls for cls in ancestors if cls.__module__.partition(".")[0] not in known_packages]


def file_of(cls: type) -> Path | None:
    """Return the file of the module of a class, or None if there is none."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


@cache
def source_text(cls: type) -> str | None:
    """Return the source of a class, or of its methods in a notebook; None if the source is not available.

    It is cached, because editing the file later does not change the loaded class.
    """
    for read_source in (inspect.getsource, _members_source):
        with suppress(OSError, TypeError):
            return read_source(cls)
    return None


def _members_source(cls: type) -> str:
    members = [value for name, value in vars(cls).items() if name not in ("__module__", "__doc__")]
    texts = [inspect.getsource(member) if inspect.isfunction(member) else repr(member) for member in members]
    return "\n".join(text for text in texts if " at 0x" not in text)


def data_digests(data_files: Iterable[str | Path], components: Iterable[Component]) -> dict[str, str]:
    """Return a digest of each data file by relative path.

    Args:
        data_files: files, and folders whose files are all included.
        components: if one of their arguments is the path of a file, this file is included.

    Raises:
        UserError: one of ``data_files`` does not exist.
    """
    files: list[Path] = []
    for path in data_files:
        absolute = Path(path).absolute()
        files += sorted(absolute.rglob("*")) if absolute.is_dir() else [absolute]
    if missing := [path for path in files if not path.exists()]:
        raise UserError(f"the data file {missing[0]} does not exist")
    root = os.path.commonpath([path.parent for path in files]) if files else ""
    files_by_name = {os.path.relpath(path, root): path for path in files if path.is_file()}
    for component in components:
        for _, value in leaves(component.arguments):
            if not isinstance(value, str) or "\n" in value or not os.path.isfile(value):
                continue
            file = Path(value)
            if file.absolute() not in files:
                files_by_name[file.name if file.is_absolute() else value] = file.absolute()
    digests = {name: file_digest(path) for name, path in sorted(files_by_name.items())}
    if len(digests) > MOST_FILES:
        return {f"{len(digests)} files": text_digest(str(digests))}
    return digests
