"""Show a scheme, or several side by side, without training: tables, a figure, and a page with sliders.

python scripts/show_encoding.py pe=sinusoidal
python scripts/show_encoding.py 'schemes=[sinusoidal,learned]'
"""

from pe_experiments.commands.command_line import command
from pe_experiments.configuration.compose import composed


def main(arguments: list[str]) -> None:
    config = composed("show_encoding", arguments)
    from pe_experiments.analysis.show import show_encodings

    show_encodings(config)


run = command("show_encoding", __doc__, main)
