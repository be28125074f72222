"""The parts of the benchmark, each a function from settings to rows of the table."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import get_args

import torch

from pe_experiments import matmul
from pe_experiments.benchmark import workloads
from pe_experiments.benchmark.longest import measure_apart
from pe_experiments.benchmark.peers import PEERS, Peer
from pe_experiments.benchmark.timing import Row, Step, compare, fastest, interleave
from pe_experiments.console import Display, say
from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.learned import Learned
from pe_experiments.errors import NotApplicable
from pe_experiments.files import CONFIG_DIR
from pe_experiments.matmul import Backend
from pe_experiments.models import Transformer
from pe_experiments.models.transformer import Activation

VOCABULARY, TOKENS = 14, 40
SIZES = {  # rows, width, layers
    "d=128, 4 layers, batch 128 x 40 tokens": (128, 128, 4),
    "d=64, 2 layers, batch 64 x 40 tokens": (64, 64, 2),
}
HEADS = 4
LENGTHS = (1024, 4096, 16384)
LONG_SCHEMES = ("none", "rope", "alibi", "t5", "fire")
SETTINGS = {
    "defaults": (),
    "d=128, 4 layers, batch 128": ("model.d_model=128", "model.num_layers=4", "training.batch_size=128"),
}
OURS = "pe_experiments"


@dataclass(frozen=True)
class Bench:
    """How much to measure.

    Attributes:
        repeats: of every step, after ``warm_up`` that do not count.
        display: shows the progress.
    """

    repeats: int
    warm_up: int
    display: Display

    def time(self, cases: dict[str, Step], what: str, repeats: int | None = None) -> dict[str, list[float]]:
        return interleave(cases, repeats or self.repeats, self.warm_up, self.display, what)


def usable_backends() -> list[Backend]:
    """Backends of float32 products that keep float32 on this processor."""
    keeps = {"default": True, "onednn": matmul.float32_errors().keeps_float32}
    return [backend for backend in get_args(Backend) if keeps[backend]]


def peers(bench: Bench) -> Iterator[Row]:
    """A training step of ours and of other libraries at equal shapes, at their defaults and at their best."""
    for setting, (rows, width, layers) in SIZES.items():
        shape = ModelShape(width, HEADS, layers, True, TOKENS, TOKENS)
        batches = workloads.random_batches(VOCABULARY, rows, TOKENS)
        cases: dict[str, Step] = {}
        ours: dict[str, Activation] = {OURS: "relu", f"{OURS}, gelu": "gelu"}
        for name, activation in ours.items():
            model = _ours(shape, activation)
            cases[name] = workloads.plain_step(model, model, batches, matmul.float32_errors().backend)
        theirs: list[str] = []
        complete = True
        for peer in PEERS:
            try:
                found = _peer_cases(peer, shape, batches)
            except ImportError:
                complete = False
                say(f"{peer.name} is left out: pip install -c constraints.txt -e '.[bench]'")
                continue
            cases |= found
            theirs += found
        seconds = bench.time(cases, f"peers, {setting}")
        yield from compare("peers", setting, seconds, OURS)
        defaults = [name for name in theirs if name in {peer.name for peer in PEERS}]
        for what, names in (("default", defaults), ("best float32", theirs)):
            if complete:
                rows_against = compare("peers", setting, seconds, fastest(seconds, names))
                row = next(row for row in rows_against if row.case == OURS)
                yield replace(row, part=f"peers: fastest at its {what}")
        yield _share_of_peak(setting, shape, rows, median(seconds[OURS]))


def _peer_cases(
    peer: Peer, shape: ModelShape, batches: list[tuple[torch.Tensor, torch.Tensor]]
) -> dict[str, Step]:
    """The peer's steps by its attentions and matmul backends; its default bears its bare name."""
    cases: dict[str, Step] = {}
    for attention in peer.attention:
        for backend in usable_backends():
            torch.manual_seed(0)
            model, forward = peer.make(shape, VOCABULARY, attention)
            words = [attention] * (attention != "default") + ["oneDNN"] * (backend == "onednn")
            is_default = attention == peer.attention[0] and backend == "default"
            name = peer.name if is_default else f"{peer.name}, {' '.join(words)}"
            cases[name] = workloads.plain_step(model, forward, batches, backend)
    return cases


def _ours(shape: ModelShape, activation: Activation) -> Transformer:
    return Transformer(VOCABULARY, shape, Learned, activation=activation, initialisation="pytorch")


