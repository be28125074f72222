"""The explorer's data: every encoding before training, two sentences, and the answers of four trained models.

Its runs, one after the other (``RUN`` stands for none, sinusoidal, rope, alibi), its data and its page:

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

from pe_experiments.analysis.audit import SENTENCES, WORDS, read_both
from pe_experiments.analysis.explorer import about_choice, encoding_view, explorer_page, rounded_lists
from pe_experiments.configuration.parts import load_component, shipped
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.sinusoidal import Sinusoidal
from pe_experiments.store.directory import RunDirectory
from pe_experiments.store.trained_model import load_model
from pe_experiments.terminal.files import read_json, write_atomically

SHAPE = ModelShape(32, 4, 2, causal=True, train_length=32, train_positions=64)
ORDER = ("none", "sinusoidal", "rope", "alibi")  # of the trained models on the page
LENGTHS = range(2, 31)
INPUTS = 4  # per length
NOISE = 1e-9  # below it lies only rounding, which differs from machine to machine
UNSAID = ("results_dir=", "logger.")  # of a command: where it wrote and to whom

Json = dict[str, Any]


def pages(folder: Path) -> None:
    """The page, from the data alone."""
    (folder / "explore.html").write_text(explorer_page(data=read_json(folder / "explorer.json")), "utf-8")


def encodings() -> list[Json]:
    """A view of every shipped encoding."""
    views = []
    for name, section in shipped("pe").items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            views.append(encoding_view(name, about_choice(name), load_component("pe", section).build(SHAPE)))
    return views


def sentences() -> Json:
    """Two orders of three words through untrained models of width 8: outputs, and how far they differ."""
    models = []
    for name, encoding, causal in (
        ("encoder, no encoding", PositionalEncoding, False),
        ("encoder, sinusoidal", Sinusoidal, False),
        ("decoder, no encoding", PositionalEncoding, True),
    ):
        outputs_2WD = read_both(encoding, ModelShape(8, 2, 2, causal, 3, 3))
        outputs_2WD = torch.cat([outputs_2WD, outputs_2WD.mean(dim=1, keepdim=True)], dim=1)
        apart_W = (outputs_2WD[0] - outputs_2WD[1]).norm(dim=-1)
        apart = [0.0 if value < NOISE else round(value, 3) for value in apart_W.tolist()]
        models.append({"name": name, "outputs": rounded_lists(outputs_2WD), "apart": apart})
    return {"sentences": [" ".join(words) for words in SENTENCES], "words": WORDS, "models": models}


def answers(runs: Iterable[Path]) -> Json:
    """What trained models copy, for a few inputs of every length, each a text of one sign per symbol."""
    loaded = [(load_model(run), RunDirectory(run)) for run in runs]
    trained = {model.experiment.components["pe"].label: (model, run) for model, run in loaded}
    first = trained[ORDER[0]][0].experiment
    generator = torch.Generator().manual_seed(0)
    inputs = {length: first.task.sample(length, INPUTS, generator)[0] for length in LENGTHS}
    models = []
    for name in ORDER:
        model, run = trained[name]
        assert model.experiment.config.training == first.config.training
        command = " ".join(w for w in read_json(run.environment)["command"] if not w.startswith(UNSAID))
        given = {length: [_signs(row) for row in model.answers(rows)] for length, rows in inputs.items()}
        models.append({"name": name, "command": command, "answers": given})
    asked = {length: [_signs(row) for row in rows.tolist()] for length, rows in inputs.items()}
    return {"max_length": first.config.training.max_length, "inputs": asked, "models": models}


def _signs(symbols: Sequence[int]) -> str:
    """A digit per symbol of the task, ``?`` for any other token."""
    return "".join(str(symbol) if symbol < 10 else "?" for symbol in symbols)


def write_data(folder: Path, runs: Sequence[Path]) -> None:
    """Write ``explorer.json``, with the answers of earlier runs where none are given."""
    path = folder / "explorer.json"
    answered = answers(runs) if runs else read_json(path)["answers"]
    data = {"encodings": encodings(), "sentences": sentences(), "answers": answered}
    write_atomically(path, json.dumps(data, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_data(Path(__file__).parent, [Path(argument) for argument in sys.argv[1:]])
