"""Find, check, build and label the parts that a configuration names by ``_target_``."""

from __future__ import annotations

import copy
import importlib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from torch import optim

from pe_experiments.configuration.compose import NAMED
from pe_experiments.configuration.schema import complaint
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.models import Backbone
from pe_experiments.positions import PositionPolicy
from pe_experiments.tasks import Task
from pe_experiments.terminal.errors import UserError, error_place, nearest
from pe_experiments.terminal.files import CONFIG_DIR

INSTANTIATE_KEYS = ("_target_", "_convert_", "_recursive_", "_partial_")  # instructions for Hydra
KINDS: dict[str, type] = {"pe": PositionalEncoding, "positions": PositionPolicy, "task": Task}
KINDS |= {"model": Backbone, "optimizer": optim.Optimizer}
GIVEN = {"pe": 1, "model": 4, "optimizer": 1}  # number of leading arguments that are not configured
CALLBACKS = "trainer.callbacks"
UNSTATED = ("lr", "weight_decay", "maximize", "foreach", "fused", "capturable", "differentiable")


@dataclass(frozen=True)
class Component:
    """A part: its config group, its class and all its arguments, including defaults."""

    group: str
    target: str
    cls: type
    arguments: dict[str, Any]
    nested: dict[str, list[Component]]  # parts among the arguments
    partial: bool = False  # nested parts may be built by their owner

    def build(self, *args: Any, **given: Any) -> Any:
        """Build an instance; raise a `UserError` if the class rejects its arguments."""
        with user_errors(self.group):
            return self._maker()(*args, **given)

    def _maker(self) -> Callable[..., Any]:
        arguments = copy.deepcopy(self.arguments)
        for name, parts in self.nested.items():
            built_parts = [part._maker() if part.partial else part.build() for part in parts]
            arguments[name] = built_parts if isinstance(arguments[name], list) else built_parts[0]
        return partial(self.cls, **arguments)

    @property
    def section(self) -> dict[str, Any]:
        """Return the config section with all arguments."""
        return {"_target_": self.target, **self.arguments}

    @property
    def stated(self) -> dict[str, Any]:
        """Return the config section without default arguments."""
        defaults = {key: _untupled(value) for key, value in _defaults(self.cls).items()}
        given = {key: _untupled(value) for key, value in self.arguments.items()}
        arguments = {key: value for key, value in given.items() if defaults.get(key, ...) != value}
        for key, parts in self.nested.items():
            sections = [part.stated for part in parts]
            arguments[key] = sections if isinstance(self.arguments[key], list) else sections[0]
        return {"_target_": self.target, **({"_partial_": True} if self.partial else {}), **arguments}

    @property
    def label(self) -> str:
        """Return the config choice or class name, with arguments that differ from its defaults."""
        name, changed = self._choice
        parts = {key: "+".join(part.label for part in parts) for key, parts in self.nested.items()}
        inside = ",".join(f"{key}={parts.get(key) or _short(self.arguments[key])}" for key in changed)
        return f"{name}({inside})" if inside else name

    @property
    def choice(self) -> str:
        """Return the config choice, or the class name if no shipped YAML names the class."""
        return self._choice[0]

    @cached_property
    def _choice(self) -> tuple[str, list[str]]:
        """Return the name of the choice and its changed arguments."""
        choices = _shipped(_folder(self.group))  # not copied, for speed in sweeps
        same = {name: section for name, section in choices.items() if section["_target_"] == self.target}
        arguments_of = {name: load_component(self.group, section).arguments for name, section in same.items()}
        if not arguments_of:  # a class of the user may have the name of a shipped choice
            name = self.cls.__name__
            arguments_of = {f"{self.cls.__module__}.{name}" if name in choices else name: _defaults(self.cls)}
        changed = {
            name: [key for key, value in self.arguments.items() if defaults.get(key, ...) != value]
            for name, defaults in arguments_of.items()
        }
        return min(changed.items(), key=lambda row: (len(row[1]), row[0]))

    @property
    def classes(self) -> tuple[type, ...]:
        """Return the class, and the classes of nested parts."""
        return (self.cls, *(cls for parts in self.nested.values() for part in parts for cls in part.classes))


def load_component(group: str, section: dict[str, Any], beside: Iterable[str] = ()) -> Component:
    """Return the component of a config section; ``beside`` are options that unknown arguments may mean."""
    target = section.get("_target_")
    if target == "???":
        raise UserError(
            f"{group}._target_ is missing; {group}=custom needs it, as {group}._target_=my_module.MyClass"
        )
    if not isinstance(target, str):
        raise UserError(f"{group} needs a choice with a _target_.{nearest('', shipped(group))}")
    cls = _locate(group, target)
    given = {key: value for key, value in section.items() if key not in INSTANTIATE_KEYS}
    known, types = _parameters(cls), _types(cls)
    nested = {}
    for name, value in given.items():
        if name not in known and not _takes_any(cls):
            takes = nearest(name, [*known, *beside]) if known else " It takes no arguments."
            raise UserError(f"{group}.{name} is not an argument of {cls.__name__}.{takes}")
        if parts := _parts(group, value):  # with all arguments, so that equivalent configurations are equal
            nested[name] = parts
            sections = [{"_target_": p.target, "_partial_": p.partial, **p.arguments} for p in parts]
            given[name] = sections if isinstance(value, list) else sections[0]
        elif name in types:
            try:  # lenient for lists and mappings, since YAML has no tuples and classes
                given[name] = types[name].validate_python(value, strict=not isinstance(value, list | dict))
            except ValidationError as error:
                raise UserError(complaint(error, BaseModel, f"{group}.{name}")) from error
        elif isinstance(value, list) and isinstance(getattr(known.get(name), "default", None), tuple):
            given[name] = tuple(value)
    for name, parameter in known.items():
        if name not in given and parameter.default is parameter.empty:
            none = f"{cls.__name__} has no default for it; add +{group}.{name}=..."
            raise UserError(f"{group}.{name} is missing: {none}")
    home = "torch.optim" if getattr(optim, cls.__name__, None) is cls else cls.__module__
    canonical = f"{home}.{cls.__qualname__}"  # independent of the import path
    arguments = {**_defaults(cls), **given}
    return Component(group, canonical, cls, arguments, nested, section.get("_partial_", False))


