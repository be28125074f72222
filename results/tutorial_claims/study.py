"""Judge the claims of tutorials on sinusoidal encodings.

Claims about vectors and code are judged in `untrained` by the conditions in ``claims.csv``, and claims about
trained models in `trained`.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.comparison import Runs
from pe_experiments.studies import Study, read_archive, read_table, table
from results.bank.study import early_scores

from .audits import audit_all
from .trained import Trained, judge_trained
from .untrained import DEPENDS, FAILS, HOLDS, UNSUPPORTED, UNTESTED, judge_untrained

HERE = Path(__file__).parent
BANK = HERE.parent / "bank"
OURS = "ours"  # the source of a claim that no document states
VERDICTS = {"hold": HOLDS, "depend": DEPENDS, "fail": FAILS, "unsupported": UNSUPPORTED, "untested": UNTESTED}
HEADING = ("claim", "source, word for word", "how tested", "measured", "verdict", "figure")


def measure(folder: Path, runs: Runs, results_dir: Path) -> None:
    """Write ``audits.csv``."""
    audit_all().to_csv(folder / "audits.csv", index=False)


def values(folder: Path) -> dict[str, Any]:
    """Return the table of all claims, and the number of documented claims by verdict."""
    bank = read_archive(BANK)
    scores = early_scores(bank)
    bank_runs = bank.runs.merge(scores[["name", "learned"]], on="name")
    claims = judge(read_table(folder / "audits.csv"), Trained(read_archive(folder), bank_runs))
    return counts(claims) | {"claims": claim_table(claims)}


def judge(audits: pd.DataFrame, trained: Trained) -> pd.DataFrame:
    """Return the rows of ``claims.csv`` with the columns ``measured`` and ``verdict`` filled in."""
    claims = read_table(HERE / "claims.csv").fillna("")
    findings = judge_untrained(claims, audits) | judge_trained(trained)
    rows = zip(claims["claim"], claims["measured"], strict=True)
    judgements = [findings.get(claim, (measured, UNTESTED)) for claim, measured in rows]
    return claims.assign(
        measured=[value for value, _ in judgements], verdict=[verdict for _, verdict in judgements]
    )


def counts(claims: pd.DataFrame) -> dict[str, int]:
    """Return the number of documented claims by verdict, about vectors and about trained models."""
    stated = claims[claims["source"] != OURS]
    groups = {"vectors": stated[stated["holds_if"] != ""], "trained": stated[stated["holds_if"] == ""]}
    totals = {group: len(rows) for group, rows in groups.items()}
    for group, rows in groups.items():
        for name, verdict in VERDICTS.items():
            totals[f"{group}_{name}"] = (rows["verdict"] == verdict).sum()
    return totals


def claim_table(claims: pd.DataFrame) -> str:
    links = [f"[figure](figures/{figure}.png)" if figure else "" for figure in claims["figure"]]
    cells = claims.assign(figure=links, quoted=[quotation(row) for row in claims.to_dict("records")])
    columns = ["claim", "quoted", "tested", "measured", "verdict", "figure"]
    return table(cells[columns].set_axis([*HEADING], axis=1))


def quotation(row: dict[Any, Any]) -> str:
    """Return the quotation with its source, or ``ours`` if no document states the claim.

    Quotations that contain formulas or code are set as code.
    """
    if row["source"] == OURS:
        return OURS
    words = row["quotation"]
    return f"`{words}` ({row['source']})" if set("$_\\=") & set(words) else f"“{words}” ({row['source']})"


STUDY = Study(sweep=("tutorial_claims",), values=values, measures=(measure,), compare=True)
