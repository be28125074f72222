"""Measure bits per byte of a pretrained model over context length, for each rescaling of its RoPE.

A text is cut into equal parts, and the last ``scored`` tokens of each part are scored at each context length.
At context length L they are predicted in a window of L tokens that ends with them, so that each scored token
follows at least L - ``scored`` others. The last tokens of a part are called a stretch. ``truncated`` reads at
most the last tokens of a window, as many as the model's original length.
"""

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import torch
from filelock import FileLock, Timeout
from pydantic import Field
from torch import Tensor

from pe_experiments.configuration.parts import user_errors
from pe_experiments.configuration.schema import Count, Folder, LoggerConfig, Section
from pe_experiments.pretrained import report
from pe_experiments.pretrained.model import UNCHANGED, Block, PretrainedModel, Rope, bits
from pe_experiments.store.csv_files import read_csv, to_csv
from pe_experiments.store.directory import output_folder
from pe_experiments.store.names import file_digest, safe_name, short_hash
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import InUse, UserError
from pe_experiments.terminal.files import read_json, write_atomically

READ_BYTES = 1 << 20  # read from the end of each part; windows longer than 32,768 tokens need more
COLUMNS = ("measured", "block", "length", "stretch", "bytes", "bits", "seconds")
Key = tuple[str, str, int, int]  # hash of model, text and options; RoPE parameters as JSON; tokens; stretch


class PretrainedSettings(Section):
    """The options of ``configs/evaluate_pretrained.yaml``."""

    model: Folder
    text: Folder | None
    rope: Annotated[list[Rope], Field(min_length=1)]
    lengths: Annotated[list[Count], Field(min_length=1)] | None
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None
    stretches: Annotated[int, Field(ge=1, le=1000)]
    scored: Count
    dtype: Literal["float32", "bfloat16", "float16"]
    device: Literal["auto", "cpu", "cuda", "mps"]
    threads: Count | None
    trust: bool
    out: Folder | None
    results_dir: Folder
    logger: LoggerConfig


class Cell(NamedTuple):
    """One point of the figure: a rescaling at a context length."""

    rope: Rope
    length: int
    factor: float
    block: Block | None  # RoPE parameters
    tokens: int  # that the model reads

    def keys(self, identity: str, stretches: int) -> list[Key]:
        """Return the key of each stretch, under which its measurement is saved."""
        block = json.dumps(self.block, sort_keys=True)
        return [(identity, block, self.tokens, index) for index in range(stretches)]


class Stretch(NamedTuple):
    """The last tokens of a part of the text."""

    tokens_N: Tensor
    scored: int  # number of tokens that are scored, at the end
    bytes: int  # number of bytes of these


def evaluate_pretrained(settings: PretrainedSettings, display: Display) -> Path:
    """Evaluate a pretrained model unless this is already done, and return the folder of the results."""
    dtype = getattr(torch, settings.dtype)
    model = PretrainedModel(settings.model, dtype, settings.trust)
    try:
        text = Text(settings.text)
    except ValueError as error:
        raise UserError(str(error).replace("path=", "text=", 1)) from error
    text_files = zip(text.names, text.data_files, strict=True)
    identifying = {
        "model": {path.name: file_digest(path) for path in model.files},
        "text": {name: file_digest(Path(path)) for name, path in text_files},
        "stretches": settings.stretches, "scored": settings.scored, "dtype": settings.dtype,
    }  # fmt: skip
    identity = short_hash(identifying)
    default_folder = Path(settings.results_dir) / "pretrained_models" / f"{safe_name(model.name)}-{identity}"
    folder = output_folder(settings.out or default_folder, settings.results_dir)
    request = settings.model_dump(include={"rope", "lengths", "factor"}) | {"measured": identity}
    settings_file = folder / "settings.json"
    if settings_file.exists() and read_json(settings_file)["request"] == request:
        say(f"found finished: {folder}")
        return folder
    with _lock(folder):
        if settings.threads:
            torch.set_num_threads(settings.threads)
        model.read()
        cells = _cells(model, settings)
        table = _measure(model, text, cells, settings, identity, folder, display)
        facts = {
            "request": request,
            "settings": settings.model_dump(mode="json"),
            "blocks": {f"{cell.rope} at {cell.length}": cell.block for cell in cells},
            "name": model.name,
            "original_length": model.original_length,
            "bytes": text.ends[-1],
            "versions": {name: version(name) for name in ("torch", "transformers")},
        }
        report.write(folder, table, facts)
        report.log(settings.logger, folder, Path(settings.results_dir), table, facts)
        write_atomically(settings_file, json.dumps(facts, indent=1))
    return folder


def _lock(folder: Path) -> Any:
    """Return a held lock of the folder; raise `InUse` if another process holds it."""
    try:
        return FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout as error:
        raise InUse(f"{folder} is in use by another process") from error


