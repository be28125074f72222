"""Test that the audits of the study of tutorials are those of its code."""

import pandas as pd
import pytest

from results.tutorial_claims.audits import NOISE, audit_all
from tests.conftest import ROOT


@pytest.mark.slow
def test_the_published_audits_are_those_of_the_code() -> None:
    audits = audit_all()
    published = pd.read_csv(ROOT / "results" / "tutorial_claims" / "audits.csv")
    assert published["quantity"].tolist() == audits["quantity"].tolist()
    assert published["value"].tolist() == pytest.approx(audits["value"].tolist(), rel=1e-3, abs=NOISE)
