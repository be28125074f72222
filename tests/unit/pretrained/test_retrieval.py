"""Test retrieval by pretrained models with hand-made models that read or say nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from pe_experiments.evaluation.metrics import wilson_interval
from pe_experiments.pretrained.measures import Retrieval
from pe_experiments.pretrained.model import PretrainedModel
from pe_experiments.tasks import DEPTHS
from pe_experiments.tasks.text import Text
from tests.conftest import Outcome, assert_one_sentence
from tests.unit.pretrained.conftest import Evaluate, save_llama

pytest.importorskip("transformers")

ORIGINAL = 600  # tokens, which are bytes here


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=ORIGINAL)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "lines.txt"
    path.write_text("".join(f"line {index} of this text ends here.\n" for index in range(4000)))
    return path


def read_needle(prompt: str) -> str:
    name = re.findall(r"number of (\w+) is$", prompt)[0]
    return (re.findall(rf"number of {name} is (\d+)", prompt) or ["nothing"])[0]


def follow_chain(prompt: str) -> str:
    number = re.findall(r"with the value (\d+) are:$", prompt)[0]
    values = {number}
    for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", prompt):
        if value in values:
            values.add(name)
    return ", ".join(f"VAR {name}" for name in values - {number})


def all_variables(prompt: str) -> str:
    return " ".join(re.findall(r"VAR (\w+) =", prompt))


def first_of_the_chain(prompt: str) -> str:
    number = re.findall(r"with the value (\d+) are:$", prompt)[0]
    return re.findall(rf"VAR (\w+) = {number}", prompt)[0]


class Reader:
    """Answers a prompt with a function of its text."""

    device = "cpu"
    generation_config = SimpleNamespace(eos_token_id=None)

    def __init__(self, tokenizer: Any, answer: Callable[[str], str]):
        self.tokenizer = tokenizer
        self.answer = answer

    def generate(self, prompt_BT: torch.Tensor, generation_config: Any, **_: Any) -> torch.Tensor:
        prompt = self.tokenizer.decode(prompt_BT[0])
        tokens = self.tokenizer(" " + self.answer(prompt)).input_ids[: generation_config.max_new_tokens]
        return torch.cat([prompt_BT, torch.tensor([tokens], dtype=torch.long)], 1)


Retrieve = Callable[..., Path]


@pytest.fixture
def retrieve(evaluate: Evaluate, folder: Path, lines: Path, monkeypatch: pytest.MonkeyPatch) -> Retrieve:
    """Return a function that evaluates a hand-made model."""

    def run(task: str, answer: Callable[[str], str], **changed: Any) -> Path:
        def load(model: PretrainedModel, *_: Any) -> Any:
            return Reader(model.tokenizer, answer)

        monkeypatch.setattr(PretrainedModel, "load", load)
        retrieval = {"measure": task, "lengths": [600, 1200], "examples": 10, "rope": ["as_is", "truncated"]}
        return evaluate(model=str(folder), text=str(lines), **retrieval | changed)

    return run


@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        ("needle", read_needle, 1.0),
        ("variables", follow_chain, 1.0),
        ("needle", lambda prompt: "", 0.0),
        ("needle", lambda prompt: "1234567", 0.0),
        ("variables", all_variables, 0.0),
        ("variables", first_of_the_chain, 0.0),
    ],
)
def test_only_complete_answers_are_correct(
    task: str, answer: Callable[[str], str], expected: float, retrieve: Retrieve
) -> None:
    table = pd.read_csv(retrieve(task, answer, rope=["as_is"]) / "accuracy.csv")
    assert table["accuracy"].tolist() == [expected, expected]
    assert (table["low"].iloc[0], table["high"].iloc[0]) == wilson_interval(round(10 * expected), 10)


def test_a_truncated_model_finds_each_needle_that_it_reads(retrieve: Retrieve) -> None:
    folder = retrieve("needle", read_needle)
    table = pd.read_csv(folder / "accuracy.csv").set_index(["rope", "length"])["accuracy"]
    assert table["as_is"].tolist() == [1, 1]
    assert table["truncated"].tolist() == [1, 0.4]  # the last half has the needles at depths of .7 and .9
    depths = pd.read_csv(folder / "accuracy_by_depth.csv").set_index(["rope", "length", "depth"]).sort_index()
    assert depths.loc[("truncated", 1200), "accuracy"].tolist() == [0, 0, 0, 1, 1]
    assert (depths["examples"] == 2).all()
    examples = pd.read_csv(folder / "examples.csv")
    found = examples[examples["correct"] == 1]
    assert len(examples) == 30  # truncated at 600 is as_is
    assert all(str(row.expected) in row.answer for row in found.itertuples())


@pytest.mark.parametrize("task", ["needle", "variables"])
def test_a_prompt_is_the_text_with_statements_at_their_depths(task: str, folder: Path, lines: Path) -> None:
    model = PretrainedModel(str(folder), torch.float32, trust=False)
    model.read()
    retrieval = Retrieval(model, Text(str(lines)), task, 10)
    retrieval.prepare(3000)
    shortest, _ = retrieval.shortest()
    for index, example in enumerate(retrieval.examples):
        tokens = retrieval.prompt(3000, 3000, index)
        longest_answer = len(model.tokenizer(" " + example.longest_answer).input_ids) + 8
        assert len(tokens) == 3000 - longest_answer
        assert retrieval.prompt(3000, 1500, index) == tokens[len(tokens) - (1500 - longest_answer) :]
        prompt = model.tokenizer.decode(tokens)
        assert prompt.endswith(example.question)
        context = prompt.removesuffix(example.question)
        for depth, statement in zip(example.depths, example.statements, strict=True):
            assert prompt.count(statement) == 1
            before, context = context.split(statement)
            assert before.endswith(".\n") or not before
            context = before + context
            assert -0.08 < len(before) / (3000 - shortest) - depth <= 0.08
        assert context in lines.read_text()
        retrieval.prompt(shortest, shortest, index)
    if task == "needle":
        assert [example.depths for example in retrieval.examples] == [[depth] for depth in DEPTHS] * 2


def test_the_command_retrieves_with_a_real_model(
    script: Callable[..., Outcome], folder: Path, lines: Path, results: Path
) -> None:
    arguments = [
        f"model={folder}", f"text={lines}", "measure=needle", "rope=[as_is,truncated,yarn]",
        "lengths=[300,900]", "examples=5", f"results_dir={results}", "logger=csv", "device=cpu",
    ]  # fmt: skip
    assert "0.000" in script("evaluate_pretrained", *arguments).succeeded()
    (out,) = (results / "pretrained_models").iterdir()
    page = (out / "report.html").read_text()
    assert "0.00 [0.00, 0.43]" in page
    assert "The secret number of" in page
    short = script("evaluate_pretrained", *arguments, "lengths=[64,300]")
    assert_one_sentence(short, "lengths=64: expected at least 1", "measure=needle")
