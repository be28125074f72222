"""The parts of the benchmark, and from the parts asked for to a table and the machine's description."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from pe_experiments import __version__, matmul
from pe_experiments.benchmark.peers import PEERS
from pe_experiments.benchmark.timing import Row, Step, interleave, paired_ratios
from pe_experiments.benchmark.workloads import (
    Batches,
    bare_training,
    experiment,
    long_evaluation,
    next_token_step,
    random_batches,
    training_step,
    whole_training,
)
from pe_experiments.components import shipped
from pe_experiments.config import Count, Folder, Section
from pe_experiments.console import Display, display_for, say
from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.learned import Learned
from pe_experiments.environment import prepare_hardware, processor
from pe_experiments.errors import NotApplicable
from pe_experiments.files import write_atomically
from pe_experiments.instantiation import build_model
from pe_experiments.models import Transformer
from pe_experiments.validation import validated

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
LENGTHS = (1024, 4096, 16384)
LONG_SCHEMES = ("none", "rope", "alibi", "t5", "fire")
OURS = "pe_experiments"
# With model.attention_implementation=sdpa hardware.matmul=default, which is faster from some 200 tokens on.
SDPA = f"{OURS}, sdpa"
HEADING = ("| part | setting | case | ms | ratio | relative to | |", "|---|---|---|---|---|---|---|")


class BenchmarkSettings(Section):
    """What ``configs/benchmark.yaml`` may say."""

    parts: Annotated[list[Literal["peers", "schemes", "loop", "lengths"]], Field(min_length=1)]
    repeats: Count
    threads: Count
    out: Folder


def peers(repeats: int, display: Display) -> Iterator[Row]:
    """A training step of ours and of other libraries at equal shapes, at their defaults and at their best."""
    for setting, (rows, tokens, vocabulary, width, layers) in SIZES.items():
        shape = ModelShape(width, HEADS, layers, True, tokens, tokens)
        batches = random_batches(vocabulary, rows, tokens)
        ours, missing = _our_steps(shape, vocabulary, batches), []
        theirs: dict[str, Step] = {}
        for name in PEERS:
            try:
                theirs |= _peer_steps(name, shape, vocabulary, batches)
            except ImportError:
                missing.append(name)
                say(f"{name} is left out: pip install -c constraints.txt -e '.[bench]'")
        seconds = interleave({**ours, **theirs}, repeats, display, f"peers, {setting}")
        yield from paired_ratios("peers", setting, seconds, OURS)
        for what, names, of_ours in (
            ("fastest at its default", PEERS, [OURS]),
            ("fastest at its best float32", theirs, [OURS]),
            ("each at its best float32", theirs, [OURS, SDPA]),
        ):
            if not missing:
                best, fastest = (
                    min(some, key=lambda name: median(seconds[name])) for some in (of_ours, names)
                )
                pair = {name: seconds[name] for name in (best, fastest)}
                yield paired_ratios(f"peers: {what}", setting, pair, fastest)[0]


def _our_steps(shape: ModelShape, vocabulary: int, batches: Batches) -> dict[str, Step]:
    """Ours as a run has it, with the activation of other libraries, and with settings for long sequences."""
    backend = matmul.faster_backend()
    make = partial(Transformer, vocabulary, shape, Learned, initialisation="pytorch")
    return {
        OURS: next_token_step(make(activation="relu"), batches, backend),
        f"{OURS}, gelu": next_token_step(make(activation="gelu"), batches, backend),
        SDPA: next_token_step(make(activation="relu", attention_implementation="sdpa"), batches, "default"),
    }


def _peer_steps(name: str, shape: ModelShape, vocabulary: int, batches: Batches) -> dict[str, Step]:
    """The peer's steps by its attentions and matmul backends; its default bears its bare name."""
    make, attentions = PEERS[name]
    usable = dict.fromkeys(("default", matmul.faster_backend()))
    steps: dict[str, Step] = {}
    for attention in attentions:
        for backend in usable:
            torch.manual_seed(0)
            words = [attention] * (attention != "default") + ["oneDNN"] * (backend == "onednn")
            is_default = attention == attentions[0] and backend == "default"
            case = name if is_default else f"{name}, {' '.join(words)}"
            steps[case] = next_token_step(make(shape, vocabulary, attention), batches, backend)
    return steps


