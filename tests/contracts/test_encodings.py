"""What every scheme under configs/pe must do; a new YAML is tested by being there."""

from __future__ import annotations

import copy

import pytest
import torch
from hydra.utils import instantiate

from pe_experiments.components import load_component, shipped
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.models import Transformer
from tests.conftest import small_shape

SCHEMES = sorted(shipped("pe"))
LENGTHS = (1, 2, 12, 96)  # 1, 2, the training length, eight times it


def build(name: str, shape: ModelShape) -> PositionalEncoding:
    torch.manual_seed(0)
    return instantiate(shipped("pe")[name], shape)


def model(name: str, causal: bool = True, **changes: int) -> Transformer:
    made = Transformer(
        20, small_shape(causal, **changes), lambda shape: build(name, shape), initialisation="pytorch"
    )
    return made.eval()


def forms(name: str) -> list[bool]:
    """Causal or not: the forms a scheme exists in."""
    return [True] if load_component("pe", shipped("pe")[name]).cls.causal_only else [True, False]


CASES = [(name, causal) for name in SCHEMES for causal in forms(name)]
cases = pytest.mark.parametrize(("name", "causal"), CASES)
schemes = pytest.mark.parametrize("name", SCHEMES)


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(20, (rows, length), generator=torch.Generator().manual_seed(length))


@cases
@pytest.mark.parametrize("length", LENGTHS)
def test_shapes_and_finiteness(name: str, causal: bool, length: int) -> None:
    logits = model(name, causal)(tokens(3, length))
    assert logits.shape == (3, length, 20)
    assert logits.isfinite().all()


@schemes
def test_nobody_looks_ahead(name: str) -> None:
    made, before = model(name), tokens(2, 12)
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % 20
    torch.testing.assert_close(made(before)[:, :7], made(after)[:, :7], rtol=0, atol=1e-6)
    assert not torch.allclose(made(before)[:, 7], made(after)[:, 7])


@cases
@pytest.mark.parametrize("length", [7, 40])
def test_padding_and_batch_composition_change_nothing(name: str, causal: bool, length: int) -> None:
    made, short, long = model(name, causal), tokens(2, length), tokens(2, length + 5)
    padded = torch.cat([short, torch.zeros(2, 5, dtype=torch.long)], dim=1)
    lengths = torch.tensor([length, length, length + 5, length + 5])
    together = made(torch.cat([padded, long]), None, lengths)
    torch.testing.assert_close(together[:2, :length], made(short), rtol=0, atol=1e-5)
    torch.testing.assert_close(together[2:], made(long), rtol=0, atol=1e-5)


@cases
def test_gaps_offsets_and_unsorted_positions_work(name: str, causal: bool) -> None:
    made, words = model(name, causal, train_positions=64), tokens(1, 6)
    for ids in ([0, 5, 6, 20, 21, 50], [30, 31, 32, 33, 34, 35], [4, 0, 9, 2, 7, 1]):
        assert made(words, torch.tensor([ids])).isfinite().all()


@cases
def test_fractional_positions_work_or_are_refused(name: str, causal: bool) -> None:
    made, words = model(name, causal), tokens(1, 4)
    refusal, logits = attempt(made, words, torch.tensor([[0.0, 0.5, 1.5, 3.0]]))
    if logits is None:
        assert "fraction" in refusal  # a sentence that says what is wrong
        return
    assert logits.isfinite().all()
    if type(made.encodings[0]) is not PositionalEncoding:
        assert not torch.allclose(logits, made(words, torch.tensor([[0, 1, 2, 3]])))  # not rounded silently


def attempt(made: Transformer, words: torch.Tensor, ids: torch.Tensor) -> tuple[str, torch.Tensor | None]:
    """The logits, or the sentence of the refusal."""
    try:
        return "", made(words, ids)
    except ValueError as error:
        return str(error), None


@cases
def test_positions_per_row_equal_shared_positions(name: str, causal: bool) -> None:
    made, words = model(name, causal), tokens(3, 12)
    shared = torch.arange(12)[None]
    torch.testing.assert_close(made(words, shared.expand(3, -1)), made(words, shared), rtol=0, atol=1e-6)


@cases
def test_gradient_reaches_every_parameter(name: str, causal: bool) -> None:
    made = model(name, causal)
    made(tokens(4, 12)).square().sum().backward()
    for label, parameter in made.encodings.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.abs().sum() > 0, label


@cases
def test_a_checkpoint_of_the_training_length_runs_at_eight_times_it(name: str, causal: bool) -> None:
    trained, other = model(name, causal), model(name, causal)
    sizes = {key: value.shape for key, value in trained.state_dict().items()}
    trained(tokens(1, 96))  # whatever is cached must not enter the state
    assert {key: value.shape for key, value in trained.state_dict().items()} == sizes
    torch.nn.init.normal_(other.embedding.weight)
    other.load_state_dict(trained.state_dict())
    words = tokens(2, 96)
    torch.testing.assert_close(other(words), trained(words))


@schemes
def test_two_instances_do_not_touch_each_other(name: str) -> None:
    first = model(name)
    words = tokens(2, 24)
    before = first(words)
    second = Transformer(20, small_shape(d_model=64, train_positions=30), lambda shape: build(name, shape))
    second(tokens(2, 24))
    torch.testing.assert_close(first(words), before, rtol=0, atol=0)


@cases
def test_train_and_eval_mode_agree(name: str, causal: bool) -> None:
    made, words = model(name, causal), tokens(2, 12)
    with torch.no_grad():
        torch.testing.assert_close(made.train()(words), made.eval()(words), rtol=0, atol=0)


@cases
@pytest.mark.parametrize("length", [5, 300])
def test_attention_routes_agree(
    name: str, causal: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_experiments.models.attention.BLOCK_LOGITS", 5000)  # several blocks
    made, words = model(name, causal), tokens(2, length)
    lengths = torch.tensor([length, length - 2])
    results = []
    for route in ("eager", "sdpa", "blocked"):
        for layer in made.layers:
            layer.attention.implementation = route
        results.append(made(words, None, lengths))
    for other in results[1:]:
        torch.testing.assert_close(other[0], results[0][0], rtol=0, atol=2e-5)
        torch.testing.assert_close(other[1, : length - 2], results[0][1, : length - 2], rtol=0, atol=2e-5)


@cases
def test_nothing_is_lost_under_autocast(name: str, causal: bool) -> None:
    """Far positions stay apart: what an encoding adds or turns is not rounded to bfloat16's eight bits."""
    made = model(name, causal, train_positions=3000)
    ids = torch.arange(2000, 2012)[None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embedded = made.embed(tokens(1, 12), ids)
    torch.testing.assert_close(embedded, made.embed(tokens(1, 12), ids), rtol=0, atol=0)
    assert embedded.dtype == torch.float32


@schemes
def test_odd_widths_work(name: str) -> None:
    made = model(name, d_model=15, num_heads=1)
    assert made(tokens(2, 9)).isfinite().all()


@schemes
def test_public_docstring_names_its_source(name: str) -> None:
    cls = load_component("pe", shipped("pe")[name]).cls
    assert "arXiv:" in (cls.__doc__ or "")
    assert "Parameters" in (cls.__doc__ or "")


@schemes
def test_copies_are_equal(name: str) -> None:
    made, words = model(name), tokens(2, 30)
    torch.testing.assert_close(copy.deepcopy(made)(words), made(words), rtol=0, atol=0)
