"""Run the parts of the benchmark and write a table and a description of the machine."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from pydantic import BeforeValidator, Field

from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.schema import Count, Folder, Section, validated
from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.learned import Learned
from pe_experiments.models import Transformer
from pe_experiments.store.environment import describe_environment
from pe_experiments.terminal.console import Display, Lines, say
from pe_experiments.terminal.errors import NotApplicable, UserError
from pe_experiments.terminal.files import read_json, write_atomically
from pe_experiments.training import cpu
from pe_experiments.training.device import prepare_device, use_device
from results.benchmark.gpu import gpu
from results.benchmark.peers import PACKAGES, PEERS, Peers
from results.benchmark.startup import startup
from results.benchmark.timing import Row, Seconds, Step, Timed, interleave, paired_ratios, seconds_per_step
from results.benchmark.workloads import (
    Batches,
    bare_training,
    experiment,
    next_token_step,
    random_batches,
    training_step,
    whole_training,
)

HEADS = 4
SIZES = {  # rows, tokens, vocabulary, width, layers
    "d=128, 4 layers, batch 128 x 40 tokens": (128, 40, 14, 128, 4),
    "d=64, 2 layers, batch 64 x 40 tokens": (64, 40, 14, 64, 2),
    "text: d=64, 2 layers, batch 8 x 256 bytes": (8, 256, 256, 64, 2),
}
SMALL = ((8, 2), (16, 2), (8, 4), (16, 4))  # batch size and layers of models of width 64
OURS = "pe_experiments"
BEST = "fastest at its best float32"
QUICK_REPEATS = 5

Part = Literal["small", "peers", "encodings", "quick", "startup", "gpu"]
WITH_PEERS = {"small", "peers", "quick", "gpu"}


def _as_list(parts: Any) -> Any:
    return [parts] if isinstance(parts, str) else parts


class BenchmarkSettings(Section):
    """The settings in ``configs/benchmark.yaml``."""

    parts: Annotated[list[Part], Field(min_length=1), BeforeValidator(_as_list)]
    peers: bool
    repeats: Annotated[int, Field(ge=1, le=1000)]
    threads: Count
    device: Literal["cuda", "cpu"]
    out: Folder


def quick(repeats: int, display: Display, peers: Peers) -> Iterator[Row]:
    """Time the smallest step and the sizes of `equal_shapes`, a few times each; takes a few minutes."""
    repeats = min(repeats, QUICK_REPEATS)
    yield from small(repeats, display, peers, "quick")
    yield from equal_shapes(repeats, display, peers, "quick")


def equal_shapes(repeats: int, display: Display, peers: Peers, part: str = "peers") -> Iterator[Row]:
    """Time a training step of our model and of other libraries at equal shapes."""
    for number, (setting, (rows, tokens, vocabulary, width, layers)) in enumerate(SIZES.items(), start=1):
        shape = ModelShape(width, HEADS, layers, True, tokens, tokens)
        batches = random_batches(vocabulary, rows, tokens)
        theirs = _their_steps(peers, shape, vocabulary, batches)
        steps = _our_steps(shape, vocabulary, batches) | theirs
        cases = {name: partial(seconds_per_step, step) for name, step in steps.items()}
        seconds = interleave(cases, repeats, display, f"{part}, {number}/{len(SIZES)}: {setting}")
        yield from paired_ratios(part, setting, seconds, OURS)
        yield from _against_fastest(f"{part}: fastest at its default", setting, seconds, PEERS)
        yield from _against_fastest(f"{part}: {BEST}", setting, seconds, theirs)


def _against_fastest(part: str, setting: str, seconds: Seconds, names: Iterable[str]) -> list[Row]:
    """Return our row relative to the fastest of ``names``; no row with ``peers=false``."""
    if not set(PEERS) <= set(seconds):
        return []
    fastest = min(names, key=lambda name: median(seconds[name]))
    return paired_ratios(part, setting, {name: seconds[name] for name in (OURS, fastest)}, fastest)[:1]


def _our_steps(shape: ModelShape, vocabulary: int, batches: Batches) -> dict[str, Step]:
    """Return steps of our model with its default activation and with that of other libraries."""
    make = partial(Transformer, vocabulary, shape, Learned, initialisation="pytorch")
    models = {OURS: make(activation="relu"), f"{OURS}, gelu": make(activation="gelu")}
    symbols = batches[0][0].numel()
    by_vendor = cpu.select("auto", symbols * shape.d_model**2)
    route = cpu.fastest_route(models[OURS], symbols, by_vendor, cpu.calibration(say))
    return {name: next_token_step(model, batches, route) for name, model in models.items()}


def _their_steps(peers: Peers, shape: ModelShape, vocabulary: int, batches: Batches) -> dict[str, Step]:
    """Return a step of each peer by attention and library of products; defaults are not part of the name."""
    routes = (cpu.DEFAULT, cpu.ONEDNN) if cpu.ONEDNN_IS_EXACT else (cpu.DEFAULT,)
    steps: dict[str, Step] = {}
    for name, (make, attentions) in peers.items():
        for attention, route in product(attentions, routes):
            torch.manual_seed(0)
            variant = [] if attention == "default" else [attention]
            if route == cpu.ONEDNN:
                variant.append("oneDNN")
            is_default = (attention, route) == (attentions[0], cpu.DEFAULT)
            case = name if is_default else f"{name}, {' '.join(variant)}"
            steps[case] = next_token_step(make(shape, vocabulary, attention), batches, route)
    return steps


def small(repeats: int, display: Display, peers: Peers, part: str = "small") -> Iterator[Row]:
    """Time steps of small models in the harness, and of other libraries in bare loops on the same batches.

    The part ``quick`` has only the smallest model.
    """
    for rows, layers in SMALL[:1] if part == "quick" else SMALL:
        settings = {
            "model.num_layers": layers,
            "training.batch_size": rows,
            "training.check_examples": rows,
            "training.steps": 100,
            "training.check_every": 100,
        }
        run = experiment(pe="learned", **settings)
        with use_device(run.config):
            cpu.tune(run.config, run.untrained_model(), {}, say)
            route = cpu.route
        padded = [run.batches.batch(index) for index in range(run.config.training.steps)]
        batches = [(batch.tokens_BT, batch.labels_BT) for batch in padded]
        theirs = _their_steps(peers, run.shape, run.format.vocab_size, batches)
        cases: dict[str, Timed] = {OURS: partial(whole_training, run, route)}
        cases |= {name: partial(bare_training, step, run) for name, step in theirs.items()}
        setting = f"d=64, {layers} layers, batch {rows}, 1 to 20 symbols"
        seconds = interleave(cases, min(7, repeats), display, f"{part}: {setting}", warm_up=1)
        yield from paired_ratios(part, setting, seconds, OURS)
        yield from _against_fastest(f"{part}: {BEST}", setting, seconds, theirs)


def encodings(repeats: int, display: Display) -> Iterator[Row]:
    """Time a training step with every encoding, data included, relative to NoPE."""
    cases: dict[str, Timed] = {}
    for name in shipped("pe"):
        with suppress(NotApplicable):
            run = experiment(pe=name)
            step = training_step(run.untrained_model(), run, cpu.select("auto", cpu.SMALL))
            cases[name] = partial(seconds_per_step, step)
    seconds = interleave(cases, repeats, display, "encodings")
    yield from paired_ratios("encodings", "defaults", seconds, "none")


def benchmark(config: dict[str, Any]) -> None:
    """Run the chosen parts and write the table after each; rows of other parts on this machine are kept.

    At the end, say how long a step takes relative to the fastest of the other libraries.
    """
    settings = validated(BenchmarkSettings, config)
    peers = PEERS if settings.peers else {}
    missing = [name for name in PACKAGES if find_spec(name.replace("-", "_")) is None]
    if peers and WITH_PEERS & set(settings.parts) and missing:
        raise UserError(
            f"{' and '.join(missing)}: not installed, so nothing would be compared; "
            "pip install -c constraints.txt -e '.[bench]', or peers=false to time ours alone"
        )
    prepare_device(experiment(**{"trainer.threads": settings.threads}).config)
    machine = describe_machine()
    folder = Path(settings.out)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = pd.DataFrame()
    if (folder / "table.csv").exists() and read_json(folder / "machine.json") == machine:
        earlier = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
        earlier = earlier[~earlier["part"].str.split(":").str[0].isin(settings.parts)]
    parts: dict[Part, Callable[[int, Display], Iterator[Row]]] = {
        "small": partial(small, peers=peers),
        "peers": partial(equal_shapes, peers=peers),
        "encodings": encodings,
        "quick": partial(quick, peers=peers),
        "startup": startup,
        "gpu": partial(gpu, peers=peers, device=settings.device),
    }
    rows: list[Row] = []
    say("part | setting | case | ms | ratio | relative to")
    with Lines() as display:
        for part in settings.parts:
            for row in parts[part](settings.repeats, display):
                rows.append(row)
                ratio = ""
                if row.ratio is not None:
                    ratio = f"{row.ratio:.2f} [{row.ratio_low:.2f}, {row.ratio_high:.2f}]"
                cells = [row.part, row.setting, row.case, f"{row.milliseconds:,.1f}", ratio, row.against]
                say(" | ".join(cells))
            table = pd.concat([earlier, pd.DataFrame(rows).round(4)])
            write_atomically(folder / "machine.json", json.dumps(machine, indent=2) + "\n")
            write_atomically(folder / "table.csv", table.to_csv(index=False))
    say(f"table: {folder / 'table.csv'}")
    ratios = [f"{row.ratio:.2f} ({row.setting})" for row in rows if row.part.endswith(BEST)]
    if ratios:
        compared = "relative to the fastest of the other libraries with its best options"
        say(f"On {machine['processor']} a training step takes, {compared}: {'; '.join(ratios)}.")


def describe_machine() -> dict[str, Any]:
    """Return the processor, cores, threads and versions that the times depend on."""
    environment = describe_environment("cpu")
    keys = ("processor", "threads", "python", "pe_experiments", "matmul")
    machine = {key: environment[key] for key in keys} | {"cores": os.cpu_count(), "torch": torch.__version__}
    return machine | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})
