"""Import, check, build and label the components that a configuration names by ``_target_``."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from torch import nn, optim

from pe_experiments.configuration.choices import nearest_option, section_of, shipped
from pe_experiments.configuration.foreign import OURS, REFUSES_FOREIGN
from pe_experiments.configuration.schema import complaint
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.base import MakeEncoding
from pe_experiments.encodings.softmax import Softmax
from pe_experiments.models import Backbone
from pe_experiments.models.attention import MakeSoftmax
from pe_experiments.positions import PositionPolicy
from pe_experiments.tasks import Task
from pe_experiments.terminal.errors import UserError, is_library, user_errors

FROM_PYTHON: dict[str, Any] = {}  # classes and functions by their name in ``_target_`` and ``metrics``
INSTANTIATE_KEYS = ("_target_", "_convert_", "_recursive_", "_partial_")  # not arguments of the class
KINDS: dict[str, type] = {
    "pe": PositionalEncoding,
    "positions": PositionPolicy,
    "task": Task,
    "model": Backbone,
    "optimizer": optim.Optimizer,
    "model.attention": Softmax,
}
# How many arguments are not configured but passed to `build`.
LEADING_ARGUMENTS = {"pe": 1, "model": 4, "optimizer": 1, "model.attention": 1}
# Arguments that take parts, by annotation, and the group of these parts, which may be given by name alone.
PARTS: dict[Any, str] = {MakeEncoding: "pe", MakeSoftmax: "model.attention"}
CALLBACKS = "trainer.callbacks"
KNOWN_PACKAGES = ("pe_experiments", "torch", "pytorch_lightning")  # whose classes are not the user's own
# Arguments of optimizers that are not configured in ``optimizer``, because `training` sets them.
SET_BY_TRAINING = ("lr", "weight_decay", "maximize", "foreach", "fused", "capturable", "differentiable")


@dataclass(frozen=True)
class Component:
    """A class with all its arguments, including defaults, as chosen for a config group."""

    group: str
    target: str
    cls: type
    arguments: dict[str, Any]
    nested: dict[str, list[Component]]  # components among the arguments, by name of the argument
    partial: bool = False  # whether a nested component is passed on as a partial instead of an instance

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Build an instance with these additional arguments.

        Raises:
            UserError: the class rejects its arguments.
        """
        with user_errors(self.group):
            return self._partial()(*args, **kwargs)

    def _partial(self) -> Callable[..., Any]:
        arguments = copy.deepcopy(self.arguments)
        for name, components in self.nested.items():
            built = [nested._partial() if nested.partial else nested.build() for nested in components]
            arguments[name] = built if isinstance(arguments[name], list) else built[0]
        return partial(self.cls, **arguments)

    @property
    def section(self) -> dict[str, Any]:
        return {"_target_": self.target, **self.arguments}

    def with_defaults(self, section: dict[str, Any]) -> dict[str, Any]:
        """Return a recorded section with the defaults of arguments that this class got since."""
        is_same_class = section.get("_target_") == self.target
        return signature_of(self.cls).defaults | section if is_same_class else section

    @property
    def section_without_defaults(self) -> dict[str, Any]:
        section: dict[str, Any] = {"_target_": self.target}
        if self.partial:
            section["_partial_"] = True
        defaults = signature_of(self.cls).defaults
        for key, value in self.arguments.items():
            if key not in defaults or not same(value, defaults[key]):
                section[key] = value
        for key, components in self.nested.items():
            sections = [nested.section_without_defaults for nested in components]
            section[key] = sections if isinstance(self.arguments[key], list) else sections[0]
        return section

    def closest_choice(self, **sizes: Any) -> tuple[str, list[str]]:
        """Return the most similar config choice and the arguments that differ from it.

        It is the class name if no shipped choice has this class. ``sizes`` are options of a model beside its
        arguments.
        """
        choices = {}
        for name, shipped_section in shipped(self.group).items():
            if shipped_section["_target_"] == self.target:
                plain = {key: value for key, value in shipped_section.items() if key not in sizes}
                choices[name] = shipped_section | load_component(self.group, plain).arguments
        if not choices:
            name = self.cls.__name__
            if name in shipped(self.group):  # a class of the user may have the name of a shipped choice
                name = f"{self.cls.__module__}.{name}"
            choices = {name: signature_of(self.cls).defaults | sizes}
        arguments = self.arguments | sizes
        changed = {
            name: [key for key, value in arguments.items() if not same(choice.get(key, ...), value)]
            for name, choice in choices.items()
        }
        return min(changed.items(), key=lambda item: (len(item[1]), item[0]))

    @cached_property
    def choice(self) -> str:
        return self.closest_choice()[0]

    @property
    def label(self) -> str:
        """Return the config choice or the class name, with the arguments that differ from its defaults."""
        name, changed = self.closest_choice()
        arguments = []
        for key in changed:
            nested_label = "+".join(nested.label for nested in self.nested.get(key, []))
            arguments.append(f"{key}={nested_label or _short(self.arguments[key])}")
        return f"{name}({','.join(arguments)})" if arguments else name

    @property
    def classes(self) -> list[type]:
        """Return the class and those of all nested components."""
        nested = (component for components in self.nested.values() for component in components)
        return [self.cls, *(cls for component in nested for cls in component.classes)]

    @property
    def own_classes(self) -> list[type]:
        """Return the user's classes among `classes` and their ancestors."""
        users = [cls for cls in self.classes if not _is_known(cls)]
        return list(dict.fromkeys(base for cls in users for base in cls.__mro__ if not _is_known(base)))


