"""How many runs of a study are repeated before it is published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from pe_experiments.published import publish
from pe_experiments.store.directory import COMPLETED


@pytest.mark.parametrize(("finished", "repeated"), [(1, 1), (5, 1), (10, 1), (11, 2), (30, 3), (200, 3)])
def test_one_run_in_ten_is_repeated_three_at_most(
    finished: int, repeated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def kind_of_run(made: Any, row: dict[str, Any], before: pd.DataFrame) -> Any:
        return SimpleNamespace(run=row["name"], commanded=lambda: row["name"])

    monkeypatch.setattr(publish, "kind_of_run", kind_of_run)
    for name in ("check", "resolve"):
        monkeypatch.setattr(publish, name, lambda config: config)
    monkeypatch.setattr(publish, "identify", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(publish, "replayed", lambda requests, *_: asked.extend(requests) or [])
    rows = [{"name": f"run-{n}", "status": COMPLETED} for n in range(finished)] + [
        {"name": "diverged", "status": ""}
    ]
    publish.repeat_some("study", SimpleNamespace(runs=pd.DataFrame(rows)), [], pd.DataFrame({"name": []}))
    names = [request.kind.run for request in asked]
    assert len(names) == len(set(names)) == repeated
    assert "diverged" not in names
