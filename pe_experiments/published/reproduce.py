"""Train some published runs again and report how closely they match the published ones."""

import random
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch

from pe_experiments import NUMERICS
from pe_experiments.comparison.runs import Runs
from pe_experiments.configuration.compose import ConfigMapping, composed
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.published.archive import DIGITS, FILES, read_archive
from pe_experiments.run import RunResult, run_experiment
from pe_experiments.store.csv_files import read_metrics
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import UserError, nearest
from pe_experiments.training.device import use_device
from pe_experiments.training.loop import train_model

CLOSE = 1e-4  # largest relative difference of a loss at which training agrees
FIRST_STEPS = 200  # in which training must agree, apart from the effect of rounding
CARRIED = 30  # allowed multiple of the change by a single rounding


def reproduce(study: str, count: int, results_dir: Path, display: Display, seed: int | None = None) -> bool:
    """Train randomly drawn published runs again and return whether all agree in the first steps.

    Raises:
        UserError: the study is not published, or has fewer runs.
    """
    folder = results_dir / study
    if not (folder / FILES[-1]).exists():
        known = [str(path.parent.relative_to(results_dir)) for path in results_dir.rglob(FILES[-1])]
        raise UserError(f"reproduce={study} is not a published study.{nearest(study, known)}")
    published = read_archive(folder)
    completed = published.runs.loc[published.runs["status"] == "completed", "name"]
    # The weights that a run with init_from starts from are not published.
    alone = [name for name in completed if "parent" not in published.saved[name]["identity"]["trained"]]
    if not 0 < count <= len(alone):
        most = f"{study} has {len(alone)} completed runs that continue no other; allowed: at most that"
        raise UserError(f"runs={count}: {most}")
    names = random.Random(seed).sample(alone, count)
    agreeing = [reproduce_run(published, name, display) for name in names]
    say(f"{sum(agreeing)} of {count} runs agree with the published ones")
    return all(agreeing)


def reproduce_run(published: Runs, name: str, display: Display) -> bool:
    """Train one published run again in a temporary directory and return whether its first steps agree."""
    numerics = published.saved[name]["identity"]["hashed"]["numerics"]
    published_versions = (
        f"NUMERICS {numerics} and PyTorch {published.environments[name]['libraries']['torch']}"
    )
    here = f"NUMERICS {NUMERICS} and PyTorch {torch.__version__}"
    say(f"{name}: published with {published_versions}, trained again with {here}")
    with TemporaryDirectory() as scratch:
        config = published_config(published, name) | {"results_dir": scratch, "logger": "none"}
        again = run_experiment(config, display)
        verdict, agrees = compare_runs(published, name, again)
    say(f"{name}: {verdict}")
    return agrees


def published_config(published: Runs, name: str) -> ConfigMapping:
    """Return the configuration of a published run for `run_experiment`."""
    trained = published.saved[name]["identity"]["trained"]
    curve = published.curves[published.curves["name"] == name]
    config = composed("config", [])
    sections = {key: trained[key] for key in ("pe", "positions", "task", "model", "optimizer", "seed")}
    sections |= {key: config[key] | trained[key] for key in ("training", "trainer")}
    evaluation = {"lengths": sorted(map(int, curve["length"])), "examples": int(curve["examples"].iloc[0])}
    return sections | {"evaluation": config["evaluation"] | evaluation}


def compare_runs(published: Runs, name: str, again: RunResult) -> tuple[str, bool]:
    """Return a sentence that compares a repetition with the published run, and whether first steps agree."""
    if again.status != "completed":
        reason = again.result.get("reason", "no reason recorded")
        return f"differs: it ended as {again.status} ({reason})", False
    training = published.training[published.training["name"] == name].set_index("step")["loss"]
    losses = {row["step"]: round(row["loss"], DIGITS) for row in read_metrics(again.directory.metrics)}
    repeated = pd.Series(training.index.map(losses), training.index)
    column = "exact_match" if again.curve[0]["exact_match"] is not None else "loss"
    curve = published.curves[published.curves["name"] == name].set_index("length")[column]
    repeated_curve = pd.Series({row["length"]: row[column] for row in again.curve})
    difference = (curve - repeated_curve).abs().max()
    if training.equals(repeated) and difference == 0:
        return f"is identical: {len(training)} losses, {column} at {len(curve)} lengths", True
    loss_differences = (training - repeated).abs()
    close = loss_differences <= CLOSE * training.abs() + 10**-DIGITS
    until = int(max(training.index[close.cummin()], default=0))
    words = f"training agrees to {CLOSE:g} until step {until} of {int(training.index[-1])}"
    words += f"; the largest difference in {column} at a length is {difference:.3f}"
    if close[training.index <= FIRST_STEPS].all():
        return words, True
    by_rounding = (repeated - training.index.map(nudged_losses(again.experiment))).abs()
    too_different = ~close & (loss_differences > CARRIED * by_rounding)
    if too_different[training.index <= FIRST_STEPS].any():
        return f"differs within the first {FIRST_STEPS} steps by more than rounding; {words}", False
    return f"{words}; rounding alone changes as much", True


def nudged_losses(experiment: Experiment) -> dict[int, float]:
    """Return the losses of the first steps of a training whose initial weights differ by one rounding."""
    model = experiment.untrained_model()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1 + torch.finfo(weights.dtype).eps * torch.randn(weights.shape, generator=generator))
    losses: dict[int, float] = {}

    def record(row: dict[str, Any]) -> None:
        losses[row["step"]] = row["loss"]
        if row["step"] >= FIRST_STEPS:
            raise _FarEnough

    with use_device(experiment.config) as device, TemporaryDirectory() as scratch, suppress(_FarEnough):
        checkpoint = Path(scratch) / "checkpoints" / "last.ckpt"
        train_model(model, experiment, device, checkpoint, 0, record, lambda step: None)
    return losses


class _FarEnough(Exception):
    pass
