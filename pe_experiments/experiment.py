"""One experiment from configuration to result.

A configuration picks an encoding, a task and a model; a run trains the model on short sequences, evaluates it
on long ones, and leaves a directory with everything about it.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pe_experiments import console
from pe_experiments.building import describe_model, preflight, refuse_large_training
from pe_experiments.checkpoints import load_weights, read_checkpoint
from pe_experiments.composition import configuration
from pe_experiments.config import Config, Experiment, check, resolve
from pe_experiments.environment import describe_environment, prepare_hardware
from pe_experiments.errors import UserError, disk_problem, few
from pe_experiments.evaluations import RunResult, draw, evaluate_model, found, saved_config
from pe_experiments.files import write_atomically
from pe_experiments.identity import Identity
from pe_experiments.instantiation import build_model, source_of
from pe_experiments.losses import summarise
from pe_experiments.models import Backbone
from pe_experiments.runs import (
    COMPLETED,
    DIVERGED,
    ERROR,
    TRAINED,
    RunDirectory,
    edited_sources,
    evaluated,
    kind_of,
    list_in_study,
    plan,
)
from pe_experiments.tasks.text import NextSymbol
from pe_experiments.tracking import Tracker
from pe_experiments.trained import FinishedRun


def run_experiment(
    config: DictConfig | dict[str, Any] | Config | Experiment, display: console.Display | None = None
) -> RunResult:
    """Train and evaluate what a configuration describes, or return the finished run.

    Args:
        config: composed by Hydra, a `Config`, an `Experiment`, or a mapping of the command line's keys
            (`composition.configuration`), such as ``{"pe": "rope", "training.steps": 100}``.
        display: shows the progress; None shows nothing.

    Raises:
        UserError: the configuration cannot be carried out; no new directory is left, and no earlier
            result is lost.
        KeyboardInterrupt: interrupted; the same call resumes.
    """
    if isinstance(config, dict):
        config = configuration(config)
    if isinstance(config, DictConfig):
        config = check(config)
    experiment = resolve(config) if isinstance(config, Config) else config
    display = display or console.Display()
    device = prepare_hardware(experiment.config.hardware)
    planned = plan(experiment)
    identity, run = planned.identity, planned.run
    if planned.state in TRAINED:
        finished = FinishedRun(experiment, identity, run, run.read_result() or {})
        return found(finished, device, display)
    refuse_large_training(experiment)
    for remark in preflight(experiment):
        console.say(remark)
    for other, names in edited_sources(run, identity).items():
        console.say(f"Changed since {other}: {few(names)}. This is a new run.")
    created = run.create()
    with run.lock():
        if plan(experiment).state in TRAINED:  # by another process, since
            finished = FinishedRun(experiment, identity, run, run.read_result() or {})
            return found(finished, device, display)
        aside = run.set_aside() if experiment.config.rerun else None
        try:
            outcome = _train_and_evaluate(experiment, identity, run, device, display)
            if aside and outcome.status == ERROR:  # keep the earlier finished run instead
                run.put_back(aside)
            return outcome
        except (UserError, KeyboardInterrupt, OSError) as error:
            nothing_new = isinstance(error, UserError) or not run.checkpoint.exists()
            if nothing_new and created:
                run.remove()
            elif nothing_new and aside:
                run.put_back(aside)
            if problem := disk_problem(error):
                raise UserError(
                    f"results_dir={experiment.config.results_dir}: {problem}; what is finished is safe, and "
                    f"the same command goes on from the last checkpoint"
                ) from error
            raise
        finally:
            if aside:
                shutil.rmtree(aside, ignore_errors=True)


def try_out(experiment: Experiment) -> None:
    """Check all that can be checked of an experiment without writing anything (``dry_run=true``).

    Raises:
        UserError: a check fails.
    """
    prepare_hardware(experiment.config.hardware)
    refuse_large_training(experiment)
    preflight(experiment)


def _train_and_evaluate(
    experiment: Experiment, identity: Identity, run: RunDirectory, device: str, display: console.Display
) -> RunResult:
    from pe_experiments.training import Diverged  # brings Lightning: seconds a finished run need not wait for

    config = experiment.config
    checkpoint = read_checkpoint(run.checkpoint)
    from_step = checkpoint["global_step"] if checkpoint else 0
    saved = saved_config(experiment, identity, run.name)
    tracker = Tracker(run, run.name, saved, config.logger, group=config.study, from_step=from_step)
    result: dict[str, Any] = {
        "status": ERROR,
        "name": run.name,
        "label": identity.label,
        "task": experiment.components["task"].choice,
        "model": experiment.model_choice,
        "seed": config.seed,
        "kind": kind_of(config.model_dump()),
        "steps": config.training.steps,
        "resumed_from": from_step,
        "evaluation": evaluated(experiment),
    }
    summary: dict[str, Any] | None = None
    curve: list[dict[str, Any]] = []
    try:
        write_atomically(run.config, OmegaConf.to_yaml(OmegaConf.create(saved)))
        environment = describe_environment(device)
        write_atomically(run.environment, json.dumps(environment, indent=2) + "\n")
        run.error_log.unlink(missing_ok=True)
        run.result.unlink(missing_ok=True)
        if config.study:
            list_in_study(Path(config.results_dir), config.study, run.name)
        if from_step:
            console.say(f"{run.name}: resuming at step {from_step} of {config.training.steps}")
        model, facts = _train(experiment, run, checkpoint, device, tracker, display)
        curve, tables = evaluate_model(experiment, model.to(device), facts["finished_step"], display)
        tracker.curve(curve, tables)
        summary = summarise(curve, experiment.max_length)
        draw(experiment, identity.label, curve, run.figure)
        result |= {"status": COMPLETED, **facts, **describe_model(model, experiment), **summary}
    except Diverged as error:
        result |= {"status": DIVERGED, "reason": str(error), "diverged_at": error.step}
    except UserError:
        raise
    except Exception as error:
        if disk_problem(error):
            raise
        run.error_log.write_text(traceback.format_exc())
        result |= {"reason": f"{type(error).__name__}: {error}"}
    finally:
        display.stop()
        upload = tracker.close(summary, run.figure if summary else None)
    run.write_result(result | {"upload": upload})
    done = "resumed" if from_step else "trained"
    return RunResult(experiment, run, run.read_result() or {}, done, curve)


def _train(
    experiment: Experiment,
    run: RunDirectory,
    checkpoint: dict[str, Any] | None,
    device: str,
    tracker: Tracker,
    display: console.Display,
) -> tuple[Backbone, dict[str, Any]]:
    from pe_experiments.training import train_model

    config, model = experiment.config, build_model(experiment)
    if checkpoint:
        load_weights(model, checkpoint, run.checkpoint)
    if checkpoint and checkpoint["finished"]:
        return model, {"finished_step": checkpoint["global_step"]}

    language = isinstance(experiment.task, NextSymbol)

    def record(row: dict[str, Any]) -> None:
        if language:  # exact match of a whole text is no measure of anything
            row = {key: value for key, value in row.items() if key != "exact_match"}
        tracker.metrics(row)
        display.row(row)

    first = checkpoint["global_step"] if checkpoint else 0
    display.start("training", config.training.steps, first)
    started = time.monotonic()
    last = train_model(
        model, source_of(experiment), config.training, device, run.checkpoint, first, record, display.step
    )
    display.stop()
    seconds = (time.monotonic() - started) / max(1, last - first)
    return model, {"finished_step": last, "seconds_per_step": round(seconds, 5)}
