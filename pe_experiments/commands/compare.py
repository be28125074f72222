"""Compare finished runs: statistics, figures, a short report, and a page that opens from disk.

python scripts/compare.py results_dir=results [study=NAME] [out=DIR]
python scripts/compare.py 'pe=[rope,alibi]' task=copy baseline=rope      only these runs
python scripts/compare.py logger=wandb                                   and log it as one run
"""

from pe_experiments.command_line import command
from pe_experiments.console import display_for, say


def main(arguments: list[str]) -> None:
    from pe_experiments.comparison import compare
    from pe_experiments.comparison.compare import show, usual_folder
    from pe_experiments.comparison.settings import read_settings

    asked, logger = read_settings(arguments)
    asked["out"] = asked["out"] or usual_folder(asked["results_dir"], asked["study"])
    say(f"reading {asked['results_dir']}/runs")
    made = compare(**asked, display=display_for())
    show(made)
    if logger:
        from pe_experiments.comparison.mirror import log_comparison

        say(log_comparison(made, logger))


run = command("compare", __doc__, main)

if __name__ == "__main__":
    run()
