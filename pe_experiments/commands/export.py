"""Write a finished run as a folder to share: safetensors weights, config.json and a model card.

python scripts/export.py run=results/runs/NAME out=FOLDER
python scripts/export.py run=results/runs/NAME out=FOLDER push_to_hub=ORG/NAME
"""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_experiments.commands.command_line import command, find_requested_run, required
from pe_experiments.configuration.hydra_errors import key_of
from pe_experiments.configuration.schema import Folder, Repository, Section, resolved, validated
from pe_experiments.terminal.console import say


class ExportSettings(Section):
    """The options of ``configs/export.yaml``."""

    run: Folder
    out: Folder
    push_to_hub: Repository | None
    results_dir: Folder
    trust: bool


@command("export", __doc__)
def run(cfg: DictConfig) -> None:
    required(cfg, run="results/runs/NAME", out="FOLDER")
    settings = validated(ExportSettings, resolved(cfg))
    keys = [key_of(text) for text in HydraConfig.get().overrides.task]
    directory = find_requested_run(settings.run, settings.results_dir, keys)
    from pe_experiments.analysis.model_folder import require_hub, upload_folder, write_model_folder
    from pe_experiments.store.csv_files import read_curve  # imports torch
    from pe_experiments.store.directory import output_folder
    from pe_experiments.store.finished import finished_run, trained_model

    if settings.push_to_hub:
        require_hub()
    run = finished_run(directory, trust=settings.trust)
    model = trained_model(run)
    folder = output_folder(settings.out, directory.results_dir)
    write_model_folder(run, model, read_curve(directory.curve), folder)
    say(f"model:  {folder}")
    say(
        f'load:   pe_experiments.load_model("{Path(settings.out)}"{", trust=True" if settings.trust else ""})'
    )
    if settings.push_to_hub:
        say(f"hub:    {upload_folder(folder, settings.push_to_hub)}")


if __name__ == "__main__":
    run()
