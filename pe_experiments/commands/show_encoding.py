"""Show a scheme, or several side by side, without training.

python scripts/show_encoding.py pe=sinusoidal
python scripts/show_encoding.py 'schemes=[sinusoidal,learned]'
"""

import sys

from pe_experiments.command_line import composed, run_script, wants_help


def main() -> None:
    if wants_help(__doc__, "show_encoding"):
        return
    config = composed("show_encoding", sys.argv[1:])
    from pe_experiments.analysis.show import show_encodings

    show_encodings(config)


def run() -> None:
    """The command; ends the process."""
    sys.exit(run_script(main))


if __name__ == "__main__":
    run()
