"""The parts a configuration names by ``_target_``: found, held against their signature, built, labelled."""

from __future__ import annotations

import copy
import importlib
import inspect
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from pe_experiments.encodings import PositionalEncoding
from pe_experiments.errors import UserError, allowed, nearest, shown
from pe_experiments.files import CONFIG_DIR
from pe_experiments.models import Backbone
from pe_experiments.positions import PositionPolicy
from pe_experiments.tasks import Task

INSTANTIATE_KEYS = ("_target_", "_convert_", "_recursive_", "_partial_")  # what they say is for Hydra
KINDS: dict[str, type] = {
    "pe": PositionalEncoding,
    "positions": PositionPolicy,
    "task": Task,
    "model": Backbone,
}
GIVEN = {"pe": 1, "model": 4}  # leading arguments of a class that no configuration states


@dataclass(frozen=True)
class Component:
    """One part: its config group, its class and all its arguments, defaults included."""

    group: str
    target: str
    cls: type
    arguments: dict[str, Any]

    def build(self, *args: Any) -> Any:
        """An instance.

        Raises:
            UserError: the class refuses its arguments.
        """
        with user_errors(self.group):
            return instantiate({"_target_": self.target, **self.arguments, "_convert_": "all"}, *args)

    @property
    def section(self) -> dict[str, Any]:
        """The config section it is, every argument stated."""
        return {"_target_": self.target, **self.arguments}

    @property
    def label(self) -> str:
        """The config choice, or the class name, with the arguments that differ from its defaults."""
        name, defaults = self._choice()
        changed = {key: value for key, value in self.arguments.items() if defaults.get(key, ...) != value}
        inside = ",".join(f"{key}={_short(self.group, value)}" for key, value in changed.items())
        return f"{name}({inside})" if inside else name

    @property
    def choice(self) -> str:
        """The config choice alone, or the class name where no shipped YAML names the class."""
        return self._choice()[0]

    def _choice(self) -> tuple[str, dict[str, Any]]:
        alike = []
        for name, section in shipped(self.group).items():
            if _same_class(section["_target_"], self.cls):
                defaults = load_component(self.group, section).arguments
                differing = sum(defaults.get(key, ...) != value for key, value in self.arguments.items())
                alike.append((differing, name, defaults))
        if alike:
            return min(alike, key=lambda row: row[:2])[1:]
        name = self.cls.__name__
        if name in shipped(self.group):  # somebody else's class by the name of one of our choices
            name = f"{self.cls.__module__}.{name}"
        return name, _defaults(self.cls)

    @property
    def classes(self) -> tuple[type, ...]:
        """Its class and those of the parts among its arguments."""
        nested = [part for value in self.arguments.values() for part in _parts(self.group, value)]
        return (self.cls, *(cls for part in nested for cls in part.classes))


