"""Settings of the whole process that a run changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.environment import describe_environment
from pe_experiments.terminal import process
from pe_experiments.training.device import use_device


@pytest.mark.parametrize("command", [[], ["python", "scripts/train.py"]])
def test_a_run_has_the_requested_threads_and_restores_their_number(
    command: list[str], tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "command", command)
    before = torch.get_num_threads()
    with use_device(tiny("trainer.threads=2", "trainer.accelerator=cpu").config) as device:
        assert device == "cpu"
        environment = describe_environment(device)
        assert environment["threads"] == 2
        if command:
            assert environment["command"] == command
    assert torch.get_num_threads() == before != 2
