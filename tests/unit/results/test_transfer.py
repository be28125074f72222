"""Test the study of transfer to text: the correlations in hindsight against scipy."""

import pytest
from scipy import stats

from results.transfer import study as transfer
from tests import recomputation

CLASSES = {
    "none": 1, "sinusoidal": 0, "learned": 0, "learned+random_offset": 1, "rope": 0, "rope+random_subset": 1,
    "p_rope": 0, "alibi": 2, "kerple_log": 2, "fire": 1, "t5": 1, "fox": 2,
}  # fmt: skip


def test_the_page_says_what_scipy_finds_of_twelve_encodings() -> None:
    """Formulas that were drawn up after the results rank text better than the bank."""
    scores: dict[tuple[str, str], list[float]] = {}
    for row in recomputation.read_csv(transfer.RESULTS / "bank" / "scores.csv"):
        if int(row["configuration"]) < 12 and row["learned"] == "True":
            scores.setdefault((row["label"], row["task"]), []).append(float(row["score"]))
    past = []
    for label in CLASSES:
        of_tasks = [scores[label, task] for task in ("copy", "flip_flop", "induction", "kth", "lag")]
        past.append(sum(sum(values) / len(values) for values in of_tasks) / 5)
    losses = transfer.load(transfer.RESULTS)
    falls = -transfer.rises(losses).groupby("label").mean()[[*CLASSES]]
    values = transfer.values(losses)
    assert values["twelve/classes_rho"] == pytest.approx(
        stats.spearmanr([*CLASSES.values()], falls).statistic
    )
    assert values["twelve/bank_rho"] == pytest.approx(stats.spearmanr(past, falls).statistic)
