"""Measure a finished run otherwise.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from pathlib import Path

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.compose import changed_sections, composed
from pe_experiments.store.directory import RunDirectory
from pe_experiments.terminal.console import Lines
from pe_experiments.terminal.errors import UserError, allowed, shown

OWN = ("run=", "results_dir=", "trust=")  # settings of this command; the others are of the run


def main(arguments: list[str]) -> None:
    path, changes, trust = evaluation_asked(arguments)
    from pe_experiments.run import evaluate_run

    show_result(evaluate_run(path, changes, Lines(), trust))


def evaluation_asked(arguments: list[str]) -> tuple[Path, dict[str, object], bool]:
    """The run to evaluate, the sections that change, and trust; run names mean something else to Hydra."""
    texts = [argument.lstrip("+") for argument in arguments]
    start = {"results_dir": composed("config", [])["results_dir"], "trust": "false"}
    own = start | dict(text.split("=", 1) for text in texts if text.startswith(OWN))
    if "run" not in own:
        raise UserError("run is missing; for example run=results/runs/NAME")
    if (trust := own["trust"]) not in ("true", "false"):
        raise UserError(f"trust={shown(trust)}: expected true or false")
    named = Path(own["run"].strip("'\""))
    places = dict.fromkeys([named, Path(own["results_dir"], "runs", named)])  # one, of an absolute path
    runs = [run for run in map(RunDirectory, places) if run.config.exists()]
    if not runs:
        missing = allowed(str(RunDirectory(path).config) for path in places)
        raise UserError(f"run={shown(named)}: there is no run; looked for {missing}")
    changes = [text for text in texts if not text.startswith(OWN)]
    return runs[0].path, changed_sections(runs[0].read_config(), changes), trust == "true"


run = command("evaluate", __doc__, main)
