"""The released runs on SCAN."""

from __future__ import annotations

from results.replications import scan


def test_released_runs_have_three_seeds_of_five_encodings() -> None:
    released = scan.exact_match()[scan.THEIRS]
    assert released.groupby("encoding").size().to_dict() == dict.fromkeys(scan.ENCODINGS.values(), 3)
    assert released[[*scan.LENGTHS, "in distribution"]].notna().all(axis=None)
    order = scan.means(released).sort_values().index
    assert [*order] == ["sinusoidal", "rope_partial", "alibi", "t5", "none"]
