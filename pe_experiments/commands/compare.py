"""Compare finished runs: statistics, figures, and a page that opens from disk.

python scripts/compare.py results_dir=results [study=NAME] [out=DIR]
python scripts/compare.py 'pe=[rope,alibi]' task=copy baseline=rope      only these runs
"""

import gc
from pathlib import Path

from pe_experiments.commands.command_line import command
from pe_experiments.terminal.console import display_for, say


def main(arguments: list[str]) -> None:
    gc.set_threshold(1_000_000)  # else it looks through all that was read again and again
    from pe_experiments.comparison import compare
    from pe_experiments.comparison.compare import show
    from pe_experiments.comparison.settings import read_settings

    asked = read_settings(arguments)
    asked["out"] = asked["out"] or Path(asked["results_dir"]) / (asked["study"] or "comparison")
    say(f"reading {asked['results_dir']}/runs")
    show(compare(**asked, display=display_for()))


run = command("compare", __doc__, main)
