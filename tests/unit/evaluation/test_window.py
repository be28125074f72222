"""``evaluation.window``: a model that reads only the last tokens, against loops over single predictions."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.configuration.experiment import Experiment
from pe_experiments.evaluation.curve import extrapolation_curve
from pe_experiments.evaluation.text import STRIDE, Scorer
from pe_experiments.models import Backbone
from pe_experiments.tasks import IGNORE
from pe_experiments.tasks.text import FEWEST_BYTES
from pe_experiments.terminal.errors import NotApplicable
from tests.conftest import Tiny


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


@pytest.fixture
def text(tiny: Tiny, tmp_path: Path) -> Experiment:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes((n * n // 7 + n // 50) % 26 + 97 for n in range(FEWEST_BYTES)))
    options = ("task=text", f"task.path={path}", "training.max_length=24", "evaluation.lengths=[24,200]")
    return tiny(*options, "pe=rope", "trainer.precision=64-true")


@pytest.mark.parametrize("given", [2, 24, 90, None])
@torch.no_grad()
def test_each_byte_is_predicted_from_a_window_that_slides_by_a_stride(
    text: Experiment, given: int | None
) -> None:
    model, source, length = text.untrained_model().eval(), text.evaluation_source, 200
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
