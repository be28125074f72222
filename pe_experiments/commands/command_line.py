"""Parts that all commands share: the entry point, help, errors and the printed result of a run."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from pe_experiments.configuration.groups import choices_of, groups_of
from pe_experiments.configuration.hydra_errors import explain_error
from pe_experiments.configuration.overrides import normalise_overrides
from pe_experiments.configuration.schema import resolve_interpolations
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Row, complain, print_table, reader_left, say
from pe_experiments.terminal.errors import UserError, error_place, one_line, sentence, shown
from pe_experiments.terminal.files import CONFIG_DIR

if TYPE_CHECKING:  # imports torch
    from pe_experiments.run import RunResult

COMMENT = re.compile("^# (?!@package)(.*)", re.MULTILINE)  # the first comment of a config describes it
SWEEP_OPTIONS = ("hydra.sweep", "hydra/sweep", "hydra.launcher", "hydra/launcher", "hydra.callbacks.report")


class CommandFailed(BaseException):
    """Raised when a command fails outside a sweep, with the error as ``__cause__``.

    It is not an Exception, because Hydra would print an Exception itself.
    """


class CommandFunction:
    """The function that Hydra calls; it passes the configuration to ``function`` as plain values."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]):
        self.function = function
        self.__module__ = function.__module__  # from which Hydra derives the name of the job

    def __call__(self, config: DictConfig) -> Any:
        try:
            return self.function(_settings(config))
        except Exception as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise
            raise CommandFailed from error


def command(
    name: str,
    usage: str | None,
    function: Callable[[dict[str, Any]], Any],
    config: str | None = None,
    prepare: Callable[[list[str]], list[str]] = list,
) -> Callable[[], NoReturn]:
    """Return the entry point of a command as a Hydra application.

    It prints each error in one line on stderr, or with a traceback if ``HYDRA_FULL_ERROR=1`` is set.

    Args:
        name: name of the command, as in ``scripts/NAME.py``.
        usage: text at the top of the help.
        function: called with the composed configuration as plain values.
        config: name of the primary configuration, by default the name of the command.
        prepare: changes the arguments before Hydra reads them.
    """
    primary = config or name
    decorate = hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name=primary)
    application = decorate(CommandFunction(function))

    def run() -> NoReturn:
        arguments = sys.argv[1:]
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            sys.exit(_complain("the working directory was deleted; change to one that exists"))
        process.set_up([*process.typed_command(name), *arguments])
        signal.signal(signal.SIGTERM, process.interrupt)  # so that a sweep ends its workers, as on Ctrl-C
        if folder not in sys.path:
            sys.path.append(folder)  # for the user's encodings and tasks in the working directory
        usage_text = str(usage).replace(f"python scripts/{name}.py", " ".join(process.typed_command(name)))
        OmegaConf.register_new_resolver("help", lambda: help_text(primary, usage_text), replace=True)
        with process.hydra_raises() as full_error:
            code = _exit_code(application, prepare, primary, full_error)
        process.leave(code)

    return run


def _exit_code(
    application: Callable[[], Any],
    prepare: Callable[[list[str]], list[str]],
    primary: str,
    full_error: bool,
) -> int:
    """Run a Hydra application, print its error if there is one, and return the exit code."""
    arguments = sys.argv[1:]
    try:
        sys.argv[1:] = prepare(normalise_overrides(arguments, primary))
        application()
        return process.exit_code
    except KeyboardInterrupt:
        return _complain(_interrupted(primary, arguments), code=130)
    except SystemExit as stop:  # raised by Hydra after its message
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as caught:
        error = caught.__cause__ if isinstance(caught, CommandFailed) and caught.__cause__ else caught
        if full_error:
            traceback.print_exception(error)
            return 1
        if isinstance(error, BrokenPipeError) and reader_left():
            return process.exit_code
        explanation = explain_error(error, arguments, primary)
        if isinstance(explanation, UserError | OSError):
            return _complain(sentence(explanation))
        return _complain(_unexpected(error))


def _interrupted(primary: str, arguments: Sequence[str]) -> str:
    """Return the message after Ctrl-C, with the command that resumes."""
    if primary == "evaluate_pretrained":
        return "interrupted; the same command resumes with the rows already measured"
    if primary != "config":
        return "interrupted"
    resume = "the same command without rerun=true" if "rerun=true" in arguments else "the same command"
    return f"interrupted; {resume} resumes from the last checkpoint"


def _unexpected(error: BaseException) -> str:
    """Write the traceback of an unexpected error to a temporary file and return the message."""
    place = error_place(error) or " (unexpected)"
    with tempfile.NamedTemporaryFile(prefix="pe_experiments_", suffix=".log", delete=False) as log:
        log.write("".join(traceback.format_exception(error)).encode(errors="backslashreplace"))
    return f"{type(error).__name__}: {error}{place}; traceback in {log.name}"


def _complain(text: str, code: int = 1) -> int:
    """Print an error message and return the exit code."""
    complain(one_line(text))
    return code


