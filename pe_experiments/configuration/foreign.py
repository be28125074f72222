"""Refuse the code and the files that a configuration names if somebody else may have written it.

What builds the parts of a read configuration, of a run, a model folder or a published study, calls
`refuse_foreign` first. What only reads such a configuration does so within `only_shipped`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pe_experiments.configuration.schema import ENCODING_AND_TASK
from pe_experiments.terminal.errors import UserError, shown

# Classes that a read configuration may name: the parts of this package, and the optimizers of PyTorch.
OURS = re.compile(r"(pe_experiments\.(encodings|positions|tasks|models)|torch\.optim)(\.\w+)+")
# Sections that may name code or files.
SECTIONS = (*ENCODING_AND_TASK, "model", "optimizer", "trainer", "evaluation")
REFUSES_FOREIGN = ContextVar("refuses_foreign", default=False)  # set by `only_shipped`


@contextmanager
def only_shipped() -> Iterator[None]:
    """Refuse, within the block, to import code from outside this package that a configuration names."""
    token = REFUSES_FOREIGN.set(True)
    try:
        yield
    finally:
        REFUSES_FOREIGN.reset(token)


def foreign_targets(config: Any) -> list[str]:
    """Return every ``_target_`` in a configuration, at any depth, that is not `OURS`."""
    if isinstance(config, list):
        return [name for value in config for name in foreign_targets(value)]
    if not isinstance(config, Mapping):
        return []
    target = config.get("_target_")
    names = [] if target is None or OURS.fullmatch(str(target)) else [str(target)]
    return names + foreign_targets(list(config.values()))


def refuse_foreign(option: str, saved: Mapping[str, Any], changes: Mapping[str, Any], trust: bool) -> None:
    """Raise an error without ``trust`` if a read configuration names classes or files from outside.

    Args:
        option: that chose the configuration, for the message.
        saved: the read configuration.
        changes: sections that the user replaces; what they alone name belongs to the user.
        trust: build what it names.
    """
    if not isinstance(trust, bool):
        raise UserError(f"trust={shown(trust)}: expected true or false")
    if trust:
        return
    used = [{**saved, **changes}.get(section) for section in SECTIONS]
    used.append(saved.get("task"))  # is built even if another task is evaluated
    read = {*foreign_targets(saved), *_files(saved)}
    for name in (*foreign_targets(used), *_files(used)):
        if name in read:
            cure = "if you trust it, add trust=true, which runs these modules and reads these files"
            problem = f"its configuration names {shown(name)}, from outside this package"
            raise UserError(f"{option}: {problem}; {cure}")


def _files(config: Any) -> Iterator[str]:
    """Yield the texts in a configuration that may name files or modules: with a dot or a slash."""
    if isinstance(config, str):
        if set(config) & {".", "/", os.sep}:
            yield config
    elif isinstance(config, list):
        for value in config:
            yield from _files(value)
    elif isinstance(config, Mapping):
        if config.get("path") is not None:
            yield str(config["path"])
        for key, value in config.items():
            if key != "_target_":
                yield from _files(value)
