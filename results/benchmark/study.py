"""Read the numbers of the page from ``table.csv``, which ``scripts/benchmark.py`` writes."""

from pathlib import Path
from typing import Any

import pandas as pd

from pe_experiments.studies import Study
from pe_experiments.terminal.files import read_json

SMALL = "d=64, 2 layers, batch 8, 1 to 20 symbols"
WIDE = "d=128, 4 layers, batch 128 x 40 tokens"
TEXT = "text: d=64, 2 layers, batch 8 x 256 bytes"
RATIOS = {  # by name on the page: part, setting and case of a row of table.csv
    "defaults": ("peers: fastest at its default", WIDE, "pe_experiments"),
    "best": ("peers: fastest at its best float32", WIDE, "pe_experiments"),
    "small": ("small: fastest at its best float32", SMALL, "pe_experiments"),
    "text": ("peers: fastest at its best float32", TEXT, "pe_experiments"),
    "rope": ("encodings", "defaults", "rope"),
    "alibi": ("encodings", "defaults", "alibi"),
}


def values(folder: Path) -> dict[str, Any]:
    """Return the ratios and the description of the machine.

    Raises:
        KeyError: ``table.csv`` lacks a row; run ``scripts/benchmark.py``.
    """
    table = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
    ratios = table.set_index(["part", "setting", "case"])["ratio"]
    return read_json(folder / "machine.json") | {name: ratios[row] for name, row in RATIOS.items()}


STUDY = Study(values=values)
