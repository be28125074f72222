"""Measure a pretrained model over context length, for each rescaling of its RoPE.

The measure is `Loss` or `Retrieval`. ``truncated`` reads at most the last tokens of a window, as many as the
model's original length.
"""

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import torch
from pydantic import Field

from pe_experiments.configuration.schema import Count, Folder, LoggerSections, Section
from pe_experiments.pretrained import report
from pe_experiments.pretrained.finetune import FinetuneSettings, finetune
from pe_experiments.pretrained.measures import Loss, Retrieval, spelled
from pe_experiments.pretrained.model import WITHOUT_FACTOR, Block, PretrainedModel, Rescaling
from pe_experiments.store.csv_files import read_csv, to_csv
from pe_experiments.store.directory import RunDirectory, output_folder
from pe_experiments.store.names import file_digest, safe_name, short_hash
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import UserError, shown
from pe_experiments.terminal.files import read_json, write_atomically
from pe_experiments.training.cpu import keep_freed_memory

Measure = Loss | Retrieval
Key = tuple[str, ...]  # hash of model, text and options; RoPE parameters as JSON; window


class PretrainedSettings(Section):
    """The options of ``configs/evaluate_pretrained.yaml``."""

    model: Folder
    text: Folder | None
    measure: Literal["loss", "needle", "variables"]
    rope: Annotated[list[Rescaling], Field(min_length=1)]
    lengths: Annotated[list[Count], Field(min_length=1)] | None
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None
    stretches: Annotated[int, Field(ge=1, le=1000)]
    scored: Count
    examples: Annotated[int, Field(ge=1, le=1000)]
    dtype: Literal["float32", "bfloat16", "float16"]
    finetune: FinetuneSettings
    device: Literal["auto", "cpu", "cuda", "mps"]
    threads: Count | None
    trust: bool
    out: Folder | None
    results_dir: Folder
    logger: LoggerSections


class Cell(NamedTuple):
    """One point of the figure: a rescaling at a context length."""

    rope: Rescaling
    length: int
    factor: float
    block: Block | None  # RoPE parameters
    tokens: int  # that the model reads
    finetuned: Path | None = None  # folder of the fine-tuned model
    window: int = 0  # tokens of the windows on which it is fine-tuned

    @property
    def label(self) -> str:
        return f"{self.rope}{report.FINETUNED}" if self.finetuned else self.rope

    def keys(self, measure: Measure, identity: str) -> list[Key]:
        """Return the key of each window, under which its measurement is saved."""
        block = json.dumps(self.block, sort_keys=True)
        if self.finetuned:
            identity = short_hash([identity, self.finetuned.name])
        windows = [measure.key(self.length, self.tokens, index) for index in range(measure.count)]
        return [(identity, block, *(str(part) for part in window)) for window in windows]


def evaluate_pretrained(settings: PretrainedSettings, display: Display) -> Path:
    """Evaluate a pretrained model unless this is already done, and return the folder of the results."""
    dtype = getattr(torch, settings.dtype)
    model = PretrainedModel(settings.model, dtype, settings.trust)
    text = _read_text("text", settings.text)
    measure: Measure
    if settings.measure == "loss":
        measure = Loss(model, text, settings.stretches, settings.scored)
    else:
        measure = Retrieval(model, text, settings.measure, settings.examples)
    identifying = {
        "model": {path.name: file_digest(path) for path in model.files},
        "text": _digests(text),
        "dtype": settings.dtype,
    } | measure.identity  # fmt: skip
    identity = short_hash(identifying)
    finetuning_text = _finetuning_text(model, settings, text)
    default_folder = Path(settings.results_dir) / "pretrained_models" / f"{safe_name(model.name)}-{identity}"
    folder = output_folder(settings.out or default_folder, settings.results_dir)
    request = settings.model_dump(include={"rope", "lengths", "factor", "finetune"}) | {"measured": identity}
    if finetuning_text:
        request["finetuning_text"] = _digests(finetuning_text)
    settings_file = folder / "settings.json"
    if settings_file.exists():
        with report.undamaged(settings_file):
            finished_request = read_json(settings_file)["request"]
        if finished_request == request:
            say(f"found finished: {folder}")
            return folder
    with RunDirectory(folder).lock(wait=0.0):
        keep_freed_memory()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        model.read()
        digests = None
        if finetuning_text:
            digests = [identifying["model"], _digests(finetuning_text), settings.dtype]
        cells = _cells(model, measure, settings, digests, folder)
        device: str = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if finetuning_text:
            jobs = {cell.finetuned: (cell.block, cell.window) for cell in cells if cell.finetuned}
            finetune(model, jobs, finetuning_text, settings.finetune, device, display)
        rows = _measure(model, measure, cells, device, identity, folder, display)
        facts = {
            "request": request,
            "settings": settings.model_dump(mode="json"),
            "blocks": {f"{cell.label} at {cell.length}": cell.block for cell in cells},
            "name": model.name,
            "original_length": model.original_length,
            "bytes": text.ends[-1],
            "example": spelled(measure.examples[0]) if isinstance(measure, Retrieval) else None,
            "versions": {name: version(name) for name in ("torch", "transformers")},
        }
        table = _table(cells, rows, measure)
        by_depth = _table(cells, rows, measure, "depth") if settings.measure == "needle" else None
        report.write(folder, table, by_depth, facts)
        report.log(settings.logger, folder, Path(settings.results_dir), table, facts)
        write_atomically(settings_file, json.dumps(facts, indent=1))
    return folder


