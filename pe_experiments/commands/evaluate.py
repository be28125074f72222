"""Evaluate a finished run at other lengths, on another task or with another encoding.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pe_experiments.commands.command_line import RunSettings, command, show_result
from pe_experiments.configuration.config_groups import groups_of
from pe_experiments.configuration.hydra_errors import key_of
from pe_experiments.configuration.schema import Config, resolved, validated
from pe_experiments.terminal.console import Lines
from pe_experiments.terminal.errors import UserError, allowed


@command("evaluate", __doc__)
def run(cfg: DictConfig) -> None:
    keys = [key_of(text) for text in HydraConfig.get().overrides.task]
    requested = resolved(cfg)
    settings = validated(RunSettings, {key: requested[key] for key in RunSettings.model_fields})
    from pe_experiments.run import evaluate_run  # imports torch
    from pe_experiments.store.identity import Record

    directory = settings.directory()
    saved = directory.read_config()
    Record.read(directory, saved)  # refuses a damaged configuration
    run_keys = [key for key in keys if key not in (*RunSettings.model_fields, "local")]
    changes = changed_sections(saved, requested, run_keys)
    show_result(evaluate_run(directory.path, changes, Lines(), settings.trust))


def changed_sections(saved: dict[str, Any], requested: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return the sections of a run's saved configuration that the user changes for an evaluation.

    Args:
        saved: the configuration of the run.
        requested: the configuration of this command.
        keys: of the user's options, such as ``pe`` or ``evaluation.lengths``.
    """
    from pe_experiments.configuration.merge import with_settings  # imports torch

    changeable = groups_of("evaluate").keys() & Config.model_fields.keys()
    sections = {key.partition(".")[0] for key in keys}
    if fixed := sorted(sections - changeable):
        raise UserError(f"{fixed[0]} is fixed by the training; allowed: {allowed(sorted(changeable))}")
    merged = with_settings(saved, requested, keys)
    return {section: merged[section] for section in sections}
