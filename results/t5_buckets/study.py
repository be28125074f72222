"""Copying with T5 by the last bucket's edge."""

from pathlib import Path

from pe_experiments.published import compare_archived, markdown_table, read_archive, with_settings

LENGTHS = (12, 15, 20, 22)
pages = compare_archived


def blocks(folder: Path) -> dict[str, str]:
    """Mean exact match over seeds, a row per ``max_distance``."""
    runs = read_archive(folder)
    curves = runs.curves.merge(with_settings(runs, edge="pe.max_distance")[["name", "edge"]], on="name")
    means = curves.groupby(["edge", "content_length"])["exact_match"].mean().unstack()[list(LENGTHS)]
    rows = [[f"{edge:g}", *(f"{value:.2f}" for value in row)] for edge, row in means.iterrows()]
    return {"answer": markdown_table(["`max_distance`", *(f"at {length}" for length in LENGTHS)], rows)}
