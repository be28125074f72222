"""Bits per byte of a pretrained model over context length, under every rescaling, on the same bytes at each.

A text is cut into as many parts as there are stretches. Scored are the last tokens of every part; at context
length L they are predicted in one window of L tokens that ends with them, so that each has L - ``scored``
tokens before it or more.
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
from pe_experiments.pretrained.model import Block, PretrainedModel, Rope, bits
from pe_experiments.store.csv_files import read_csv, to_csv
from pe_experiments.store.directory import output_folder
from pe_experiments.store.names import file_digest, safe_name, short_hash
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.console import Display, say
from pe_experiments.terminal.errors import InUse, UserError
from pe_experiments.terminal.files import read_json, write_atomically

READ_BYTES = 1 << 20  # of a part of the text, from its end; more for windows beyond 32,768 tokens
COLUMNS = ("measured", "block", "length", "stretch", "bytes", "bits", "seconds")
Key = tuple[str, str, int, int]  # hash of what is measured, block as JSON, length, stretch


class PretrainedSettings(Section):
    """What ``configs/evaluate_pretrained.yaml`` may say."""

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
    """One point of the picture."""

    rope: Rope
    length: int
    factor: float
    block: Block | None

    def keys(self, identity: str, stretches: int) -> list[Key]:
        block = json.dumps(self.block, sort_keys=True)
        return [(identity, block, self.length, index) for index in range(stretches)]


class Stretch(NamedTuple):
    """The last tokens of a part of the text, how many of them are scored, and how many bytes these are."""

    tokens_N: Tensor
    scored: int
    bytes: int


def evaluate_pretrained(settings: PretrainedSettings, display: Display) -> Path:
    """Evaluate a pretrained model, or return the folder of a finished evaluation."""
    dtype = getattr(torch, settings.dtype)
    model = PretrainedModel(settings.model, dtype, settings.trust)
    try:
        text = Text(settings.text)
    except ValueError as error:
        raise UserError(str(error).replace("path=", "text=", 1)) from error
    texts = zip(text.names, text.data_files, strict=True)
    measured = {
        "model": {path.name: file_digest(path) for path in model.files},
        "text": {name: file_digest(Path(path)) for name, path in texts},
        "stretches": settings.stretches, "scored": settings.scored, "dtype": settings.dtype,
    }  # fmt: skip
    identity = short_hash(measured)
    default = Path(settings.results_dir) / "pretrained_models" / f"{safe_name(model.name)}-{identity}"
    folder = output_folder(settings.out or default, settings.results_dir)
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
        facts: dict[str, Any] = {
            "name": model.name,
            "original_length": model.original_length,
            "bytes": text.ends[-1],
        }
        facts["versions"] = {name: version(name) for name in ("torch", "transformers")}
        blocks = {f"{cell.rope} at {cell.length}": cell.block for cell in cells}
        content = {"request": request, "settings": settings.model_dump(mode="json"), "blocks": blocks} | facts
        report.write(folder, table, content)
        report.log(settings.logger, folder, Path(settings.results_dir), table, content)
        write_atomically(settings_file, json.dumps(content, indent=1))
    return folder


def _lock(folder: Path) -> Any:
    try:
        return FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout as error:
        raise InUse(f"{folder} is in use by another process") from error


def _cells(model: PretrainedModel, settings: PretrainedSettings) -> list[Cell]:
    """Return the cells, the longest first: what does not fit in memory fails at once."""
    original = model.original_length
    asked_lengths = settings.lengths or (original and [original // 4, original // 2, original, 2 * original])
    if not asked_lengths:
        raise UserError(f"lengths is missing: {model.name} states no length")
    lengths = sorted(set(asked_lengths))
    if lengths[0] <= settings.scored:
        raise UserError(f"lengths={lengths[0]}: expected more than scored={settings.scored}")
    if model.table_length and lengths[-1] > model.table_length:
        what = f"{model.name} has positions up to {model.table_length} and no RoPE"
        raise UserError(f"lengths={lengths[-1]}: {what}; allowed: at most {model.table_length}")
    cells = []
    for length in reversed(lengths):
        for rope in dict.fromkeys(settings.rope):
            factor = settings.factor or (max(1.0, length / original) if original else 1.0)
            cells.append(Cell(rope, length, factor, model.block(rope, factor)))
    return cells


def cut_stretches(text: Text, model: PretrainedModel, count: int, longest: int, scored: int) -> list[Stretch]:
    """Return the last ``longest`` tokens of equal parts of a text.

    Scored are the last ``scored`` of them, or up to three fewer where these begin within a character.
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
        while spans[first][0] < spans[first - 1][1]:  # both are bytes of one character
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
    """Return a row for every cell; what an earlier process measured is in ``stretches.csv``."""
    device = settings.device if settings.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    file = folder / "stretches.csv"
    rows: dict[Key, dict[str, Any]] = {
        (row["measured"], row["block"], int(row["length"]), int(row["stretch"])): row
        for row in read_csv(file)
    }
    keys: dict[Key, Cell] = {}  # at a factor of 1 all rescalings are plain RoPE, which is measured once
    for cell in cells:
        for key in cell.keys(identity, settings.stretches):
            keys.setdefault(key, cell)
    missing = [key for key in keys if key not in rows]
    if missing:
        longest = cells[0].length
        prefix = torch.tensor(model.prefix(), dtype=torch.long)
        model.refuse_large(longest, settings.scored, device)
        stretches = cut_stretches(text, model, settings.stretches, longest, settings.scored)
        network, loaded = None, None
        display.start(model.name, len(keys), len(keys) - len(missing))
        try:
            for done, key in enumerate(missing, len(keys) - len(missing) + 1):
                _, block, length, index = key
                if network is None or loaded != block:
                    network = None  # before the next is loaded
                    network = model.load(keys[key].block, device)
                    loaded = block
                stretch = stretches[index]
                began = time.perf_counter()
                tokens_T = torch.cat([prefix, stretch.tokens_N[-(length - len(prefix)) :]])
                loss = bits(network, tokens_T, stretch.scored)
                took = round(time.perf_counter() - began, 2)
                values = (*key, stretch.bytes, loss, took)
                rows[key] = dict(zip(COLUMNS, values, strict=True))
                write_atomically(file, to_csv(COLUMNS, list(rows.values())))
                display.note(f"{keys[key].rope} at {length}, {loss / stretch.bytes:.3f} bits per byte")
                display.step(done)
        finally:
            display.stop()
    return pd.DataFrame(
        [
            _row(cell, [rows[key] for key in cell.keys(identity, settings.stretches)])
            for cell in sorted(cells, key=lambda cell: cell.length)
        ]
    )


def _row(cell: Cell, stretches: list[dict[str, Any]]) -> dict[str, Any]:
    total, scored = (sum(float(row[column]) for row in stretches) for column in ("bits", "bytes"))
    factor = None if cell.rope == "as_is" else cell.factor
    return {
        "rope": cell.rope, "length": cell.length, "factor": factor, "stretches": len(stretches),
        "bytes": int(scored), "bits_per_byte": total / scored,
    }  # fmt: skip