def schemes(repeats: int, display: Display) -> Iterator[Row]:
    """A training step with every scheme, data included, against one without an encoding."""
    for setting, keys in SETTINGS.items():
        cases: dict[str, Step] = {}
        for name in shipped("pe"):
            try:
                made = experiment(pe=name, **keys)
                cases[name] = training_step(build_model(made), made, matmul.faster_backend())
            except NotApplicable:
                continue
        seconds = interleave(cases, repeats, display, f"schemes, {setting}")
        yield from paired_ratios("schemes", setting, seconds, "none")


def loop(repeats: int, display: Display) -> Iterator[Row]:
    """The whole training against a bare loop."""
    arguments = experiment(**{"training.steps": 200}), matmul.faster_backend()
    ways = {"bare loop": bare_training, "whole training": whole_training}
    cases = {name: partial(way, *arguments) for name, way in ways.items()}
    seconds = interleave(cases, min(3, repeats), display, "loop, 200 steps each", warm_up=1)
    yield from paired_ratios("loop", "defaults, 200 steps", seconds, "bare loop")


def lengths(repeats: int, display: Display) -> Iterator[Row]:
    """Evaluation time per example and peak memory over the length."""
    cases = [(tokens, name) for tokens in LENGTHS for name in LONG_SCHEMES]
    display.start("lengths", len(cases))
    for done, (tokens, name) in enumerate(cases, start=1):
        milliseconds, above = long_evaluation(tokens, name)
        display.step(done)
        setting, unit = f"{tokens} tokens", "MB above the imports"
        yield Row("lengths", setting, name, milliseconds, value=above, unit=unit)


def benchmark(config: DictConfig) -> list[Row]:
    """Measure what `configs/benchmark.yaml` asks for; what is measured is written after each part.

    Raises:
        UserError: a wrong setting.
    """
    asked = validated(BenchmarkSettings, OmegaConf.to_container(config, resolve=True))
    prepare_hardware(experiment(**{"hardware.threads": asked.threads}).config.hardware)
    machine, folder, display = describe_machine(asked.threads), Path(asked.out), display_for()
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    parts = {"peers": peers, "schemes": schemes, "loop": loop, "lengths": lengths}
    for line in HEADING:
        say(line)
    for part in asked.parts:
        try:
            for row in parts[part](asked.repeats, display):
                rows.append(row)
                say(_line(row))
        finally:
            display.stop()
        write_atomically(folder / "machine.json", json.dumps(machine, indent=2) + "\n")
        write_atomically(folder / "table.csv", pd.DataFrame(rows).round(4).to_csv(index=False))
        write_atomically(folder / "table.md", as_markdown(machine, rows))
    say(f"table: {folder / 'table.csv'}")
    return rows


def describe_machine(threads: int) -> dict[str, Any]:
    """What it was measured on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "platform": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pe_experiments": __version__,
        "matmul": matmul.faster_backend(),
        "onednn_keeps_float32": matmul.onednn_keeps_float32(),
    }


def as_markdown(machine: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """The text of ``table.md``."""
    words = ", ".join(f"{key} {value}" for key, value in machine.items())
    said = f"Measured side by side; medians, ratios with their quartiles. {words}."
    return "\n".join([said, "", *HEADING, *map(_line, rows), ""])


def _line(row: Row) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f} [{row.ratio_low:.2f}, {row.ratio_high:.2f}]"
    value = "" if row.value is None else f"{row.value:.3g} {row.unit}"
    cells = (row.part, row.setting, row.case, f"{row.milliseconds:,.1f}", ratio, row.against, value)
    return f"| {' | '.join(cells)} |"