def _cells(model: PretrainedModel, settings: PretrainedSettings) -> list[Cell]:
    """Return the cells, the longest first, so that lengths that do not fit in memory fail at once."""
    original = model.original_length
    lengths = settings.lengths
    if not lengths and original:
        lengths = [original // 4, original // 2, original, 2 * original]
    if not lengths:
        raise UserError(f"lengths is missing: {model.name} states no length")
    lengths = sorted(set(lengths))
    if lengths[0] <= settings.scored:
        raise UserError(f"lengths={lengths[0]}: expected more than scored={settings.scored}")
    if model.table_length and lengths[-1] > model.table_length:
        reason = f"{model.name} has positions up to {model.table_length} and no RoPE"
        raise UserError(f"lengths={lengths[-1]}: {reason}; allowed: at most {model.table_length}")
    if "truncated" in settings.rope and (not original or original <= settings.scored):
        expected = f"a model with an original length of more than scored={settings.scored} tokens"
        raise UserError(f"rope=truncated: {model.name} has {original or 'none'}; allowed: {expected}")
    cells = []
    for length in reversed(lengths):
        factor = settings.factor
        if factor is None:
            factor = max(1.0, length / original) if original else 1.0
        for rope in dict.fromkeys(settings.rope):
            tokens = min(length, original) if rope == "truncated" and original else length
            cells.append(Cell(rope, length, factor, model.block(rope, factor), tokens))
    return cells


def cut_stretches(text: Text, model: PretrainedModel, count: int, longest: int, scored: int) -> list[Stretch]:
    """Return the last ``longest`` tokens of each of ``count`` equal parts of a text.

    The last ``scored`` of them are scored, or up to three fewer if these begin within a character.
    """
    total = text.ends[-1]
    stretches = []
    for index in range(count):
        start = total * index // count
        stop = total * (index + 1) // count
        start = max(start, stop - max(READ_BYTES, 32 * longest))
        part = text.read(start, stop - start).tobytes().decode(errors="ignore")
        with user_errors("model", "cannot tokenize the text"):
            encoded = model.tokenizer(part, add_special_tokens=False, return_offsets_mapping=True)
        tokens, spans = encoded["input_ids"], encoded["offset_mapping"]
        if len(tokens) < longest:
            need = count * longest * (stop - start) / len(tokens)
            raise UserError(
                f"text: {total:,} bytes are too short for {count} stretches of {longest:,} tokens; about "
                f"{need:,.0f} bytes are needed, or fewer stretches"
            )
        first = len(tokens) - scored
        while spans[first][0] < spans[first - 1][1]:  # both tokens are bytes of the same character
            first += 1
        scored_bytes = len(part[spans[first][0] :].encode())
        stretches.append(Stretch(torch.tensor(tokens[-longest:]), len(tokens) - first, scored_bytes))
    return stretches


@torch.no_grad()
def _measure(
    model: PretrainedModel,
    text: Text,
    cells: list[Cell],
    settings: PretrainedSettings,
    identity: str,
    folder: Path,
    display: Display,
) -> pd.DataFrame:
    """Return a row for every cell; measurements of earlier processes are read from ``stretches.csv``."""
    device: str = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    file = folder / "stretches.csv"
    rows: dict[Key, dict[str, Any]] = {
        (row["measured"], row["block"], int(row["length"]), int(row["stretch"])): row
        for row in read_csv(file)
    }
    cell_by_key: dict[Key, Cell] = {}  # at a factor of 1 all rescalings are plain RoPE and share their keys
    for cell in cells:
        for key in cell.keys(identity, settings.stretches):
            cell_by_key.setdefault(key, cell)
    missing = [key for key in cell_by_key if key not in rows]
    if missing:
        longest = cells[0].length
        prefix = torch.tensor(model.prefix(), dtype=torch.long)
        model.refuse_large(longest, settings.scored, device)
        stretches = cut_stretches(text, model, settings.stretches, longest, settings.scored)
        network = None
        loaded_block = None
        already_measured = len(cell_by_key) - len(missing)
        display.start(model.name, len(cell_by_key), already_measured)
        try:
            for done, key in enumerate(missing, already_measured + 1):
                _, block, tokens, index = key
                if network is None or loaded_block != block:
                    network = None  # free its memory before the next one is loaded
                    network = model.load(cell_by_key[key].block, device)
                    loaded_block = block
                stretch = stretches[index]
                started = time.perf_counter()
                tokens_T = torch.cat([prefix, stretch.tokens_N[-(tokens - len(prefix)) :]])
                loss = bits(network, tokens_T, stretch.scored)
                seconds = round(time.perf_counter() - started, 2)
                values = (*key, stretch.bytes, loss, seconds)
                rows[key] = dict(zip(COLUMNS, values, strict=True))
                write_atomically(file, to_csv(COLUMNS, list(rows.values())))
                display.note(f"{cell_by_key[key].rope} at {tokens}, {loss / stretch.bytes:.3f} bits per byte")
                display.step(done)
        finally:
            display.stop()
    table = []
    for cell in sorted(cells, key=lambda cell: cell.length):
        stretch_rows = [rows[key] for key in cell.keys(identity, settings.stretches)]
        table.append(_summary_row(cell, stretch_rows))
    return pd.DataFrame(table)


def _summary_row(cell: Cell, stretch_rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the bits per byte of a cell over all stretches."""
    total_bits = sum(float(row["bits"]) for row in stretch_rows)
    total_bytes = sum(float(row["bytes"]) for row in stretch_rows)
    factor = None if cell.rope in UNCHANGED else cell.factor
    return {
        "rope": cell.rope, "length": cell.length, "factor": factor, "stretches": len(stretch_rows),
        "bytes": int(total_bytes), "bits_per_byte": total_bits / total_bytes,
    }  # fmt: skip