def load_component(group: str, section: dict[str, Any]) -> Component:
    """Return the component of a config section, ``_target_`` and arguments, after checking them."""
    target = section.get("_target_")
    if not isinstance(target, str):
        raise UserError(f"{group} needs a choice with a _target_.{nearest_option('', shipped(group))}")
    if group == CALLBACKS:
        from pytorch_lightning import Callback  # imported late, because this takes two seconds

        kind: type = Callback
    else:
        kind = KINDS[group]
    cls = _imported(
        f"{group}._target_={target}",
        target,
        kind.__name__,
        lambda value: isinstance(value, type) and issubclass(value, kind),
    )
    arguments = {key: value for key, value in section.items() if key not in INSTANTIATE_KEYS}
    signature = signature_of(cls)
    parameters, types = signature.parameters, signature.types
    nested = {}
    for name, value in arguments.items():
        if name not in parameters and not signature.takes_any:
            problem = f"{group}.{name} is not an argument of {cls.__name__}."
            problem += nearest_option(name, parameters)
            if not cls.__module__.startswith("pe_experiments."):
                problem += f" The class alone is chosen with {group}={target}."
            raise UserError(problem)
        if components := _nested_components(group, value, signature.parts.get(name)):
            nested[name] = components
            # Default arguments are included, so that equivalent configurations are equal.
            sections = [
                {"_target_": component.target, "_partial_": component.partial, **component.arguments}
                for component in components
            ]
            arguments[name] = sections if isinstance(value, list) else sections[0]
        elif name in types:
            try:  # not strict for lists and mappings, because YAML has no tuples and no classes
                strict = not isinstance(value, list | dict)
                arguments[name] = types[name].validate_python(value, strict=strict)
            except ValidationError as error:
                raise complaint(error, group, name) from error
        elif isinstance(value, list) and isinstance(getattr(parameters.get(name), "default", None), tuple):
            arguments[name] = tuple(value)
    for name, parameter in parameters.items():
        if name not in arguments and parameter.default is parameter.empty:
            none = f"{cls.__name__} has no default for it; add +{group}.{name}=..."
            raise UserError(f"{group}.{name} is missing: {none}")
    module = "torch.optim" if getattr(optim, cls.__name__, None) is cls else cls.__module__
    return Component(
        group=group,
        target=f"{module}.{cls.__qualname__}",  # the same for all import paths of the class
        cls=cls,
        arguments={**signature.defaults, **arguments},
        nested=nested,
    )


def same(value: Any, other: Any) -> bool:
    """Return whether type and value are equal at any depth; tuples equal lists, since YAML has no tuples."""
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        keys = sorted(map(repr, value))
        return keys == sorted(map(repr, other)) and all(same(value[key], other[key]) for key in value)
    return type(value) is type(other) and repr(value) == repr(other)  # -0.0 equals 0.0, but has another text


def is_importable(value: Any) -> bool:
    """Return whether it is at the top level of a module that is no script or notebook."""
    name = getattr(value, "__qualname__", "")
    return value.__module__ != "__main__" and getattr(sys.modules.get(value.__module__), name, None) is value


def _is_known(cls: type) -> bool:
    """Return whether an unpatched class is of `KNOWN_PACKAGES` or Python; user files may have such names."""
    package = cls.__module__.partition(".")[0]
    if package in sys.stdlib_module_names:
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        return (file is None or is_library(file)) and is_importable(cls)
    if package not in KNOWN_PACKAGES or not is_importable(cls):
        return False
    if package != "pe_experiments":  # libraries patch `nn.Module`, which changes no result
        return True
    methods = [value for value in vars(cls).values() if inspect.isfunction(value)]
    known = {*KNOWN_PACKAGES, *sys.stdlib_module_names}  # a method from elsewhere was patched in
    return all(method.__globals__["__name__"].partition(".")[0] in known for method in methods)


def load_function(option: str, target: str) -> Callable[..., Any]:
    """Import the function or `evaluation.metrics.Metric` that an option names, such as ``mine.first_error``.

    Raises:
        UserError: the module cannot be imported or has no such function.
    """

    def fits(value: Any) -> bool:
        return inspect.isfunction(getattr(value, "of", value))  # a `Metric` has its function in ``of``

    return _imported(f"{option}={target}", target, "function", fits)


