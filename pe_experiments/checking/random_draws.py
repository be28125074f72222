"""Find out from which sources of random numbers a call draws, besides the generator that it is given."""

import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from pe_experiments.terminal.errors import is_library

UNLIKELY_SEED = 881_723  # unlikely to be used by modules that seed a generator
State = Callable[[], Any]

GLOBAL_GENERATORS: dict[str, tuple[State, Callable[[Any], Any]]] = {  # how their states are read and set
    "torch's global generator": (
        lambda: torch.get_rng_state().numpy(),  # the pickles of two equal tensors may differ
        lambda state: torch.set_rng_state(torch.from_numpy(state)),
    ),
    "numpy.random": (np.random.get_state, np.random.set_state),
    "Python's random": (random.getstate, random.setstate),
}
# Functions that take a seed and draw one from the system if it is None or missing.
SEEDED: dict[str, tuple[Any, str]] = {
    "random.Random() without a seed": (random.Random, "__init__"),
    "numpy.random.default_rng() without a seed": (np.random, "default_rng"),
}


@contextmanager
def watch_random_draws(owner: object) -> Iterator[list[str]]:
    """Name the sources of random numbers that are used in the block, in the yielded list, after the block.

    The global generators are restored on exit.

    Args:
        owner: the encoding or task that is called; generators among its attributes are watched, too, and
            those in the modules of its classes.
    """
    original = {name: pickle.dumps(get_state()) for name, (get_state, _) in GLOBAL_GENERATORS.items()}
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(UNLIKELY_SEED)
    states = {name: get_state for name, (get_state, _) in GLOBAL_GENERATORS.items()} | _generators_of(owner)
    before = {name: pickle.dumps(get_state()) for name, get_state in states.items()}
    sources: list[str] = []
    try:
        with _watch_unseeded(sources):
            yield sources
        sources += [name for name, get_state in states.items() if pickle.dumps(get_state()) != before[name]]
    finally:
        for name, (_, set_state) in GLOBAL_GENERATORS.items():
            set_state(pickle.loads(original[name]))


@contextmanager
def _watch_unseeded(sources: list[str]) -> Iterator[None]:
    """Add generators that are made without a seed in the block to the list, and calls of ``os.urandom``.

    Other threads may draw meanwhile, such as those of loggers, and do not count.
    """
    thread = threading.get_ident()

    def watched(name: str, original: Callable[..., Any], seed_index: int) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            seeds = [*arguments[seed_index:], *keywords.values()]
            unseeded = all(seed is None for seed in seeds) and threading.get_ident() == thread
            if unseeded and name not in sources:
                sources.append(name)
            return original(*arguments, **keywords)

        return call

    with ExitStack() as patches:
        for name, (place, attribute) in SEEDED.items():
            replacement = watched(name, getattr(place, attribute), int(attribute == "__init__"))
            patches.enter_context(patch.object(place, attribute, replacement))
        patches.enter_context(patch.object(os, "urandom", watched("os.urandom", os.urandom, 1)))
        yield


def _generators_of(owner: object) -> dict[str, State]:
    """Return functions that read the states of generators kept by an object, its class or their modules."""
    modules = {cls.__module__: sys.modules.get(cls.__module__) for cls in type(owner).__mro__}
    places = {
        name: vars(module)
        for name, module in modules.items()
        if module is not None and hasattr(module, "__file__") and not is_library(str(module.__file__))
    }
    places |= {cls.__name__: dict(vars(cls)) for cls in type(owner).__mro__}
    places["self"] = getattr(owner, "__dict__", {})
    states: dict[str, State] = {}
    for place, members in places.items():
        for name, value in members.items():
            state = _state_of(value)
            if state is not None:
                states[f"the generator {place}.{name}"] = state
    return states


def _state_of(value: object) -> State | None:
    """Return a function that reads the state of a random generator, or None if it is none."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate
    if isinstance(value, np.random.Generator):
        return lambda: value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state
    if isinstance(value, torch.Generator):
        return lambda: value.get_state().numpy()
    return None
