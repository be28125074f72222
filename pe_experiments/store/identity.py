"""The identity of a run: its settings, code and data, and its name; the label only names it."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.parts import Component
from pe_experiments.configuration.schema import PARTS
from pe_experiments.store.code import DIGITS, Digests, class_code, common_code, digest, outside_code, states
from pe_experiments.store.names import safe_name, short_hash
from pe_experiments.terminal.errors import UserError

LONGEST_LABEL = 120  # of a run's name
MOST_NAMED = 20  # data files with a digest each; more, or several of one name, have a common one


@dataclass(frozen=True)
class Identity:
    """The settings, code and data of a training, the name that follows from them, and its scheme's label."""

    trained: dict[str, Any]  # the configuration
    sources: dict[str, Any]  # states of code and digests of data files by group; ``derived`` values
    label: str  # of the scheme
    prefix: str  # of the name; the hash follows

    @property
    def hash8(self) -> str:
        return short_hash({"trained": self.trained, "sources": self.sources})

    @property
    def name(self) -> str:
        return f"{self.prefix}-{self.hash8}"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "label": self.label, "trained": self.trained, "sources": self.sources}


def identify(experiment: Experiment) -> Identity:
    """The identity of an experiment: its settings, its code and its data."""
    config, components, common = experiment.config, experiment.components, common_code()
    trained: dict[str, Any] = {group: components[group].section for group in PARTS}
    trained["model"] = {**config.model.model_dump(), **components["model"].section}
    trained["model"].pop("attention_implementation", None)  # the same result, computed otherwise
    trained |= {"training": config.training.model_dump(), "seed": config.seed}
    trained |= {"trainer": experiment.trained_trainer, "optimizer": components["optimizer"].section}

    sources = {"shared": states({"training": common["training"]}, "trained")}
    for group, part in components.items():
        declared = experiment.task.data_files if group == "task" else ()
        sources[group] = data_files(part, declared) | states(part_code(part), "trained")
    for callback in experiment.callbacks:
        sources[f"callback {callback.target}"] = states(part_code(callback), "trained")
    if config.training.stop_at_exact_match is not None:  # evaluation decides when training ends
        sources["stopping"] = states({"evaluation": common["evaluation"]}, "trained")
    derived = {key: value for key, value in experiment.derived.items() if not key.startswith("evaluation_")}
    derived["train_lengths"] = short_hash(derived["train_lengths"])  # which may be many
    derived["shape"] = asdict(experiment.shape)

    label = config.label or scheme_label(experiment)
    named = (components["task"].choice, experiment.model_choice, safe_name(label)[:LONGEST_LABEL])
    prefix = f"{'-'.join(named)}-s{config.seed}"
    return Identity(jsonable(trained), jsonable(sources | {"derived": derived}), label, prefix)


def evaluated(experiment: Experiment) -> dict[str, Any]:
    """The key of one evaluation of a training; the usual decoding and task are left out."""
    said: dict[str, Any] = {
        "lengths": list(experiment.evaluation_lengths),
        "examples": experiment.config.evaluation.examples,
        "pe": jsonable(experiment.components["pe"].section),
    }
    code = {"evaluation": common_code()["evaluation"]}
    for group in PARTS:
        code |= part_code(experiment.components[group])
    if experiment.decoding != "teacher_forcing":
        said["decoding"] = experiment.decoding
    if task := experiment.other_task:
        said["task"] = jsonable(task.section) | data_files(task, experiment.evaluation_task.data_files)
        code |= part_code(task)
    return said | {"code": states(code, "evaluated")}


def part_code(part: Component) -> Digests:
    """The code of a part and of the parts among its arguments."""
    return {name: digest for cls in part.classes for name, digest in class_code(cls).items()}


CODE_OF = {
    "shared": "the training code", "pe": "the scheme's code", "positions": "the position policy's code",
    "task": "the task's code", "model": "the model's code", "stopping": "the evaluation's code",
}  # fmt: skip


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The differences of two `Identity.sources`: code of this package by its part, files by their name."""
    names = set[str]()
    for group in before | now:
        one, other = before.get(group, {}), now.get(group, {})
        differing = (name for name in one | other if one.get(name) != other.get(name))
        names |= {CODE_OF.get(group, group) if is_code(name) else name for name in differing}
    return sorted(names)


def is_code(name: str) -> bool:
    """Whether a name in `Identity.sources` is of code of this package; else of a file or of outside code."""
    return name in ("training", "evaluation") or name.startswith("pe_experiments.")


def scheme_label(experiment: Experiment) -> str:
    """``rope(base=500)+random_subset``: scheme with changed arguments, then an unusual position policy."""
    scheme, positions = experiment.components["pe"].label, experiment.components["positions"].label
    return scheme if positions == "consecutive" else f"{scheme}+{positions}"


def jsonable(content: Any) -> Any:
    """Content as JSON can hold it; functions and classes by their name, sets in order."""
    return json.loads(json.dumps(content, default=_as_text))


def _as_text(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if name := getattr(value, "__qualname__", None):
        return f"{getattr(value, '__module__', '')}.{name}"
    if " at 0x" in (text := str(value)):
        raise UserError(f"{type(value).__name__}: such an argument has no text that tells it from another")
    return text


def data_files(part: Component, declared: Iterable[str | Path] = ()) -> Digests:
    """Digest by path of the data files a part reads; of many, one of their names and contents.

    It declares them, or a text in its arguments or, outside this package, in its source names them.
    """
    outside = [code for cls in part.classes for code in outside_code(cls).values()]
    found = set[Path]()
    for text in _texts(part.arguments):
        found |= _existing(text, Path()) if outside or _is_path(text) else set()
    for path, source in outside:
        constants = (getattr(node, "value", None) for node in ast.walk(ast.parse(source)))
        for text in (constant for constant in constants if isinstance(constant, str) and _is_path(constant)):
            found |= _existing(text, Path(), path.parent)
    for path in map(Path, declared):
        if not path.exists():
            raise UserError(f"the data file {path} does not exist")
        found |= {path} if path.is_file() else {entry for entry in path.rglob("*") if entry.is_file()}
    files = sorted({path.resolve(): path for path in sorted(found)}.items())  # each once, however it is named
    # As named, but without the folders of this machine, so that a moved project keeps its runs.
    names = [path.name if path.is_absolute() else str(path) for _, path in files]
    digests = list(zip(names, [_digest(real, real.stat().st_mtime_ns) for real, _ in files], strict=True))
    if len(files) <= MOST_NAMED and len(dict(digests)) == len(files):
        return dict(digests)
    listing = "\n".join(f"{name} {digest}" for name, digest in digests)
    return {f"{len(files)} data files": digest(listing)}


@cache
def _digest(path: Path, changed_at: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list | tuple):
        for item in node:
            yield from _texts(item)
    elif isinstance(node, str | Path):
        yield str(node)


def _is_path(text: str) -> bool:
    """Whether a text looks like a file's name rather than like a word."""
    return "\n" not in text and ("." in text.strip(".") or "/" in text or os.sep in text)


def _existing(text: str, *folders: Path) -> set[Path]:
    try:
        return {folder / text for folder in folders if text and (folder / text).is_file()}
    except (OSError, ValueError):  # longer than a name may be, or no name at all
        return set()
