"""Evaluate a finished run at other lengths, on another task or with another encoding.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.compose import changed_sections, fixed_setting_error
from pe_experiments.configuration.groups import groups_of
from pe_experiments.configuration.overrides import key_of
from pe_experiments.configuration.schema import Folder, Section, validated
from pe_experiments.store.directory import find_run
from pe_experiments.terminal.console import Lines
from pe_experiments.terminal.errors import UserError, shown
from pe_experiments.terminal.files import CONFIG_DIR


class EvaluateSettings(Section):
    """The options of ``configs/evaluate.yaml`` for this command; other options belong to the run."""

    run: Folder
    results_dir: Folder
    trust: bool


def main(settings: dict[str, Any]) -> None:
    overrides = list(HydraConfig.get().overrides.task)
    path, changes, trust = requested_evaluation(settings, overrides)
    from pe_experiments.run import evaluate_run

    show_result(evaluate_run(path, changes, Lines(), trust))


def requested_evaluation(settings: dict[str, Any], overrides: list[str]) -> tuple[Path, dict[str, Any], bool]:
    """Return the directory of the run, the sections that the overrides change, and whether to trust the run.

    Args:
        settings: the composed configuration.
        overrides: the user's arguments.
    """
    command_options = {key: settings[key] for key in EvaluateSettings.model_fields}
    if command_options["run"] == "???":
        raise UserError("run is missing; for example run=results/runs/NAME")
    options = validated(EvaluateSettings, command_options)
    folders = [Path(), Path(options.results_dir, "runs")]
    if "results_dir" in map(key_of, overrides):
        if Path(options.run).name != options.run:
            raise UserError(
                f"run={shown(options.run)} is a path; results_dir is where a NAME alone is looked for"
            )
        folders = folders[1:]
    run = find_run("run", options.run, folders)
    run_overrides = [text for text in overrides if key_of(text) not in command_options]
    return run.path, changed_sections(run.read_config(), run_overrides, settings), options.trust


def allow_run_options(arguments: list[str]) -> list[str]:
    """Prefix options of the run with ``++``, so that Hydra accepts them; `changed_sections` checks them."""
    command_keys = {*EvaluateSettings.model_fields, *groups_of("evaluate")}
    allowed_arguments = []
    for text in arguments:
        key = key_of(text)
        if key not in command_keys and (CONFIG_DIR / key).is_dir():
            raise fixed_setting_error(key)
        is_run_option = key not in command_keys and text[:1] not in "+~-"
        allowed_arguments.append(f"++{text}" if is_run_option else text)
    return allowed_arguments


run = command("evaluate", __doc__, main, prepare=allow_run_options)
