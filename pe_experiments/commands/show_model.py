"""Look inside a finished run: attention, accuracy by index and distance, what its layers know of positions.

python scripts/show_model.py run=results/runs/NAME
python scripts/show_model.py run=NAME length=40
"""

from typing import Annotated

from omegaconf import DictConfig
from pydantic import Field

from pe_experiments.commands.command_line import RunSettings, command
from pe_experiments.configuration.schema import Folder, Length, validated
from pe_experiments.terminal.console import print_table, say


class ShowModelSettings(RunSettings):
    """The options of ``configs/show_model.yaml``."""

    length: Length | None
    examples: Annotated[int, Field(ge=1, le=10_000)]
    out: Folder | None


@command("show_model", __doc__)
def run(cfg: DictConfig) -> None:
    settings = validated(ShowModelSettings, cfg)
    directory = settings.directory()
    from pe_experiments.analysis.inside import look_inside, show_inside  # imports torch
    from pe_experiments.analysis.probe import DISTANCE, probe_positions, probe_table
    from pe_experiments.analysis.trained_model import load_model
    from pe_experiments.store.directory import output_folder

    results_dir = directory.results_dir
    out = output_folder(settings.out or results_dir / "models" / directory.name, results_dir)
    trained = load_model(directory.path, settings.trust)
    inside = look_inside(trained, settings.length, settings.examples)
    experiment = trained.experiment
    is_longer = inside.length > experiment.max_length
    probe = probe_positions(trained, inside.length if is_longer else None, settings.examples)
    title = f"{experiment.label} on {experiment.components['task'].label}"
    page = show_inside(inside, probe, title, experiment.max_length, out)
    say(f"input length {inside.length}: exact match {inside.exact_match:.3f} of {inside.examples} examples")
    for mistake in inside.mistakes[:3]:
        end = mistake.index + 1
        right, wrong = mistake.targets[mistake.index], mistake.answers[mistake.index] or "nothing"
        before = " ".join(mistake.targets[max(0, end - 6) : end - 1]) or "the beginning"
        say(f"mistake: after {before} the answer is {right}, the model says {wrong}")
    print_table(probe_table(probe))
    if DISTANCE not in set(probe["quantity"]):
        say(f"{experiment.components['task'].label} has no mark whose distance could be read")
    say(f"page, to be opened in a browser: {page}")
