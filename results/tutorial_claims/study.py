"""What tutorials on sinusoidal encodings claim, and what was measured: a verdict per claim, from data alone.

Claims about vectors and code are judged in `untrained` by the conditions of ``claims.csv``, claims about trained
models in `trained`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.published import compare_archived, markdown_table, read_archive, read_table
from pe_experiments.published.scores import FLOORS, scored

from . import audits
from .trained import Trained, of_training
from .untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED, judged

HERE = Path(__file__).parent
BANK = HERE.parent / "bank" / "v2"
SETTINGS = 9  # of a task of the bank; with fewer it decides nothing
OURS = "ours"  # no document states the claim
VERDICTS = {"hold": HOLDS, "depend": DEPENDS, "fail": FAILS, "unsupported": UNSUPPORTED, "untested": UNTESTED}
ANSWER = """\
**{vectors_hold} of the {vectors} mathematical claims of four tutorials are true as written**, \
{vectors_depend} hold under conditions, and {vectors_fail} are false. Of {trained} claims about trained \
models, {trained_depend} depend on the task, {trained_unsupported} are not supported and \
{trained_untested} were not tested."""
pages = compare_archived
HEADING = ("claim", "source, word for word", "how tested", "measured", "verdict", "figure")


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """``audits.csv``."""
    del runs, results_dir
    audits.audited().to_csv(folder / "audits.csv", index=False)


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
    counted = bank.runs.merge(rows[["name", "learned"]], on="name")
    trained = Trained(read_archive(folder), counted)
    made = verdicts(read_table(folder / "audits.csv"), trained)
    return {"answer": answer(made), "claims": table(made)}


def table(made: pd.DataFrame) -> str:
    """A row per claim."""
    links = [f"[figure](figures/{figure}.png)" if figure else "" for figure in made["figure"]]
    cells = made.assign(figure=links, quoted=[quoted(row) for row in made.to_dict("records")])
    columns = ["claim", "quoted", "tested", "measured", "verdict", "figure"]
    return markdown_table(HEADING, cells[columns].to_numpy().tolist())


def quoted(row: dict[Any, Any]) -> str:
    """The source's words, formulas and code as code, and its name; *ours* where no source states the claim."""
    if row["source"] == OURS:
        return OURS
    words = row["quotation"]
    return f"`{words}` ({row['source']})" if set("$_\\=") & set(words) else f"“{words}” ({row['source']})"


def answer(made: pd.DataFrame) -> str:
    """The sentences that open the page."""
    stated = made[made["source"] != OURS]
    untrained = stated["holds_if"] != ""
    values: dict[str, int] = {"vectors": untrained.sum(), "trained": (~untrained).sum()}
    for about, own in (("vectors", stated[untrained]), ("trained", stated[~untrained])):
        counts = own["verdict"].value_counts()
        values |= {f"{about}_{name}": counts.get(verdict, 0) for name, verdict in VERDICTS.items()}
    return ANSWER.format_map(values)
