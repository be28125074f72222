"""Write a finished run as a folder to share: safetensors weights, config.json and a model card.

python scripts/export.py run=results/runs/NAME out=FOLDER
python scripts/export.py run=results/runs/NAME out=FOLDER push_to_hub=ORG/NAME
"""

from pathlib import Path

from omegaconf import DictConfig

from pe_experiments.commands.command_line import RunSettings, command
from pe_experiments.configuration.schema import Folder, Repository, validated
from pe_experiments.terminal.console import say


class ExportSettings(RunSettings):
    """The options of ``configs/export.yaml``."""

    out: Folder
    push_to_hub: Repository | None


@command("export", __doc__)
def run(cfg: DictConfig) -> None:
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
