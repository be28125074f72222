"""Limits of values, of output folders and of messages."""

from pathlib import Path

import pytest

import pe_experiments.configuration.schema as config
import pe_experiments.data.batches as data
from pe_experiments.data import randomness
from pe_experiments.store.directory import refuse_among_runs
from pe_experiments.terminal.errors import UserError, one_line, shown


def test_the_limits_of_a_configuration_are_those_of_the_random_streams() -> None:
    assert config.MAX_LENGTH == (1 << randomness.LENGTH_BITS) - 1
    assert config.MOST_EXAMPLES == data.BLOCK_EXAMPLES << randomness.BLOCK_BITS
    assert config.MOST_BATCHES == 1 << randomness.INDEX_BITS


@pytest.mark.parametrize("out", ["runs", "runs/a/figures", "study/../runs"])
def test_output_folders_among_the_runs_are_refused(out: str, tmp_path: Path) -> None:
    refuse_among_runs(tmp_path / "runs_of_others", tmp_path)
    with pytest.raises(UserError, match="is among the runs"):
        refuse_among_runs(tmp_path / out, tmp_path)


def test_messages_escape_control_characters_and_shorten_long_values() -> None:
    assert shown("a\x1b[31m\nb\u202e") == r"a\x1b[31m b\u202e"
    assert one_line(f"no {'x' * 5000}\x07") == f"no {'x' * 60}..."
