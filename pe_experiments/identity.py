"""What a run is called: its identity is what was trained, the label only names it.

What was trained is the configuration, what is derived from it, the code that trains (`fingerprints`) and the
data files it reads. Two configurations that train the same thing are one run; anything that changes the
training is another.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from pe_experiments.config import PARTS, Experiment
from pe_experiments.errors import UserError
from pe_experiments.fingerprints import EVALUATION, data_files, evaluation_code, training_code

LONGEST_LABEL = 120  # of a run's name


@dataclass(frozen=True)
class Identity:
    """What was trained, the name that follows from it, and what to call its scheme.

    Attributes:
        trained: the configuration.
        sources: by group (``shared``, ``pe``, ``positions``, ``task``) a digest for every module and data
            file; ``derived`` holds the values derived from the configuration.
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
    shared = training_code()
    sources: dict[str, dict[str, Any]] = {"shared": shared}
    for group, part in experiment.components.items():
        own = training_code(part.classes, scores=group == "task")
        declared = experiment.task.data_files if group == "task" else ()
        files = data_files(part.arguments, part.classes, declared)
        sources[group] = files | {name: digest for name, digest in own.items() if shared.get(name) != digest}
    if experiment.config.training.stop_at_exact_match is not None:  # evaluation decides when training ends
        sources["stopping"] = {name: evaluation_code(())[name] for name in EVALUATION}
    return sources | {"derived": _derived(experiment)}


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
