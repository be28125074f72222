"""Test the data of the explorer and how its page holds them."""

import json
import re
from typing import Any

import pytest

from pe_experiments.analysis.show_encoding import encoding_view, explorer_page
from pe_experiments.checking.subject import build, reference_of
from pe_experiments.configuration.choices import shipped
from pe_experiments.terminal.files import read_json
from results.encodings import study
from tests.conftest import ROOT

FOLDER = ROOT / "results" / "encodings"


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return read_json(FOLDER / "explorer.json")


def view(name: str) -> dict[str, Any]:
    return encoding_view(name, "", build(reference_of(name).build, study.SHAPE))


def test_the_published_encodings_are_shipped(data: dict[str, Any]) -> None:
    """A new encoding is on the page once `python results/encodings/study.py` was run."""
    names = [encoding["name"] for encoding in data["encodings"]]
    assert names == sorted(set(names) & set(shipped("pe")))


def test_the_published_data_are_those_of_this_code(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("learned", "rope", "alibi", "t5", "cope", "fox", "hard_alibi", "logn", "stick_breaking", "none")
    chosen = {name: shipped("pe")[name] for name in names}
    monkeypatch.setattr(study, "shipped", lambda _: chosen)
    published = {encoding["name"]: encoding for encoding in data["encodings"]}
    computed = {encoding["name"]: encoding for encoding in study.encodings()}
    assert computed.keys() == chosen.keys()
    for name, encoding in computed.items():
        assert_close(encoding, published[name])
    assert_close(study.sentences(), data["sentences"])


def assert_close(computed: Any, published: Any) -> None:
    if isinstance(computed, dict):
        assert computed.keys() == published.keys()
        for key, value in computed.items():
            assert_close(value, published[key])
    elif isinstance(computed, (list, tuple)):
        for value, published_value in zip(computed, published, strict=True):
            assert_close(value, published_value)
    elif isinstance(computed, float):
        assert computed == pytest.approx(published, abs=2e-3)
    else:
        assert computed == published


def test_requested_encodings_come_first_and_cannot_end_the_script(data: dict[str, Any]) -> None:
    name = "</script><script>document.title='taken'</script>"
    page = explorer_page([view("rope") | {"name": name}, view("none")])
    assert name not in page
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert script
    content = json.loads(script[1])
    assert content["opened"] == [name, "none"]
    assert len(content["encodings"]) == len(data["encodings"]) + 1


def test_links_lead_to_files_of_the_repository(data: dict[str, Any]) -> None:
    links = re.findall(r'href="([^"]+)"', (FOLDER / "explore.html").read_text())
    files = [link for link in links if link.startswith("..")]
    assert len(files) >= 10
    assert [link for link in files if not (FOLDER / link).is_file()] == []
    elsewhere = explorer_page(data=data)  # a page that lies anywhere only names the files
    assert 'href=".' not in elsewhere
    assert "<code>docs/why.md</code>" in elsewhere
