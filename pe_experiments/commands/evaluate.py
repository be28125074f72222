"""Evaluate a finished run at other lengths, on another task or with another encoding.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_experiments.commands.command_line import RunSettings, command, show_result
from pe_experiments.configuration.hydra_errors import key_of
from pe_experiments.configuration.schema import resolved, validated
from pe_experiments.terminal.console import Lines


@command("evaluate", __doc__)
def run(cfg: DictConfig) -> None:
    keys = [key_of(text) for text in HydraConfig.get().overrides.task]
    requested = resolved(cfg)
    settings = validated(RunSettings, {key: requested[key] for key in RunSettings.model_fields})
    from pe_experiments.run import evaluate  # imports torch
    from pe_experiments.store.finished import finished_run

    run_keys = [key for key in keys if key not in (*RunSettings.model_fields, "local")]
    finished = finished_run(settings.directory(), requested, run_keys, settings.trust)
    show_result(evaluate(finished, Lines()))
