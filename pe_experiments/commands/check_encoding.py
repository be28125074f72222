"""Is this implementation of a positional encoding right?

python scripts/check_encoding.py pe._target_=my_module.MyEncoding [against=rope]
"""

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.compose import composed
from pe_experiments.configuration.schema import validated


def main(arguments: list[str]) -> int:
    settings = composed("check_encoding", arguments)
    from pe_experiments.checking.report import CheckSettings, check_encoding  # brings torch

    return 0 if check_encoding(validated(CheckSettings, settings)) else 1


run = command("check_encoding", __doc__, main)
