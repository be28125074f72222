"""Language models over context lengths, which all score the same bytes, and ``evaluation.window``."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.evaluation.curve import extrapolation_curve
from pe_experiments.evaluation.text import KEY, STRIDE, Scorer, evaluate_text, slices_of, with_copy
from pe_experiments.models import Backbone
from pe_experiments.run import run_experiment
from pe_experiments.store.csv_files import read_csv, read_curve, read_metrics
from pe_experiments.tasks import IGNORE
from pe_experiments.tasks.text import FEWEST_BYTES
from pe_experiments.terminal.errors import NotApplicable
from tests.conftest import Tiny
from tests.integration.test_tracking import mirror

LENGTHS = (16, 24, 64, 128)


@pytest.fixture
def text(tmp_path: Path) -> tuple[str, ...]:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes((n * n // 7 + n // 50) % 26 + 97 for n in range(FEWEST_BYTES)))
    return ("task=text", f"task.path={path}", "training.max_length=24")


@pytest.fixture
def experiment(tiny: Tiny, text: tuple[str, ...]) -> Experiment:
    return tiny(*text, f"evaluation.lengths=[{','.join(map(str, LENGTHS))}]", "logger=wandb")


@pytest.mark.slow
def test_every_length_scores_the_same_bytes(experiment: Experiment) -> None:
    model = experiment.untrained_model()
    source = experiment.evaluation_source
    curve, rows = evaluate_text(model, source, LENGTHS, 120, 24)
    counts = {
        (row["windows"], row["slice"], row["bytes"])
        for row in rows
        if row["windows"] != "copy" and row["slice"] != "index"
    }
    assert len(counts) == 5  # the number of bytes does not depend on the length
    sliding = {name: number for windows, name, number in counts if windows == "sliding"}
    assert sliding["all"] == 4 * 120 == sum(sliding.values()) - sliding["all"]
    assert [row["split"] for row in curve] == ["in_distribution"] * 2 + ["extrapolation"] * 2
    whole = {
        row["length"]: row["bits_per_byte"]
        for row in rows
        if (row["windows"], row["slice"]) == ("non_overlapping", "all")
    }
    for point in curve:
        assert point["loss"] == pytest.approx(whole[point["length"]] * math.log(2))
        assert point["exact_match"] is None
    by_index = [row for row in rows if row["slice"] == "index"]
    assert by_index[0]["first_index"] == 1
    assert by_index[-1]["last_index"] == 127
    total = sum(row["bytes"] * row["bits_per_byte"] for row in by_index)
    assert total / (120 * 127) == pytest.approx(whole[128])
    assert [row["length"] for row in rows if row["windows"] == "copy"] == [64, 128]
    assert evaluate_text(model, source, LENGTHS, 120, 24) == (curve, rows)


def test_slices_equal_a_loop_over_earlier_repetitions() -> None:
    texts = torch.randint(3, (20, 60), generator=torch.Generator().manual_seed(0))
    slices = slices_of(texts, 8, 30)
    for row, text in enumerate(texts.tolist()):
        for s, end in enumerate(range(52, 60)):
            gram = text[end - 3 : end + 1]
            starts = [g for g in range(end - 3) if text[g : g + 4] == gram]
            if not starts:
                name = "new"
            elif max(starts) >= 30:
                name = "repeated_near"
            else:
                name = "repeated_far"
            assert [key for key in slices if slices[key][row, s]] == ["all", name]
    assert all(mask.any() for mask in slices.values())


def test_a_copied_key_stands_in_the_window_and_at_its_end() -> None:
    windows = torch.zeros(2, 4 * KEY, dtype=torch.long)
    keys = torch.arange(1, 2 * KEY + 1).view(2, KEY)
    copied = with_copy(windows, keys, torch.tensor([0.0, 0.999]))
    assert torch.equal(copied[0, :KEY], keys[0])
    assert torch.equal(copied[1, 2 * KEY : 3 * KEY], keys[1])
    assert torch.equal(copied[:, -KEY:], keys)
    assert (copied > 0).sum() == 4 * KEY


@pytest.mark.slow
def test_a_run_saves_and_logs_its_text_metrics(experiment: Experiment) -> None:
    run = run_experiment(experiment.config)
    assert run.result["status"] == "completed"
    assert run.result["loss_extrapolation"] > 0
    folder = run.directory.path
    rows, corpus = read_csv(folder / "text.csv"), read_csv(folder / "corpus.csv")
    assert {row["windows"] for row in rows} == {"non_overlapping", "sliding", "copy"}
    assert [row["split"] for row in corpus] == ["training validation evaluation"]
    assert all("exact_match" not in row for row in read_metrics(run.directory.metrics))
    assert [row["exact_match"] for row in read_curve(run.directory.curve)] == [None] * 4
    history, _, _ = mirror(run.directory)
    logged = [row for row in history if "text/sliding_all_bits_per_byte" in row]
    assert [row["extrapolation/length"] for row in logged] == list(LENGTHS)
    assert run_experiment(experiment.config).done == "found"


def alone(model: Backbone, tokens_T: Tensor, declared: int, ids_P: Tensor) -> Tensor:
    """Return the logits [V] after the last token of a sequence that the model reads by itself."""
    lengths_1, declared_1 = torch.tensor([len(tokens_T)]), torch.tensor([declared])
    return model(tokens_T[None], ids_P[None], lengths_1, declared_1)[0, -1]


@pytest.mark.parametrize(
    "options",
    [
        ("pe=rope", "task=copy"),
        ("pe=sinusoidal_scaled", "task=flip_flop"),  # reads the declared length; a target at every token
        ("pe=learned", "positions=random_subset", "task=count"),
        ("pe=fox", "task=sort", "model=llama"),
    ],
)
@pytest.mark.parametrize("window", [5, 12])
@torch.no_grad()
def test_each_token_of_an_answer_is_predicted_from_the_last_tokens(
    tiny: Tiny, options: tuple[str, ...], window: int
) -> None:
    experiment = tiny(*options, "trainer.precision=64-true", f"evaluation.window={window}")
    model, source = experiment.untrained_model().eval(), experiment.evaluation_source
    for row in extrapolation_curve(model, source, [4, 9], 6, experiment.max_length, window=window):
        whole = source.evaluation_block(row["content_length"], 0).rows(slice(6))
        batch = source.evaluation_block(row["content_length"], 0, window).rows(slice(6))
        assert row["largest_position"] == float(batch.positions_BP.max())
        assert torch.equal(batch.tokens_BT, whole.tokens_BT)
        declared = min(int(whole.declared_B[0]), window + 1)
        ids_BP = batch.positions_BP[:, :declared].expand(6, -1)
        losses, right = [], []
        for example, last in (whole.labels_BT != IGNORE).nonzero().tolist():
            read_T = whole.tokens_BT[example, : last + 1]
            if last > window:  # BOS and the last tokens
                read_T = torch.cat([read_T[:1], read_T[-window:]])
            logits_V = alone(model, read_T, declared, ids_BP[example])
            label = whole.labels_BT[example, last]
            losses.append(float(F.cross_entropy(logits_V, label)))
            right += [bool(logits_V.argmax() == label)] if label != source.format.eos else []
        assert row["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-12)
        assert row["token_accuracy"] == sum(right) / len(right)


@pytest.mark.parametrize("given", [2, 24, 90, None])
@torch.no_grad()
def test_each_byte_is_predicted_from_a_window_that_slides_by_a_stride(
    tiny: Tiny, text: tuple[str, ...], given: int | None
) -> None:
    experiment = tiny(*text, "evaluation.lengths=[24,200]", "pe=rope", "trainer.precision=64-true")
    model, source, length = experiment.untrained_model().eval(), experiment.evaluation_source, 200
    stretch_N = source.task.sample(length, 1, torch.Generator().manual_seed(0))[0][0]
    window = given or length
    stride = max(1, min(STRIDE, window // 4))
    losses, right = Scorer(model, source, window=given).cut(stretch_N[None], length)
    for index in range(1, length):
        stop = length  # of the window: the last of those that contain the byte among its last bytes
        while stop - stride > index and stop > window:
            stop -= stride
        start = max(0, stop - window)
        read = torch.cat([torch.tensor([source.format.bos]), stretch_N[start:index]])
        ids = torch.arange(len(read))
        logits_V = alone(model, read, len(read), ids)
        expected = F.cross_entropy(logits_V, stretch_N[index])
        assert bool(right[0, index - 1]) == bool(logits_V.argmax() == stretch_N[index])
        assert float(losses[0, index - 1]) == pytest.approx(float(expected), abs=1e-12)
        assert index - start <= window - 1
        assert index - start >= min(index, window - stride)


def test_windows_need_a_decoder_and_ids_that_begin_anew(tiny: Tiny) -> None:
    with pytest.raises(NotApplicable, match=r"evaluation.window=8: an encoder reads the whole input"):
        tiny("model=encoder", "task=reverse", "evaluation.window=8")
    with pytest.raises(NotApplicable, match=r"evaluation.window=8: position ids of the task"):
        tiny("positions=task", "task=addition", "evaluation.window=8")
