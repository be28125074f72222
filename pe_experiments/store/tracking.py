"""Weights & Biases as a mirror of a run's CSV files: always one wandb run with the whole history."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_experiments.store.csv_files import METRICS, Row
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.names import short_hash
from pe_experiments.store.plan import Plan
from pe_experiments.terminal.errors import UserError, sentence

# Columns of the curve that are panels over length; extrapolation.csv has the others, which describe the task.
MEASURED = ("exact_match", "exact_match_low", "exact_match_high", "token_accuracy", "loss")
LENGTHS = "extrapolation/lengths"  # in the summary: those whose values are there
SIZE = ("parameters", "encoding_parameters")
MOST_NAME, MOST_TAG = 128, 64  # characters that Weights & Biases takes


class Mirror:
    """One run, or one of its evaluations, in Weights & Biases; none where ``logger.mode`` is ``disabled``."""

    def __init__(self, plan: Plan, directory: RunDirectory):
        mirrors = plan.experiment.config.logger.mode != "disabled"
        self._wandb = _start(plan, directory) if mirrors else None
        there = self._wandb.summary if self._wandb else {}  # of an online run that is being resumed
        self._last_step = int(there.get("training/step") or 0)
        self._has_curve = there.get(LENGTHS) is not None

    def metrics(self, row: Row) -> None:
        """One row of the training curve, unless it is there already."""
        if self._wandb and row["step"] > self._last_step:
            self._wandb.log({f"training/{key}": value for key, value in row.items()})

    def curve(self, rows: Sequence[Row], texts: Sequence[Row]) -> None:
        """The extrapolation curve, and of a language model what was measured by length besides."""
        if not self._wandb or self._has_curve:
            return
        for row in rows:
            named = {f"extrapolation/{key}": row[key] for key in MEASURED if row[key] is not None}
            named["extrapolation/length"] = row["length"]
            for text in texts:
                if text["length"] == row["content_length"] and text["slice"] != "index":
                    prefix = f"text/{text['windows']}_{text['slice']}"
                    measured = {"bits_per_byte", "accuracy"} & text.keys()
                    named |= {f"{prefix}_{key}": text[key] for key in measured}
            self._wandb.log(named)
        self._wandb.summary.update({LENGTHS: [row["length"] for row in rows]})

    def close(self, summary: Row | None, result: Row, figure: Path) -> str | None:
        """End the wandb run, failed without a summary; returns the command that uploads an offline one."""
        if not self._wandb:
            return None
        import wandb

        if summary is not None:
            self._wandb.log({"extrapolation/figure": wandb.Image(str(figure))})
            self._wandb.summary.update(summary | {key: result[key] for key in SIZE if key in result})
        folder, offline = Path(self._wandb.dir).parent, self._wandb.offline
        self._wandb.finish(exit_code=0 if summary is not None else 1)
        return f"wandb sync {shlex.quote(os.path.relpath(folder))}" if offline else None


def _start(plan: Plan, directory: RunDirectory) -> Any:
    """A wandb run whose files lie in the directory; an offline mirror that was there is made anew."""
    # Its look-up at start is the one thing wandb would ask the network for offline.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    config, trained, run_id, job = plan.experiment.config, plan.identity.trained, plan.run.name, "training"
    label, task = plan.identity.label[:MOST_TAG], plan.experiment.components["task"].choice[:MOST_TAG]
    name, logger = f"{label}, {task}, seed {config.seed}", config.logger
    alike = f"{label}, {task} [{short_hash(trained | {'seed': None})[:4]}]"  # in all but the seed
    group = (f"{config.study}: {alike}" if config.study else alike)[-MOST_NAME:]
    if directory is not plan.run:
        run_id, name, job = f"{run_id}-e{directory.name}", f"{name}, evaluated again", "evaluation"
    if logger.mode == "offline":
        for old in directory.path.glob("wandb/offline-run-*"):
            shutil.rmtree(old)
    said: dict[str, Any] = logger.model_dump() | {"name": name[:MOST_NAME], "id": run_id, "job_type": job}
    tags = (*(tag[:MOST_TAG] for tag in logger.tags), label, task, plan.experiment.model_choice[:MOST_TAG])
    said |= {"group": group, "tags": list(dict.fromkeys(tags))}
    said["resume"] = "allow" if logger.mode == "online" else None
    quiet: dict[str, Any] = dict.fromkeys(("silent", "x_disable_stats", "disable_git", "disable_code"), True)
    quiet["console"] = "off"
    try:
        mirror = wandb.init(**said, config=plan.saved_config, dir=directory.path, settings=quiet)
    except Exception as error:
        without = "allowed without an account: offline or disabled"
        why = f"Weights & Biases could not start ({sentence(error)}); {without}"
        raise UserError(f"logger.mode={logger.mode}: {why}") from error
    by_length: Any = {"step_metric": "extrapolation/length", "summary": "none"}
    for key in METRICS:
        mirror.define_metric(f"training/{key}", step_metric="training/step", hidden=key == "step")
    for name in ("length", *MEASURED):  # the value logged last, at the longest length, is no summary
        mirror.define_metric(f"extrapolation/{name}", **by_length, hidden=name == "length")
    mirror.define_metric("text/*", **by_length)
    return mirror
