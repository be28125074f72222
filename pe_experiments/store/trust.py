"""Refuse the code and the files that the configuration of a stranger's run or model names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from pe_experiments.configuration.groups import OURS
from pe_experiments.configuration.schema import ENCODING_AND_TASK
from pe_experiments.terminal.errors import UserError, shown

# Lightning's callbacks that write no files, send nothing and start nothing: a stranger's run may have them.
HARMLESS_CALLBACKS = tuple(
    f"pytorch_lightning.callbacks.{module}.{name}"
    for module, name in (
        ("weight_averaging", "EMAWeightAveraging"),
        ("weight_averaging", "WeightAveraging"),
        ("lr_monitor", "LearningRateMonitor"),
        ("timer", "Timer"),
    )
)
# Sections that may name code, besides the encoding, the positions and the task.
OTHER_SECTIONS = ("model", "optimizer", "trainer", "evaluation")


def refuse_untrusted_code(option: str, saved: Any, changes: Mapping[str, Any], trust: bool) -> None:
    """Raise an error without ``trust`` if the saved configuration names classes or files of a stranger.

    Classes and files that ``changes`` name belong to the caller.
    """
    if not isinstance(trust, bool):
        raise UserError(f"trust={shown(trust)}: expected true or false")
    if trust:
        return
    effective = {**saved, **changes}
    sections = [effective.get(key) for key in (*ENCODING_AND_TASK, *OTHER_SECTIONS)]
    sections.insert(0, saved.get("task"))  # is built even if another task is evaluated
    named_by_run = set(_foreign_names(list(saved.values())))
    untrusted = [name for name in _foreign_names(sections) if name in named_by_run]
    if untrusted:
        cure = "if you trust it, add trust=true, which runs these modules and reads these files"
        problem = f"its configuration names {shown(untrusted[0])}, from outside this package"
        raise UserError(f"{option}: {problem}; {cure}")


def _foreign_names(node: Any) -> Iterator[str]:
    """Yield names of classes and files in a configuration that do not come with the package.

    A text is taken for the name of a file if it contains a dot or a slash.
    """
    if isinstance(node, str):
        if set(node) & {".", "/", os.sep}:
            yield node
    elif isinstance(node, list):
        for value in node:
            yield from _foreign_names(value)
    elif isinstance(node, dict):
        target = str(node.get("_target_") or "")
        is_callback = target.startswith("pytorch_lightning.")
        if target and (target not in HARMLESS_CALLBACKS if is_callback else not OURS.fullmatch(target)):
            yield target
        if node.get("path") is not None:
            yield str(node["path"])
        for key, value in node.items():
            if key != "_target_":
                yield from _foreign_names(value)
