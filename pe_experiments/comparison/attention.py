"""Attention by distance of chosen runs, inside the training lengths and at twice the longest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.analysis.attention_by_distance import attention_by_distance
from pe_experiments.checkpoints import model_weights, read_checkpoint
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.comparison.style import COLOURS, MARKERS, text
from pe_experiments.composition import parts_outside
from pe_experiments.config import check, resolve
from pe_experiments.errors import UserError, nearest, shown
from pe_experiments.instantiation import build_model
from pe_experiments.runs import COMPLETED, RunDirectory


def measure_attention(runs: Runs, results_dir: Path, names: Sequence[str]) -> pd.DataFrame:
    """Attention by distance of these runs: columns ``run, length, layer, head, distance, weight``.

    Raises:
        UserError: a name that is no compared run, or a run whose weights cannot be loaded.
    """
    completed = runs.runs.loc[runs.runs["status"] == COMPLETED, "name"]
    frames = []
    for name in names:
        if name not in set(completed):
            raise UserError(
                f"attention: {name} is no completed run of this comparison.{nearest(name, completed)}"
            )
        saved = {key: value for key, value in runs.saved[name].items() if key not in ("identity", "derived")}
        if strange := parts_outside(saved):
            raise UserError(
                f"attention: {name} has parts from outside this package ({shown(strange[0])}), which a "
                f"comparison does not import"
            )
        experiment = resolve(check(saved))
        checkpoint = read_checkpoint(RunDirectory(results_dir / "runs" / name).checkpoint)
        if checkpoint is None:
            raise UserError(f"attention: {name} has no checkpoint any more")
        model = build_model(experiment)
        try:
            model.load_state_dict(model_weights(checkpoint))
        except RuntimeError as error:
            raise UserError(
                f"attention: the source of {name} has changed; its weights no longer fit"
            ) from error
        for length in (experiment.max_length, 2 * experiment.max_length):
            frame = attention_by_distance(experiment, model, length)
            frames.append(frame.assign(run=name, length=length))
    columns = ["run", "length", "layer", "head", "distance", "weight"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def attention_figure(attention: pd.DataFrame, run: str, width: float) -> Figure:
    """One run: a row per length, a panel per layer, a line per head."""
    here = attention[attention["run"] == run]
    lengths, layers = sorted(here["length"].unique()), sorted(here["layer"].unique())
    figure = Figure(figsize=(width, 0.5 + 1.8 * len(lengths)), layout="constrained")
    figure.suptitle(text(run, 100))
    grid = figure.subplots(len(lengths), len(layers), squeeze=False, sharey=True)
    for row, length in enumerate(lengths):
        for column, layer in enumerate(layers):
            axes = grid[row, column]
            panel = here[(here["length"] == length) & (here["layer"] == layer)]
            for head, line in panel.groupby("head"):
                axes.plot(
                    line["distance"],
                    line["weight"],
                    color=COLOURS[int(str(head)) % len(COLOURS)],
                    marker=MARKERS[int(str(head)) % len(MARKERS)],
                    markersize=3,
                    markevery=max(1, len(line) // 8),
                    linewidth=1.0,
                    label=f"head {head}",
                )
            axes.set_title(f"layer {layer}, input length {length}")
            axes.spines[["top", "right"]].set_visible(False)
        grid[row, 0].set_ylabel("mean attention weight")
    figure.supxlabel("distance from key to query (tokens)", fontsize=8)
    grid[0, -1].legend(frameon=False, fontsize=7, ncols=2)
    return figure
