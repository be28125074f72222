"""The sweeper behind ``-m`` and ``sweep=NAME``, which launches every combination once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class GridSweeper(Sweeper):
    """Launch the product of ``hydra.sweeper.params`` and typed values, which replace params."""

    def __init__(self, params: dict[str, Any] | None = None):
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        from pe_experiments.sweeps.expansion import expand

        jobs = expand(arguments, self.params, self.hydra_context.config_loader, self.config)
        return self.launcher.launch(jobs, initial_job_idx=0)


node = {"_target_": f"{__name__}.GridSweeper", "params": {}}
ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=node, provider="pe_experiments")
