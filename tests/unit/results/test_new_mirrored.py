"""Test that independent code finds the scores of the newer encodings in the mirrored configurations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from results.bank.new_mirrored import study
from tests import recomputation

FOLDER = Path(study.__file__).parent


def test_independent_code_finds_the_scores_and_their_means() -> None:
    rows = recomputation.read_csv(FOLDER / "scores.csv")
    complete = {int(row["setting"]) for row in rows}
    values = study.blocks(FOLDER)
    assert values["settings"] == len(complete) > 0
    new = recomputation.bank_runs(FOLDER, floors_of=study.MIRRORED)
    earlier = recomputation.bank_runs(study.MIRRORED)
    bank = {task: new[task] | earlier[task] for task in study.bank.TELLING}
    for row in rows:
        measures = bank[row["task"]][row["label"]][int(row["setting"])]
        assert float(row["score"]) == pytest.approx(measures["score"])
        assert (row["learned"] == "True") == measures["learned"]
    scores = recomputation.over_tasks(bank, study.bank.TELLING, "score")
    table = {line.split("|")[1].strip(" `"): line.split("|")[2] for line in values["means"].splitlines()[2:]}
    assert set(table) == set(scores)
    for label, by_setting in scores.items():
        mean = np.mean([by_setting[setting] for setting in complete])
        assert float(table[label]) == pytest.approx(mean, abs=0.0051)
