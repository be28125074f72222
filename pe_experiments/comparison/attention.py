"""Attention by distance of chosen runs, at the longest training length and at twice that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pe_experiments.analysis.attention_by_distance import attention_by_distance
from pe_experiments.checkpoints import model_weights, read_checkpoint
from pe_experiments.comparison.runs_table import Runs
from pe_experiments.composition import parts_outside
from pe_experiments.config import Experiment, check, resolve
from pe_experiments.errors import UserError, nearest, shown
from pe_experiments.instantiation import build_model
from pe_experiments.models import Transformer
from pe_experiments.plots import COLOURS, MARKERS, text
from pe_experiments.runs import COMPLETED, RunDirectory

COLUMNS = ["run", "length", "layer", "head", "distance", "weight"]


def measure_attention(runs: Runs, results_dir: Path, names: Sequence[str]) -> pd.DataFrame:
    """Attention by distance of these runs: columns ``run, length, layer, head, distance, weight``.

    Raises:
        UserError: a name that is no compared run, or a run whose weights cannot be loaded.
    """
    completed = runs.runs.loc[runs.runs["status"] == COMPLETED, "name"]
    frames = []
    for name in names:
        if name not in set(completed):
            wrong = f"attention: {name} is no completed run of this comparison."
            raise UserError(wrong + nearest(name, completed))
        experiment, model = _trained(runs, results_dir / "runs" / name)
        for length in (experiment.max_length, 2 * experiment.max_length):
            frames.append(attention_by_distance(experiment, model, length).assign(run=name, length=length))
    return pd.concat(frames, ignore_index=True)[COLUMNS] if frames else pd.DataFrame(columns=COLUMNS)


def _trained(runs: Runs, path: Path) -> tuple[Experiment, Transformer]:
    saved = {key: value for key, value in runs.saved[path.name].items() if key not in ("identity", "derived")}
    if strange := parts_outside(saved):
        raise UserError(
            f"attention: {path.name} has parts from outside this package ({shown(strange[0])}), which a "
            f"comparison does not import"
        )
    experiment = resolve(check(saved))
    checkpoint = read_checkpoint(RunDirectory(path).checkpoint)
    if checkpoint is None:
        raise UserError(f"attention: {path.name} has no checkpoint any more")
    model = build_model(experiment)
    try:
        model.load_state_dict(model_weights(checkpoint))
    except RuntimeError as error:
        changed = f"attention: the source of {path.name} has changed; its weights no longer fit"
        raise UserError(changed) from error
    return experiment, model


def attention_figure(attention: pd.DataFrame, run: str, width: float) -> Figure:
    """One run: a row per length, a panel per layer, a line per head."""
    here = attention[attention["run"] == run]
    lengths, layers = sorted(here["length"].unique()), sorted(here["layer"].unique())
    figure = Figure(figsize=(width, 0.5 + 1.8 * len(lengths)), layout="constrained")
    figure.suptitle(text(run, 100))
    grid = figure.subplots(len(lengths), len(layers), squeeze=False, sharey=True)
    for (length, layer), panel in here.groupby(["length", "layer"]):
        axes = grid[lengths.index(length), layers.index(layer)]
        for head, line in panel.groupby("head"):
            turn = int(str(head))
            look: Any = {"color": COLOURS[turn % len(COLOURS)], "marker": MARKERS[turn % len(MARKERS)]}
            every = max(1, len(line) // 8)
            axes.plot(line["distance"], line["weight"], **look, markersize=3, markevery=every, linewidth=1.0,
                      label=f"head {head}")  # fmt: skip
        axes.set_title(f"layer {layer}, input length {length}")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean attention weight")
    figure.supxlabel("distance from key to query (tokens)", fontsize=8)
    grid[0, -1].legend(frameon=False, fontsize=7, ncols=2)
    return figure
