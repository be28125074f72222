"""Measure a finished run otherwise.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

import sys

from pe_experiments.command_line import evaluation_changes, run_script, wants_help
from pe_experiments.console import display_for, show_result


def main() -> int:
    if wants_help(__doc__, "evaluate"):
        return 0
    path, changes = evaluation_changes(sys.argv[1:])
    from pe_experiments.evaluations import evaluate_run

    result = evaluate_run(path, changes, display_for())
    show_result(result)
    return 0


def run() -> None:
    """The command; ends the process."""
    sys.exit(run_script(main))


if __name__ == "__main__":
    run()
