"""What tutorials on sinusoidal encodings claim, and what was measured: a verdict per claim, from data alone.

Claims about vectors and code are judged in `untrained` by the conditions of ``claims.csv``, claims about trained
models in `trained`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import yaml  # type: ignore[import-untyped]

from pe_experiments.comparison import Runs
from pe_experiments.published import compare_archived, markdown_table, read_archive, read_table
from pe_experiments.published.settings import FLOORS, scored
from pe_experiments.run import evaluate_run
from pe_experiments.store.csv_files import read_curve
from pe_experiments.terminal.console import say
from pe_experiments.terminal.files import CONFIG_DIR

from . import audits
from .trained import EXTENSIONS, Trained, of_training
from .untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED, judged

HERE = Path(__file__).parent
BANK = HERE.parent / "bank" / "v2"
SETTINGS = 9  # of a task of the bank; with fewer it decides nothing
OURS = "ours"  # no document states the claim
WORDS = {
    HOLDS: "hold",
    DEPENDS: "depend on conditions (column *measured*)",
    FAILS: "do not hold",
    UNSUPPORTED: "are not supported",
    UNTESTED: "were not tested",
}
COLUMNS = ("length", "exact_match", "token_accuracy")
pages = compare_archived
HEADING = ("claim", "source, word for word", "how tested", "measured", "verdict", "figure")


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """``audits.csv``, and ``extension.csv``: every RoPE run evaluated as trained and rescaled, per length."""
    audits.audited().to_csv(folder / "audits.csv", index=False)
    rows = []
    for run in runs.runs[runs.runs["label"] == "rope"].to_dict("records"):
        path = results_dir / "runs" / run["name"]
        quiet = {**runs.saved[run["name"]]["logger"], "mode": "disabled"}
        for scheme in ("rope", *EXTENSIONS):
            curve = read_curve(path / "extrapolation.csv")
            if scheme != "rope":
                say(f"{run['name']}: evaluated as {scheme}")
                pe = yaml.safe_load((CONFIG_DIR / "pe" / f"{scheme}.yaml").read_text())
                curve = evaluate_run(path, {"pe": pe, "logger": quiet}).curve
            common = {"name": run["name"], "seed": run["seed"], "scheme": scheme}
            rows += [common | {key: point[key] for key in COLUMNS} for point in curve]
    pd.DataFrame(rows).to_csv(folder / "extension.csv", index=False)


def verdicts(audited: pd.DataFrame, trained: Trained) -> pd.DataFrame:
    """The claims of ``claims.csv``, in the order tutorials make them, with what was ``measured`` and the ``verdict``."""
    claims = read_table(HERE / "claims.csv").fillna("")
    found = {row["claim"]: (row["measured"], UNTESTED) for row in claims.to_dict("records")}
    found |= judged(claims, audited) | of_training(trained)
    measured, judgements = zip(*(found[claim] for claim in claims["claim"]), strict=True)
    return claims.assign(measured=measured, verdict=judgements)


def blocks(folder: Path) -> dict[str, str]:
    """How many claims hold, and all of them."""
    bank = read_archive(BANK)
    rows = scored(bank, read_table(BANK / FLOORS))
    rows = rows[rows.groupby("task")["setting"].transform("nunique") >= SETTINGS]
    counted = bank.runs[bank.runs["name"].isin(rows["name"])]
    trained = Trained(read_archive(folder), read_table(folder / "extension.csv"), counted)
    made = verdicts(read_table(folder / "audits.csv"), trained)
    return {"answer": answer(made), "claims": table(made)}


def table(made: pd.DataFrame) -> str:
    """A row per claim."""
    links = [f"[figure](figures/{figure}.png)" if figure else "" for figure in made["figure"]]
    cells = made.assign(figure=links, quoted=[quoted(row) for row in made.to_dict("records")])
    return markdown_table(
        HEADING, cells[["claim", "quoted", "tested", "measured", "verdict", "figure"]].to_numpy().tolist()
    )


def quoted(row: dict[Any, Any]) -> str:
    """The source's words, formulas and code as code, and its name; *ours* where no source states the claim."""
    if row["source"] == OURS:
        return OURS
    words = row["quotation"]
    return f"`{words}` ({row['source']})" if set("$_\\=") & set(words) else f"“{words}” ({row['source']})"


def answer(made: pd.DataFrame) -> str:
    """How many claims hold, by who states them."""
    said, ours = [], made["source"] == OURS
    for who, own in (
        ("statements of four tutorials", made[~ours]),
        ("claims that no source states", made[ours]),
    ):
        counts = own["verdict"].value_counts()
        words = ", ".join(f"{counts[verdict]} {word}" for verdict, word in WORDS.items() if verdict in counts)
        said.append(f"Of {len(own)} {who} {words}.")
    return " ".join(said)