def _settings(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain values; raise an error for options that a single run ignores."""
    hydra_config = HydraConfig.get()
    if hydra_config.mode != RunMode.MULTIRUN:
        for text in hydra_config.overrides.hydra:
            if text.lstrip("+~").startswith(SWEEP_OPTIONS):
                raise UserError(f"{shown(text)} is an option of a sweep; add -m or sweep=NAME")
    return resolve_interpolations(config)


def help_text(name: str, usage: str) -> str:
    """Return the help text for Hydra: usage, options, and every choice with its description."""
    primary = (CONFIG_DIR / f"{name}.yaml").read_text()
    options = re.sub(r"^defaults:\n(?: .*\n)*|^hydra:\n(?: .*\n)*", "", primary, flags=re.MULTILINE)
    parts = [usage, options]
    for group, default in groups_of(name).items():
        files = {choice: (CONFIG_DIR / group / f"{choice}.yaml").read_text() for choice in choices_of(group)}
        if files and list(files) != ["default"]:
            lines = [f"{group}=NAME"]
            for choice, text in files.items():
                description = "".join(COMMENT.findall(text)[:1])
                lines.append(f"  {choice:28}{description}")
            parts.append("\n".join(lines))
        if default in files and group != "application" and (len(files) == 1 or group == "model"):
            parts.append("\n".join([f"{group}:", *(f"  {line}" for line in files[default].splitlines())]))
    text = "\n\n".join(part.strip() for part in parts).replace("$", "$$")
    return f"{text}\n\nHydra's groups:\n$HYDRA_CONFIG_GROUPS\nFlags:\n$FLAGS_HELP"


def curve_table(rows: Sequence[Row], max_length: int, ceiling_note: str) -> Table:
    """Return the extrapolation curve as a table, with a rule below the longest training length."""
    table = Table(title=None, caption=ceiling_note, caption_justify="left", show_edge=False, pad_edge=False)
    has_exact_match = all(row["exact_match"] is not None for row in rows)  # False for language models
    score_headings = ("exact match", "95 % interval") if has_exact_match else ("loss (nats)", "bits per byte")
    for heading in ("length", *score_headings, "token accuracy", "bag ceiling", "chance", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    in_distribution = sum(row["content_length"] <= max_length for row in rows)
    for index, row in enumerate(rows, 1):
        length, content, ceiling = row["length"], row["content_length"], row["bag_ceiling"]
        note = "<- longest training length" if content == max_length else f"{content / max_length:.3g}x"
        if row["untrained_positions"]:
            note += f", {row['untrained_positions']} untrained positions"
        if has_exact_match:
            interval = f"[{row['exact_match_low']:.3f}, {row['exact_match_high']:.3f}]"
            cells = [f"{row['exact_match']:.3f}", interval]
        else:
            cells = [f"{row['loss']:.3f}", f"{row['loss'] / math.log(2):.3f}"]
        cells += [f"{row['token_accuracy']:.3f}", "unknown" if ceiling is None else f"{float(ceiling):.3f}"]
        length_cell = f"{length}" if content == length else f"{length} ({content})"
        chance = f"{row['chance']:.3f}"
        table.add_row(length_cell, *cells, chance, note, end_section=index == in_distribution)
    return table


def show_result(result: RunResult) -> None:
    """Print the result of a run or an evaluation: the table over lengths, paths and the upload command."""
    summary = result.result
    experiment = result.experiment
    directory = result.directory
    if result.status != "completed":
        say(f"{summary['name']}: {result.status} ({summary.get('reason', 'no reason recorded')})")
    else:
        prefix_note = " and knows the answer so far" if experiment.format.prefix_is_known else ""
        decoding = {"teacher_forcing": "teacher forcing", "greedy": "greedy decoding"}[experiment.decoding]
        note = (
            f"exact match counts the end mark; token accuracy is under {decoding}; bag ceiling: the best "
            f"token accuracy of a predictor that is blind to the order of the input{prefix_note}"
        )
        text_file = directory.path / "text.csv"
        if text_file.exists():  # a language model
            note = f"every length scores the same bytes, in windows that do not overlap; others: {text_file}"
        print_table(curve_table(result.curve, experiment.max_length, note))
        say(f"figure: {directory.figure}")
    if result.status == "error":
        say(f"traceback: {directory.error_log}")
    descriptions = {"found": "found finished", "evaluated": "evaluated without training"}
    say(f"run:    {directory.path} ({descriptions.get(result.done, result.done)})")
    if "evaluated_encoding" in summary:
        say(f"note:   {summary['label']}, an encoding it was not trained with")
    if summary.get("upload") and result.status == "completed":
        say(f"upload: {summary['upload']}")
    longest = experiment.max_length
    requested = experiment.config.training.max_length
    if longest < requested:
        task = type(experiment.task).__name__
        say(f"note:   trained up to {longest}: {task} has no longer input up to {requested}")
