"""One experiment from configuration to result, read from top to bottom like the sentence it is:

a config picks an encoding, a task and a model; one run trains it on short sequences, measures it on long
ones, and leaves a directory that says everything about itself.
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pe_experiments import console
from pe_experiments.building import describe_model, evaluation_source_of, preflight
from pe_experiments.checkpoints import load_weights, model_weights, read_checkpoint
from pe_experiments.config import Config, Experiment, check, resolve
from pe_experiments.data import TrainingStream
from pe_experiments.environment import describe_environment, prepare_hardware
from pe_experiments.errors import UserError, disk_problem
from pe_experiments.evaluation import extrapolation_curve, summarise
from pe_experiments.files import write_atomically
from pe_experiments.fingerprints import changed
from pe_experiments.identity import Identity, identify, plain, short_hash
from pe_experiments.instantiation import build_model, source_of
from pe_experiments.limits import refuse_large_training
from pe_experiments.models import Transformer
from pe_experiments.runs import (
    COMPLETED,
    DIVERGED,
    ERROR,
    TRAINED,
    Plan,
    RunDirectory,
    edited_sources,
    evaluated,
    kind_of,
    list_in_study,
    only_code_differs,
    plan,
)
from pe_experiments.seen import seen_in_training
from pe_experiments.tracking import Tracker, read_curve

MOST_NAMES = 3  # of what has changed, in a sentence


@dataclass(frozen=True)
class RunResult:
    """What one call did.

    Attributes:
        experiment: what was asked for.
        directory: where the curve lies: the run's, or that of one of its evaluations.
        result: the content of ``result.json``.
        done: ``trained``, ``resumed``, ``evaluated`` or ``found`` (it was finished already).
    """

    experiment: Experiment
    directory: RunDirectory
    result: dict[str, Any]
    done: str
    curve: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.result["status"]


def run_experiment(
    config: DictConfig | dict[str, Any] | Config | Experiment, display: console.Display | None = None
) -> RunResult:
    """Train and evaluate what a configuration describes, or find it done.

    Args:
        config: composed by Hydra, typed, or resolved.
        display: shows the progress; None shows nothing.

    Raises:
        UserError: the configuration cannot be carried out; nothing is left behind or lost.
        KeyboardInterrupt: interrupted; the same call resumes.
    """
    if not isinstance(config, Experiment):
        config = resolve(config if isinstance(config, Config) else check(config))
    experiment, display = config, display or console.Display()
    device = prepare_hardware(experiment.config.hardware)
    planned = plan(experiment)
    identity, run = planned.identity, planned.run
    if finished := _finished(experiment, planned):
        return _found(experiment, identity, run, finished, device, display)
    refuse_large_training(experiment)
    for remark in preflight(experiment):
        console.say(remark)
    for other, names in edited_sources(run, identity).items():
        several = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        what = ", ".join(names[:MOST_NAMES]) + several
        console.say(f"Changed since {other}: {what}. This is a new run.")
    created = run.create()
    with run.lock():
        if finished := _finished(experiment, plan(experiment)):  # by another process, since
            return _found(experiment, identity, run, finished, device, display)
        aside = run.set_aside() if experiment.config.rerun else None
        try:
            return _train_and_evaluate(experiment, identity, run, device, display)
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
    """Everything that can be found wrong with an experiment without writing anything (``dry_run=true``).

    Raises:
        UserError: something is.
    """
    prepare_hardware(experiment.config.hardware)
    refuse_large_training(experiment)
    preflight(experiment)


def evaluate_run(path: Path, changes: dict[str, Any], display: console.Display | None = None) -> RunResult:
    """Evaluate a finished run otherwise, without training.

    Args:
        path: the run's directory.
        changes: sections of the saved configuration to replace: ``evaluation``, ``pe``, ``hardware`` or
            ``logger``; and ``task``, to evaluate on that one instead.
        display: shows the progress; None shows nothing.

    Raises:
        UserError: no such run, one that is not completed, one whose source has been edited since, or weights
            that do not fit the changed scheme.
    """
    run = RunDirectory(path)
    saved = run.read_config()
    identity = Identity(
        **{key: value for key, value in saved["identity"].items() if key != "name"}, prefix=""
    )
    sections = {key: value for key, value in saved.items() if key not in ("identity", "derived")}
    other_task, changes = changes.get("task"), {k: v for k, v in changes.items() if k != "task"}
    experiment = resolve(check({**sections, **changes}), other_task)
    device = prepare_hardware(experiment.config.hardware)
    result = run.read_result()
    if result is None or result["status"] != COMPLETED:
        state = "interrupted" if result is None else result["status"]
        raise UserError(
            f"run={path}: it is {state}, and only a completed run can be evaluated; train it first"
        )
    now = identify(experiment).sources
    kept = [group for group in identity.sources if group not in changes]
    if names := changed(*({group: sources[group] for group in kept} for sources in (identity.sources, now))):
        raise UserError(
            f"run={path}: {', '.join(names[:MOST_NAMES])} changed since it was trained; train it again"
        )
    return _found(experiment, identity, run, result, device, display or console.Display())


def _finished(experiment: Experiment, planned: Plan) -> dict[str, Any] | None:
    """The result of a run that is trained, unless the code it was evaluated by has changed since."""
    result = planned.run.read_result() if planned.state in TRAINED else None
    if result and result["status"] == COMPLETED and only_code_differs(result["evaluation"], experiment):
        require_checkpoint(planned.run)
        console.say(f"{planned.run.name}: the code that evaluates has changed; evaluating it again")
        return None
    return result


def _train_and_evaluate(
    experiment: Experiment, identity: Identity, run: RunDirectory, device: str, display: console.Display
) -> RunResult:
    from pe_experiments.training import Diverged  # brings Lightning: seconds a finished run need not wait for

    config = experiment.config
    checkpoint = read_checkpoint(run.checkpoint)
    from_step = checkpoint["global_step"] if checkpoint else 0
    before = run.read_result()
    if before and before["status"] != COMPLETED:  # no run that is only evaluated again
        before = None
    saved = _saved_config(experiment, identity)
    tracker = Tracker(run, run.name, saved, config.logger, group=config.study, from_step=from_step)
    result: dict[str, Any] = {
        "status": ERROR,
        "name": run.name,
        "label": identity.label,
        "task": experiment.components["task"].choice,
        "model": config.model.choice,
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
        environment = describe_environment(config.hardware, device)
        write_atomically(run.environment, json.dumps(environment, indent=2) + "\n")
        run.error_log.unlink(missing_ok=True)
        run.result.unlink(missing_ok=True)
        if config.study:
            list_in_study(Path(config.results_dir), config.study, run.name)
        if from_step and not before:
            console.say(f"{run.name}: resuming at step {from_step} of {config.training.steps}")
        model, facts = _train(experiment, run, checkpoint, device, tracker, display)
        steps = facts["finished_step"]
        curve, summary = _measure(experiment, identity.label, model.to(device), steps, run, tracker, display)
        facts = {key: before[key] for key in ("seconds_per_step",) if before and key in before} | facts
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
    done = "evaluated" if before else "resumed" if from_step else "trained"
    return RunResult(experiment, run, run.read_result() or {}, done, curve)


def _train(
    experiment: Experiment,
    run: RunDirectory,
    checkpoint: dict[str, Any] | None,
    device: str,
    tracker: Tracker,
    display: console.Display,
) -> tuple[Transformer, dict[str, Any]]:
    from pe_experiments.training import Checkpointer, Recorder, StreamDataModule, TrainingModule, train

    training, source = experiment.config.training, source_of(experiment)
    model = build_model(experiment)
    if checkpoint:
        load_weights(model, checkpoint, run.checkpoint)
    if checkpoint and checkpoint["finished"]:
        return model, {"finished_step": checkpoint["global_step"]}
    module = TrainingModule(model, training, experiment.config.seed)

    def record(row: dict[str, Any]) -> None:
        tracker.metrics(row)
        display.row(row)

    validation = TrainingStream(source, training.batch_size, "mixed", "validation")
    recorder = Recorder(validation, record, display.step)
    data = StreamDataModule(TrainingStream(source, training.batch_size, training.batching))
    first = checkpoint["global_step"] if checkpoint else 0
    display.start("training", training.steps, first)
    started = time.monotonic()
    train(
        module, data, device, [recorder, Checkpointer(run.checkpoint)], run.checkpoint if checkpoint else None
    )
    display.stop()
    seconds = (time.monotonic() - started) / max(1, module.last_step - first)
    return model, {"finished_step": module.last_step, "seconds_per_step": round(seconds, 5)}


def _measure(
    experiment: Experiment,
    label: str,
    model: Transformer,
    steps: int,
    directory: RunDirectory,
    tracker: Tracker,
    display: console.Display,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from pe_experiments.comparison.figures import run_figure  # matplotlib, likewise

    lengths, examples = experiment.evaluation_lengths, experiment.config.evaluation.examples
    training, source, longest = (
        experiment.config.training,
        evaluation_source_of(experiment),
        experiment.max_length,
    )
    other, seen = experiment.other_task, dict[int, int | None]()
    if not other:
        batches = TrainingStream(source, training.batch_size, training.batching)
        made = [source.task.nearest_length(length) or length for length in lengths]
        seen = seen_in_training(batches, steps, source, made, examples)
    display.start("evaluating examples", len(lengths) * examples)
    rows = extrapolation_curve(model, source, lengths, examples, longest, experiment.decoding, display.step)
    curve = []
    for row in rows:
        # Lengths within those of the training are no in-distribution examples of another task.
        split = "other_task" if other else row["split"]
        curve.append(row | {"seen": seen.get(row["content_length"]), "split": split})
    display.stop()
    tracker.curve(curve)
    title = f"{label} on {(other or experiment.components['task']).label}"
    run_figure(curve, title, experiment.max_length, directory.figure)
    return curve, summarise(curve, experiment.max_length)


def _found(
    experiment: Experiment,
    identity: Identity,
    run: RunDirectory,
    finished: dict[str, Any],
    device: str,
    display: console.Display,
) -> RunResult:
    """A finished run: as it is, or measured otherwise into ``evaluations/<hash8>`` without training."""
    config = experiment.config
    if config.study and run.path.parent.parent == Path(config.results_dir):
        list_in_study(Path(config.results_dir), config.study, run.name)
    evaluation = evaluated(experiment)
    if finished["status"] != COMPLETED or evaluation == finished["evaluation"]:
        return RunResult(experiment, run, finished, "found", _stored_curve(run))
    directory = run.evaluation(short_hash(evaluation))
    if there := directory.read_result():
        return RunResult(experiment, directory, there, "found", _stored_curve(directory))
    model = _trained_model(experiment, run)
    label = identity.label
    if evaluation["pe"] != finished["evaluation"]["pe"]:
        label = f"{label} evaluated as {experiment.components['pe'].label}"
    kept = {key: finished[key] for key in ("status", "name", "task", "model", "seed", "steps")}
    if experiment.other_task:
        kept["evaluated_on"] = experiment.other_task.label
    created = directory.create()
    with directory.lock():
        tracker = None
        try:
            saved = _saved_config(experiment, identity)
            write_atomically(directory.config, OmegaConf.to_yaml(OmegaConf.create(saved)))
            name = f"{run.name}-e{directory.name}"
            tracker = Tracker(directory, name, saved, config.logger, group=run.name, job_type="evaluation")
            steps = finished.get("finished_step", config.training.steps)
            curve, summary = _measure(experiment, label, model.to(device), steps, directory, tracker, display)
        except BaseException:
            display.stop()
            if tracker:
                tracker.close()
            if created:
                directory.remove()
            raise
        upload = tracker.close(summary, directory.figure)
        directory.write_result(
            {**kept, "label": label, **summary, "evaluation": evaluation, "upload": upload}
        )
    return RunResult(experiment, directory, directory.read_result() or {}, "evaluated", curve)


def _trained_model(experiment: Experiment, run: RunDirectory) -> Transformer:
    checkpoint = require_checkpoint(run)
    preflight(experiment)
    model = build_model(experiment)
    try:
        model.load_state_dict(model_weights(checkpoint))
    except RuntimeError as error:
        raise UserError(
            f"pe={experiment.components['pe'].label} has other parameters than the scheme {run.name} was "
            f"trained with; only schemes with the same parameters can take over its weights"
        ) from error
    return model


def require_checkpoint(run: RunDirectory) -> dict[str, Any]:
    """The checkpoint of a finished run.

    Raises:
        UserError: it is missing or damaged.
    """
    if (checkpoint := read_checkpoint(run.checkpoint)) is None:
        raise UserError(
            f"{run.checkpoint} is missing, so the run cannot be evaluated; add rerun=true to train it again"
        )
    return checkpoint


def _saved_config(experiment: Experiment, identity: Identity) -> dict[str, Any]:
    """What ``config.yaml`` says: everything set, derived and identified; ``rerun`` was this call's alone."""
    config = plain(experiment.config.model_dump()) | {"rerun": False}
    return {**config, "derived": experiment.derived, "identity": identity.as_dict()}


def _stored_curve(directory: RunDirectory) -> list[dict[str, Any]]:
    result = directory.read_result()
    return read_curve(directory.curve) if result and result["status"] == COMPLETED else []
