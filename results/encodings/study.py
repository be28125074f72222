"""Write the data and the page of the explorer.

The data are views of every untrained encoding, outputs for two sentences, and answers of four trained models.
Run these commands to reproduce them, the first with ``RUN`` as none, sinusoidal, rope and alibi in turn:

    python scripts/train.py task=copy model=decoder pe=RUN training.max_length=10 training.steps=2000
    python results/encodings/study.py results/runs/copy-decoder-*
    make results
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from pe_experiments.analysis.audit import EXAMPLE_WORDS, SENTENCES, read_both
from pe_experiments.analysis.show_encoding import encoding_view, explorer_page, rounded_lists
from pe_experiments.analysis.trained_model import load_model
from pe_experiments.checking.subject import build
from pe_experiments.configuration.choices import description, shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.store.directory import RunDirectory
from pe_experiments.studies import Study
from pe_experiments.terminal.files import read_json, write_atomically

SHAPE = ModelShape(32, 4, 2, causal=True, train_length=32, train_positions=64)
ORDER = ("none", "sinusoidal", "rope", "alibi")  # of the trained models on the page
LENGTHS = range(2, 31)
INPUTS = 4  # per length
HIDDEN_OVERRIDES = ("results_dir=", "logger.")  # not shown in the command of a run

Json = dict[str, Any]


def write_page(folder: Path, figures: Path) -> None:
    """Write the page from ``explorer.json``."""
    page = explorer_page(data=read_json(folder / "explorer.json"), repository="../..")
    (folder / "explore.html").write_text(page, "utf-8")


def encodings() -> list[Json]:
    """Return a view of every shipped encoding."""
    return [
        encoding_view(name, description("pe", name), build(load_component("pe", section).build, SHAPE))
        for name, section in shipped("pe").items()
    ]


def sentences() -> Json:
    """Return the outputs of untrained models for two orders of three words, and their distances."""
    models = []
    for name, encoding, causal in (
        ("encoder, no encoding", PositionalEncoding, False),
        ("encoder, sinusoidal", Sinusoidal, False),
        ("decoder, no encoding", PositionalEncoding, True),
    ):
        outputs_2WD = read_both(encoding, ModelShape(8, 2, 2, causal, 3, 3))
        outputs_2WD = torch.cat([outputs_2WD, outputs_2WD.mean(dim=1, keepdim=True)], dim=1)
        distances_W = (outputs_2WD[0] - outputs_2WD[1]).norm(dim=-1)
        rounded = {"outputs": rounded_lists(outputs_2WD), "apart": rounded_lists(distances_W)}
        models.append({"name": name, **rounded})
    return {"sentences": [" ".join(words) for words in SENTENCES], "words": EXAMPLE_WORDS, "models": models}


def answers(runs: Iterable[Path]) -> Json:
    """Return the inputs and the answers of trained models, each as a string with a character per symbol.

    Args:
        runs: directories of runs, one for each encoding in `ORDER`.
    """
    trained = {}
    for path in runs:
        model = load_model(path)
        trained[model.experiment.components["pe"].label] = (model, read_json(RunDirectory(path).environment))
    first = trained[ORDER[0]][0].experiment
    generator = torch.Generator().manual_seed(0)
    inputs = {length: first.task.sample(length, INPUTS, generator)[0].tolist() for length in LENGTHS}
    models = []
    for name in ORDER:
        model, environment = trained[name]
        assert model.experiment.config.training == first.config.training
        shown = [word for word in environment["command"] if not word.startswith(HIDDEN_OVERRIDES)]
        copied = {length: _symbols(model.answers(rows)) for length, rows in inputs.items()}
        models.append({"name": name, "command": " ".join(shown), "answers": copied})
    shown_inputs = {length: _symbols(rows) for length, rows in inputs.items()}
    return {"max_length": first.config.training.max_length, "inputs": shown_inputs, "models": models}


def _symbols(rows: Iterable[Sequence[int]]) -> list[str]:
    """Return a string per row, with a digit per symbol of the task and ``?`` for any other token."""
    return ["".join(str(token) if token < 10 else "?" for token in row) for row in rows]


def write_data(folder: Path, runs: Sequence[Path]) -> None:
    """Write ``explorer.json``; without runs, keep the answers that it has."""
    path = folder / "explorer.json"
    model_answers = answers(runs) if runs else read_json(path)["answers"]
    data = {"encodings": encodings(), "sentences": sentences(), "answers": model_answers}
    write_atomically(path, json.dumps(data, separators=(",", ":")) + "\n")


STUDY = Study(figures=(write_page,))


if __name__ == "__main__":
    write_data(Path(__file__).parent, [Path(argument) for argument in sys.argv[1:]])
