"""From the parts asked for to ``table.csv``, ``table.md``, a figure and a description of the machine."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from pe_experiments import __version__, matmul, plots
from pe_experiments.benchmark.parts import PARTS, Bench
from pe_experiments.benchmark.timing import Row
from pe_experiments.config import Count, Folder, Section
from pe_experiments.console import display_for, say, say_files
from pe_experiments.environment import prepare_hardware, processor
from pe_experiments.errors import UserError, allowed
from pe_experiments.files import write_atomically
from pe_experiments.validation import validated

WARM_UP = 3
COLUMNS = list(Row.__dataclass_fields__)


class Settings(Section):
    """What ``configs/benchmark.yaml`` may say."""

    parts: Annotated[list[str], Field(min_length=1)]
    repeats: Count
    threads: Count
    out: Folder


def benchmark(config: DictConfig) -> list[Path]:
    """Measure, and write each part as soon as it is done.

    Raises:
        UserError: a wrong setting.
    """
    asked = _settings(config)
    _prepare(asked.threads)
    machine, folder = describe_machine(asked.threads), Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    rows = _earlier(folder, machine)
    bench = Bench(asked.repeats, WARM_UP, display_for())
    files: list[Path] = []
    for name in asked.parts:
        measured: list[Row] = []
        try:
            for row in PARTS[name](bench):
                measured.append(row)
        finally:
            bench.display.stop()
        families = {row.part for row in measured}
        kept = rows[~rows["part"].isin(families)]
        new = pd.DataFrame([row.as_dict() for row in measured], columns=COLUMNS)
        rows = pd.concat([kept, new], ignore_index=True) if len(kept) else new
        files = _write(folder, rows, machine)
        for row in measured:
            say(_sentence(row))
    say_files(files)
    return files


def describe_machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    found = matmul.float32_errors()
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "platform": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pe_experiments": __version__,
        "matmul": found.backend,
        "onednn_keeps_float32": found.keeps_float32,
    }


def _settings(config: DictConfig) -> Settings:
    asked = validated(Settings, OmegaConf.to_container(config, resolve=True))
    for part in asked.parts:
        if part not in PARTS:
            raise UserError(f"parts: {part} is not one of the choices: {allowed(PARTS)}")
    return asked


def _prepare(threads: int) -> None:
    from pe_experiments.benchmark.workloads import experiment

    hardware = experiment().config.hardware
    prepare_hardware(hardware.model_copy(update={"threads": threads, "accelerator": "cpu"}))


def _earlier(folder: Path, machine: dict[str, Any]) -> pd.DataFrame:
    """The table of an earlier call on the same machine; figures of two machines do not belong together."""
    try:
        if json.loads((folder / "machine.json").read_text()) == machine:
            return pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])[COLUMNS]
    except (OSError, ValueError, KeyError):
        pass
    return pd.DataFrame(columns=COLUMNS)


def _write(folder: Path, rows: pd.DataFrame, machine: dict[str, Any]) -> list[Path]:
    write_atomically(folder / "machine.json", json.dumps(machine, indent=2) + "\n")
    write_atomically(folder / "table.csv", rows.to_csv(index=False))
    write_atomically(folder / "table.md", _markdown(rows, machine))
    return [folder / "table.csv", *draw(rows, machine, folder)]


def _markdown(rows: pd.DataFrame, machine: dict[str, Any]) -> str:
    words = ", ".join(f"{key} {value}" for key, value in machine.items())
    lines = [f"Measured side by side; medians. {words}.", ""]
    for (part, setting), group in rows.groupby(["part", "setting"], sort=False):
        lines += [
            f"**{part}**: {setting}",
            "",
            "| case | ms | ratio (quartiles) | to | |",
            "|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in group.to_dict("records")]
        lines.append("")
    return "\n".join(lines)


def _line(row: dict[Any, Any]) -> str:
    row = {key: None if pd.isna(value) else value for key, value in row.items()}
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    if row["ratio_low"] is not None:
        ratio += f" ({row['ratio_low']:.2f}-{row['ratio_high']:.2f})"
    other = "" if row["figure"] is None else f"{row['figure']:.3g} {row['unit']}"
    return f"| {row['case']} | {row['milliseconds']:.1f} | {ratio} | {row['against'] or ''} | {other} |"


def _sentence(row: Row) -> str:
    said = f"{row.part}, {row.setting}: {row.case} {row.milliseconds:.1f} ms"
    if row.ratio is not None and row.case != row.against:
        said += f", {row.ratio:.2f} of {row.against}"
    return said + (f", {row.figure:.3g} {row.unit}" if row.figure is not None else "")


def draw(rows: pd.DataFrame, machine: dict[str, Any], folder: Path) -> list[Path]:
    """Peers, schemes, and memory over length, as far as they have been measured."""
    panels = [
        (part, group)
        for (part, _), group in rows.groupby(["part", "setting"], sort=False)
        if part in ("peers", "schemes")
    ]
    long = rows[rows["part"] == "lengths"]
    number = len(panels) + bool(len(long))
    if not number:
        return []
    with plots.drawing():
        tallest = max([len(group) for _, group in panels], default=10)
        figure = Figure(figsize=(3.2 * number, 1.2 + 0.12 * tallest), layout="constrained")
        axes = figure.subplots(1, number, squeeze=False)[0]
        for place, (part, group) in enumerate(panels):
            _bars(axes[place], part, group)
        if len(long):
            _over_length(axes[-1], long)
        figure.suptitle(f"{machine['processor']}, {machine['threads']} thread, PyTorch {machine['torch']}")
        return plots.save(figure, folder, "benchmark")


def _bars(axes: Axes, part: str, group: pd.DataFrame) -> None:
    peer = group["case"].str.partition(",")[0]  # of each its default and its best; the table has all
    kept = (group["case"] == peer) | (group["ratio"] == group.groupby(peer)["ratio"].transform("min"))
    ordered = group[kept].sort_values("ratio", ascending=False)
    against = ordered["against"].iloc[0]
    colours = ["#0072B2" if case == against else "0.6" for case in ordered["case"]]
    errors = [ordered["ratio"] - ordered["ratio_low"], ordered["ratio_high"] - ordered["ratio"]]
    axes.barh(ordered["case"], ordered["ratio"], xerr=errors, color=colours, error_kw={"linewidth": 0.7})
    axes.axvline(1, color="black", linewidth=0.7)
    axes.set_title(f"{part}: {ordered['setting'].iloc[0]}")
    axes.set_xlabel(f"time of a training step, as a multiple of {against}")
    axes.spines[["top", "right"]].set_visible(False)


def _over_length(axes: Axes, rows: pd.DataFrame) -> None:
    tokens = rows["setting"].str.removesuffix(" tokens").astype(int)
    for case, look in plots.styles(rows["case"].unique()).items():
        mine = rows["case"] == case
        axes.plot(tokens[mine], rows["figure"][mine], color=look[0], marker=look[1], label=case)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(tokens.unique()), [str(t) for t in sorted(tokens.unique())])
    axes.set_ylim(bottom=0)
    axes.set_title("evaluation: peak memory")
    axes.set_xlabel("tokens")
    axes.set_ylabel("MB above the imports")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
