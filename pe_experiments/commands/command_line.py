"""Common parts of the commands: help, flags, showing a result, one sentence for every mistake."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.table import Table

from pe_experiments.configuration.compose import choices_of, groups_of
from pe_experiments.terminal import process
from pe_experiments.terminal.console import Row, print_table, say
from pe_experiments.terminal.errors import UserError, one_line, sentence, shown
from pe_experiments.terminal.files import CONFIG_DIR

if TYPE_CHECKING:  # brings torch
    from pe_experiments.run import RunResult

Main = Callable[[list[str]], int | None]
COMMENT = re.compile("^# (?!@package)(.*)", re.MULTILINE)  # the first in a file under configs says what it is


def command(name: str, usage: str | None, main: Main) -> Callable[[], NoReturn]:
    """The entry of ``scripts/NAME.py``: help, exit code, and every mistake as one line on stderr."""

    def run() -> NoReturn:
        arguments = sys.argv[1:]
        process.own([*process.typed_command(name), *arguments])
        signal.signal(signal.SIGTERM, process.interrupt)  # a sweep then ends its workers, as on Ctrl-C
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
            signal.signal(signal.SIGINT, process.interrupt)
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # schemes and tasks of the user's own lie in the working directory
        if {"-h", "--help"} & set(arguments):
            how = str(usage).replace(f"python scripts/{name}.py", " ".join(process.typed_command(name)))
            say(help_text("config" if name == "train" else name, how))
            sys.exit(0)
        process.leave(_exit_code(main, arguments))

    return run


def _exit_code(main: Main, arguments: list[str]) -> int:
    try:
        return main(arguments) or 0
    except KeyboardInterrupt:
        same = "the same command without rerun=true" if "rerun=true" in arguments else "the same command"
        return _complain(f"interrupted; {same} goes on from the last checkpoint", code=130)
    except (UserError, OSError) as error:
        return _complain(sentence(error))
    except BaseException as error:  # our mistake, or that of a scheme from outside, which may also exit
        from pe_experiments.configuration.parts import part_behind

        where = f"in {name}" if (name := part_behind(error)) else "unexpected"
        with tempfile.NamedTemporaryFile(prefix="pe_experiments_", suffix=".log", delete=False) as log:
            log.write(traceback.format_exc().encode(errors="backslashreplace"))
        return _complain(f"{type(error).__name__}: {error} ({where}; traceback in {log.name})")


def _complain(text: str, code: int = 1) -> int:
    sys.stdout.flush()
    print(f"error: {one_line(text)}", file=sys.stderr)
    return code


def help_text(name: str, usage: str) -> str:
    """The usage, the settings as commented in their files, each choice with its file's first comment."""
    parts = [usage, (CONFIG_DIR / f"{name}.yaml").read_text()]
    for group, start in groups_of(name).items():
        place = CONFIG_DIR / group.replace(".", "/")
        files = {choice: (place / f"{choice}.yaml").read_text() for choice in choices_of(group)}
        if files and list(files) != ["default"]:
            about = (f"  {choice:28}{''.join(COMMENT.findall(text)[:1])}" for choice, text in files.items())
            parts.append("\n".join([f"{group}=NAME", *about]))
        if start in files and (len(files) == 1 or group == "model"):  # settings that all choices share
            parts.append("\n".join([f"{group}:", *(f"  {line}" for line in files[start].splitlines())]))
    return "\n\n".join(part.strip() for part in parts)


def flags_apart(arguments: Sequence[str]) -> tuple[list[str], bool, Path | None]:
    """The arguments of train.py: ``key=value`` texts, whether ``-m`` is among them, and ``--config-dir``."""
    texts, many, folder, words = [], False, None, iter(arguments)
    for word in words:
        if word in ("-m", "--multirun"):
            many = True
        elif word.partition("=")[0] in ("--config-dir", "-cd"):
            named = word.partition("=")[2] or next(words, "")
            folder = Path(named)
            if not named or not folder.is_dir():
                raise UserError(f"--config-dir {shown(named)}: there is no such folder")
        elif word.startswith("-"):
            how = "settings are written key=value, and -m makes a sweep"
            raise UserError(f"{shown(word)} is not a flag; {how}")
        else:
            texts.append(word)
    return texts, many, folder


def curve_table(rows: Sequence[Row], max_length: int, ceiling_note: str) -> Table:
    """The extrapolation curve as a table, with a line under the longest training length."""
    table = Table(title=None, caption=ceiling_note, caption_justify="left", show_edge=False, pad_edge=False)
    exact = all(row["exact_match"] is not None for row in rows)
    first = ("exact match", "95 % interval") if exact else ("loss (nats)", "bits per token")
    for heading in ("length", *first, "token accuracy", "bag ceiling", "chance", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    in_distribution = sum(row["content_length"] <= max_length for row in rows)
    for index, row in enumerate(rows, 1):
        length, content, ceiling = row["length"], row["content_length"], row["bag_ceiling"]
        note = "<- longest training length" if content == max_length else f"{content / max_length:g}x"
        if row["untrained_positions"]:
            note += f", {row['untrained_positions']} untrained positions"
        if exact:
            interval = f"[{row['exact_match_low']:.3f}, {row['exact_match_high']:.3f}]"
            cells = [f"{row['exact_match']:.3f}", interval]
        else:
            cells = [f"{row['loss']:.3f}", f"{row['loss'] / math.log(2):.3f}"]
        cells += [f"{row['token_accuracy']:.3f}", "unknown" if ceiling is None else f"{float(ceiling):.3f}"]
        asked = f"{length}" if content == length else f"{length} ({content})"
        table.add_row(asked, *cells, f"{row['chance']:.3f}", note, end_section=index == in_distribution)
    return table


def show_result(result: RunResult) -> None:
    """Print the result of a run or an evaluation: the table over lengths, the paths, how to upload it."""
    stored, experiment, directory = result.result, result.experiment, result.directory
    if result.status != "completed":
        say(f"{stored['name']}: {result.status} ({stored.get('reason', 'no reason recorded')})")
    else:
        known = " and knows the answer so far" if experiment.format.prefix_is_known else ""
        decoding = {"teacher_forcing": "teacher forcing", "greedy": "greedy decoding"}[experiment.decoding]
        note = (
            f"exact match counts the end mark; token accuracy is under {decoding}; bag ceiling: the best "
            f"token accuracy of a predictor that is blind to the order of the input{known}"
        )
        if (windows := directory.path / "text.csv").exists():
            note = f"every length scores the same bytes, in windows that do not overlap; others: {windows}"
        print_table(curve_table(result.curve, experiment.max_length, note))
        say(f"figure: {directory.figure}")
    if result.status == "error":
        say(f"traceback: {directory.error_log}")
    words = {"found": "found finished", "evaluated": "evaluated without training"}
    say(f"run:    {directory.path} ({words.get(result.done, result.done)})")
    if " evaluated as " in str(stored.get("label")):
        say(f"note:   {stored['label']}, a scheme it was not trained with")
    if stored.get("upload") and result.status == "completed":
        say(f"upload: {stored['upload']}")
    longest, asked = experiment.max_length, experiment.config.training.max_length
    if longest < asked:
        task = type(experiment.task).__name__
        say(f"note:   trained up to {longest}: {task} makes nothing longer up to {asked}")
