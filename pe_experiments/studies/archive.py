"""A study's runs as four CSV files, from which everything else of its folder follows without the runs.

runs.csv        a row per run: what it was, its summary figures, the command that repeats it
curves.csv      a row per run and evaluated length
training.csv    a row per run and look at the training lengths
provenance.csv  a row per run: the state of the shared code that trains (one in all rows), and as JSON what
                was trained, the digest of every module and data file, and the machine
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison.compare import MADE_WITH, runs_csv
from pe_experiments.comparison.runs_table import Runs, summary_of
from pe_experiments.errors import UserError
from pe_experiments.files import write_atomically
from pe_experiments.identity import short_hash

FILES = ("runs.csv", "curves.csv", "training.csv", "provenance.csv")
TEXTS = ("name", "label", "task", "model", "status", "protocol", "family", "scheme", "split")
DIGITS = 6  # of a recorded loss; what is shown of it has three


def require_finished(runs: Runs, study: str) -> None:
    """Refuse half a study.

    Raises:
        UserError: a run of the study is not finished.
    """
    for name, reason in runs.left_out.items():
        raise UserError(f"{study}: {name} cannot be published ({reason}); finish the study first")


def write_archive(runs: Runs, folder: Path) -> None:
    """Write the four files.

    Raises:
        UserError: a run of the study is not finished.
    """
    require_finished(runs, folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    training = runs.training[runs.training["exact_match"].notna()]
    training = training[["name", "step", "loss", "exact_match", "token_accuracy"]].round(DIGITS)
    provenance = pd.DataFrame(
        {
            "name": name,
            "code": short_hash(saved["identity"]["sources"].get("shared")),
            "trained": json.dumps(saved["identity"]["trained"]),
            "sources": json.dumps(saved["identity"]["sources"]),
            "environment": json.dumps(_public(runs.environments[name])),
        }
        for name, saved in runs.saved.items()
    )
    tables = (runs.curves, training, provenance)
    texts = [runs_csv(runs), *(table.to_csv(index=False) for table in tables)]
    for name, text in zip(FILES, texts, strict=True):
        write_atomically(folder / name, text)


def _public(environment: dict[str, Any]) -> dict[str, Any]:
    """What others need to know of the machine; not the build of its kernel."""
    return {key: value for key, value in environment.items() if key != "platform"}


def read_archive(folder: Path) -> Runs:
    """The runs of a published study.

    Raises:
        UserError: a file is missing or damaged.
    """
    try:
        runs, curves, training, provenance = (_read(folder / name) for name in FILES)
        saved: dict[str, dict[str, Any]] = {}
        training = training.merge(runs[["name", *_KEYS]], on="name", how="left")
        environments: dict[str, dict[str, Any]] = {}
        for row in provenance.to_dict("records"):
            trained, sources = json.loads(row["trained"]), json.loads(row["sources"])
            identity = {"name": row["name"], "trained": trained, "sources": sources}
            saved[row["name"]] = {"identity": identity}
            environments[row["name"]] = json.loads(row["environment"])
        curves = with_answer_tokens(curves, saved)
        runs = summarised_again(runs, curves)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} holds no published study ({type(error).__name__}: {error})") from error
    return Runs(runs.drop(columns=list(MADE_WITH)), curves, {}, training, saved, environments)


def with_answer_tokens(curves: pd.DataFrame, saved: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Curves with the columns of today, where CSVs of earlier versions do not have them.

    Tokens of the answer follow from those of the sequence: a decoder reads ``BOS x SEP y``, an encoder ``x``
    and a slot per token of ``y``; where one is read out in place the answer is as long as the input.
    """
    if "answer_tokens" in curves:
        return curves
    causal = {name: run["identity"]["trained"]["model"]["causal"] for name, run in saved.items()}
    marks = curves["name"].map(causal).astype(int) * 2
    beside = curves["tokens"] - curves["content_length"] - marks
    return curves.assign(answer_tokens=beside.where(beside > 0, curves["content_length"]), seen=float("nan"))


def summarised_again(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The runs with the summaries that their curves give today."""
    shared: dict[Any, Any] = {
        name: rows.to_dict("records") for name, rows in curves[curves["in_summary"]].groupby("name")
    }
    summaries = [
        summary_of(shared.get(name, []), int(max_length), status)
        for name, max_length, status in zip(runs["name"], runs["max_length"], runs["status"], strict=True)
    ]
    return runs.assign(**pd.DataFrame(summaries, index=runs.index))


_KEYS = ["label", "seed", "task", "model", "protocol", "status"]


def _read(path: Path) -> pd.DataFrame:
    texts = dict.fromkeys(TEXTS, str)
    # A scheme is called "none", and a hash may look like a number.
    return pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""], engine="python")
