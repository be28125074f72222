"""One run of every kind of a published study, trained once more with today's code; or its beginning."""

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
from typing import Any, NamedTuple

import pandas as pd
import torch

from pe_experiments.comparison.runs import Runs
from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.experiment import Experiment, resolve
from pe_experiments.configuration.parts import load_component
from pe_experiments.configuration.schema import PARTS, SIZES, check
from pe_experiments.evaluation.evaluate import evaluate_model
from pe_experiments.published.archive import EVALUATED
from pe_experiments.store.code import Digests, Half, common_code, known, states
from pe_experiments.store.directory import COMPLETED
from pe_experiments.store.identity import CODE_OF, identify, is_code, part_code
from pe_experiments.store.names import short_hash
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Display
from pe_experiments.terminal.errors import UserError, sentence
from pe_experiments.terminal.files import write_atomically
from pe_experiments.training.device import prepare_device
from pe_experiments.training.loop import train_model

SCRIPT = "scripts/train.py"
STEADY = 0.99  # of all answers
BEYOND = 10  # steps after the first recorded one: the warm-up is over and the schedule begins
FEW = 4  # examples that a beginning is evaluated on
RECORDED = ("loss", "exact_match", "token_accuracy")
# Columns of a curve that depend on the weights, and on how many examples are looked at.
OF_WEIGHTS = (*RECORDED, "exact_match_low", "exact_match_high", "exact_match_without_end")
OF_EXAMPLES = ("examples", "seen", "largest_position", "untrained_positions")

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A scheme under a protocol, and the published run that stands for it."""

    run: str
    label: str
    task: str
    trained: dict[str, Any]
    environment: dict[str, Any]
    published: Numbers  # its recorded ``rows`` and its ``curve``
    witnessed: Numbers  # the same of its beginning in double precision; empty where nobody replayed it yet
    seconds: float  # of one of its steps
    steady: bool  # every seed gets nearly all answers right at the lengths trained on, whatever rounding
    code: Digests  # today's, by part
    states: Mapping[Half, Digests]  # of the code that made it and evaluated it
    data: Digests  # files that its task read

    @property
    def has_data(self) -> bool:
        """Whether these lie here as they were; another Python, say, has another standard library."""
        with suppress(UserError):  # of a file that is not there
            return self.data.items() <= identify(self.experiment()).sources["task"].items()
        return False

    @property
    def unknown(self) -> set[str]:
        """Parts whose code is not known to give the published numbers."""
        today = {part: states({part: digest}, _half(part)) for part, digest in self.code.items()}
        return {part for part, state in today.items() if not self._holds(part, state)}

    def names(self, part: str) -> bool:
        """Whether the state that is published for a part is the one by which known code of it counts."""
        listed = known()["parts"].get(part)
        return listed is not None and self._holds(part, listed[_half(part)])

    def _holds(self, part: str, state: Digests) -> bool:
        published = self.states[_half(part)]
        return not published or state.items() <= published.items()

    def commanded(self) -> dict[str, Any]:
        """The configuration that its command makes today."""
        command = self.environment["command"]
        words = command[command.index(SCRIPT) + 1 :]
        return composed("config", [word for word in words if not word.startswith("hydra.")])

    def experiment(self, examples: int | None = None) -> Experiment:
        """The training, evaluated as its command says; or on so many examples."""
        config = self.commanded() | self.trained
        config["evaluation"]["examples"] = examples or config["evaluation"]["examples"]
        return resolve(check(config))

    def beginning(self, steps: int | None = None, nudge: float = 0.0) -> Request:
        """Asks for so many steps in double precision; None: for all that is witnessed."""
        return Request(self, steps or int(self.published["rows"][0]["step"]) + BEYOND, nudge)


class Request(NamedTuple):
    """Asks for a run as it was; or, up to a step, in double precision."""

    kind: Kind
    until: int | None = None
    nudge: float = 0.0  # its first weights are multiplied by one plus normal numbers of this size


def _half(part: str) -> Half:
    return "evaluated" if part == "evaluation" else "trained"


def kinds_of(runs: Runs, witnessed: pd.DataFrame) -> list[Kind]:
    """One run for every scheme and protocol of a study, the longest first.

    Where most protocols are settings with a seed of their own: for every scheme, task and model.
    """
    rows = runs.runs[(runs.runs["status"] == COMPLETED) & runs.runs["name"].isin(runs.training["name"])]
    repeated = rows.groupby("protocol")["seed"].nunique().median() > 1
    alike = ["protocol"] if repeated else ["task", "model"]
    rows = rows.sort_values("seed", kind="stable").drop_duplicates([*alike, "scheme"])
    kinds = [kind_of_run(runs, row, witnessed) for row in rows.to_dict("records")]
    return sorted(kinds, key=lambda kind: -kind.seconds)


def kind_of_run(runs: Runs, row: Mapping[Any, Any], witnessed: pd.DataFrame) -> Kind:
    """The kind that a row of `Runs.runs` stands for; ``witnessed`` as `archive.read_witness` reads it."""
    name, table, curves = str(row["name"]), runs.runs, runs.curves
    alike = table.loc[(table["protocol"] == row["protocol"]) & (table["scheme"] == row["scheme"]), "name"]
    within = curves[curves["name"].isin(alike) & (curves["split"] == "in_distribution")]
    rows = runs.training[runs.training["name"] == name]
    recorded = rows.dropna(subset=["token_accuracy"]).sort_values("step")
    curve = curves[curves["name"] == name].to_dict("records")
    published = {"rows": recorded[["step", *RECORDED]].to_dict("records"), "curve": curve}
    trained, made = (runs.saved[name]["identity"][key] for key in ("trained", "sources"))
    own = witnessed[witnessed["name"] == name]
    sections = {group: trained[group] for group in PARTS}
    sections["model"] = {key: value for key, value in trained["model"].items() if key not in SIZES}
    parts = [load_component(group, section) for group, section in sections.items()]
    return Kind(
        name,
        str(row["label"]),
        str(row["task"]),
        trained,
        runs.environments[name],
        published,
        _beginning(own, published) if len(own) else {},
        float(row["seconds_per_step"]),
        bool((within["exact_match"] >= STEADY).all()),
        common_code() | {part: digest for one in parts for part, digest in part_code(one).items()},
        {
            "trained": {part: state for group in CODE_OF for part, state in made.get(group, {}).items()},
            "evaluated": runs.saved[name].get(EVALUATED, {}),
        },
        {file: digest for file, digest in made["task"].items() if not is_code(file)},
    )


def _beginning(witnessed: pd.DataFrame, published: Numbers) -> Numbers:
    """Witnessed numbers, beside the columns of the published curve that depend on no weights."""
    steps, lengths = witnessed[witnessed["length"].isna()], witnessed[witnessed["length"].notna()]
    measured = {one["length"]: {key: one[key] for key in RECORDED} for one in lengths.to_dict("records")}
    points = weightless(published, few=True)["curve"]
    curve = [point | measured.get(point["content_length"], {}) for point in points]
    return {"rows": steps[["step", *RECORDED]].to_dict("records"), "curve": curve}


def weightless(made: Numbers, few: bool = False) -> Numbers:
    """Numbers without what depends on weights in its curve, or on how many examples are seen."""
    columns = (*OF_WEIGHTS, *OF_EXAMPLES) if few else OF_WEIGHTS
    points = [{key: point[key] for key in point if key not in columns} for point in made["curve"]]
    return made | {"curve": points}


def crossing(kinds: Sequence[Kind]) -> list[Kind]:
    """Few of the kinds, the shortest first, among which every scheme and every task occurs."""
    met, chosen = set[str](), []
    for kind in reversed(kinds):
        names = {kind.label, str(kind.trained["task"])}
        if not names <= met:
            chosen.append(kind)
            met |= names
    return chosen


def replayed(requests: Sequence[Request], scratch: Path, display: Display) -> list[Numbers]:
    """The numbers of each request (the longest first); those that lie in ``scratch`` are not repeated."""
    scratch.mkdir(parents=True, exist_ok=True)
    asked = [(kind.run, kind.code, until, nudge) for kind, until, nudge in requests]
    paths = [scratch / f"{short_hash(one)}.json" for one in asked]
    left = [pair for pair in zip(requests, paths, strict=True) if not pair[1].exists()]
    done = len(requests) - len(left)
    display.start("replaying published runs", len(requests), done)
    pool = ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_begin)
    try:
        begun = {pool.submit(replay, request): path for request, path in left}
        for number, ended in enumerate(as_completed(begun), done + 1):
            write_atomically(begun[ended], json.dumps(ended.result()))
            display.step(number)
    except BrokenProcessPool as error:
        missing = next(request.kind.run for request, path in left if not path.exists())
        raise UserError(f"replaying {missing} ended before it was done: its process was killed") from error
    finally:
        display.stop()
        for child in active_children():
            child.kill()  # inside a training Lightning catches what asks for less
    return [json.loads(path.read_text("utf-8")) for path in paths]


def _begin() -> None:
    process.own(["replay"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it


class _FarEnough(Exception):
    pass


def replay(request: Request) -> Numbers:
    """``rows`` of the training curve, the ``lengths`` asked for and the ``curve`` there; or an ``error``."""
    kind, until, nudge = request
    rows: list[dict[str, Any]] = []

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        if until is not None and row["step"] >= until:
            raise _FarEnough

    made: Numbers = {"run": kind.run, "until": until, "rows": rows, "curve": []}
    torch.set_default_dtype(torch.float32 if until is None else torch.float64)
    try:
        experiment = kind.experiment(None if until is None else FEW)
        device = prepare_device(experiment.config)
        model, generator = experiment.untrained_model(), torch.Generator().manual_seed(0)
        for weights in model.parameters():
            weights.data *= 1 + nudge * torch.randn(weights.shape, generator=generator)
        with TemporaryDirectory() as scratch, suppress(_FarEnough):
            checkpoint = Path(scratch) / "last.ckpt"
            train_model(model, experiment, device, checkpoint, 0, record, lambda step: None)
        curve, _ = evaluate_model(experiment, model.to(device), rows[-1]["step"], Display())
        return made | {"curve": curve, "lengths": list(experiment.evaluation_lengths)}
    except Exception as error:
        return made | {"error": sentence(error)}
