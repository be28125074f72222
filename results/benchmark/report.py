"""The parts of the benchmark, and from the parts asked for to a table and the machine's description."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from pydantic import Field

from pe_experiments.configuration.parts import shipped
from pe_experiments.configuration.schema import Count, Folder, Section, validated
from pe_experiments.drawing import markdown_table
from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.learned import Learned
from pe_experiments.models import Transformer
from pe_experiments.store.environment import describe_environment
from pe_experiments.terminal.console import Display, Lines, say
from pe_experiments.terminal.errors import NotApplicable
from pe_experiments.terminal.files import write_atomically
from pe_experiments.training import matmul
from pe_experiments.training.device import prepare_device, use_device
from results.benchmark.peers import PEERS
from results.benchmark.timing import Row, Seconds, Step, Timed, interleave, paired_ratios, timed
from results.benchmark.workloads import (
    Batches,
    experiment,
    next_token_step,
    of_new_model,
    padded_batches,
    random_batches,
    seconds_per_step,
    training_step,
)

HEADS = 4
SIZES = {  # rows, tokens, vocabulary, width, layers
    "d=128, 4 layers, batch 128 x 40 tokens": (128, 40, 14, 128, 4),
    "d=64, 2 layers, batch 64 x 40 tokens": (64, 40, 14, 64, 2),
    "text: d=64, 2 layers, batch 8 x 256 bytes": (8, 256, 256, 64, 2),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "d=128, 4 layers, batch 128": {"model.d_model": 128, "model.num_layers": 4, "training.batch_size": 128},
}
SMALL = ((8, 2), (16, 2), (8, 4), (16, 4))  # rows and layers of width 64, copying 1 to 20 symbols
OURS = "pe_experiments"
HEADING = ("part", "setting", "case", "ms", "ratio", "relative to")


class BenchmarkSettings(Section):
    """What ``configs/benchmark.yaml`` may say."""

    parts: Annotated[list[Literal["small", "peers", "encodings"]], Field(min_length=1)]
    repeats: Annotated[int, Field(ge=1, le=1000)]  # the usual 15 take twenty minutes
    threads: Count
    out: Folder


def peers(repeats: int, display: Display) -> Iterator[Row]:
    """Time a training step of ours and of other libraries at equal shapes."""
    for setting, (rows, tokens, vocabulary, width, layers) in SIZES.items():
        shape = ModelShape(width, HEADS, layers, True, tokens, tokens)
        batches = random_batches(vocabulary, rows, tokens)
        theirs = _their_steps(shape, vocabulary, batches)
        cases = {
            name: timed(step) for name, step in (_our_steps(shape, vocabulary, batches) | theirs).items()
        }
        seconds = interleave(cases, repeats, display, f"peers, {setting}")
        yield from paired_ratios("peers", setting, seconds, OURS)
        yield from _against_fastest("peers: fastest at its default", setting, seconds, PEERS)
        yield from _against_fastest("peers: fastest at its best float32", setting, seconds, theirs)


def _against_fastest(part: str, setting: str, seconds: Seconds, names: Iterable[str]) -> list[Row]:
    """Return our row against the fastest of these, where all libraries are installed."""
    if not set(PEERS) <= set(seconds):
        return []
    fastest = min(names, key=lambda name: median(seconds[name]))
    return paired_ratios(part, setting, {name: seconds[name] for name in (OURS, fastest)}, fastest)[:1]


def _our_steps(shape: ModelShape, vocabulary: int, batches: Batches) -> dict[str, Step]:
    """Return ours as a run has it, and with the activation of other libraries."""
    backend = matmul.faster_backend()
    make = partial(Transformer, vocabulary, shape, Learned, initialisation="pytorch")
    return {
        OURS: next_token_step(make(activation="relu"), batches, backend),
        f"{OURS}, gelu": next_token_step(make(activation="gelu"), batches, backend),
    }


def _their_steps(shape: ModelShape, vocabulary: int, batches: Batches) -> dict[str, Step]:
    """Return the steps of peers by attention and matmul backend; the default bears the bare name."""
    backends = dict.fromkeys(("default", matmul.faster_backend()))
    steps: dict[str, Step] = {}
    for name, (make, attentions) in PEERS.items():
        try:
            for attention, backend in product(attentions, backends):
                torch.manual_seed(0)
                case = name
                if (attention, backend) != (attentions[0], "default"):
                    words = (
                        attention if attention != "default" else "",
                        "oneDNN" if backend == "onednn" else "",
                    )
                    case = f"{name}, {' '.join(filter(None, words))}"
                steps[case] = next_token_step(make(shape, vocabulary, attention), batches, backend)
        except ImportError:
            say(f"{name} is left out: pip install -c constraints.txt -e '.[bench]'")
    return steps


def small(repeats: int, display: Display) -> Iterator[Row]:
    """Time steps as the harness takes them, beside bare loops of other libraries over the same batches."""
    for rows, layers in SMALL:
        training = {"training.batch_size": rows, "training.check_examples": rows}
        training |= dict.fromkeys(("training.steps", "training.check_every"), 100)
        run = experiment(pe="learned", **{"model.num_layers": layers}, **training)  # as the others have it
        with use_device(run.config):
            backend = matmul.current_backend()
        theirs = _their_steps(run.shape, run.format.vocab_size, padded_batches(run))
        cases: dict[str, Timed] = {OURS: partial(of_new_model, run, backend)}
        cases |= {name: partial(seconds_per_step, step, run) for name, step in theirs.items()}
        setting = f"d=64, {layers} layers, batch {rows}, 1 to 20 symbols"
        seconds = interleave(cases, min(7, repeats), display, f"small, {setting}", warm_up=1)
        yield from paired_ratios("small", setting, seconds, OURS)
        yield from _against_fastest("small: fastest at its best float32", setting, seconds, theirs)


def encodings(repeats: int, display: Display) -> Iterator[Row]:
    """Time a training step with every encoding, data included, against one without an encoding."""
    for setting, keys in SETTINGS.items():
        cases: dict[str, Timed] = {}
        for name in shipped("pe"):
            with suppress(NotApplicable):
                run = experiment(pe=name, **keys)
                cases[name] = timed(training_step(run.untrained_model(), run, matmul.faster_backend()))
        seconds = interleave(cases, repeats, display, f"encodings, {setting}")
        yield from paired_ratios("encodings", setting, seconds, "none")


def benchmark(config: dict[str, Any]) -> list[Row]:
    """Measure the parts asked for, and write the table at the end of each."""
    settings = validated(BenchmarkSettings, config)
    prepare_device(experiment(**{"trainer.threads": settings.threads}).config)
    machine, folder, display = describe_machine(), Path(settings.out), Lines()
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    parts = {"small": small, "peers": peers, "encodings": encodings}
    say(" | ".join(HEADING))
    for part in settings.parts:
        try:
            for row in parts[part](settings.repeats, display):
                rows.append(row)
                say(" | ".join(_cells(row)))
        finally:
            display.stop()
        write_atomically(folder / "machine.json", json.dumps(machine, indent=2) + "\n")
        write_atomically(folder / "table.csv", pd.DataFrame(rows).round(4).to_csv(index=False))
        about = ", ".join(f"{key} {value}" for key, value in machine.items())
        table = markdown_table(HEADING, map(_cells, rows))
        write_atomically(folder / "table.md", f"Medians, ratios with their quartiles. {about}.\n\n{table}\n")
    say(f"table: {folder / 'table.csv'}")
    return rows


def describe_machine() -> dict[str, Any]:
    """Return what it was measured on."""
    environment = describe_environment("cpu")
    keys = ("processor", "threads", "python", "pe_experiments", "matmul")
    return {key: environment[key] for key in keys} | {"cores": os.cpu_count(), "torch": torch.__version__}


def _cells(row: Row) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f} [{row.ratio_low:.2f}, {row.ratio_high:.2f}]"
    return row.part, row.setting, row.case, f"{row.milliseconds:,.1f}", ratio, row.against
