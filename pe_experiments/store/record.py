"""What a run says about itself in its ``config.yaml``, or a published study in its ``provenance.csv``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pe_experiments.configuration.experiment import trained_sections
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import Identity, without_defaults
from pe_experiments.terminal.errors import UserError, one_line


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
        """Return the identity without importing code from outside the package.

        Raises:
            UserError: the run names such code, and does not record its identity without it.
        """
        try:
            config = without_defaults(self.trained)
        except UserError as error:
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
            identity = saved["identity"]
            record = cls(
                directory.name,
                trained_sections(saved),
                int(identity["numerics"]),
                dict(identity["data"]),
                dict(identity["classes"]),
                dict(saved["derived"]),
                str(identity["hash"]),
                identity.get("config"),
            )
            if not all(isinstance(digests, dict) for digests in record.classes.values()):
                raise TypeError("section 'identity.classes' is not a mapping of mappings")
            return record
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"section {error} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{directory.path} is not a valid run directory: config.yaml: {one_line(why)}"
            ) from error
