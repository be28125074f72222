"""Read what published studies of texts measured, without code of the package."""

from __future__ import annotations

from pathlib import Path

from tests import recomputation


def sliding_bits(folder: Path) -> dict[tuple[str, int], float]:
    """Return bits per byte of each run in sliding windows by the run's name and the context length."""
    return {
        (row["name"], int(row["length"])): float(row["bits_per_byte"])
        for row in recomputation.read_csv(folder / "text.csv")
        if (row["windows"], row["slice"]) == ("sliding", "all")
    }
