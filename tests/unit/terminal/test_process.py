"""What is set for a whole process: threads for the time of a run, the rest in commands and workers only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.store.environment import describe_environment
from pe_experiments.terminal import process
from pe_experiments.training.device import use_device


@pytest.mark.parametrize("command", [[], ["python", "scripts/train.py"]])
def test_a_run_has_the_threads_it_asks_for_wherever_it_runs(
    command: list[str], tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "command", command)
    before = torch.get_num_threads()
    with use_device(tiny("trainer.threads=2", "trainer.accelerator=cpu").config) as device:
        assert device == "cpu"
        assert describe_environment(device)["threads"] == 2
        assert not command or describe_environment(device)["command"] == command
    assert torch.get_num_threads() == before != 2