def _read_text(option: str, path: str | None) -> Text:
    try:
        return Text(path)
    except ValueError as error:
        raise UserError(str(error).replace("path=", f"{option}=", 1)) from error


def _finetuning_text(model: PretrainedModel, settings: PretrainedSettings, text: Text) -> Text | None:
    """Return the text for fine-tuning, if any; raise a UserError if it is also evaluated."""
    path = settings.finetune.text
    if settings.finetune.steps == 0:
        if path is not None:
            raise UserError(f"finetune.text={path}: has no effect with finetune.steps=0; set finetune.steps")
        return None
    if model.gguf:  # transformers could not save it
        raise UserError(f"model={model.path}: a GGUF file cannot be fine-tuned; allowed: safetensors")
    if settings.dtype == "float16":
        raise UserError("dtype=float16: cannot be fine-tuned; allowed: float32, bfloat16")
    finetuning_text = _read_text("finetune.text", path)
    evaluated = _digests(text).values()
    for name, digest in _digests(finetuning_text).items():
        if digest in evaluated:
            reason = f"{name} is also in text, which is evaluated; allowed: other files"
            raise UserError(f"finetune.text={path}: {reason}")
    return finetuning_text


def _digests(text: Text) -> dict[str, str]:
    files = zip(text.names, text.data_files, strict=True)
    return {name: file_digest(Path(path)) for name, path in files}


