"""Check an implementation of a positional encoding and identify it.

python scripts/check_encoding.py pe._target_=my_module.MyEncoding [against=rope]
"""

from typing import Any

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.schema import validated


def main(settings: dict[str, Any]) -> None:
    from pe_experiments.checking.check_encoding import CheckSettings, check_encoding  # imports torch

    if not check_encoding(validated(CheckSettings, settings)):
        raise SystemExit(1)


run = command("check_encoding", __doc__, main)
