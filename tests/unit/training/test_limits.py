"""Where results may be written."""

from pathlib import Path

import pytest

from pe_experiments.store.directory import refuse_among_runs
from pe_experiments.terminal.errors import UserError


@pytest.mark.parametrize("out", ["runs", "runs/a/figures", "study/../runs"])
def test_output_folders_among_the_runs_are_refused(out: str, tmp_path: Path) -> None:
    refuse_among_runs(tmp_path / "runs_of_others", tmp_path)
    with pytest.raises(UserError, match="is among the runs"):
        refuse_among_runs(tmp_path / out, tmp_path)
