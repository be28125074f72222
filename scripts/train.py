"""Train one configuration on short sequences and measure it on long ones; -m or sweep=NAME for many."""

import sys

import hydra
from omegaconf import DictConfig

from pe_experiments.command_line import (
    flags_first,
    normalised,
    parse_overrides,
    refuse_unknown_flags,
    run_script,
)

codes: list[int] = []  # exit code of a single run
failures: list[BaseException] = []  # its error; raised again outside Hydra, which would add words of its own


@hydra.main(version_base="1.3", config_path="../configs", config_name="config")
def job(config: DictConfig) -> None:
    from pe_experiments import jobs

    if jobs.in_sweep():
        jobs.sweep_job(config)
        return
    try:
        codes.append(jobs.single_job(config))
    except (Exception, KeyboardInterrupt) as error:
        failures.append(error)


def main() -> int:
    sys.argv[1:] = flags_first(normalised(sys.argv[1:]))
    refuse_unknown_flags(sys.argv[1:])
    parse_overrides([a for a in sys.argv[1:] if "=" in a and not a.startswith("-")])
    from pe_experiments import jobs

    with jobs.scratch_folder():
        job()
    for error in (*failures, jobs.failure):
        if error:
            raise error
    return codes[0] if codes else jobs.exit_code


if __name__ == "__main__":
    sys.exit(run_script(main))
