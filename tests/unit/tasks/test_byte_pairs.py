"""The text task with tokens: how they are trained, and that losses count bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.evaluation.curve import in_distribution_tally
from pe_experiments.evaluation.text import evaluate_text
from pe_experiments.run import evaluate_run, run_experiment
from pe_experiments.store.identity import identify
from pe_experiments.tasks.text import Text
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny

pytest.importorskip("tokenizers")
BPE = ("task=text", "task.tokenizer=bpe", "task.vocab_size=300")


def words(seed: int, count: int, alphabet: str = "abcdefgh") -> str:
    """Return a text of 2-letter to 5-letter words from a small dictionary."""
    random = np.random.default_rng(seed)
    dictionary = ["".join(random.choice(list(alphabet), random.integers(2, 6))) for _ in range(60)]
    return " ".join(random.choice(dictionary, count))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(words(0, 30_000) + " é" * 10_000)  # the validation split starts within a character
    return path


@pytest.fixture
def experiment(tiny: Tiny, book: Path) -> Experiment:
    return tiny(*BPE, f"task.path={book}", "training.max_length=24", "evaluation.lengths=[24,64,128]")


def test_tokens_are_those_of_the_library_and_stand_for_all_bytes(book: Path) -> None:
    from tokenizers import Tokenizer, decoders

    task = Text(str(book), tokenizer="bpe", vocab_size=300)
    assert task.byte_pairs is not None
    library: Tokenizer = task.byte_pairs._tokenizer
    library.decoder = decoders.ByteLevel()
    content = book.read_bytes()
    joined = b""
    for split, (start, stop) in task.bounds.items():
        tokens = task._tokens(split)
        decoded = library.decode(tokens.tolist()).encode()
        assert decoded == content[start:stop]
        assert int(task.sizes(torch.from_numpy(tokens.astype(np.int64))).sum()) == stop - start
        joined += decoded
    assert joined == content
    assert task.vocab_size == library.get_vocab_size() == 300
    assert task.longest < task.bounds["validation"][1] - task.bounds["validation"][0]


def test_only_the_training_split_trains_the_tokenizer(book: Path, tmp_path: Path) -> None:
    task = Text(str(book), tokenizer="bpe", vocab_size=300)
    content = book.read_bytes()
    training_end = task.bounds["training"][1]
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "book.txt"
    other.write_bytes(content[:training_end] + content[training_end:].replace(b"\xc3\xa9", b"zq"))
    assert Text(str(other), tokenizer="bpe", vocab_size=300).vocabulary == task.vocabulary
    other.write_bytes(content[:training_end].replace(b"a", b"z") + content[training_end:])
    assert Text(str(other), tokenizer="bpe", vocab_size=300).vocabulary != task.vocabulary


def test_losses_are_divided_by_bytes(experiment: Experiment) -> None:
    model = experiment.untrained_model().eval()
    source = experiment.evaluation_source
    curve, rows = evaluate_text(model, source, (24, 128), 7, 24)
    task = source.task.for_split("evaluation")
    kinds = {(row["length"], row["windows"], row["slice"]): row for row in rows}
    whole = kinds[128, "non_overlapping", "all"]
    from pe_experiments.data.randomness import named_seed

    generator = torch.Generator().manual_seed(named_seed(source.seed, "text evaluation"))
    stretches, _ = task.sample(128, 100, generator)
    stretches = stretches[:7]
    tokens = torch.cat([torch.full((7, 1), source.format.bos), stretches], dim=1)
    with torch.no_grad():
        logits = model(tokens)[:, 1:-1]
    nats = F.cross_entropy(logits.mT, stretches[:, 1:], reduction="sum")
    sizes = [len(task.byte_pairs._tokenizer.id_to_token(token)) for token in stretches[:, 1:].flatten()]
    assert whole["bytes"] == sum(sizes) > 7 * 127
    assert whole["bits_per_byte"] == pytest.approx(float(nats) / math.log(2) / sum(sizes), rel=1e-5)
    assert curve[1]["loss"] == pytest.approx(whole["bits_per_byte"] * math.log(2))
    by_index = [row for row in rows if row["slice"] == "index"]
    assert sum(row["bytes"] for row in by_index) == whole["bytes"]


def test_the_validation_loss_is_divided_by_bytes(experiment: Experiment) -> None:
    model = experiment.untrained_model().eval()
    counts = in_distribution_tally(model, experiment.batches, 40)
    labels = [experiment.batches.batch(i).labels_BT for i in range(-(-40 // experiment.batches.batch_size))]
    scored = torch.cat([batch[batch != -100] for batch in labels])
    assert counts.scored == int(experiment.task.sizes(scored).sum()) > len(scored)


@pytest.mark.slow
def test_a_run_with_tokens_is_its_own_and_is_evaluated_with_its_tokens(
    experiment: Experiment, book: Path, tmp_path: Path
) -> None:
    run = run_experiment(experiment.config)
    assert run.result["status"] == "completed"
    assert run_experiment(experiment.config).done == "found"
    path = str(run.directory.path)
    assert (
        evaluate_run(path, {"evaluation": {"lengths": [64], "examples": 5}}, trust=True).done == "evaluated"
    )
    other = tmp_path / "other.txt"
    other.write_text(words(1, 40_000))
    section = experiment.components["task"].section
    with pytest.raises(UserError, match="its tokens differ from those of the training"):
        evaluate_run(path, {"task": section | {"path": str(other)}}, trust=True)
    child = {"init_from": path, "task.path": str(other), "results_dir": experiment.config.results_dir}
    with pytest.raises(UserError, match=r"^init_from=.*its tokens differ from those of the training"):
        run_experiment(child | {"trust": True})


def test_bytes_have_the_identity_that_they_had(tiny: Tiny, book: Path, experiment: Experiment) -> None:
    as_bytes = identify(tiny("task=text", f"task.path={book}"))
    assert as_bytes.config["task"] == {"_target_": "pe_experiments.tasks.text.Text"}
    assert list(as_bytes.data) == ["book.txt"]
    identity = identify(experiment)
    assert identity.config["task"] == as_bytes.config["task"] | {"tokenizer": "bpe", "vocab_size": 300}
    assert identity.data["task.tokenizer"] == experiment.task.vocabulary
