"""Measure a finished run otherwise.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from pathlib import Path

from pe_experiments.command_line import command, show_result
from pe_experiments.composition import changed_sections
from pe_experiments.console import display_for
from pe_experiments.errors import UserError
from pe_experiments.runs import RunDirectory


def main(arguments: list[str]) -> None:
    path, changes = evaluation_asked(arguments)
    from pe_experiments.evaluations import evaluate_run

    show_result(evaluate_run(path, changes, display_for()))


def evaluation_asked(arguments: list[str]) -> tuple[Path, dict[str, object]]:
    """The run to evaluate and the sections that change; run names hold signs that mean something to Hydra.

    Raises:
        UserError: no run named, no such run, or see `changed_sections`.
    """
    texts = [argument.lstrip("+") for argument in arguments]
    named = [argument.partition("=")[2].strip("'\"") for argument in texts if argument.startswith("run=")]
    if not named:
        raise UserError("run is missing; for example run=results/runs/NAME")
    path = Path(named[-1])
    if not (path / "config.yaml").exists():
        raise UserError(f"run={path}: there is no run (no config.yaml); finished ones lie under results/runs")
    changes = [text for text in texts if not text.startswith(("run=", "trust="))]
    return path, changed_sections(RunDirectory(path).read_config(), changes, "trust=true" in texts)


run = command("evaluate", __doc__, main)

if __name__ == "__main__":
    run()
