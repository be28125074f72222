"""Evaluate a finished run at other lengths, on another task or with another encoding.

python scripts/evaluate.py run=results/runs/NAME 'evaluation.lengths=[50,500]' [pe=OTHER]
"""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from pe_experiments.commands.command_line import command, show_result
from pe_experiments.configuration.compose import changed_sections, unchangeable
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
    typed = list(HydraConfig.get().overrides.task)
    path, changes, trust = requested_evaluation(settings, typed)
    from pe_experiments.run import evaluate_run

    show_result(evaluate_run(path, changes, Lines(), trust))


def requested_evaluation(settings: dict[str, Any], typed: list[str]) -> tuple[Path, dict[str, Any], bool]:
    """Return the run, the sections changed by the typed overrides, and whether the run is trusted."""
    given = {key: settings[key] for key in EvaluateSettings.model_fields}
    if given["run"] == "???":
        raise UserError("run is missing; for example run=results/runs/NAME")
    options = validated(EvaluateSettings, given)
    folders = [Path(), Path(options.results_dir, "runs")]
    if "results_dir" in map(key_of, typed):
        if Path(options.run).name != options.run:
            raise UserError(
                f"run={shown(options.run)} is a path; results_dir is where a NAME alone is looked for"
            )
        folders = folders[1:]
    run = find_run("run", options.run, folders)
    texts = [text for text in typed if key_of(text) not in given]
    return run.path, changed_sections(run.read_config(), texts, settings), options.trust


def allow_run_options(texts: list[str]) -> list[str]:
    """Let typed overrides name options that only the run has; `changed_sections` checks them."""
    known = {*EvaluateSettings.model_fields, *groups_of("evaluate")}
    for key in map(key_of, texts):
        if key not in known and (CONFIG_DIR / key).is_dir():
            raise unchangeable(key)
    return [text if key_of(text) in known or text[:1] in "+~-" else f"++{text}" for text in texts]


run = command("evaluate", __doc__, main, prepare=allow_run_options)
