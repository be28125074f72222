"""Time steps on a GPU: eager and compiled, float32 and bfloat16, and several runs on one GPU."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from statistics import median
from threading import Barrier
from typing import Any

import torch
from torch import nn

from pe_experiments.encodings import ModelShape
from pe_experiments.encodings.learned import Learned
from pe_experiments.models import Transformer
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import UserError, sentence
from pe_experiments.training.cpu import DEFAULT
from results.benchmark.peers import Peers
from results.benchmark.timing import Row, Timed, interleave, seconds_per_step
from results.benchmark.workloads import experiment, next_token_step, random_batches, whole_training

SIZES = {  # rows, tokens, vocabulary, width, layers, heads
    "d=64, 2 layers, batch 64 x 40 tokens": (64, 40, 14, 64, 2, 4),
    "d=256, 4 layers, batch 64 x 256 tokens": (64, 256, 256, 256, 4, 4),
    "d=512, 8 layers, batch 32 x 1,024 tokens": (32, 1024, 256, 512, 8, 8),
}
DRY_SIZES = {"d=16, 1 layer, batch 4 x 8 tokens": (4, 8, 14, 16, 1, 2)}  # of a test on a CPU
OTHERS = {"x-transformers": "sdpa", "nn.TransformerEncoder": "default"}  # their attention
BLOCK = 20  # steps that are timed together, since a GPU computes later than it is called
JOBS = (1, 2, 4, 8)  # runs on one GPU
RUN_STEPS = 300


def gpu(repeats: int, display: Display, peers: Peers, device: str = "cuda") -> Iterator[Row]:
    """Time blocks of `BLOCK` training steps beside other libraries, then whole runs that share the GPU.

    ``device=cpu`` tests this function with tiny sizes.

    Raises:
        UserError: there is no CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "parts=gpu: PyTorch finds no CUDA device; allowed here: other parts, or device=cpu as a test"
        )
    sizes = SIZES if device == "cuda" else DRY_SIZES
    for number, (setting, size) in enumerate(sizes.items(), start=1):
        cases = dict(_cases(size, peers, device))
        seconds = interleave(cases, repeats, display, f"gpu {number}/{len(sizes)}, {setting}")
        for case, times in seconds.items():
            yield Row("gpu", setting, case, 1000 * median(times))
    for jobs in JOBS if device == "cuda" else JOBS[:2]:
        milliseconds = 1000 * _several_runs(jobs, device, RUN_STEPS if device == "cuda" else 3)
        yield Row("gpu: runs that share it", "copy, d=64, 2 layers, batch 64", f"{jobs} runs", milliseconds)


def _cases(size: tuple[int, ...], peers: Peers, device: str) -> Iterator[tuple[str, Timed]]:
    """Yield a block of training steps of each library, by precision, with and without ``torch.compile``."""
    rows, tokens, vocabulary, width, layers, heads = size
    shape = ModelShape(width, heads, layers, True, tokens, tokens)
    batches = [(x.to(device), y.to(device)) for x, y in random_batches(vocabulary, rows, tokens)]
    models: dict[str, Callable[[], nn.Module]] = {
        "pe_experiments": partial(Transformer, vocabulary, shape, Learned, activation="relu")
    }
    for name, attention in OTHERS.items():
        if name in peers:
            models[name] = partial(peers[name][0], shape, vocabulary, attention)
    for (name, make), precision, compiled in product(models.items(), ("float32", "bf16"), (False, True)):
        case = f"{name}, {precision}, compiled" if compiled else f"{name}, {precision}"
        try:
            torch.manual_seed(0)
            model: Any = make().to(device)
            if compiled:
                model = torch.compile(model, backend="inductor" if device == "cuda" else "eager")
            if precision == "bf16":  # as with trainer.precision=bf16-mixed
                model.forward = torch.autocast(device, torch.bfloat16)(model.forward)
            step = next_token_step(model, batches, DEFAULT)
            step()  # compiles
        except Exception as error:  # a library that is missing or cannot be compiled ends no benchmark
            say(f"{case} is left out: {sentence(error)}")
            continue
        yield case, partial(seconds_per_step, step, BLOCK, device)


def _several_runs(jobs: int, device: str, steps: int) -> float:
    """Return the seconds in which ``jobs`` runs that share the device make one step together.

    The runs are processes that train in the harness, as with ``hydra.launcher.jobs_per_device``.
    """
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(jobs, context) as processes:
        all_ready = manager.Barrier(jobs)
        runs = [processes.submit(_run, device, steps, all_ready) for _ in range(jobs)]
        return 1 / sum(1 / run.result() for run in runs)


def _run(device: str, steps: int, all_ready: Barrier) -> float:
    """Return the seconds per step of a run in the harness, since all runs have begun."""
    sizes = {"training.steps": steps, "training.batch_size": 64, "training.check_every": steps}
    run = experiment(pe="learned", **sizes)
    return whole_training(run, DEFAULT, device, all_ready.wait)
