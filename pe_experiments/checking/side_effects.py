"""What the hooks of an encoding may not do: draw stray random numbers, or change their inputs in place."""

from __future__ import annotations

import inspect
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_experiments.encodings import AttentionContext, PositionalEncoding
from pe_experiments.terminal.errors import allowed

IN_CONTEXT = ("x_BSD", "q_positions_BT", "k_positions_BS")
UNLIKELY_SEED = 881_723  # an encoding that seeds a generator itself hardly takes this one
OF_PAIRS = ("relative_positions_BTS", "visible_BTS")  # shared by the layers, and too large to copy


@contextmanager
def watch_random_draws() -> Iterator[list[str]]:
    """Seed the global generators, and restore them; yields a list of those that were touched by the end."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    touched: list[str] = []
    with torch.random.fork_rng(devices=[]):
        for set_seed in (torch.manual_seed, np.random.seed, random.seed):
            set_seed(UNLIKELY_SEED)
        before = _generator_states()
        try:
            yield touched
            touched += [name for name, state in _generator_states().items() if state != before[name]]
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def _generator_states() -> dict[str, Any]:
    return {
        "torch's global generator": torch.get_rng_state().numpy().tobytes(),
        "numpy.random": pickle.dumps(np.random.get_state()),
        "Python's random": random.getstate(),
    }


def refuse_changed_inputs(encoding: PositionalEncoding) -> None:
    """Have the hooks of an encoding raise ValueError where they change in place what others read too."""
    for name in ("embed_sequence", "rotate", "bias", "weights"):
        setattr(encoding, name, _watched(encoding, name))


def _watched(encoding: PositionalEncoding, name: str) -> Callable[..., Any]:
    hook = getattr(encoding, name)
    signature = inspect.signature(hook)

    @wraps(hook)
    def call(*args: Any, **options: Any) -> Any:
        given = _shared_tensors(name, signature.bind(*args, **options).arguments)
        before = {key: _fingerprint(key, tensor) for key, tensor in given.items()}
        result = hook(*args, **options)
        changed = [key for key, tensor in given.items() if not _fingerprint(key, tensor).equal(before[key])]
        if changed:
            what = f"{type(encoding).__name__}.{name} changes {allowed(changed)} in place"
            raise ValueError(f"{what}, which others read too; it may return new tensors only")
        return result

    return call


def _shared_tensors(hook: str, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors a hook is given and others read; not the embeddings of tokens, which it may change."""
    names = list(arguments)[1:] if hook == "embed_sequence" else list(arguments)
    given = {name: arguments[name] for name in names}
    contexts = [(name, value) for name, value in given.items() if isinstance(value, AttentionContext)]
    for name, at in contexts:
        given |= {f"{name}.{key}": getattr(at, key) for key in (*IN_CONTEXT, *OF_PAIRS)}
    return {name: value for name, value in given.items() if isinstance(value, Tensor)}


def _fingerprint(name: str, tensor: Tensor) -> Tensor:
    """What shows a change: a copy, or of a large tensor the number of changes."""
    if name.endswith(OF_PAIRS):
        return torch.tensor(tensor._version)
    return tensor.detach().clone().nan_to_num()
