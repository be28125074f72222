"""Learned positions and their values beyond the last trained row; concatenated sinusoids."""

from __future__ import annotations

import pytest
import torch

from pe_experiments.checking import small_shape
from pe_experiments.encodings.learned import Learned
from pe_experiments.models import Transformer

IDS = torch.tensor([[0, 5, 11, 12, 13, 40]])  # twelve rows are trained: 0 .. 11


def table(beyond: str, seed: int = 0) -> Learned:
    torch.manual_seed(seed)
    return Learned(small_shape(), beyond=beyond)  # type: ignore[arg-type]


def test_clamp_wrap_and_zero() -> None:
    for beyond, rows in (("clamp", [0, 5, 11, 11, 11, 11]), ("wrap", [0, 5, 11, 0, 1, 4])):
        encoding = table(beyond)
        torch.testing.assert_close(encoding.vectors(IDS)[0], encoding.table[rows])
    encoding = table("zero")
    torch.testing.assert_close(encoding.vectors(IDS)[0, :3], encoding.table[[0, 5, 11]])
    assert (encoding.vectors(IDS)[0, 3:] == 0).all()


def test_untrained_rows_depend_only_on_seed_and_row() -> None:
    encoding = table("untrained")
    far = encoding.vectors(torch.tensor([[500, 40]]))
    near = encoding.vectors(IDS)
    torch.testing.assert_close(far[0, 1], near[0, 5], rtol=0, atol=0)
    torch.testing.assert_close(table("untrained").vectors(IDS), near, rtol=0, atol=0)
    assert not torch.equal(table("untrained", seed=1).vectors(IDS)[0, 5], near[0, 5])
    rows = encoding.untrained_rows(2000)
    assert float(rows.std()) == pytest.approx(0.5, rel=0.02)
    assert float(rows.mean()) == pytest.approx(0.0, abs=0.01)
    assert len(rows.unique(dim=0)) == 2000


def test_untrained_rows_are_saved_with_the_weights() -> None:
    encoding = table("untrained")
    loaded = table("untrained", seed=1)
    loaded.vectors(IDS)  # would cache rows of the other seed
    loaded.load_state_dict(encoding.state_dict())
    torch.testing.assert_close(loaded.vectors(IDS), encoding.vectors(IDS), rtol=0, atol=0)


def test_interpolation_stretches_the_table_over_the_row() -> None:
    encoding = table("interpolate")
    torch.testing.assert_close(encoding.vectors(torch.arange(12)[None])[0], encoding.table)
    long = encoding.vectors(torch.arange(23)[None])[0]  # ids 0 .. 22 fall on rows 0, 0.5, 1, ... 11
    torch.testing.assert_close(long[0::2], encoding.table)
    torch.testing.assert_close(long[1::2], (encoding.table[:-1] + encoding.table[1:]) / 2)


def test_interpolation_in_a_batch_goes_by_the_length_of_each_row() -> None:
    model = Transformer(
        9, small_shape(), lambda shape: Learned(shape, beyond="interpolate"), initialisation="pytorch"
    )
    words = torch.randint(9, (2, 40), generator=torch.Generator().manual_seed(0))
    together = model(words, None, torch.tensor([20, 40]))
    torch.testing.assert_close(together[:1, :20], model(words[:1, :20]), rtol=0, atol=1e-5)
    torch.testing.assert_close(together[1:], model(words[1:]), rtol=0, atol=1e-5)