@contextmanager
def user_errors(where: str, failing: str = "cannot be built") -> Iterator[None]:
    """Convert errors of the parts to `UserError`s that name the part of the configuration."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # SystemExit: of a script that is imported
        what = "" if isinstance(error, ValueError) else f" {failing}: {type(error).__name__}"
        raise UserError(f"{where}{what}: {error}{error_place(error)}") from error


def shipped(group: str) -> dict[str, dict[str, Any]]:
    """Return the YAML choices of a group by name."""
    return copy.deepcopy(_shipped(_folder(group)))


def _folder(group: str) -> Path:
    return CONFIG_DIR / group.replace(".", "/")


@cache
def _shipped(folder: Path) -> dict[str, dict[str, Any]]:
    sections: dict[str, Any] = {}
    for path in sorted(set(folder.glob("*.yaml")) - {folder / "custom.yaml"}):
        with user_errors(f"configs/{folder.name}/{path.name}", "cannot be read"):
            sections[path.stem] = OmegaConf.to_container(OmegaConf.load(path))
            if "_target_" not in sections[path.stem]:
                raise ValueError("expected _target_ and its arguments")
    return sections


def _locate(group: str, target: str) -> type:
    module_name, _, name = target.rpartition(".")
    key = f"{group}._target_={target}"
    kind = _kind(group)
    if target in NAMED and issubclass(NAMED[target], kind):
        return NAMED[target]
    if not module_name:
        raise UserError(
            f"{key}: expected the module and the class, such as {group}._target_=my_module.{kind.__name__}"
        )
    with user_errors(key, f"names {module_name}, whose import fails"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name.partition(".")[0]:
                raise
            where = f"there is no {error.name}.py or package in {Path.cwd()}, and no installed one"
            raise UserError(f"{key}: {where}") from error
    classes = {n: cls for n, cls in vars(module).items() if isinstance(cls, type) and issubclass(cls, kind)}
    if name not in classes:
        raise UserError(f"{key}: {module_name} has no {kind.__name__} of that name.{nearest(name, classes)}")
    return classes[name]


def _kind(group: str) -> type:
    if group == CALLBACKS:
        from pytorch_lightning import Callback  # late, because the import takes two seconds

        return Callback
    return KINDS[group]


@cache
def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    given = next((count for group, count in GIVEN.items() if issubclass(cls, KINDS[group])), 0)
    stated = list(inspect.signature(cls).parameters.items())[given:]
    unstated = UNSTATED if issubclass(cls, optim.Optimizer) else ()  # set by `training`
    return {name: p for name, p in stated if not p.kind.name.startswith("VAR_") and name not in unstated}


@cache
def _takes_any(cls: type) -> bool:
    """Return whether a class has ``**kwargs``."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())


@cache
def _defaults(cls: type) -> dict[str, Any]:
    return {name: p.default for name, p in _parameters(cls).items() if p.default is not p.empty}


@cache
def _types(cls: type) -> dict[str, TypeAdapter[Any]]:
    try:
        annotations = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    except Exception:  # annotations that cannot be evaluated are not checked
        return {}
    types = {}
    for name, annotation in annotations.items():
        with suppress(PydanticUserError):  # types that pydantic cannot check
            types[name] = TypeAdapter(annotation)
    return types


def _untupled(value: Any) -> Any:
    """Return a tuple as a list, as in YAML."""
    return list(value) if isinstance(value, tuple) else value


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


def _parts(group: str, value: Any) -> list[Component]:
    """Return the components of an argument that is a nested part or a list of parts."""
    items = value if isinstance(value, list) else [value]
    if not any(isinstance(item, dict) and "_target_" in item for item in items):
        if "'_target_':" in str(value):
            raise UserError(f"{group}: nested parts must be arguments or items of a list, not deeper")
        return []
    parts = []
    for item in items:
        if not isinstance(item, dict):
            raise UserError(f"{group}: {item} is listed with nested parts but has no _target_")
        parts.append(part := load_component(group, item))
        if issubclass(part.cls, PositionalEncoding) and part.partial is not True:
            name = part.cls.__name__
            raise UserError(f"{group}: {name} inside a part needs _partial_: true; it is built for the model")
    return parts
