"""Is this implementation of a positional encoding right?

python scripts/check_encoding.py pe._target_=my_module.MyEncoding [against=rope]
"""

import sys

from pe_experiments.command_line import composed, run_script, wants_help


def main() -> int:
    if wants_help(__doc__, "check_encoding"):
        return 0
    config = composed("check_encoding", sys.argv[1:])
    from pe_experiments.checking.report import check_encoding

    return 0 if check_encoding(config) else 1


def run() -> None:
    """The command; ends the process."""
    sys.exit(run_script(main))


if __name__ == "__main__":
    run()
