"""Compare finished runs: python scripts/compare.py results_dir=results [study=NAME] [out=DIR]"""

import sys

from pe_experiments.command_line import composed, run_script, wants_help
from pe_experiments.console import say
from pe_experiments.errors import UserError


def main() -> None:
    if wants_help(__doc__, "compare"):
        return
    config = composed("compare", sys.argv[1:])
    for key in ("results_dir", "study", "out"):
        if not isinstance(config[key], str) and not (config[key] is None and key != "results_dir"):
            raise UserError(f"{key}={config[key]}: expected text")
    from pe_experiments.comparison import compare
    from pe_experiments.comparison.compare import show

    say(f"reading {config.results_dir}/runs")
    show(compare(config.results_dir, config.study, config.out))


if __name__ == "__main__":
    sys.exit(run_script(main))