def load_component(group: str, section: dict[str, Any]) -> Component:
    """The component a config section describes, its arguments checked against the signature.

    Raises:
        UserError: no such class, a class of another kind, unknown, missing or ill-typed arguments.
    """
    target = section.get("_target_")
    if not isinstance(target, str):
        raise UserError(f"{group} needs one choice with a _target_.{nearest('', shipped(group))}")
    cls = _locate(group, target)
    given = {key: value for key, value in section.items() if key not in INSTANTIATE_KEYS}
    parameters = _parameters(cls)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = {name: p for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    types = _types(cls)
    for name, value in given.items():
        if name not in known and not open_ended:
            takes = nearest(name, known) if known else " It takes no arguments."
            raise UserError(f"{group}.{name} is not an argument of {cls.__name__}.{takes}")
        if _parts(group, value):
            given[name] = _canonical(group, name, value)
        elif name in types:
            given[name] = _typed(f"{group}.{name}", value, types[name])
    for name, parameter in known.items():
        if name not in given and parameter.default is parameter.empty:
            raise UserError(
                f"{group}.{name} is missing: {cls.__name__} has no default for it; add +{group}.{name}=..."
            )
    canonical = f"{cls.__module__}.{cls.__qualname__}"  # however it was imported
    return Component(group, canonical, cls, {**_defaults(cls), **given})


def model_choice(model: dict[str, Any], part: Component) -> str:
    """The choice of ``configs/model`` that is nearest to a section, sizes included, or its class's name."""
    stated = {**model, **part.arguments}
    differing = {
        name: sum(section.get(key) != value for key, value in stated.items() if key != "_target_")
        for name, section in shipped("model").items()
        if _same_class(section["_target_"], part.cls)
    }
    return min(differing, key=differing.__getitem__) if differing else part.cls.__name__


@contextmanager
def user_errors(where: str, failing: str = "cannot be built") -> Iterator[None]:
    """Errors of the parts become `UserError`s that say which part of the configuration is meant."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        wrapped = isinstance(error, InstantiationException)  # Hydra wraps what a constructor raises
        cause = (wrapped and error.__cause__) or error
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, ValueError):
            raise UserError(f"{where}: {cause}") from error
        raise UserError(f"{where} {failing}: {type(cause).__name__}: {cause}") from error


def shipped(group: str) -> dict[str, dict[str, Any]]:
    """The YAML choices of a group by name."""
    return copy.deepcopy(_read_choices(group))


@cache
def _read_choices(group: str) -> dict[str, dict[str, Any]]:
    return {path.stem: _read_section(path) for path in sorted((CONFIG_DIR / group).glob("*.yaml"))}


def _read_section(path: Path) -> dict[str, Any]:
    with user_errors(f"configs/{path.parent.name}/{path.name}", "cannot be read"):
        section = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(section, dict) or "_target_" not in section:
            raise UserError(f"configs/{path.parent.name}/{path.name}: expected _target_ and its arguments")
    return typing.cast(dict, section)


def _locate(group: str, target: str) -> type:
    module_name, _, name = target.rpartition(".")
    key = f"{group}._target_={target}"
    if not module_name:
        raise UserError(f"{key}: expected module.ClassName")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        raise UserError(
            f"{key}: there is no module {missing!r}; it must be installed or lie in the working directory"
        ) from error
    except Exception as error:
        raise UserError(
            f"{key}: importing {module_name} failed with {type(error).__name__}: {error}"
        ) from error
    classes = [
        n for n, value in vars(module).items() if isinstance(value, type) and issubclass(value, KINDS[group])
    ]
    if name not in classes:
        raise UserError(
            f"{key}: {module_name} has no {KINDS[group].__name__} of that name.{nearest(name, classes)}"
        )
    return getattr(module, name)


def _same_class(target: str, cls: type) -> bool:
    module, _, name = target.rpartition(".")
    return (module, name) == (cls.__module__, cls.__name__)


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    given = next((count for group, count in GIVEN.items() if issubclass(cls, KINDS[group])), 0)
    stated = list(inspect.signature(cls).parameters.items())[given:]
    return {name: p for name, p in stated if p.kind is not p.VAR_POSITIONAL}


def _defaults(cls: type) -> dict[str, Any]:
    return {name: p.default for name, p in _parameters(cls).items() if p.default is not p.empty}


def _types(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    except Exception:  # annotations written for a type checker alone: nothing to check against
        return {}


def _typed(key: str, value: Any, annotation: Any) -> Any:
    try:
        strict = ConfigDict(strict=True, arbitrary_types_allowed=True)
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=strict)
    except PydanticUserError:  # a class with settings of its own
        adapter = TypeAdapter(annotation)
    try:
        return adapter.validate_python(value, strict=False if isinstance(value, list) else None)
    except ValidationError as error:  # a list is read leniently: YAML has no tuples
        raise UserError(f"{key}={shown(value)}: expected {_in_words(annotation)}") from error


def _in_words(annotation: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    if annotation in names:
        return names[annotation]
    if typing.get_origin(annotation) is typing.Literal:
        return allowed(map(str, typing.get_args(annotation)))
    arguments = typing.get_args(annotation)
    if "Callable" in str(annotation):
        return "a part with a _target_ and _partial_: true, or a list of such where several are taken"
    if arguments and typing.get_origin(annotation) is not list:
        return allowed(_in_words(argument) for argument in arguments)
    return str(annotation)


def _short(group: str, value: Any) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")  # all digits: two configurations never share a label
    if parts := _parts(group, value):
        return "+".join(part.label for part in parts)
    if isinstance(value, list | tuple):
        return f"[{'-'.join(_short(group, item) for item in value)}]"
    if isinstance(value, str) and _reads_as_something_else(value):
        return f"'{value}'"
    return "null" if value is None else str(value)


def _reads_as_something_else(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("", "null", "true", "false")
    return True


def _parts(group: str, value: Any) -> list[Component]:
    """The components in an argument that is a nested part, or a list of them."""
    items = value if isinstance(value, list) else [value]
    if not any(isinstance(item, dict) and "_target_" in item for item in items):
        if "'_target_':" in str(value):
            raise UserError(f"{group}: a nested part is an argument itself or stands in a list, no deeper")
        return []
    for item in items:
        if not isinstance(item, dict):
            raise UserError(f"{group}: {item} stands among nested parts but has no _target_")
    return [load_component(group, item) for item in items]


def _canonical(group: str, name: str, value: Any) -> Any:
    """A nested part with all its arguments, so that equal configurations are equal.

    A scheme is ``_partial_``: it is built for a shape that only the model knows.
    """
    if isinstance(value, list):
        return [_canonical(group, name, item) for item in value]
    part, partial = load_component(group, value), value.get("_partial_", False)
    if issubclass(part.cls, PositionalEncoding) and partial is not True:
        raise UserError(
            f"{group}.{name}: {part.cls.__name__} needs _partial_: true; it is built for the model"
        )
    return {"_target_": part.target, "_partial_": partial, **part.arguments}
