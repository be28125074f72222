"""The second bank, as far as it has run: what each scheme reaches in the settings that are complete. Nothing is tested yet."""

from __future__ import annotations

from pathlib import Path

from pe_experiments.published import outcome_table, read_archive, with_settings


def blocks(folder: Path) -> dict[str, str]:
    """Exact match at 2x over settings in which all schemes have run, at the rate with the lower loss in distribution."""
    table = with_settings(read_archive(folder), rate="training.learning_rate")
    counts = table.groupby(["task", "seed"])["name"].transform("size")
    best = table[counts == table["label"].nunique() * table["rate"].nunique()]
    best = best.sort_values("loss_in_distribution").drop_duplicates(["task", "label", "seed"])
    best = best.sort_values("name").assign(protocol=best["task"])  # settings are what is repeated
    done = ", ".join(f"{own} of `{task}`" for task, own in best.groupby("task")["seed"].nunique().items())
    said = f"{len(table):,} of 1,728 runs are finished; complete settings: {done}."
    return {"answer": f"{said}\n\n{outcome_table(best, 'task', sorted(set(best['label'])))}"}
