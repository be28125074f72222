"""A comparison as one run of Weights & Biases: the table, the figures and the page."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from pe_experiments.comparison.compare import Comparison
from pe_experiments.config import LoggerConfig
from pe_experiments.identity import short_hash
from pe_experiments.tracking import start_wandb


def log_comparison(made: Comparison, logger: LoggerConfig) -> str:
    """Log it under job type ``comparison``, with the ids of the runs it compares.

    Comparing the same runs again updates it.

    Returns:
        What to tell the user: how to upload, or that it is there.

    Raises:
        UserError: Weights & Biases cannot start in the mode asked for.
    """
    if logger.mode == "disabled":
        return "logger.mode=disabled: not logged"
    import pandas as pd
    import wandb

    ids = sorted(made.runs.saved)
    names = sorted(made.runs.saved[name]["identity"]["name"] for name in ids)
    config = {"runs": names, "left_out": made.runs.left_out}
    name = f"comparison-{short_hash(names)}"
    run = start_wandb(made.files[0].parent, name, config, logger, None, "comparison")
    shown = made.table.loc[:, [column for column in made.table if "@" not in str(column)]]
    shown = shown.astype(object).where(pd.notna(shown), None)
    content: dict[str, Any] = {"comparison/table": wandb.Table(dataframe=shown)}
    for path in made.files:
        if path.suffix == ".png":
            content[f"comparison/figures/{path.stem}"] = wandb.Image(str(path))
        elif path.suffix == ".html":
            content["comparison/page"] = wandb.Html(path.read_text(), inject=False)
    run.log(content)
    offline, folder = run.offline, Path(run.dir).parent
    run.finish()
    return f"upload: wandb sync {shlex.quote(os.path.relpath(folder))}" if offline else f"logged as {name}"
