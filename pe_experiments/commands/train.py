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
from pe_experiments.files import CONFIG_DIR


def main() -> int:
    sys.argv[1:] = flags_first(normalised(sys.argv[1:]))
    refuse_unknown_flags(sys.argv[1:])
    parse_overrides([a for a in sys.argv[1:] if "=" in a and not a.startswith("-")])
    from pe_experiments.sweeps.sweep import SweepOver

    codes: list[int] = []  # exit code of a single run
    failures: list[BaseException] = []  # its error; raised outside Hydra, which would add words of its own

    @hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="config")
    def job(config: DictConfig) -> None:
        from pe_experiments.jobs import single_job

        try:
            codes.append(single_job(config))
        except (Exception, KeyboardInterrupt) as error:
            failures.append(error)

    try:
        job()
    except SweepOver as over:  # Hydra's multirun has been replaced by ours
        if over.error:
            raise over.error from None
        return over.code
    for error in failures:
        raise error
    return codes[0] if codes else 0


def run() -> None:
    """The command; ends the process."""
    sys.exit(run_script(main))


if __name__ == "__main__":
    run()
