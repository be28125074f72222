"""A published run once more, on this machine and with the code of this checkout: its beginning, or all of it.

Beginnings are replayed in double precision, whole runs as they were, side by side in processes of their own.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.parts import load_component
from pe_experiments.configuration.schema import PARTS, SIZES, check
from pe_experiments.evaluation.measure import evaluate_model
from pe_experiments.models import Backbone
from pe_experiments.store.code import Digests
from pe_experiments.store.identity import identify, part_code
from pe_experiments.store.known import common_code
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import Diverged, UserError, sentence
from pe_experiments.terminal.files import write_atomically
from pe_experiments.training.hardware import prepare_hardware
from pe_experiments.training.loop import train_model

SCRIPT = "scripts/train.py"
# Where these agree, so does every bit of a run.
MACHINE = ("processor", "device", "matmul", "threads", "python", "libraries")
FEW = 4  # examples that a beginning is evaluated on

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What to replay: a run's name, its command, what was trained, and up to which step.

    None stands for all of it, as it was; up to a step it is replayed in double precision, from its first
    weights times one plus normal numbers of the size ``nudge``.
    """

    run: str
    command: list[str]
    trained: dict[str, Any]
    until: int | None
    nudge: float = 0.0


class _FarEnough(Exception):
    pass


def replayed(
    requests: Sequence[Request], scratch: Path, display: Display, code: Mapping[str, Digests]
) -> list[Outcome]:
    """The outcome of each request, in their order.

    Args:
        requests: what to replay, the longest first.
        scratch: folder in which outcomes are kept until the caller is done with them.
        display: shows the progress.
        code: by run, what the code of an outcome kept earlier must be.

    Raises:
        UserError: a process ended before it was done.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    done = scratch / "outcomes.jsonl"
    earlier = [json.loads(line) for line in done.read_text("utf-8").splitlines()] if done.exists() else []
    kept = {_key(one): one for one in earlier if code.get(one["run"], one["code"]) == one["code"]}
    wanted = {(request.run, request.until, request.nudge): request for request in requests}
    left = [request for key, request in wanted.items() if key not in kept]
    display.start("replaying published runs", len(wanted), len(wanted) - len(left))
    pool = ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_begin)
    try:
        for number, future in enumerate(as_completed([pool.submit(outcome, one) for one in left]), 1):
            kept[_key(future.result())] = future.result()
            write_atomically(done, "".join(json.dumps(one) + "\n" for one in kept.values()))
            display.step(len(wanted) - len(left) + number)
    except BrokenProcessPool as error:
        missing = next(request.run for key, request in wanted.items() if key not in kept)
        raise UserError(f"replaying {missing} ended before it was done: its process was killed") from error
    finally:
        display.stop()
        for child in active_children():
            child.terminate()
    return [kept[key] for key in wanted]


def _begin() -> None:
    """Set up a process that replays."""
    process.own(["replay"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it


def _key(made: Outcome) -> tuple[str, int | None, float]:
    return made["run"], made["until"], made["nudge"]


def outcome(request: Request) -> Outcome:
    """Rows of the training curve, the ``lengths`` to evaluate at and the ``curve`` there; or an ``error``."""
    asked: Outcome = {"run": request.run, "until": request.until, "nudge": request.nudge}
    asked["code"] = code_of(request.trained)
    torch.set_default_dtype(torch.float32 if request.until is None else torch.float64)
    try:
        experiment = experiment_of(request)
        device = prepare_hardware(experiment.config.hardware)
        model = experiment.untrained_model()
        generator = torch.Generator().manual_seed(0)
        for weights in model.parameters():
            weights.data *= 1 + request.nudge * torch.randn(weights.shape, generator=generator)
        return asked | _replay(experiment, model, device, request.until)
    except Exception as error:
        return asked | {"error": sentence(error)}


def code_of(trained: Mapping[str, Any]) -> Digests:
    """Today's code of what was trained, by part."""
    sections = {group: trained[group] for group in PARTS}
    sections["model"] = {key: value for key, value in trained["model"].items() if key not in SIZES}
    parts = (load_component(group, section) for group, section in sections.items())
    return common_code() | {name: digest for part in parts for name, digest in part_code(part).items()}


def experiment_of(request: Request) -> Experiment:
    """What was trained, evaluated as its command says."""
    config = _composed(request.command)
    config |= {group: request.trained[group] for group in (*PARTS, "model", "training", "seed")}
    config["evaluation"]["examples"] = config["evaluation"]["examples"] if request.until is None else FEW
    return resolve(check(config))


def named_by(command: Sequence[str]) -> str:
    """Name of the run that a command of train.py makes today."""
    return identify(resolve(check(_composed(command)))).name


def _composed(command: Sequence[str]) -> dict[str, Any]:
    words = command[command.index(SCRIPT) + 1 :]
    return composed("config", [word for word in words if not word.startswith("hydra.")])


def _replay(experiment: Experiment, model: Backbone, device: str, until: int | None) -> Outcome:
    rows: list[dict[str, Any]] = []

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        if until is not None and row["step"] >= until:
            raise _FarEnough

    config = experiment.config.training
    asked = {"rows": rows, "lengths": list(experiment.evaluation_lengths)}
    with TemporaryDirectory() as scratch, suppress(_FarEnough):
        checkpoint = Path(scratch) / "last.ckpt"
        try:
            train_model(model, experiment.source, config, device, checkpoint, 0, record, lambda step: None)
        except Diverged as error:
            return asked | {"curve": [], "diverged_at": error.step}
    curve, _ = evaluate_model(experiment, model.to(device), rows[-1]["step"], Display())
    return asked | {"curve": curve}
