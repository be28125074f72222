"""What is set for a whole process is set in commands and workers only."""

from __future__ import annotations

import pytest
import torch

from pe_experiments.configuration.schema import HardwareConfig
from pe_experiments.terminal import process
from pe_experiments.training.hardware import describe_environment, prepare_hardware

HARDWARE = HardwareConfig(accelerator="cpu", devices=1, threads=1)


@pytest.mark.parametrize("command", [[], ["python", "scripts/train.py"]])
def test_threads_are_set_in_processes_of_ours_alone(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "command", command)
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert prepare_hardware(HARDWARE) == "cpu"
    assert asked == ([1] if command else [])
    described = describe_environment("cpu")
    assert described["threads"] == 7
    assert not command or described["command"] == command


def test_owning_a_process_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "command", [])
    process.own(word for word in ("python", "x"))
    assert process.command == ["python", "x"]
