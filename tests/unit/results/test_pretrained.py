"""Test the page of the pretrained model against its CSVs."""

import numpy as np
import pytest

from results.pretrained import study as pretrained
from tests import recomputation
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "pretrained"


def test_losses_are_those_of_the_csvs() -> None:
    losses = {
        (row["rope"], int(row["length"])): float(row["bits_per_byte"])
        for row in recomputation.read_csv(FOLDER / "bits_per_byte.csv")
    }
    values = pretrained.values(FOLDER)
    for (rope, length), loss in losses.items():
        assert values[f"{rope}_{length}"] == loss
    bits = pretrained.by_stretch(FOLDER)
    sizes = {row["stretch"]: int(row["bytes"]) for row in recomputation.read_csv(FOLDER / "stretches.csv")}
    for (rope, length), by_stretch in bits.items():
        mean = np.average(by_stretch, weights=[sizes[str(stretch)] for stretch in by_stretch.index])
        assert losses[rope, length] == pytest.approx(mean)
    assert values["rise"] == pytest.approx(losses["ntk", 16384] - losses["as_is", 8192])
    for rope in ("linear", "ntk", "llama3", "yarn"):  # "below `as_is` on all four stretches"
        assert (bits[rope, 16384] < bits["as_is", 16384]).all()
    assert max(losses[rope, 16384] for rope in ("yarn", "llama3", "ntk")) < losses["linear", 16384]
