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
from pe_experiments.configuration.compose import compose_config
from pe_experiments.configuration.experiment import Experiment
from pe_experiments.configuration.foreign import refuse_foreign
from pe_experiments.configuration.schema import Config, resolved, validated
from pe_experiments.run import Result, run_experiment
from pe_experiments.store.csv_files import read_metrics
from pe_experiments.store.study_folder import PROVENANCE
from pe_experiments.studies.archive import LOSS_DECIMALS, read_archive
from pe_experiments.terminal.console import Display, Observer, say
from pe_experiments.terminal.errors import UserError, nearest
from pe_experiments.training.device import use_device
from pe_experiments.training.loop import fit

CLOSE = 1e-4  # relative difference up to which two losses agree
FIRST_STEPS = 200  # steps in which the losses must agree or differ only by the effect of rounding
CARRIED = 30  # allowed difference, in multiples of the effect of rounding the initial weights once


def reproduce(study: str, count: int, results_dir: Path, display: Display, trust: bool = False) -> bool:
    """Train randomly drawn published runs again and return whether all agree in the first steps.

    ``trust`` is as in `load_model`, since the study may come from a stranger.

    Raises:
        UserError: the study is not published, has fewer runs, or names code or files from outside the
            package without ``trust``.
    """
    folder = results_dir / study
    if not (folder / PROVENANCE).exists():
        studies = [str(path.parent.relative_to(results_dir)) for path in results_dir.rglob(PROVENANCE)]
        others = nearest(study, studies) if studies else f" There is none in {results_dir}."
        raise UserError(f"reproduce={study} is not a published study.{others}")
    published = read_archive(folder)
    completed = published.runs.loc[published.runs["status"] == "completed", "name"]
    # The weights that a run with init_from starts from are not published.
    repeatable = [name for name in completed if "parent" not in published.saved[name].trained]
    if not 0 < count <= len(repeatable):
        problem = (
            f"{study} has {len(repeatable)} completed runs that continue no other; allowed: at most that"
        )
        raise UserError(f"runs={count}: {problem}")
    names = random.sample(repeatable, count)
    for name in names:
        refuse_foreign(f"reproduce={study}", published.saved[name].trained, {}, trust)
    agreements = [reproduce_run(published, name, display) for name in names]
    say(f"{sum(agreements)} of {count} runs agree with the published ones")
    return all(agreements)


def reproduce_run(published: Runs, name: str, display: Display) -> bool:
    """Train one published run again in a temporary directory and return whether its first steps agree."""
    numerics = published.saved[name].numerics
    torch_version = published.environments[name]["libraries"].get("torch", "unknown")
    published_versions = f"NUMERICS {numerics} and PyTorch {torch_version}"
    current_versions = f"NUMERICS {NUMERICS} and PyTorch {torch.__version__}"
    say(f"{name}: published with {published_versions}, trained again with {current_versions}")
    with TemporaryDirectory() as scratch:
        repetition = run_experiment(published_config(published, name, scratch), display)
        verdict, agrees = compare_with_published(published, name, repetition)
    say(f"{name}: {verdict}")
    return agrees


def published_config(published: Runs, name: str, results_dir: str) -> Config:
    """Return the configuration with which a published run is trained again in ``results_dir``.

    It is checked as it is: if OmegaConf composed it, it would resolve a ``${...}`` of a stranger, which may
    name a module or a variable of the environment.
    """
    trained = published.saved[name].trained
    curve = published.curves[published.curves["name"] == name]
    config = resolved(compose_config(["logger=none"])) | {"results_dir": results_dir}
    config |= {key: trained[key] for key in ("pe", "positions", "task", "model", "optimizer", "seed")}
    for key in ("training", "trainer"):
        config[key] |= trained[key]
    lengths, examples = sorted(map(int, curve["length"])), int(curve["examples"].iloc[0])
    config["evaluation"] |= {"lengths": lengths, "examples": examples}
    return validated(Config, config)


def compare_with_published(published: Runs, name: str, repetition: Result) -> tuple[str, bool]:
    """Return how a repetition differs from the published run, and whether the first steps agree."""
    if repetition.status != "completed":
        reason = repetition.result.get("reason", "no reason recorded")
        return f"differs: it ended as {repetition.status} ({reason})", False
    losses = published.training[published.training["name"] == name].set_index("step")["loss"]
    metrics = read_metrics(repetition.directory.metrics)
    loss_by_step = {row["step"]: round(row["loss"], LOSS_DECIMALS) for row in metrics}
    repeated_losses = pd.Series(losses.index.map(loss_by_step), losses.index)
    column = "exact_match" if repetition.curve[0]["exact_match"] is not None else "loss"
    curve = published.curves[published.curves["name"] == name].set_index("length")[column]
    repeated_curve = pd.Series({row["length"]: row[column] for row in repetition.curve})
    steps = sorted({*losses.index} - {*loss_by_step})
    lengths = sorted({*curve.index} ^ {*repeated_curve.index})
    if losses.empty or steps or lengths:
        where = f"at step {steps[0]}" if steps else f"at length {lengths[0]}" if lengths else "at any step"
        return f"cannot be compared: only one of the two trainings has a result {where}", False
    difference = (curve - repeated_curve).abs().max()
    if losses.equals(repeated_losses) and difference == 0:
        return f"is identical: {len(losses)} losses, {column} at {len(curve)} lengths", True
    loss_differences = (losses - repeated_losses).abs()
    is_close = loss_differences <= CLOSE * losses.abs() + 10**-LOSS_DECIMALS
    last_close_step = int(max(losses.index[is_close.cummin()], default=0))
    description = f"training agrees to {CLOSE:g} until step {last_close_step} of {int(losses.index[-1])}"
    description += f"; the largest difference in {column} at a length is {difference:.3f}"
    first_steps = max(FIRST_STEPS, int(losses.index[0]))
    is_first = losses.index <= first_steps
    if is_close[is_first].all():
        return description, True
    nudged = losses.index.map(nudged_losses(repetition.experiment, first_steps))
    effect_of_rounding = (repeated_losses - nudged).abs()
    is_too_different = ~is_close & (loss_differences > CARRIED * effect_of_rounding)
    if is_too_different[is_first].any():
        return f"differs within the first {first_steps} steps by more than rounding; {description}", False
    return f"{description}; rounding alone changes as much", True


def nudged_losses(experiment: Experiment, steps: int) -> dict[int, float]:
    """Return the losses of the first steps, by step, when the initial weights are changed by one rounding."""
    model = experiment.untrained_model()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1 + torch.finfo(weights.dtype).eps * torch.randn(weights.shape, generator=generator))
    losses = _FirstLosses(steps)
    with use_device(experiment.config) as device, TemporaryDirectory() as scratch, suppress(_FirstStepsDone):
        checkpoint = Path(scratch) / "checkpoints" / "last.ckpt"
        fit(model, experiment, device, checkpoint, [losses])
    return losses.by_step


class _FirstLosses(Observer):
    """Keep the losses of the first steps by step, and then end the training."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.by_step: dict[int, float] = {}

    def row(self, row: dict[str, Any]) -> None:
        self.by_step[row["step"]] = row["loss"]
        if row["step"] >= self.steps:
            raise _FirstStepsDone


class _FirstStepsDone(Exception):
    """Raised to end a training after its first steps."""
