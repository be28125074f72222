"""Commands that read a trained model: evaluate, show_model and export, and of others evaluate_pretrained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from pydantic import Field

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.choices import key_of
from pe_experiments.configuration.schema import Folder, Length, Repository, Section, resolved, validated
from pe_experiments.terminal.console import Lines, print_table, say
from pe_experiments.terminal.errors import UserError, shown

if TYPE_CHECKING:  # imports torch
    from pe_experiments.store.directory import RunDirectory


class RunSettings(Section):
    """Options of a command that reads a finished run."""

    run: Folder
    results_dir: Folder
    trust: bool

    def directory(self) -> RunDirectory:
        """Return the directory of the run, given by its path or by its name in ``results_dir/runs``."""
        from pe_experiments.store.directory import find_run  # imports torch

        folders = [Path(), Path(self.results_dir, "runs")]
        if "results_dir" in map(key_of, HydraConfig.get().overrides.task):
            if Path(self.run).name != self.run:
                how = "is a path; results_dir is where a NAME alone is looked for"
                raise UserError(f"run={shown(self.run)} {how}")
            folders = folders[1:]
        return find_run("run", self.run, folders)


@command("evaluate")
def evaluate(cfg: DictConfig) -> None:
    """Evaluate a finished run at other lengths, on another task or with another encoding.

    python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
    """
    keys = [key_of(text) for text in HydraConfig.get().overrides.task]
    requested = resolved(cfg)
    settings = validated(RunSettings, {key: requested[key] for key in RunSettings.model_fields})
    from pe_experiments.run import evaluate  # imports torch
    from pe_experiments.store.finished import finished_run

    run_keys = [key for key in keys if key not in (*RunSettings.model_fields, "local")]
    finished = finished_run(settings.directory(), requested, run_keys, settings.trust)
    show_result(evaluate(finished, Lines()))


class ShowModelSettings(RunSettings):
    length: Length | None
    examples: Annotated[int, Field(ge=1, le=10_000)]
    out: Folder | None


@command("show_model")
def show_model(cfg: DictConfig) -> None:
    """Look inside a finished run: attention, accuracy by index and distance, what layers know of positions.

    python scripts/show_model.py run=results/runs/NAME
    python scripts/show_model.py run=NAME length=40
    """
    settings = validated(ShowModelSettings, cfg)
    directory = settings.directory()
    from pe_experiments.analysis.inside import look_inside, show_inside  # imports torch
    from pe_experiments.analysis.probe import DISTANCE, probe_positions, probe_table
    from pe_experiments.analysis.trained_model import load_model
    from pe_experiments.store.directory import output_folder

    results_dir = directory.results_dir
    trained = load_model(directory.path, settings.trust)
    out = output_folder(settings.out or results_dir / "models" / directory.name, results_dir)
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


class ExportSettings(RunSettings):
    out: Folder
    push_to_hub: Repository | None


@command("export")
def export(cfg: DictConfig) -> None:
    """Write a finished run as a folder to share: safetensors weights, config.json and a model card.

    python scripts/export.py run=results/runs/NAME out=FOLDER
    python scripts/export.py run=results/runs/NAME out=FOLDER push_to_hub=ORG/NAME
    """
    settings = validated(ExportSettings, cfg)
    directory = settings.directory()
    from pe_experiments.analysis.model_folder import require_hub, upload_folder, write_model_folder
    from pe_experiments.store.csv_files import read_run_curve  # imports torch
    from pe_experiments.store.directory import output_folder
    from pe_experiments.store.finished import finished_run, trained_model

    if settings.push_to_hub:
        require_hub()
    run = finished_run(directory, trust=settings.trust)
    model = trained_model(run)
    folder = output_folder(settings.out, directory.results_dir)
    curve = read_run_curve(directory, directory.read_result() or {})
    write_model_folder(run, model, curve, folder)
    say(f"model:  {folder}")
    say(
        f'load:   pe_experiments.load_model("{Path(settings.out)}"{", trust=True" if settings.trust else ""})'
    )
    if settings.push_to_hub:
        say(f"hub:    {upload_folder(folder, settings.push_to_hub)}")


@command("evaluate_pretrained", renamed={"model": "path"})
def evaluate_pretrained(cfg: DictConfig) -> None:
    """Measure a pretrained language model over context length, as it is and with rescaled RoPE.

    python scripts/evaluate_pretrained.py model=FOLDER text=FOLDER 'rope=[as_is,yarn]' 'lengths=[2048,16384]'
    python scripts/evaluate_pretrained.py model=FILE.gguf              on Python's standard library
    python scripts/evaluate_pretrained.py model=FOLDER measure=needle  a fact hidden in the text
    python scripts/evaluate_pretrained.py model=FOLDER text=A finetune.text=B finetune.steps=100
    """
    settings = resolved(cfg)
    settings["model"] = settings.pop("path")
    from pe_experiments.pretrained.context_curve import (  # imports torch
        PretrainedSettings,
        evaluate_pretrained,
    )
    from pe_experiments.pretrained.report import show

    # configs/local may contain options of other commands.
    options = {key: settings[key] for key in PretrainedSettings.model_fields}
    show(evaluate_pretrained(validated(PretrainedSettings, options), Lines()))
