"""Derive the configuration and the initial weights of a run that continues a parent run (``init_from``).

The child has the parent's task, model, encoding and other settings, except those set explicitly: on the
command line, in the overrides of a sweep, or from Python. A default value does not count as explicit.

**Original length.** Some encodings derive quantities from the length of the first training, such as the
frequencies of YaRN and the buckets of T5. Therefore a child inherits ``ModelShape.original_length``. For
example, if YaRN is trained at 20, then 40, then 80 tokens, the original length stays 20. Plain RoPE and NoPE
depend on no length, so a run with one of them passes on its own training length. For example, RoPE trained at
20 and then at 40 tokens has learned angles up to 40, so YaRN at 80 tokens has the factor 2. The setting
``pe.original_length`` overrides the inherited length.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from pe_experiments.configuration.choices import choices_of, shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.configuration.compose import compose_config, merged_with_request
from pe_experiments.configuration.experiment import Experiment, refuse_other_vocabulary
from pe_experiments.configuration.schema import (
    ENCODING_AND_TASK,
    Folder,
    ParentConfig,
    Section,
    resolved,
    validated,
)
from pe_experiments.data.batches import BATCHES_PER_DRAW
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.store.directory import find_run
from pe_experiments.store.finished import finished_run, trained_model
from pe_experiments.store.names import leaves
from pe_experiments.store.requested import Run
from pe_experiments.terminal.errors import UserError, few, user_errors

INHERITED_SECTIONS = (*ENCODING_AND_TASK, "model", "optimizer", "training", "evaluation", "trainer", "seed")
ConfigMapping = dict[str, Any]


def inherited(config: DictConfig, explicit_keys: Iterable[str] = ()) -> DictConfig | ConfigMapping:
    """Return the configuration with every setting that is not explicit taken from the run ``init_from``.

    Args:
        config: a composed configuration, not yet checked. Without ``init_from`` it is returned unchanged.
        explicit_keys: keys that the user set, such as ``pe`` or ``training.steps``. A setting that differs
            from the shipped or the user's defaults counts as explicit, too.

    Raises:
        UserError: the parent run does not exist, did not complete, or is not trusted.
    """
    if not isinstance(config.get("init_from"), str):
        return config
    requested = resolved(config)
    place = {key: requested.get(key) for key in ParentPlace.model_fields}
    parent = _parent_run(**validated(ParentPlace, place).model_dump())
    saved = parent.directory.read_config()
    # The keys of settings that differ from the defaults, for example because of a preset, are explicit, too.
    defaults = dict(leaves(resolved(compose_config()))) | _defaults_of_task(requested, saved)
    changed = {path for path, value in leaves(requested) if path not in defaults or defaults[path] != value}
    keys = {*explicit_keys}
    for section, *path in changed:
        keys.add(section if (section, "_target_") in changed else ".".join([section, *path]))
    merged = merged_with_request(saved, requested, keys)
    child = requested | {section: merged[section] for section in INHERITED_SECTIONS}
    training, parent_training = child["training"], saved["training"]
    one_length = parent_training["min_length"] == parent_training["max_length"]
    if one_length and "training.min_length" not in keys:
        training["min_length"] = training["max_length"]  # the child trains at one length, too
    encoding = load_component("pe", child["pe"])
    child["init_from"] = str(parent.directory.path)
    child["parent"] = _parent_record(parent, encoding.classes).model_dump()
    return child


def _defaults_of_task(requested: ConfigMapping, saved: ConfigMapping) -> dict[tuple[str, ...], Any]:
    """Return the options that naming the parent's task again sets by itself (``configs/task_defaults``)."""
    target = requested["task"].get("_target_")
    if target != saved["task"].get("_target_"):
        return {}
    for name in choices_of("task_defaults"):
        if shipped("task")[name]["_target_"] == target:
            choice, max_length = f"task={name}", requested["training"]["max_length"]
            longest = resolved(compose_config([choice]))["training"]["max_length"]
            composed = resolved(compose_config([choice, f"training.max_length={max_length}"]))
            training = composed["training"] | {"max_length": longest}  # the rest follows from that requested
            return dict(leaves({"training": training, "evaluation": composed["evaluation"]}))
    return {}


