"""Identify runs by the configuration of their training, their data and the source code of user classes.

The code of this package enters as one number, `NUMERICS`, which is raised when its results change on purpose.
An `Identity` is made of the configuration of a run that is requested, or of the `Record` of one that is read.

| | decides |
|---|---|
| `Identity.hash` | whether a training is found finished or interrupted; it ends the name of the run |
| `Identity.key` | whether a published study has the run, whatever version of the package trained it |
| `Identity.family` | which runs are seeds of one configuration |
| `CALL` | that a run is never found: it is a part of the hash if code is in no file |
| `evaluation_key` | whether an evaluation of the run is found |
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pe_experiments import NUMERICS
from pe_experiments.configuration.component import CALLBACKS, Component, load_component
from pe_experiments.configuration.experiment import IGNORED_ARGUMENTS, Experiment, trained_sections
from pe_experiments.configuration.foreign import only_shipped
from pe_experiments.configuration.schema import (
    ENCODING_AND_TASK,
    MODEL_SIZES,
    TrainerConfig,
    TrainingConfig,
    validated,
    warmup_steps,
)
from pe_experiments.store.directory import Received, RunDirectory
from pe_experiments.store.names import (
    bytes_digest,
    file_digest,
    full_hash,
    jsonable,
    leaves,
    safe_name,
    short_hash,
    texts,
)
from pe_experiments.store.own_code import UNTRACKED, code_digests
from pe_experiments.terminal.errors import UserError, one_line

LONGEST_LABEL = 120  # characters in a run's name
CALL = "call"  # a random text that no other run has, for code that cannot be compared
MOST_FILES = 20  # data files with a separate digest; more files share one digest


@dataclass
class Identity:
    """What makes two trainings the same run.

    Attributes:
        config: the trained configuration without default arguments.
        data: digests of data files by name.
        classes: digests of the code of user classes by config group and module.
        numerics: `NUMERICS` of the package that trains it.
        stem: beginning of the run's name: task, model, label, seed.
        hash: of all but the stem, 64 hexadecimal digits, eight of which end the name.
    """

    config: dict[str, Any]
    data: dict[str, str]
    classes: dict[str, dict[str, str]]
    numerics: int
    stem: str = ""

    def __post_init__(self) -> None:
        self.hashed = {part: getattr(self, part) for part in ("numerics", "config", "data", "classes")}
        self.hash = full_hash(self.hashed)
        self.name = f"{self.stem}-{self.hash[:8]}"

    @property
    def key(self) -> str:
        """The hash by which a published run is found, whatever version of the package trained it."""
        return short_hash([self.config, self.data])

    @property
    def family(self) -> str:
        """The hash that all seeds of a run share, also those of its parents."""
        config = {key: value for key, value in self.config.items() if key not in ("seed", CALL)}
        if "parent" in config:
            config["parent"] = config["parent"]["family"]
        return short_hash([config, self.data, self.classes])


def identify(experiment: Experiment) -> Identity:
    components, callbacks = experiment.components, experiment.training_callbacks
    own_classes = {group: component.own_classes for group, component in components.items()}
    own_classes["trainer"] = [cls for callback in callbacks for cls in callback.own_classes]
    classes = {group: code_digests(classes) for group, classes in own_classes.items() if classes}
    label = safe_name(experiment.label.replace(" -> ", "-to-"))[:LONGEST_LABEL]
    data = data_digests(experiment.task.data_files, [*components.values(), *callbacks])
    if experiment.task.vocabulary:
        data["task.tokenizer"] = experiment.task.vocabulary
    task = components["task"].choice
    config = _without_defaults(trained_sections(experiment.full_config), components, callbacks)
    if untracked(classes):
        config[CALL] = secrets.token_hex(8)
    return Identity(
        config=config,
        data=data,
        classes=classes,
        numerics=NUMERICS,
        stem=f"{task}-{experiment.model_choice}-{label}-s{experiment.config.seed}",
    )


def without_defaults(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return a read configuration without default arguments, so that new arguments do not change hashes.

    Raises:
        UserError: it names code from outside the package, which is not imported, or it is damaged.
    """
    trained = trained_sections(trained)
    sections = {group: trained[group] for group in (*ENCODING_AND_TASK, "optimizer", "model")}
    sections["model"] = {key: value for key, value in trained["model"].items() if key not in MODEL_SIZES}
    with only_shipped():
        components = {group: load_component(group, section) for group, section in sections.items()}
        callbacks = [load_component(CALLBACKS, section) for section in trained["trainer"]["callbacks"]]
    return _without_defaults(trained, components, callbacks)


