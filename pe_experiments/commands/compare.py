"""Compare finished runs: statistics, figures, a short report, and a page that opens from disk.

python scripts/compare.py results_dir=results [study=NAME] [out=DIR]
python scripts/compare.py 'pe=[rope,alibi]' task=copy baseline=rope      only these runs
python scripts/compare.py logger=wandb                                   and log it as one run
"""

import sys

from pe_experiments.command_line import run_script, wants_help
from pe_experiments.console import display_for, say


def main() -> None:
    if wants_help(__doc__, "compare"):
        return
    from pe_experiments.comparison import compare
    from pe_experiments.comparison.compare import show
    from pe_experiments.comparison.settings import read_settings

    asked, logger = read_settings(sys.argv[1:])
    say(f"reading {asked['results_dir']}/runs")
    made = compare(**asked, display=display_for())
    show(made)
    if logger:
        from pe_experiments.comparison.mirror import log_comparison

        say(log_comparison(made, logger))


def run() -> None:
    """The command; ends the process."""
    sys.exit(run_script(main))


if __name__ == "__main__":
    run()
