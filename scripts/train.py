"""Train one configuration on short sequences and measure it on long ones; -m or sweep=... for many. See --help."""

import sys

import hydra
from omegaconf import DictConfig

from pe_experiments import sweep
from pe_experiments.command_line import normalised, parse_overrides, run_script
from pe_experiments.config import check, resolve
from pe_experiments.console import display_for, say, show_result
from pe_experiments.runs import plan


@hydra.main(version_base="1.3", config_path="../configs", config_name="config")
def job(config: DictConfig) -> None:
    if sweep.in_sweep():
        sweep.sweep_job(config)
        return
    experiment = resolve(check(config))
    if config.dry_run:
        planned = plan(experiment)
        say(
            f"{planned.state}: {planned.run.path}; evaluated at {', '.join(map(str, experiment.evaluation_lengths))}"
        )
        return
    from pe_experiments.experiment import (
        run_experiment,
    )  # torch and more: after everything that can fail early

    result = run_experiment(experiment, display_for())
    show_result(result)
    sweep.exit_code = 0 if result.status == "completed" else 1


def main() -> int:
    sys.argv[1:] = normalised(sys.argv[1:])
    parse_overrides([argument for argument in sys.argv[1:] if not argument.startswith("-")])
    job()
    return sweep.exit_code


if __name__ == "__main__":
    sys.exit(run_script(main))
