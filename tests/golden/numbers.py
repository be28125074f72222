"""Losses of small runs of every shipped component; ``make golden`` stores them in numbers.json.

``make shipped`` adds those that are missing and leaves the others alone.

Runs train a few steps in float64, so that machines agree to many digits. Clipping is active and the initial
weights are large, so that every part of model and optimizer changes the loss.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pe_experiments import NUMERICS
from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.evaluation.evaluate_model import evaluate_model
from pe_experiments.terminal.console import Display, Observer
from pe_experiments.terminal.errors import NotApplicable
from pe_experiments.training.loop import fit
from pe_experiments.training.optimizer import split_parameters
from tests.conftest import tiny_in

FILE = Path(__file__).with_name("numbers.json")
WIDER = 3.0  # times the usual initial weights: attention is far from uniform
# The clip norm is small, so that epsilon in Adam's denominator is noticed.
SMALL = (
    "model.d_model=32", "model.num_heads=4", "training.max_length=6", "training.batch_size=4",
    "training.steps=3", "training.warmup_steps=1", "training.clip_norm=0.01", "training.learning_rate=0.02",
    "training.check_every=2", "training.check_examples=4", "evaluation.examples=4", "logger=none",
)  # fmt: skip
make_experiment = tiny_in(Path("unused"), SMALL)
LENGTHS = "evaluation.lengths=[5,9]"  # one of training, one beyond
SLOWER = "training.learning_rate=0.002"
# At .02 these amplify a change of the initial weights in their last bit to 1e-8 and more within three steps.
UNSTABLE = {"optimizer adafactor", "encoding path_fox, decoder"}

TOLERANCE = 1e-8  # relative: a hundred times what another order of sums changes
LOOSE = {"optimizer muon": 1e-2}  # it iterates in bfloat16
CURE = "if this is intended, raise NUMERICS in pe_experiments/__init__.py and run `make golden`"

Numbers = dict[str, Any]


def combinations(corpus: Path) -> dict[str, list[str]]:
    """Return the overrides of each small run by its name; ``corpus`` is a file of text to train on."""
    runs: dict[str, list[str]] = {}
    for name, section in shipped("pe").items():
        if section["_target_"] == "???":  # of a class to be named
            continue
        for model in ("decoder", "encoder"):
            if model == "decoder" or not load_component("pe", section).cls.causal_only:
                runs[f"encoding {name}, {model}"] = [f"pe={name}", f"model={model}", LENGTHS]
    for name in shipped("task"):
        lengths = "evaluation.lengths=[256,512,1024,2048]"
        needed = {"text": [f"task.path={corpus}", lengths], "two_token_recall": ["task.queries=1"]}.get(
            name, []
        )
        runs[f"task {name}"] = [f"task={name}", "pe=rope", "training.max_length=8", *needed]
    for name in shipped("positions"):
        task = ["task=addition"] if name == "task" else []
        runs[f"positions {name}"] = [f"positions={name}", "pe=rope", LENGTHS, *task]
    for name in shipped("model"):
        runs[f"model {name}"] = [f"model={name}", "pe=alibi", "model.dropout=0.1", LENGTHS]
        runs[f"model {name}, gpt2"] = [f"model={name}", "pe=none", "model.initialisation=gpt2", LENGTHS]
    for name in shipped("optimizer"):
        decay = "training.weight_decay=0.1"
        runs[f"optimizer {name}"] = [f"optimizer={name}", "pe=learned", decay, LENGTHS]
    for name in ("eager", "sdpa", "blocked"):
        for encoding in ("rope", "alibi"):
            route = f"model.attention_implementation={name}"
            runs[f"attention {name}, {encoding}"] = [f"pe={encoding}", route, LENGTHS]
    runs["batching single_length"] = ["training.batching=single_length", LENGTHS]
    runs["schedule linear"] = ["training.schedule=linear", LENGTHS]
    runs["decoding greedy"] = ["evaluation.decoding=greedy", LENGTHS]
    for name in UNSTABLE:
        runs[name].append(SLOWER)
    return runs


@contextmanager
def golden_corpus() -> Iterator[Path]:
    """Give a file of text that is the same on every machine."""
    draw = random.Random(0)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        path.write_bytes(bytes(draw.choices(b"abcdefgh \n", k=60_000)))
        yield path


def measured(overrides: list[str]) -> Numbers:
    """Return the numbers of one small run; `NotApplicable` where the parts do not go together."""
    numbers = {"losses": [], "evaluated": []} | exact_numbers(make_experiment(*overrides))
    experiment = make_experiment(*overrides)  # another one, since tasks draw other numbers in float64
    with float64(), TemporaryDirectory() as scratch:
        model = experiment.untrained_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(WIDER)
        rows: list[Numbers] = []
        checkpoint = Path(scratch) / "checkpoints" / "last.ckpt"
        observer = Observer()
        observer.row = rows.append  # type: ignore[method-assign]
        fit(model, experiment, "cpu", checkpoint, [observer])
        curve, _ = evaluate_model(experiment, model, experiment.config.training.steps, Display())
    for row in rows:
        keys = ("loss", "gradient_norm", "learning_rate", "validation_loss")
        numbers["losses"].append([row[key] for key in keys if key in row])
    numbers["evaluated"] = [[row[key] for key in ("loss", "token_accuracy", "chance")] for row in curve]
    return numbers


def exact_numbers(experiment: Experiment) -> Numbers:
    """Return numbers without rounding: the first batch, the evaluated lengths, which parameters decay."""
    batch = experiment.batches.batch(0)
    content = json.dumps([tensor.tolist() for tensor in batch])
    decayed, exempt = split_parameters(experiment.untrained_model())
    return {
        "first batch": hashlib.sha256(content.encode()).hexdigest()[:12],
        "lengths": list(experiment.evaluation_lengths),
        "decayed": [len(decayed), sum(parameter.numel() for parameter in decayed)],
        "exempt": [len(exempt), sum(parameter.numel() for parameter in exempt)],
    }


@contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def read() -> Numbers:
    return json.loads(FILE.read_text(encoding="utf-8"))


def difference(name: str, numbers: Numbers, stored: Numbers) -> str:
    """Return a sentence about the first number that differs from the stored one, or an empty text."""
    tolerance = LOOSE.get(name, TOLERANCE)
    for key in numbers:
        values = _flat(numbers[key])
        golden = _flat(stored[key])
        exact = key not in ("losses", "evaluated")
        for index, (value, expected) in enumerate(zip(values, golden, strict=False)):
            if exact or value is None:
                equal = value == expected
            else:
                equal = math.isclose(value, expected, rel_tol=tolerance, abs_tol=1e-12)
            if not equal:
                return f"{name}: {key}[{index}] is {value!r}, golden is {expected!r}; {CURE}"
        if len(values) != len(golden):
            return f"{name}: {key} has {len(values)} numbers, golden has {len(golden)}; {CURE}"
    return ""


def _flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, list) else [value]


def write(only_missing: bool = False) -> int:
    """Write the numbers of this code, or only those of new components.

    It refuses to change numbers unless `NUMERICS` was raised.
    """
    stored = read() if FILE.exists() else {"numerics": NUMERICS, "runs": {}}
    runs: dict[str, Numbers] = {}
    with golden_corpus() as corpus:
        for name, overrides in combinations(corpus).items():
            if only_missing and name in stored["runs"]:
                runs[name] = stored["runs"][name]
                continue
            try:
                runs[name] = measured(overrides)
            except NotApplicable:
                continue
            if len(runs) % 20 == 0:
                print(f"{len(runs)} runs", file=sys.stderr, flush=True)
    known = {name: numbers for name, numbers in stored["runs"].items() if name in runs}
    changed = [message for name in known if (message := difference(name, runs[name], known[name]))]
    if changed and stored["numerics"] == NUMERICS:
        print(f"{len(changed)} of {len(known)} runs give other numbers; the first: {changed[0]}")
        return 1
    if not changed:  # keep the stored last digits, which differ between machines
        runs |= known
    for name in sorted(runs.keys() - stored["runs"].keys()):
        print(f"measured {name}")
    lines = [f"    {json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in sorted(runs.items())]
    content = ",\n".join(lines)
    FILE.write_text(f'{{\n  "numerics": {NUMERICS},\n  "runs": {{\n{content}\n  }}\n}}\n', "utf-8")
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(write(only_missing="missing" in sys.argv[1:]))
