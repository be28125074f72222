"""Parts that all commands share: the entry point, help, errors and the printed result of a run."""

from __future__ import annotations

import inspect
import math
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

import pe_experiments
from pe_experiments.configuration.choices import choices_of, description, groups_of, read_overrides
from pe_experiments.configuration.hydra_errors import MAIN, explain_error
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Row, complain, print_table, reader_left, say
from pe_experiments.terminal.errors import UserError, error_place, one_line, sentence
from pe_experiments.terminal.files import CONFIG_DIR

if TYPE_CHECKING:  # imports torch
    from pe_experiments.evaluation.metrics import Metric
    from pe_experiments.run import Result


def command(
    name: str, config: str | None = None, renamed: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[[DictConfig], Any]], Callable[[], NoReturn]]:
    """Make a function the entry point of a command: a Hydra application that prints errors in one sentence.

    The docstring of the function is the top of the help. With ``HYDRA_FULL_ERROR=1`` errors are printed with
    their traceback.

    Args:
        name: of the command, as in ``scripts/NAME.py``.
        config: name of the primary configuration, by default the name of the command.
        renamed: options whose names are config groups of other commands, and how Hydra reads them.
    """
    primary = config or name
    names = {key: option for option, key in renamed.items()}

    def decorate(main: Callable[[DictConfig], Any]) -> Callable[[], NoReturn]:
        usage = inspect.getdoc(main) or ""
        example = usage.partition("\n\n")[2].partition("\n")[0]
        errors: list[Exception] = []  # of a single run; Hydra would print them itself

        @wraps(main)
        def job(cfg: DictConfig) -> Any:
            try:
                missing = [str(key) for key in cfg if OmegaConf.is_missing(cfg, key)]
                if missing:
                    raise UserError(f"{names.get(missing[0], missing[0])} is missing, as in {example}")
                return main(cfg)
            except Exception as error:
                if HydraConfig.get().mode == RunMode.MULTIRUN:
                    raise
                errors.append(error)

        application = hydra.main(**MAIN, config_path=str(CONFIG_DIR), config_name=primary)(job)

        def run() -> NoReturn:
            errors.clear()
            arguments = sys.argv[1:]
            if arguments == ["--version"]:
                say(f"pe_experiments {pe_experiments.__version__}")
                process.leave(0)
            try:
                folder = os.getcwd()
            except FileNotFoundError:
                complain("the working directory was deleted; change to one that exists")
                process.leave(1)
            process.set_up([*process.typed_command(name), *arguments])
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a sweep ends its workers
            if folder not in sys.path:
                sys.path.append(folder)  # for the user's encodings and tasks in the working directory
            if {"--help", "-h"} & set(arguments):  # Hydra's own help takes twice as long
                typed = " ".join(process.typed_command(name))
                say(help_text(primary, usage.replace(f"python scripts/{name}.py", typed)))
                process.leave(process.exit_code)
            # Hydra wants its flags first.
            flags = [text for text in arguments if text in ("-m", "--multirun")]
            sys.argv[1:] = [*flags, *(text for text in arguments if text not in flags)]
            has_preset = any(re.match(r"sweep=(?!null$)\S", text) for text in arguments)
            if has_preset and not any(text.startswith("hydra.mode=") for text in arguments):
                sys.argv.append("hydra.mode=MULTIRUN")  # Hydra 1.4 reads its mode before it reads the preset
            for option, key in renamed.items():
                sys.argv[1:] = [re.sub(f"^{option}=", f"{key}=", text) for text in sys.argv[1:]]
            with process.hydra_raises() as full_error:
                process.leave(_exit_code(application, errors, primary, full_error))

        return run

    return decorate


def _exit_code(
    application: Callable[[], Any], errors: list[Exception], primary: str, full_error: bool
) -> int:
    """Run a Hydra application, print its error if there is one, and return the exit code."""
    try:
        sys.argv[1:] = read_overrides(sys.argv[1:], primary)
        application()
        if errors:
            raise errors[0]
        return process.exit_code
    except KeyboardInterrupt:
        how = "; the same command resumes from the last checkpoint" if primary == "config" else ""
        complain(f"interrupted{how}")
        return 130
    except SystemExit as stop:  # raised by Hydra after its message
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        if full_error:
            traceback.print_exception(error)
            return 1
        if isinstance(error, BrokenPipeError) and reader_left():
            return process.exit_code
        explanation = explain_error(error, sys.argv[1:], primary)
        expected = isinstance(explanation, UserError | OSError)
        complain(one_line(sentence(explanation) if expected else _unexpected(error)))
        return 1


