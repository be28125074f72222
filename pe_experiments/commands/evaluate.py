"""Measure a finished run otherwise.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from pathlib import Path

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.compose import changed_sections
from pe_experiments.store.directory import RunDirectory
from pe_experiments.terminal.console import display_for
from pe_experiments.terminal.errors import UserError, shown


def main(arguments: list[str]) -> None:
    path, changes, trust = evaluation_asked(arguments)
    from pe_experiments.run import evaluate_run

    show_result(evaluate_run(path, changes, display_for(), trust))


def evaluation_asked(arguments: list[str]) -> tuple[Path, dict[str, object], bool]:
    """The run to evaluate, the sections that change, and trust; run names mean something else to Hydra."""
    texts = [argument.lstrip("+") for argument in arguments]
    named = [argument.partition("=")[2].strip("'\"") for argument in texts if argument.startswith("run=")]
    if not named:
        raise UserError("run is missing; for example run=results/runs/NAME")
    path = Path(named[-1])
    if not (path / "config.yaml").exists():
        raise UserError(f"run={path}: there is no run (no config.yaml); finished ones lie under results/runs")
    trust = [text.removeprefix("trust=") for text in texts if text.startswith("trust=")] or ["false"]
    if trust[-1] not in ("true", "false"):
        raise UserError(f"trust={shown(trust[-1])}: expected true or false")
    changes = [text for text in texts if not text.startswith(("run=", "trust="))]
    return path, changed_sections(RunDirectory(path).read_config(), changes), trust[-1] == "true"


run = command("evaluate", __doc__, main)
