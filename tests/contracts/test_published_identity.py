"""Every published configuration keeps its identity.

`config_key` of each row of each ``provenance.csv`` is compared with ``published_keys.json``, which has one
digest of all keys for each study. Where the name of a run still ends in the hash of its identity, that is
compared, too. After a change that must alter keys, as when the path of a text stopped to count (text/prose):
``python -m tests.contracts.test_published_identity`` writes the file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest

from pe_experiments.store.identity import config_key
from tests.conftest import ROOT

KEYS = Path(__file__).with_name("published_keys.json")
STUDIES = sorted(path.parent for path in (ROOT / "results").rglob("provenance.csv"))


def rows(study: Path) -> pd.DataFrame:
    """Return the rows of a ``provenance.csv``, with the configuration and data files as JSON."""
    table = pd.read_csv(
        study / "provenance.csv", keep_default_na=False, na_values=[""], engine="python", dtype=str
    )
    return table.ffill()


def digest(study: Path) -> str:
    """Return the number of runs and a digest of their names and keys."""
    lines = [
        f"{row.name} {config_key(json.loads(row.trained), json.loads(row.data))}"
        for row in rows(study).itertuples(index=False)
    ]
    return f"{len(lines)} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"


def name_of(study: Path) -> str:
    return study.relative_to(ROOT / "results").as_posix()


@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_published_configurations_keep_their_keys(study: Path) -> None:
    assert digest(study) == json.loads(KEYS.read_text())[name_of(study)]


if __name__ == "__main__":
    KEYS.write_text(json.dumps({name_of(study): digest(study) for study in STUDIES}, indent=2) + "\n")