def copy_parent_weights(model: nn.Module, experiment: Experiment) -> str:
    """Copy the parent's weights into an untrained model; return a line that says what was copied.

    Weights of the encoding are copied if both models have the same class in the same place. If a table of
    learned positions is longer than the parent's, the additional rows keep their initial values.

    Raises:
        UserError: the parent does not exist any more, a weight outside the encoding has another shape, or the
            tokens of a text differ.
    """
    config = experiment.config
    assert config.init_from
    assert config.parent
    parent_run = _parent_run(config.init_from, config.results_dir, config.trust)
    with user_errors(f"init_from={config.init_from}: task={experiment.components['task'].choice}"):
        refuse_other_vocabulary(experiment.task, parent_run.experiment.task)
    parent = trained_model(parent_run)
    parent_weights = parent.state_dict()
    new_weights = []
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            module_name, _, attribute = name.rpartition(".")
            module = model.get_submodule(module_name)
            parent_weight = parent_weights.pop(name, None)
            in_encoding = name.startswith("encodings.")
            if parent_weight is None or (in_encoding and not _same_classes(model, parent, module_name)):
                new_weights.append(name)
            elif parent_weight.shape == weight.shape:
                weight.copy_(parent_weight)
            elif (
                attribute in getattr(module, "grown_tables", ())
                and weight.shape[1:] == parent_weight.shape[1:]
                and len(weight) > len(parent_weight)
            ):
                weight[: len(parent_weight)] = parent_weight
                new_weights.append(f"rows {len(parent_weight)} to {len(weight) - 1} of {name}")
            elif in_encoding:
                new_weights.append(name)
            else:
                shapes = f"has the shape {list(weight.shape)} here and {list(parent_weight.shape)} there"
                cure = "allowed: the task's symbols and the model's sizes as they were there"
                raise UserError(f"init_from={config.init_from}: {name} {shapes}; {cure}")
    remark = f"continues {config.parent.name} with its weights"
    if config.parent.length:
        remark += f"; original length of its encoding: {config.parent.length} tokens"
    for words, names in (("new", new_weights), ("not used", list(parent_weights))):
        if names:
            remark += f"; {words}: {few(names)}"
    return remark


class ParentPlace(Section):
    """The settings by which a parent is found, which are needed before the others are checked."""

    init_from: Folder
    results_dir: Folder
    trust: bool


def _parent_run(init_from: str, results_dir: str, trust: bool) -> Run:
    """Return a completed run; ``init_from`` is its directory or only its name."""
    directory = find_run("init_from", init_from, [Path(), Path(results_dir, "runs")])
    run = finished_run(directory, trust=trust, key="init_from")
    if not directory.checkpoint.exists():
        raise UserError(f"init_from={directory.path}: its weights are missing ({directory.checkpoint})")
    return run


def _parent_record(parent: Run, encoding_classes: Iterable[type]) -> ParentConfig:
    """Return the record of the parent that a child with an encoding of these classes stores."""
    experiment, identity = parent.experiment, parent.identity
    steps = (parent.directory.read_result() or {}).get("finished_step", experiment.config.training.steps)
    batches = steps * experiment.config.trainer.accumulate_grad_batches
    batches += BATCHES_PER_DRAW * experiment.batches.first_draw  # of the parent's own parents
    encoding = experiment.components["pe"].build(experiment.shape)
    # An encoding with this attribute may have got another value from its configuration.
    original_length = getattr(encoding, "original_length", experiment.shape.original_length)
    inherits_length = any(
        vars(cls).get("inherits_length", True)  # a subclass does not inherit it
        for cls in encoding_classes
        if issubclass(cls, PositionalEncoding)
    )
    return ParentConfig(
        name=parent.name,
        label=experiment.label,
        run=identity.hash[:8],
        family=identity.family,
        length=original_length if inherits_length else None,
        batches=batches,
    )


def _same_classes(model: nn.Module, parent: nn.Module, module_name: str) -> bool:
    """Return whether a module of the encoding, with all modules around it, has the same class in both."""
    names = module_name.split(".")
    paths = [".".join(names[:depth]) for depth in range(2, len(names) + 1)]  # from an encoding, encodings.0
    return all(type(model.get_submodule(path)) is type(parent.get_submodule(path)) for path in paths)
