"""Identify runs by their trained configuration, their data and the source code of the user's classes.

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
from pe_experiments.configuration.schema import PARTS, SIZES, TrainerConfig, TrainingConfig
from pe_experiments.store.names import file_digest, jsonable, leaves, safe_name, short_hash, text_digest
from pe_experiments.terminal.errors import UserError

LONGEST_LABEL = 120  # characters in a run's name
MOST_FILES = 20  # data files with a separate digest; more files share one digest
OURS = {"pe_experiments", "torch", "pytorch_lightning"}  # their versions are in environment.json
UNTRACKED = "no source"  # of a class whose source Python does not keep


@dataclass(frozen=True)
class Identity:
    """The ``identity`` section of a run's ``config.yaml``."""

    name: str  # task, model, label, seed and hash
    hashed: dict[str, Any]  # ``numerics``, ``config`` without defaults, digests of ``data`` and ``classes``
    trained: dict[str, Any]  # the configuration with all arguments, including defaults
    label: str  # of the encoding


def identify(experiment: Experiment) -> Identity:
    """Return the identity of the training of an experiment."""
    parts = experiment.components
    trained = jsonable(experiment.trained)
    classes = {group: class_digests(part.classes) for group, part in parts.items()}
    classes["trainer"] = class_digests(cls for callback in experiment.callbacks for cls in callback.classes)
    hashed = {
        "numerics": NUMERICS,
        "config": without_defaults(trained),
        "data": data_digests(experiment.task.data_files, parts.values()),
        "classes": {group: digests for group, digests in classes.items() if digests},
    }
    label = safe_name(experiment.label.replace(" -> ", "-to-"))[:LONGEST_LABEL]
    name = f"{parts['task'].choice}-{experiment.model_choice}-{label}-s{experiment.config.seed}"
    return Identity(f"{name}-{short_hash(hashed)}", hashed, trained, experiment.label)


def without_defaults(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without default arguments, so that new arguments do not change hashes."""
    model = dict(trained["model"])
    sizes = {key: model.pop(key) for key in SIZES}
    stated = {group: load_component(group, trained[group]).stated for group in (*PARTS, "optimizer")}
    stated["model"] = load_component("model", model).stated | sizes
    for group, schema in (("training", TrainingConfig), ("trainer", TrainerConfig)):
        defaults = vars(schema.model_construct())
        options = trained[group].items()
        stated[group] = {key: value for key, value in options if value != defaults.get(key, ...)}
    if callbacks := stated["trainer"].get("callbacks"):
        stated["trainer"]["callbacks"] = [
            load_component(CALLBACKS, callback).stated for callback in callbacks
        ]
    also = {key: trained[key] for key in ("seed", "parent") if key in trained}
    return jsonable(stated | also)


def config_key(trained: Mapping[str, Any], data: Mapping[str, str]) -> str:
    """Return a hash of a configuration that does not depend on the version of the package."""
    return short_hash([without_defaults(trained), dict(data)])


def evaluation_key(experiment: Experiment) -> dict[str, Any]:
    """Return the key of an evaluation of a run, without default decoding and task."""
    evaluation = experiment.config.evaluation
    pe = experiment.components["pe"]
    key: dict[str, Any] = {"lengths": list(experiment.evaluation_lengths), "examples": evaluation.examples}
    if experiment.decoding != "teacher_forcing":
        key["decoding"] = experiment.decoding
    if task := experiment.other_task:
        key["task"] = task.section | data_digests(experiment.evaluation_task.data_files, [task])
    return jsonable(key | {"pe": pe.section})


def class_digests(classes: Iterable[type]) -> dict[str, str]:
    """Return a digest of the source of each user class by name; for library classes the version."""
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
    """Return these classes and their ancestors, except classes of Python, PyTorch and this package."""
    known = OURS | sys.stdlib_module_names
    ancestors = dict.fromkeys(ancestor for cls in classes for ancestor in cls.__mro__)
    return [cls for cls in ancestors if cls.__module__.partition(".")[0] not in known]


def file_of(cls: type) -> Path | None:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


@cache
def source_text(cls: type) -> str | None:
    """Return the source of a class, or of its methods in a notebook; None if Python has no source.

    It is kept, since a file that is edited later does not change the class.
    """
    for text_of in (inspect.getsource, _text_of_members):
        with suppress(OSError, TypeError):
            return text_of(cls)
    return None


def _text_of_members(cls: type) -> str:
    members = [value for name, value in vars(cls).items() if name not in ("__module__", "__doc__")]
    texts = [inspect.getsource(member) if inspect.isfunction(member) else repr(member) for member in members]
    return "\n".join(text for text in texts if " at 0x" not in text)


def data_digests(declared: Iterable[str | Path], parts: Iterable[Component]) -> dict[str, str]:
    """Return a digest of each data file that a task declares or an argument names, by relative path.

    Raises:
        UserError: a declared file does not exist.
    """
    paths = [Path(path).absolute() for path in declared]
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    if missing := [path for path in files if not path.exists()]:
        raise UserError(f"the data file {missing[0]} does not exist")
    root = os.path.commonpath([path.parent for path in files]) if files else ""
    named = {os.path.relpath(path, root): path for path in files if path.is_file()}
    for text in (value for part in parts for _, value in leaves(part.arguments) if isinstance(value, str)):
        if "\n" not in text and os.path.isfile(text) and Path(text).absolute() not in files:
            named[Path(text).name if Path(text).is_absolute() else text] = Path(text).absolute()
    digests = {name: file_digest(path) for name, path in sorted(named.items())}
    return digests if len(digests) <= MOST_FILES else {f"{len(digests)} files": text_digest(str(digests))}
