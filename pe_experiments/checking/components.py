"""Encodings to check or to compare with, which can be built for models of sizes that the user gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pe_experiments.checking.random_inputs import small_shape
from pe_experiments.configuration.component import Component, load_component, shipped
from pe_experiments.configuration.hints import ALSO_CALLED
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.terminal.errors import UserError


@dataclass(frozen=True)
class SizedComponent(Component):
    """An encoding with its arguments.

    Args:
        sizes: sizes of the model that the user gives, by their name in `ModelShape`; they replace those of
            every model in which the encoding is built.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)

    def build(self, shape: ModelShape) -> PositionalEncoding:
        """Build the encoding for a model of this shape with the sizes that the user gives."""
        return super().build(replace(shape, **self.sizes))  # type: ignore[arg-type]

    def with_arguments(self, **arguments: Any) -> SizedComponent:
        """Return the encoding with these arguments changed."""
        return sized({"_target_": self.target, **self.arguments, **arguments}, self.sizes)

    def with_arguments_of(self, component: Component) -> SizedComponent:
        """Return the encoding with those arguments of another one that it also has, perhaps by another name.

        Arguments that it rejects are left out.
        """
        shared = {}
        for name, value in component.arguments.items():
            own_name = name if name in self.arguments else ALSO_CALLED.get(name)
            if own_name in self.arguments:
                shared[own_name] = value
        try:
            variant = self.with_arguments(**shared)
            variant.build(small_shape())
        except UserError:  # an argument of another type, or a value that it does not take
            return self
        return variant


def reference_of(choice: str, sizes: Mapping[str, int] | None = None, **arguments: Any) -> SizedComponent:
    """Return the encoding of a choice under configs/pe; ``arguments`` override those of its YAML file.

    ``sizes`` are those of the model that the user gives, see `SizedComponent`.
    """
    group, _, name = f"pe/{choice}".rpartition("/")
    return sized({**shipped(group)[name], **arguments}, sizes or {})


def sized(section: Mapping[str, Any], sizes: Mapping[str, int]) -> SizedComponent:
    """Return the encoding of a config section, built for models of these sizes."""
    return SizedComponent(**vars(load_component("pe", dict(section))), sizes=sizes)