def _unexpected(error: BaseException) -> str:
    place = error_place(error) or " (unexpected)"
    with tempfile.NamedTemporaryFile(prefix="pe_experiments_", suffix=".log", delete=False) as log:
        log.write("".join(traceback.format_exception(error)).encode(errors="backslashreplace"))
    return f"{type(error).__name__}: {error}{place}; traceback in {log.name}"


def help_text(name: str, usage: str) -> str:
    """Return the help text of a command: usage, options, and every choice with its description."""
    primary = (CONFIG_DIR / f"{name}.yaml").read_text()
    options = re.sub(r"^defaults:\n(?: .*\n)*|^hydra:\n(?: .*\n)*", "", primary, flags=re.MULTILINE)
    parts = [usage, options]
    for group, default in groups_of(name).items():
        choices = choices_of(group)
        if choices and choices != ["default"]:
            lines = [f"  {choice:28}{description(group, choice)}" for choice in choices]
            parts.append("\n".join([f"{group}=NAME", *lines]))
        if default in choices and group != "application" and (len(choices) == 1 or group == "model"):
            lines = (CONFIG_DIR / group / f"{default}.yaml").read_text().splitlines()
            parts.append("\n".join([f"{group}:", *(f"  {line}" for line in lines)]))
    parts.append("Flags and groups of Hydra: --hydra-help")
    return "\n\n".join(part.strip() for part in parts)


def curve_table(rows: Sequence[Row], max_length: int, ceiling_note: str, metrics: Sequence[Metric]) -> Table:
    """Return the extrapolation curve as a table, with a rule below the longest training length."""
    from pe_experiments.evaluation.metrics import EXACT_MATCH, LOSS, unknown  # imports torch

    table = Table(title=None, caption=ceiling_note, caption_justify="left", show_edge=False, pad_edge=False)
    has_exact_match = all(row["exact_match"] is not None for row in rows)  # False for language models
    first = EXACT_MATCH if has_exact_match else LOSS
    shown = [first, *(metric for metric in metrics if metric not in (EXACT_MATCH, LOSS))]
    headings = ["length"]
    for metric in shown:
        headings.append(metric.label_with_unit)
        if metric.binary:
            headings.append("95 % interval")
        elif metric == LOSS:
            headings.append("bits per byte")
    for heading in (*headings, "bag ceiling", "chance", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    in_distribution = sum(row["content_length"] <= max_length for row in rows)
    for index, row in enumerate(rows, 1):
        length, content, ceiling = row["length"], row["content_length"], row["bag_ceiling"]
        note = "<- longest training length" if content == max_length else f"{content / max_length:.3g}x"
        if row["untrained_positions"]:
            note += f", {row['untrained_positions']} untrained positions"
        cells = []
        for metric in shown:
            values = ["–" if unknown(row.get(column)) else f"{row[column]:.3f}" for column in metric.columns]
            cells.append(values[0])
            if metric.binary:
                cells.append(f"[{values[1]}, {values[2]}]")
            elif metric == LOSS:
                cells.append(f"{row['loss'] / math.log(2):.3f}")
        cells.append("unknown" if ceiling is None else f"{float(ceiling):.3f}")
        length_cell = f"{length}" if content == length else f"{length} ({content})"
        chance = f"{row['chance']:.3f}"
        table.add_row(length_cell, *cells, chance, note, end_section=index == in_distribution)
    return table


def show_result(result: Result) -> None:
    """Print the result of a run or an evaluation: the table over lengths, paths and the upload command."""
    from pe_experiments.evaluation.metrics import all_metrics  # imports torch
    from pe_experiments.store.tracking import upload_command

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
        window = experiment.config.evaluation.window
        if window is not None:
            note += f"; the model reads only the last {window} tokens of longer sequences"
        metrics = all_metrics(experiment.metrics)
        print_table(curve_table(result.curve, experiment.max_length, note, metrics))
        say(f"figure: {directory.figure}")
    if result.status == "error":
        say(f"traceback: {directory.error_log}")
    descriptions = {"found": "found finished", "evaluated": "evaluated without training"}
    say(f"run:    {directory.path} ({descriptions.get(result.done, result.done)})")
    if "evaluated_encoding" in summary:
        say(f"note:   {summary['label']}, an encoding it was not trained with")
    if result.status == "completed" and (upload := upload_command(directory)):
        say(f"upload: {upload}")
    longest = experiment.max_length
    requested = experiment.config.training.max_length
    if longest < requested:
        task = type(experiment.task).__name__
        say(f"note:   trained up to {longest}: {task} has no longer input up to {requested}")
