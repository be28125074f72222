"""Check an implementation of a positional encoding and identify it.

python scripts/check_encoding.py pe._target_=my_module.MyEncoding [against=rope|new]
"""

from omegaconf import DictConfig

from pe_experiments.commands.command_line import command, required_choice
from pe_experiments.configuration.schema import validated


@command("check_encoding", __doc__)
def run(cfg: DictConfig) -> None:
    required_choice("pe", "mine.MyEncoding")
    from pe_experiments.checking.check_encoding import CheckSettings, check_encoding  # imports torch

    raise SystemExit(int(check_encoding(validated(CheckSettings, cfg))))
