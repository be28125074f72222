"""Show one or several encodings without training, as tables and a page with sliders.

python scripts/show_encoding.py pe=sinusoidal
python scripts/show_encoding.py 'encodings=[sinusoidal,learned]'
"""

from omegaconf import DictConfig

from pe_experiments.commands.command_line import command, settings_of
from pe_experiments.configuration.schema import validated


def main(config: DictConfig) -> None:
    settings = settings_of(config)
    from pe_experiments.analysis.show import ShowSettings, show_encodings  # imports torch

    show_encodings(validated(ShowSettings, settings))


run = command("show_encoding", __doc__, main)
