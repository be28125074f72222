"""The parts a configuration names by ``_target_``: found, held against their signature, built, labelled."""

from __future__ import annotations

import copy
import importlib
import inspect
import traceback
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from pe_experiments.configuration.validation import complaint
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.models import Backbone
from pe_experiments.positions import PositionPolicy
from pe_experiments.tasks import Task
from pe_experiments.terminal import process
from pe_experiments.terminal.errors import UserError, nearest
from pe_experiments.terminal.files import CONFIG_DIR

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
    partial: bool = False  # nested, and built by the part it belongs to

    def build(self, *args: Any) -> Any:
        """An instance.

        Raises:
            UserError: the class refuses its arguments.
        """
        with user_errors(self.group):
            return self.cls(*args, **self.built_arguments())

    def built_arguments(self) -> dict[str, Any]:
        """The arguments, with what is nested in them built."""
        return {key: _built(self.group, value) for key, value in self.arguments.items()}

    @property
    def section(self) -> dict[str, Any]:
        """The config section it is, every argument stated."""
        return {"_target_": self.target, **self.arguments}

    @property
    def label(self) -> str:
        """The config choice, or the class name, with the arguments that differ from its defaults."""
        name, changed = self._choice
        inside = ",".join(f"{key}={_short(self.group, value)}" for key, value in changed.items())
        return f"{name}({inside})" if inside else name

    @property
    def choice(self) -> str:
        """The config choice alone, or the class name where no shipped YAML names the class."""
        return self._choice[0]

    @cached_property
    def _choice(self) -> tuple[str, dict[str, Any]]:
        """The name it is known by, and the arguments it changes."""
        choices = shipped(self.group)
        alike = {
            name: load_component(self.group, section).arguments
            for name, section in choices.items()
            if _same_class(section["_target_"], self.cls)
        }
        if not alike:  # maybe somebody else's class by the name of one of our choices
            name = self.cls.__name__
            alike = {f"{self.cls.__module__}.{name}" if name in choices else name: _defaults(self.cls)}
        changed = {
            name: {key: value for key, value in self.arguments.items() if defaults.get(key, ...) != value}
            for name, defaults in alike.items()
        }
        return min(changed.items(), key=lambda row: (len(row[1]), row[0]))

    @property
    def classes(self) -> tuple[type, ...]:
        """Its class and those of the parts among its arguments."""
        nested = [part for value in self.arguments.values() for part in _parts(self.group, value)]
        return (self.cls, *(cls for part in nested for cls in part.classes))


def load_component(group: str, section: dict[str, Any], beside: Iterable[str] = ()) -> Component:
    """The component a config section describes, its arguments checked against the signature.

    Args:
        group: its config group.
        section: ``_target_`` and arguments.
        beside: settings that stand elsewhere, for a suggestion where an argument is unknown.

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
            takes = nearest(name, [*known, *beside]) if known else " It takes no arguments."
            raise UserError(f"{group}.{name} is not an argument of {cls.__name__}.{takes}")
        if parts := _parts(group, value):  # with all their arguments, so that equal configurations are equal
            nested = [
                {"_target_": part.target, "_partial_": part.partial, **part.arguments} for part in parts
            ]
            given[name] = nested if isinstance(value, list) else nested[0]
        elif name in types:
            given[name] = _typed(f"{group}.{name}", value, types[name])
    for name, parameter in known.items():
        if name not in given and parameter.default is parameter.empty:
            raise UserError(
                f"{group}.{name} is missing: {cls.__name__} has no default for it; add +{group}.{name}=..."
            )
    canonical = f"{cls.__module__}.{cls.__qualname__}"  # however it was imported
    arguments = {**_defaults(cls), **given}
    return Component(group, canonical, cls, arguments, section.get("_partial_", False))


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
        with no_part_exits():
            yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError):
            raise UserError(f"{where}: {error}") from error
        raise UserError(f"{where} {failing}: {type(error).__name__}: {error}") from error


@contextmanager
def no_part_exits() -> Iterator[None]:
    """An exception with which a part would end the program becomes an error that names the part.

    Ctrl-C passes; only in a process of ours can it be told from a KeyboardInterrupt that a part raises.

    Raises:
        RuntimeError: a part exits (also by `os._exit`, see `process.own`).
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        # Lightning turns a KeyboardInterrupt into an exit.
        cause = error.__context__ if isinstance(error.__context__, KeyboardInterrupt) else error
        signals = process.Interrupted if process.command else KeyboardInterrupt
        if isinstance(cause, signals) or not (name := _part_behind(cause)):
            raise
        raise RuntimeError(f"{name} ends the program with {cause!r}") from error


def _part_behind(error: BaseException) -> str | None:
    """The class of the innermost part that was at work when this was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    at_work = (frame.f_locals.get("self") for frame in reversed(frames))
    return next((type(part).__name__ for part in at_work if isinstance(part, tuple(KINDS.values()))), None)


def shipped(group: str) -> dict[str, dict[str, Any]]:
    """The YAML choices of a group by name."""
    return copy.deepcopy(_read_choices(group))


@cache
def _read_choices(group: str) -> dict[str, dict[str, Any]]:
    sections: dict[str, Any] = {}
    for path in sorted((CONFIG_DIR / group).glob("*.yaml")):
        with user_errors(f"configs/{group}/{path.name}", "cannot be read"):
            sections[path.stem] = OmegaConf.to_container(OmegaConf.load(path))
            if "_target_" not in sections[path.stem]:
                raise ValueError("expected _target_ and its arguments")
    return sections


def _locate(group: str, target: str) -> type:
    module_name, _, name = target.rpartition(".")
    key = f"{group}._target_={target}"
    with user_errors(key, f"names {module_name or 'no module'}, whose import fails"):
        module = importlib.import_module(module_name)
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
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    except PydanticUserError:  # a type that only its own class can check
        return value
    try:  # lists and mappings are read leniently: YAML has no tuples and no classes
        return adapter.validate_python(value, strict=not isinstance(value, list | dict))
    except ValidationError as error:
        raise UserError(complaint(error, BaseModel, key)) from error


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
    """The components in an argument that is a nested part, or a list of them.

    A scheme is ``_partial_``: it is built for a shape that only the model knows.
    """
    items = value if isinstance(value, list) else [value]
    if not any(isinstance(item, dict) and "_target_" in item for item in items):
        if "'_target_':" in str(value):
            raise UserError(f"{group}: a nested part is an argument itself or stands in a list, no deeper")
        return []
    for item in items:
        if not isinstance(item, dict):
            raise UserError(f"{group}: {item} stands among nested parts but has no _target_")
    parts = [load_component(group, item) for item in items]
    for part in parts:
        if issubclass(part.cls, PositionalEncoding) and part.partial is not True:
            name = part.cls.__name__
            raise UserError(f"{group}: {name} inside a part needs _partial_: true; it is built for the model")
    return parts


def _built(group: str, value: Any) -> Any:
    """A copy of an argument in which nested parts are built or, with ``_partial_``, ready to be."""
    if not (parts := _parts(group, value)):
        return copy.deepcopy(value)
    made = [partial(part.cls, **part.built_arguments()) if part.partial else part.build() for part in parts]
    return made if isinstance(value, list) else made[0]
