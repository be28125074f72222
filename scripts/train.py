"""Train one configuration on short sequences and measure it on long ones; -m or sweep=NAME for many."""

import sys

import hydra
from omegaconf import DictConfig

from pe_experiments import sweep
from pe_experiments.command_line import flags_first, normalised, parse_overrides, run_script
from pe_experiments.config import check, resolve
from pe_experiments.console import display_for, say, show_result
from pe_experiments.runs import plan

failures: list[
    BaseException
] = []  # of a single run; raised again outside Hydra, which would print its own words


@hydra.main(version_base="1.3", config_path="../configs", config_name="config")
def job(config: DictConfig) -> None:
    if sweep.in_sweep():
        sweep.sweep_job(config)
        return
    try:
        sweep.exit_code = single(config)
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)


def single(config: DictConfig) -> int:
    experiment = resolve(check(config))
    planned = plan(experiment)
    if config.dry_run:
        lengths = ", ".join(map(str, experiment.evaluation_lengths))
        say(f"{planned.state}: {planned.run.path}\nevaluated at {lengths}")
        return 0
    from pe_experiments.experiment import run_experiment  # after everything that can fail early

    result = run_experiment(experiment, display_for())
    show_result(result)
    return 0 if result.status == "completed" else 1


def main() -> int:
    sys.argv[1:] = flags_first(normalised(sys.argv[1:]))
    parse_overrides(
        [argument for argument in sys.argv[1:] if "=" in argument and not argument.startswith("-")]
    )
    job()
    if failures:
        raise failures[0]
    return sweep.exit_code


if __name__ == "__main__":
    sys.exit(run_script(main))