def _cells(
    model: PretrainedModel, measure: Measure, settings: PretrainedSettings, digests: Any, folder: Path
) -> list[Cell]:
    """Return the cells, the longest first, so that lengths that do not fit in memory fail at once.

    With the ``digests`` of what a fine-tuning reads, each cell is followed by one after fine-tuning. Equal
    models have one folder. ``truncated`` is fine-tuned on windows of the original length, as it reads no
    longer ones.
    """
    original, options = model.original_length, settings.finetune
    lengths = settings.lengths
    if not lengths and original:
        lengths = [original // 4, original // 2, original, 2 * original]
    if not lengths:
        raise UserError(f"lengths is missing: {model.name} states no length")
    lengths = sorted(set(lengths))
    shortest, expected = measure.shortest()
    if lengths[0] < shortest:
        raise UserError(f"lengths={lengths[0]}: expected {expected}")
    trained_length = options.length or lengths[-1]
    used_lengths = {"lengths": lengths[-1], "finetune.length": trained_length if digests else 0}
    for option, length in used_lengths.items():
        if model.table_length and length > model.table_length:
            reason = f"{model.name} has positions up to {model.table_length} and no RoPE"
            raise UserError(f"{option}={length}: {reason}; allowed: at most {model.table_length}")
    if "truncated" in settings.rope and (not original or original < shortest):
        allowed = f"a model whose original length is {expected}"
        raise UserError(f"rope=truncated: {model.name} has {original or 'none'}; allowed: {allowed}")
    cells = []
    folder_names: dict[str, str] = {}
    for length in reversed(lengths):
        factor = settings.factor
        if factor is None:
            longest = trained_length if digests else length  # a model has one factor, wherever evaluated
            factor = max(1.0, longest / original) if original else 1.0
        for rope in dict.fromkeys(settings.rope):
            most = original if rope == "truncated" and original else max(length, trained_length)
            cell = Cell(rope, length, factor, model.block(rope, factor), min(length, most))
            cells.append(cell)
            if digests:
                window = min(trained_length, most)
                options_hashed = options.model_dump(exclude={"text", "length"})
                identity = short_hash(
                    {"files": digests, "options": options_hashed, "block": cell.block, "window": window}
                )
                name = folder_names.setdefault(identity, f"{rope}-{identity}")
                cells.append(cell._replace(finetuned=folder / "finetuned" / name, window=window))
    return cells


@torch.no_grad()
def _measure(
    model: PretrainedModel,
    measure: Measure,
    cells: list[Cell],
    device: str,
    identity: str,
    folder: Path,
    display: Display,
) -> list[list[dict[str, Any]]]:
    """Return the rows of every cell, one for each window; earlier processes left theirs in the CSV file."""
    file = folder / measure.file
    columns = (*measure.key_columns, *measure.columns, "seconds")
    rows: dict[Key, dict[str, Any]] = {}
    with report.undamaged(file):
        for row in read_csv(file):
            if list(row) != [*columns]:
                raise ValueError(f"its columns are {shown(','.join(row))}")
            # Values that are no numbers would end the evaluation after everything else was measured.
            measure.summary([row])
            float(row.get("depth") or 0)
            rows[tuple(row[column] for column in measure.key_columns)] = row
    keys = [cell.keys(measure, identity) for cell in cells]
    windows: dict[Key, tuple[Cell, int]] = {}  # at a factor of 1 all rescalings are plain RoPE and share them
    for cell, cell_keys in zip(cells, keys, strict=True):
        for index, key in enumerate(cell_keys):
            windows.setdefault(key, (cell, index))
    missing = {key: window for key, window in windows.items() if key not in rows}
    if missing:
        longest = cells[0].length
        model.refuse_large(longest, measure.scored, device)
        measure.prepare(longest)
        network = None
        loaded = None
        already_measured = len(windows) - len(missing)
        display.start(model.name, len(windows), already_measured)
        try:
            for done, (key, (cell, index)) in enumerate(missing.items(), already_measured + 1):
                if network is None or loaded != (cell.block, cell.finetuned):
                    network = None  # free its memory before the next one is loaded
                    if cell.finetuned:
                        finetuned = PretrainedModel(str(cell.finetuned), model.dtype, trust=False)
                        finetuned.read()
                        network = finetuned.load(finetuned.rope, device)
                    else:
                        network = model.load(cell.block, device)
                    loaded = (cell.block, cell.finetuned)
                started = time.perf_counter()
                values, note = measure.measure(network, cell.length, cell.tokens, index)
                seconds = round(time.perf_counter() - started, 2)
                rows[key] = dict(zip(columns, (*key, *values, seconds), strict=True))
                write_atomically(file, to_csv(columns, list(rows.values())))
                display.note(f"{cell.label} at {cell.tokens}, {note}")
                display.step(done)
        finally:
            display.stop()
    return [[rows[key] for key in cell_keys] for cell_keys in keys]


def _table(
    cells: list[Cell], rows: list[list[dict[str, Any]]], measure: Measure, by: str | None = None
) -> pd.DataFrame:
    """Return the summary of every cell, the shortest first; ``by`` a column, one for each of its values."""
    table = []
    for cell, cell_rows in sorted(zip(cells, rows, strict=True), key=lambda pair: pair[0].length):
        factor = None if cell.rope in WITHOUT_FACTOR else cell.factor
        facts: dict[str, Any] = {"rope": cell.label, "length": cell.length, "factor": factor}
        if by is None:
            table.append(facts | measure.summary(cell_rows))
            continue
        for value in sorted({float(row[by]) for row in cell_rows}):
            group = [row for row in cell_rows if float(row[by]) == value]
            table.append(facts | {by: value} | measure.summary(group))
    return pd.DataFrame(table)
