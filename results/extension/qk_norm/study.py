"""RoPE removed from models with normalised queries and keys; results/extension compares these runs."""

from pathlib import Path


def pages(folder: Path) -> None:
    """Draw nothing: the page of results/extension shows these CSVs."""