def _share_of_peak(setting: str, shape: ModelShape, rows: int, seconds: float) -> Row:
    """Products of a step per second, as a share of the fastest large product of this machine."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    peaks = []
    for backend in usable_backends():
        with matmul.using_backend(backend):
            for _ in range(3):
                started = time.perf_counter()
                a @ b
                peaks.append(2 * 2048**3 / (time.perf_counter() - started))
    model = _ours(shape, "relu")
    attention = 3 * shape.num_layers * 2 * 2 * rows * TOKENS**2 * shape.d_model
    done = (sum(workloads.products(model, rows, TOKENS)) + attention) / seconds
    return Row("share of peak", setting, OURS, 1000 * seconds, figure=done / max(peaks), unit="share of peak")


def schemes(bench: Bench) -> Iterator[Row]:
    """A training step with every scheme, data included, against one without an encoding."""
    names = sorted(path.stem for path in (CONFIG_DIR / "pe").glob("*.yaml"))
    for setting, overrides in SETTINGS.items():
        cases: dict[str, Step] = {}
        for name in names:
            try:
                made = workloads.experiment(f"pe={name}", *overrides)
                cases[name] = workloads.training_step(made, matmul.float32_errors().backend)
            except NotApplicable:
                continue
        repeats = bench.repeats if setting == "defaults" else max(5, bench.repeats // 3)
        seconds = bench.time(cases, f"schemes, {setting}", repeats)
        yield from compare("schemes", setting, seconds, "none")


def loop(bench: Bench) -> Iterator[Row]:
    """The whole training against a bare loop; what data cost; the step of a published set-up."""
    made, backend = workloads.experiment("training.steps=200"), matmul.float32_errors().backend
    cases = {
        "bare loop": workloads.bare_training(made, backend),
        "whole training": workloads.whole_training(made, backend),
    }
    seconds = interleave(cases, 3, 1, bench.display, "loop, 200 steps each")
    yield from compare("loop", "defaults, 200 steps", seconds, "bare loop")
    settings = {"defaults": (), "unique_copy": workloads.UNIQUE_COPY}
    for setting, overrides in settings.items():
        made = workloads.experiment(*overrides)
        steps = {"training step": workloads.training_step(made, backend), "data": workloads.data_step(made)}
        seconds = bench.time(steps, f"data, {setting}", 2 * bench.repeats)
        total = {name: sum(taken) / len(taken) for name, taken in seconds.items()}
        for name, mean in total.items():  # means: a batch in sixteen draws for all
            ratio = mean / total["training step"]
            yield Row("data", setting, name, 1000 * mean, "training step", ratio)


def lengths(bench: Bench) -> Iterator[Row]:
    """Evaluation time per example and peak memory over the length."""
    bench.display.start("lengths", len(LENGTHS) * len(LONG_SCHEMES))
    done = 0
    for tokens in LENGTHS:
        for name in LONG_SCHEMES:
            found = measure_apart(tokens, f"pe={name}")
            done += 1
            bench.display.step(done)
            setting = f"{tokens} tokens"
            milliseconds = 1000 * found["seconds"]
            above = found["above"]
            yield Row("lengths", setting, name, milliseconds, figure=above, unit="MB above the imports")
    bench.display.stop()


def cores(bench: Bench) -> Iterator[Row]:
    """A sweep of short runs by the number of processes."""
    most = min(os.cpu_count() or 1, 8)
    counts = sorted({1, most})
    runs, taken = 2 * most, {}
    bench.display.start("cores", len(counts))
    for place, jobs in enumerate(counts):
        with tempfile.TemporaryDirectory() as folder:
            seeds = ",".join(map(str, range(runs)))
            script = str(CONFIG_DIR.parent / "scripts" / "train.py")
            command = [
                sys.executable, script, "-m", f"seed={seeds}", f"sweep.jobs={jobs}", "training.steps=300",
                "training.max_length=10", f"results_dir={folder}", "logger.mode=disabled",
            ]  # fmt: skip
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            taken[jobs] = time.perf_counter() - started
        bench.display.step(place + 1)
        case = f"{jobs} process" + "es" * (jobs > 1)
        ratio = taken[jobs] / taken[counts[0]]
        yield Row("cores", f"{runs} runs of 300 steps", case, 1000 * taken[jobs], "1 process", ratio)
    bench.display.stop()


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "peers": peers,
    "schemes": schemes,
    "loop": loop,
    "lengths": lengths,
    "cores": cores,
}