def _without_defaults(
    trained: Mapping[str, Any], components: Mapping[str, Component], callbacks: Iterable[Component]
) -> dict[str, Any]:
    """Return the trained configuration as it is hashed.

    The paths of data are left out, since their content counts, and a value that ``null`` stands for is null.
    """
    sections = {group: component.section_without_defaults for group, component in components.items()}
    for argument in components["task"].cls.data_arguments:  # type: ignore[attr-defined]
        sections["task"].pop(argument, None)
    sections["model"] |= {key: trained["model"][key] for key in MODEL_SIZES}
    for argument in IGNORED_ARGUMENTS:
        sections["model"].pop(argument, None)
    for group, schema in (("training", TrainingConfig), ("trainer", TrainerConfig)):
        defaults = vars(schema.model_construct())
        options = trained[group].items()
        sections[group] = {key: value for key, value in options if value != defaults.get(key, ...)}
    training = sections["training"]
    if training.get("warmup_steps") == warmup_steps(training["steps"]):
        training["warmup_steps"] = None
    if "callbacks" in sections["trainer"]:
        sections["trainer"]["callbacks"] = [callback.section_without_defaults for callback in callbacks]
    for key in ("seed", "parent"):
        if key in trained:
            sections[key] = trained[key]
    return jsonable(sections)


class _SavedIdentity(Received):
    hash: str
    numerics: int
    data: dict[str, str]
    classes: dict[str, dict[str, str]]
    config: dict[str, Any] | None = None


class _SavedConfig(Received):
    """The entries of ``config.yaml`` on which the package relies, beside the `trained_sections`."""

    identity: _SavedIdentity
    derived: dict[str, Any]
    parent: dict[str, Any] | None = None


@dataclass(frozen=True)
class Record:
    """The record of one run, from which comparisons and published studies take its configuration.

    Attributes:
        name: of the run.
        trained: the configuration of the training with all arguments.
        numerics: `NUMERICS` of the package that trained it.
        data: digests of data files by name.
        classes: digests of user code by config group and module.
        derived: values that follow from the configuration, such as ``train_lengths``; empty if published.
        hash: of its identity; empty if published.
        config: `Identity.config`, recorded only if the run names code from outside the package.
    """

    name: str
    trained: dict[str, Any]
    numerics: int
    data: dict[str, str]
    classes: dict[str, dict[str, str]] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict)
    hash: str = ""
    config: dict[str, Any] | None = None

    @cached_property
    def identity(self) -> Identity:
        """The identity, for which no code from outside the package is imported.

        Raises:
            UserError: the run names such code, and does not record its identity without it.
        """
        try:
            config = without_defaults(self.trained)
        except ValueError as error:
            if self.config is None:
                problem = f"{error}, and its config.yaml records no identity that can be read without it"
                raise UserError(f"{problem}; if it is yours, add rerun=true to its command") from error
            config = self.config
        return Identity(config, self.data, self.classes, self.numerics)

    @classmethod
    def read(cls, directory: RunDirectory, saved: Mapping[str, Any] | None = None) -> Record:
        """Return the record of a run directory, or that in ``saved``, the content of its ``config.yaml``.

        Raises:
            UserError: its ``config.yaml`` is missing or damaged.
        """
        saved = directory.read_config() if saved is None else saved
        try:
            content = validated(_SavedConfig, saved)
            identity = content.identity
            return cls(
                directory.name,
                trained_sections(saved),
                identity.numerics,
                identity.data,
                identity.classes,
                content.derived,
                identity.hash,
                identity.config,
            )
        except (KeyError, ValueError) as error:
            why = f"section {error} is missing" if isinstance(error, KeyError) else one_line(str(error))
            raise UserError(f"{directory.path} is not a valid run directory: config.yaml: {why}") from error


