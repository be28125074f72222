"""How examples are shown to a decoder and to an encoder."""

from __future__ import annotations

import torch

from pe_experiments.data.formats import AlignedFormat

X = torch.tensor([[3, 1, 4], [2, 2, 0]])
BOS, SEP, EOS, SLOT = 10, 11, 12, 13


def test_aligned_answers_stand_at_their_input_symbols() -> None:
    y = torch.tensor([[-100, 3, 1], [-100, 2, 2]])
    decoder = AlignedFormat(10, True).lay_out(X, y)
    assert decoder.tokens_BT[0].tolist() == [BOS, 3, 1, 4]
    assert decoder.labels_BT[0].tolist() == [-100, -100, 3, 1]
    encoder = AlignedFormat(10, False).lay_out(X, y)
    assert encoder.tokens_BT[0].tolist() == [3, 1, 4]
    assert encoder.labels_BT[0].tolist() == [-100, 3, 1]
