"""What train.py does for one configuration."""

from __future__ import annotations

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_experiments.command_line import command_alone
from pe_experiments.console import say


def single_job(config: DictConfig) -> int:
    """The one run of a command; returns the exit code.

    Raises:
        UserError: it cannot be carried out.
    """
    from pe_experiments.config import check, resolve

    checked = check(config)  # before torch is imported
    from pe_experiments import environment
    from pe_experiments.console import display_for, show_result
    from pe_experiments.experiment import run_experiment, try_out
    from pe_experiments.runs import plan

    experiment = resolve(checked)
    if config.dry_run:
        try_out(experiment)
        planned = plan(experiment)
        lengths = ", ".join(map(str, experiment.evaluation_lengths))
        say(f"{planned.state}: {planned.run.path}\nevaluated at {lengths}")
        return 0
    environment.command = command_alone(HydraConfig.get().overrides.task)
    result = run_experiment(experiment, display_for())
    show_result(result)
    return 0 if result.status == "completed" else 1