def config_key(trained: Mapping[str, Any], data: Mapping[str, str]) -> str:
    """Return the `Identity.key` of a configuration that was read."""
    return Identity(without_defaults(trained), dict(data), {}, NUMERICS).key


def evaluation_key(experiment: Experiment) -> dict[str, Any]:
    """Return what identifies an evaluation among those of a run, without defaults of later options."""
    evaluation = experiment.config.evaluation
    encoding = experiment.components["pe"]
    key: dict[str, Any] = {"lengths": list(experiment.evaluation_lengths), "examples": evaluation.examples}
    if experiment.decoding != "teacher_forcing":
        key["decoding"] = experiment.decoding
    if evaluation.window is not None:
        key["window"] = evaluation.window
    if task := experiment.other_task:
        key["task"] = task.section | data_digests(experiment.evaluation_task.data_files, [task])
        if task.own_classes:
            key["task"] |= {"code": code_digests(task.own_classes)}
    if evaluation.save:
        key["save"] = True
    if experiment.metrics:
        key["metrics"] = evaluation.metrics
        functions = [getattr(metric, "of", metric) for metric in experiment.metrics.values()]
        key["metrics_code"] = code_digests(functions)
    key["pe"] = encoding.section
    if files := data_digests([], [encoding]):
        key["files"] = files
    if encoding.own_classes:
        key["code"] = code_digests(encoding.own_classes)
    if untracked(key):
        key[CALL] = secrets.token_hex(8)
    return jsonable(key)


def untracked(digests: Mapping[str, Any]) -> list[str]:
    """Return the names of classes and functions among these digests whose code is in no file."""
    return [path[-1] for path, digest in leaves(digests) if str(digest).startswith(UNTRACKED)]


def data_digests(data_files: Iterable[str | Path], components: Iterable[Component]) -> dict[str, str]:
    """Return a digest of each data file by relative path.

    Args:
        data_files: files, and folders whose files are all included.
        components: the files that the ``file_arguments`` of our classes name are included, and those that
            any argument of the user's classes names; for these also all files of a folder, or all that
            continue the argument, as ``data.npy`` for ``data``.

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
        for value, is_own in _file_values(component):
            for file in _argument_files(value, all_files=is_own):
                name = file.name if file.is_absolute() else value if file == Path(value) else str(file)
                while files_by_name.get(name, file.absolute()) != file.absolute():
                    name += "'"  # another file of this name
                if file.absolute() not in files:
                    files_by_name[name] = file.absolute()
    digests = {name: file_digest(path) for name, path in sorted(files_by_name.items())}
    if len(digests) > MOST_FILES:
        return {f"{len(digests)} files": bytes_digest(str(digests).encode())}
    return digests


def _file_values(component: Component) -> Iterator[tuple[str, bool]]:
    """Yield the texts among the arguments that may name files, and whether the class is the user's."""
    is_own = component.cls in component.own_classes
    names = component.arguments if is_own else getattr(component.cls, "file_arguments", ())
    for name in names:
        if name not in component.nested and name not in IGNORED_ARGUMENTS:
            yield from ((text, is_own) for text in texts(component.arguments.get(name)))
    for nested in component.nested.values():
        for part in nested:
            yield from _file_values(part)


def _argument_files(value: str, all_files: bool) -> list[Path]:
    """Return the files that an argument may name: the file of this path, and with ``all_files`` more.

    These are the files in the folder of this path, or else those whose names continue it.
    """
    path = Path(value)
    try:
        if path.is_file() or not (all_files and path.name):
            return [path] if path.is_file() else []
        if path.is_dir():
            return sorted(file for file in path.rglob("*") if file.is_file())
        continued = re.compile(re.escape(path.name) + r"[._-].*")
        return sorted(
            file for file in path.parent.glob("*") if continued.fullmatch(file.name) and file.is_file()
        )
    except (OSError, ValueError):  # too long for a path, or not readable
        return []
