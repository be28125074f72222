"""Which runs of a published study stand for its others."""

from __future__ import annotations

import pandas as pd

from pe_experiments.published.archive import SHIPPED, read_archive, where
from pe_experiments.published.replay import kinds_of


def test_a_kind_is_a_scheme_and_protocol_or_where_settings_do_not_repeat_a_task_and_model() -> None:
    bank = read_archive(SHIPPED / "bank" / "v1")
    nothing = pd.DataFrame({"name": []})
    assert len(kinds_of(bank, nothing)) == 12 * 8
    settings = where(bank, bank.runs["seed"] == 0)  # copying is there with two vocabularies
    assert len(kinds_of(settings, nothing)) == 12 * 7