def _imported(key: str, target: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    """Import what an option names, as error messages show it in ``key``, if it is of the kind that fits.

    This is the only place where a name in a configuration becomes code.
    """
    if REFUSES_FOREIGN.get() and not OURS.fullmatch(target):
        raise UserError(f"{key} is from outside this package")
    if target in FROM_PYTHON and fits(FROM_PYTHON[target]):
        return FROM_PYTHON[target]
    module_name, _, name = target.rpartition(".")
    if not module_name:
        raise UserError(f"{key}: expected the module and the name of the {kind}, as my_module.NAME")
    with user_errors(key, f"names {module_name}, whose import fails"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name.partition(".")[0]:
                raise
            where = f"there is no {error.name}.py or package in {Path.cwd()}, and no installed one"
            raise UserError(f"{key}: {where}") from error
    members = {attribute: value for attribute, value in vars(module).items() if fits(value)}
    if name not in members:
        value = getattr(module, name, None)
        if kind == PositionalEncoding.__name__ and isinstance(value, type) and issubclass(value, nn.Module):
            how = "wrap it as docs/checking.md shows under 'Wrapping a module'"
            raise UserError(f"{key}: {name} is a module, not a PositionalEncoding; {how}")
        raise UserError(f"{key}: {module_name} has no {kind} of that name.{nearest_option(name, members)}")
    return members[name]


@dataclass(frozen=True)
class Signature:
    """The arguments of a class that are configured in its section."""

    parameters: dict[str, inspect.Parameter]
    defaults: dict[str, Any]
    types: dict[str, TypeAdapter[Any]]  # of those that pydantic can check
    parts: dict[str, str]  # groups of the parts that some of them take, by name (`PARTS`)
    takes_any: bool  # whether the class accepts any keyword argument


@cache
def signature_of(cls: type) -> Signature:
    skipped = next((count for group, count in LEADING_ARGUMENTS.items() if issubclass(cls, KINDS[group])), 0)
    excluded = SET_BY_TRAINING if issubclass(cls, optim.Optimizer) else ()
    parameters = inspect.signature(cls).parameters
    configured = {
        name: parameter
        for name, parameter in list(parameters.items())[skipped:]
        if not parameter.kind.name.startswith("VAR_") and name not in excluded
    }
    try:
        annotations = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    except Exception:  # annotations that cannot be evaluated are not checked
        annotations = {}
    types = {}
    for name, annotation in annotations.items():
        with suppress(PydanticUserError):  # types that pydantic cannot check
            types[name] = TypeAdapter(annotation)
    defaults = {name: p.default for name, p in configured.items() if p.default is not p.empty}
    for name in types.keys() & defaults.keys():
        with suppress(ValidationError):  # as a configured value: the default 0 of a float is 0.0
            defaults[name] = types[name].validate_python(defaults[name], strict=True)
    parts = {
        name: group
        for name, annotation in annotations.items()
        for kind, group in PARTS.items()
        if annotation == kind or kind in typing.get_args(annotation)
    }
    return Signature(
        parameters=configured,
        defaults=defaults,
        types=types,
        parts=parts,
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters.values()),
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")  # all digits, so that labels differ
    if isinstance(value, list | tuple):
        return f"[{'-'.join(map(_short, value))}]"
    if isinstance(value, str):
        with suppress(ValueError):
            float(value)
            return f"'{value}'"
        return f"'{value}'" if value.lower() in ("", "null", "true", "false") else value
    return "null" if value is None else str(value)


def _nested_components(group: str, value: Any, part_group: str | None) -> list[Component]:
    """Return the components that an argument of a group's component holds: a section or a list of sections.

    If it is annotated as taking parts, ``part_group`` is their group, and they may be given by name.
    """
    group = part_group or group
    items = value if isinstance(value, list) else [value]
    if part_group and value is not None:
        items = [section_of(group, item) if isinstance(item, str) else item for item in items]
        items = [{"_partial_": True, **item} if isinstance(item, dict) else item for item in items]
    if not any(isinstance(item, dict) and "_target_" in item for item in items):
        if "'_target_':" in str(value):
            raise UserError(f"{group}: nested parts must be arguments or items of a list, not deeper")
        return []
    components = []
    for item in items:
        if not isinstance(item, dict):
            raise UserError(f"{group}: {item} is listed with nested parts but has no _target_")
        component = load_component(group, item)
        component = replace(component, partial=item.get("_partial_", False))
        if issubclass(component.cls, PositionalEncoding) and component.partial is not True:
            name = component.cls.__name__
            raise UserError(f"{group}: {name} inside a part needs _partial_: true; it is built for the model")
        components.append(component)
    return components
