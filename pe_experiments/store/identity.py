"""What a run is called: its identity is what was trained, the label only names it.

What was trained is the configuration, what is derived from it, the code that trains (`code`; code
that is `known` to give the same numbers counts as the same) and the data files it reads. Two configurations
that train the same thing are one run; anything that changes the training is another.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import Component
from pe_experiments.configuration.schema import PARTS
from pe_experiments.store.code import PACKAGE, Digests, class_code
from pe_experiments.store.files_read import data_files
from pe_experiments.store.known import common_code, states
from pe_experiments.terminal.errors import UserError

LONGEST_LABEL = 120  # of a run's name


@dataclass(frozen=True)
class Identity:
    """What was trained, the name that follows from it, and what to call its scheme.

    Attributes:
        trained: the configuration.
        sources: by group (``shared``, ``pe``, ``positions``, ``task``) the states of its code and the
            digests of its data files; ``derived`` holds the values derived from the configuration.
        label: of the scheme.
        prefix: of the name; the hash follows.
    """

    trained: dict[str, Any]
    sources: dict[str, dict[str, Any]]
    label: str
    prefix: str

    @property
    def hash8(self) -> str:
        return short_hash({"trained": self.trained, "sources": self.sources})

    @property
    def name(self) -> str:
        return f"{self.prefix}-{self.hash8}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "label": self.label, "trained": self.trained, "sources": self.sources}


def identify(experiment: Experiment) -> Identity:
    """The identity of an experiment."""
    config, components = experiment.config, experiment.components
    trained: dict[str, Any] = {group: components[group].section for group in PARTS}
    trained["model"] = {**config.model.model_dump(), **components["model"].section}
    trained["model"].pop("attention_implementation", None)  # the same result, computed otherwise
    trained["training"] = config.training.model_dump()
    trained["seed"] = config.seed
    label = config.label or scheme_label(experiment)
    shown = safe_name(label)[:LONGEST_LABEL]
    prefix = f"{components['task'].choice}-{experiment.model_choice}-{shown}-s{config.seed}"
    return Identity(jsonable(trained), jsonable(_sources(experiment)), label, prefix)


def _sources(experiment: Experiment) -> dict[str, dict[str, Any]]:
    common = common_code()
    sources: dict[str, dict[str, Any]] = {"shared": states({"training": common["training"]}, "trained")}
    for group, part in experiment.components.items():
        declared = experiment.task.data_files if group == "task" else ()
        sources[group] = data_files(part.arguments, part.classes, declared)
        sources[group] |= states(part_code(part), "trained")
    if experiment.config.training.stop_at_exact_match is not None:  # evaluation decides when training ends
        sources["stopping"] = states({"evaluation": common["evaluation"]}, "trained")
    return sources | {"derived": _derived(experiment)}


def evaluated(experiment: Experiment) -> dict[str, Any]:
    """What identifies one evaluation of a training; the usual decoding and task are left out."""
    scheme = jsonable(experiment.components["pe"].section)
    lengths, examples = list(experiment.evaluation_lengths), experiment.config.evaluation.examples
    said: dict[str, Any] = {"lengths": lengths, "examples": examples, "pe": scheme}
    code = {"evaluation": common_code()["evaluation"]}
    for group in PARTS:
        code |= part_code(experiment.components[group])
    if experiment.decoding != "teacher_forcing":
        said["decoding"] = experiment.decoding
    if task := experiment.other_task:
        said["task"] = jsonable(task.section) | data_files(
            task.arguments, task.classes, experiment.evaluation_task.data_files
        )
        code |= part_code(task)
    return said | {"code": states(code, "evaluated")}


def only_code_differs(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two evaluations are the same, carried out by different code."""
    return one != other and one | {"code": None} == other | {"code": None}


def part_code(part: Component) -> Digests:
    """The code of a part and of the parts among its arguments."""
    return {name: digest for cls in part.classes for name, digest in class_code(cls).items()}


CODE_OF = {
    "shared": "the training code", "pe": "the scheme's code", "positions": "the position policy's code",
    "task": "the task's code", "model": "the model's code", "stopping": "the evaluation's code",
}  # fmt: skip


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two `Identity.sources`: code of this package by its part, files by their name."""
    names = set()
    for group in before | now:
        one, other = dict(before.get(group, {})), dict(now.get(group, {}))
        differing = {name for name in one | other if one.get(name) != other.get(name)}
        files = {name for name in differing if not is_code(name)}
        names |= files | ({CODE_OF[group]} if differing - files else set())
    return sorted(names)


def is_code(name: str) -> bool:
    """Whether a name in `Identity.sources` is of code of this package; else of a file or of outside code."""
    return name == "training" or name == "evaluation" or name.startswith(f"{PACKAGE}.")


def _derived(experiment: Experiment) -> dict[str, Any]:
    """What follows from the configuration; the training lengths, which may be many, as a hash."""
    derived = {key: value for key, value in experiment.derived.items() if not key.startswith("evaluation_")}
    lengths = short_hash(derived["train_lengths"])
    return {**derived, "train_lengths": lengths, "shape": asdict(experiment.shape)}


def scheme_label(experiment: Experiment) -> str:
    """``rope(base=500)+random_subset``: scheme with changed arguments, then an unusual position policy."""
    scheme, positions = experiment.components["pe"].label, experiment.components["positions"].label
    return scheme if positions == "consecutive" else f"{scheme}+{positions}"


def jsonable(content: Any) -> Any:
    """Content as JSON can hold it; functions and classes by their name, sets in order.

    Raises:
        UserError: something that has no text of its own.
    """
    return json.loads(json.dumps(content, default=_as_text))


def _as_text(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if name := getattr(value, "__qualname__", None):
        return f"{getattr(value, '__module__', '')}.{name}"
    if " at 0x" in (text := str(value)):
        raise UserError(f"{type(value).__name__}: such an argument has no text that tells it from another")
    return text


def safe_name(label: str) -> str:
    """The label as part of a path, without characters that are special to shells or Hydra."""
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "_", label).strip("_")


def short_hash(content: Any) -> str:
    """Eight hex digits that follow from JSON-like content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
