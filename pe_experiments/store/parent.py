"""A run that continues another (``init_from``): its configuration, and the weights it starts from.

The task, the model, the encoding and all other settings are the parent's, except those that were typed:
on the command line, in the overrides of a sweep, or from Python. What a default says is not typed.

**Original length.** An encoding derives its lengths from those of the first training, such as YaRN its
original length and T5 its buckets. So ``ModelShape.original_length`` is handed down from parent to child:
after 20, 40 and 80 tokens with YaRN it is still 20, because the frequencies are measured from there. Plain
RoPE and no encoding depend on no length. A run that was itself trained with one of them hands down its own
training length: after RoPE at 20 and then at 40 tokens, the angles up to 40 have been trained, and YaRN at 80
has the factor 2. ``pe.original_length`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pe_experiments.configuration.compose import ConfigMapping, composed, other_choice
from pe_experiments.configuration.parts import load_component
from pe_experiments.configuration.schema import OF_TRAINER, PARTS, Config, ParentConfig
from pe_experiments.data.batches import BATCHES_PER_DRAW
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.encodings.mixtures import ByLayer, Composition
from pe_experiments.encodings.rope import Rope
from pe_experiments.store.directory import find_run
from pe_experiments.store.names import leaves, short_hash
from pe_experiments.store.status import RunStatus
from pe_experiments.store.trained_model import finished_status, trained_model
from pe_experiments.terminal.errors import UserError, few

WITHOUT_LENGTH = {PositionalEncoding, Rope, ByLayer, Composition}  # and what consists of these
SECTIONS = (*PARTS, "model", "optimizer", "training", "evaluation", "trainer")


def continued(config: ConfigMapping, typed: Iterable[str] = ()) -> ConfigMapping:
    """Return a composed configuration with everything that was not typed taken from the run ``init_from``.

    Args:
        config: as composed, not checked yet; without ``init_from`` it is returned as it is.
        typed: keys, such as ``pe`` or ``training.steps``. Settings that differ from the shipped ones, and
            from the user's own defaults, count as typed, too.

    Raises:
        UserError: no such run, or one that did not complete; it is a stranger's, and not trusted.
    """
    if not isinstance(config.get("init_from"), str | PathLike):
        return config
    parent = _parent_status(fspath(config["init_from"]), config["results_dir"], config.get("trust", False))
    explicit = set(typed)
    keys = explicit | set(_changed(config))
    saved = parent.run.read_config()
    child = dict(config)
    for section in SECTIONS:
        child[section] = _section(section, saved, config, keys)
    if child["pe"] is config["pe"]:  # another encoding
        child["pe"] = other_choice(saved["pe"], config["pe"], explicit)
    if "seed" not in keys:
        child["seed"] = saved["seed"]
    lengths, trained = child["training"], saved["training"]
    if "training.min_length" not in keys and trained["min_length"] == trained["max_length"]:
        lengths["min_length"] = lengths["max_length"]  # all sequences were of one length, and still are
    encoding = load_component("pe", child["pe"])
    child |= {"init_from": str(parent.run.path), "parent": _record(parent, encoding.classes).model_dump()}
    return child


def stated_keys(keys: Mapping[str, Any], *above: str) -> Iterator[str]:
    """Yield the keys of a configuration from Python with dots, such as ``training.steps``."""
    for key, value in keys.items():
        if isinstance(value, Mapping) and "_target_" not in value:
            yield from stated_keys(value, *above, str(key))
        else:
            yield ".".join([*above, str(key).lstrip("+")])


def take_weights(model: nn.Module, config: Config) -> str:
    """Give an untrained model the weights that it shares with its parent; return what was done, in one line.

    Weights of an encoding are shared where both models have the same class in the same place. A table of
    learned positions keeps the parent's rows.

    Raises:
        UserError: the parent is gone, or a weight outside the encoding has another shape.
    """
    assert config.init_from
    assert config.parent
    parent = trained_model(_parent_status(config.init_from, config.results_dir, config.trust))
    weights = parent.state_dict()
    new = []
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            place, _, last = name.rpartition(".")
            source = weights.pop(name, None)
            owner = model.get_submodule(place)
            of_encoding = name.startswith("encodings.")
            if source is None or (of_encoding and _classes(model, place) != _classes(parent, place)):
                new.append(name)
            elif source.shape == weight.shape:
                weight.copy_(source)
            elif isinstance(owner, Learned) and last == "table" and _is_longer(weight, source):
                weight[: len(source)] = source
                new.append(f"rows {len(source)} to {len(weight) - 1} of {name}")
            elif of_encoding:
                new.append(name)
            else:
                shapes = f"has the shape {list(weight.shape)} here and {list(source.shape)} there"
                same = "allowed: the task's symbols and the model's sizes as they were there"
                raise UserError(f"init_from={config.init_from}: {name} {shapes}; {same}")
    remark = f"continues {config.parent.name} with its weights"
    if config.parent.length:
        remark += f"; original length of its encoding: {config.parent.length} tokens"
    for words, names in (("new", new), ("not used", list(weights))):
        if names:
            remark += f"; {words}: {few(names)}"
    return remark


def _parent_status(path: str, results_dir: str, trust: bool) -> RunStatus:
    """Return the status of a completed run, given by its directory or by its name alone."""
    run = find_run("init_from", path, [Path(), Path(results_dir, "runs")])
    status = finished_status(run, trust=trust, key="init_from")
    if not run.checkpoint.exists():
        raise UserError(f"init_from={run.path}: its weights are missing ({run.checkpoint})")
    return status


def _changed(config: ConfigMapping) -> Iterator[str]:
    """Yield the keys of the settings that differ from the defaults, as those of a preset or of a task."""
    defaults = dict(leaves(composed("config", [])))
    for path, value in leaves(config):
        if path not in defaults or defaults[path] != value:
            yield ".".join(path)


def _section(name: str, saved: ConfigMapping, config: ConfigMapping, keys: set[str]) -> ConfigMapping:
    """Return a section of the parent with what was typed put in; a choice replaces it as a whole."""
    inherited, chosen = saved[name], config[name]
    if {name, f"{name}._target_"} & keys:
        return chosen
    section = dict(inherited)
    if name == "trainer":  # devices are of whoever trains
        section = chosen | {key: inherited[key] for key in OF_TRAINER if key in inherited}
    for key in sorted(keys):  # a mapping before what stands in it
        if key.startswith(f"{name}."):
            section = _with_value(section, chosen, key.split(".")[1:])
    return section


def _with_value(section: ConfigMapping, chosen: Any, path: list[str]) -> ConfigMapping:
    """Return the section with one value of the other, found by the path to it."""
    key, *inner_path = path
    if not isinstance(chosen, Mapping) or key not in chosen:  # deleted by ~
        return section
    inner = section.get(key)
    value = (
        _with_value(inner if isinstance(inner, dict) else {}, chosen[key], inner_path)
        if inner_path
        else chosen[key]
    )
    return section | {key: value}


def _record(parent: RunStatus, encoding: Iterable[type]) -> ParentConfig:
    """Return what a child with an encoding of these classes keeps of its parent."""
    experiment = parent.experiment
    hashed = parent.identity.hashed
    shared = {key: value for key, value in hashed["config"].items() if key != "seed"}
    if "parent" in shared:
        shared["parent"] = shared["parent"]["family"]
    steps = (parent.result or {}).get("finished_step", experiment.config.training.steps)
    trained = steps * experiment.config.trainer.accumulate_grad_batches
    trained += BATCHES_PER_DRAW * experiment.batches.first_draw  # those of its own parents
    encoding_there = experiment.components["pe"].build(experiment.shape)
    length = getattr(encoding_there, "original_length", experiment.shape.original_length)  # maybe typed there
    return ParentConfig(
        name=parent.run.name,
        label=parent.identity.label,
        run=short_hash(hashed),
        family=short_hash([shared, hashed["data"], hashed["classes"]]),
        length=None if WITHOUT_LENGTH.issuperset(encoding) else length,
        batches=trained,
    )


def _classes(model: nn.Module, place: str) -> list[type]:
    """Return the classes on the way from an encoding to one of its parts, as from ``encodings.0``."""
    names = place.split(".")
    return [type(model.get_submodule(".".join(names[:depth]))) for depth in range(2, len(names) + 1)]


def _is_longer(table: torch.Tensor, source: torch.Tensor) -> bool:
    return table.shape[1:] == source.shape[1:] and len(table) > len(source)
