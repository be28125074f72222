"""Labels, directory names, studies and locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.identity import identify
from pe_experiments.store.study_folder import list_in_study, read_manifest
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "sinusoidal"),
        (["pe=nope"], "none"),
        (["pe.base=500", "pe.combine=concat"], "sinusoidal(base=500,combine=concat)"),
        (["pe=learned", "positions=random_offset"], "learned+random_offset"),
        (["label=my_label"], "my_label"),
        (["pe.base=10000.01"], "sinusoidal(base=10000.01)"),
    ],
)
def test_labels(tiny: Tiny, overrides: list[str], label: str) -> None:
    assert tiny(*overrides).label == label


def test_directory_names_need_no_quoting(tiny: Tiny) -> None:
    name = identify(tiny("pe.base=500", "pe.combine=concat", "seed=3")).name
    assert name.startswith("copy-decoder-sinusoidal_base_500_combine_concat-s3-")
    assert not set(name) & set("=(),[]{} '\"&;|$*?")


def test_a_study_lists_each_run_once(tmp_path: Path) -> None:
    for name in ("b", "a", "b"):
        list_in_study(tmp_path, "s", name)
    assert read_manifest(tmp_path / "s" / "manifest.json")["runs"] == ["a", "b"]
    with pytest.raises(UserError, match=r"study=other.*studies there: s"):
        read_manifest(tmp_path / "other" / "manifest.json")


def test_a_locked_directory_is_refused_until_it_is_released(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path), RunDirectory(tmp_path)
    with first.lock(), pytest.raises(UserError, match="in use by another process"), second.lock():
        pass
    with second.lock():
        pass
