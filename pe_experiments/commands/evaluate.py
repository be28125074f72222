"""Measure a finished run otherwise.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from pathlib import Path

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.compose import changed_sections
from pe_experiments.store.directory import RunDirectory
from pe_experiments.terminal.console import Lines
from pe_experiments.terminal.errors import UserError, shown


def main(arguments: list[str]) -> None:
    path, changes, trust = evaluation_asked(arguments)
    from pe_experiments.run import evaluate_run

    show_result(evaluate_run(path, changes, Lines(), trust))


def evaluation_asked(arguments: list[str]) -> tuple[Path, dict[str, object], bool]:
    """The run to evaluate, the sections that change, and trust; run names mean something else to Hydra."""
    texts = [argument.lstrip("+") for argument in arguments]
    named = [argument.partition("=")[2].strip("'\"") for argument in texts if argument.startswith("run=")]
    if not named:
        raise UserError("run is missing; for example run=results/runs/NAME")
    trust = ["false", *(text.removeprefix("trust=") for text in texts if text.startswith("trust="))][-1]
    if trust not in ("true", "false"):
        raise UserError(f"trust={shown(trust)}: expected true or false")
    changes = [text for text in texts if not text.startswith(("run=", "trust="))]
    saved = RunDirectory(path := Path(named[-1])).read_config()
    return path, changed_sections(saved, changes), trust == "true"


run = command("evaluate", __doc__, main)
