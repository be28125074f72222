"""How examples are shown to a decoder and to an encoder."""

from __future__ import annotations

import torch

from pe_experiments.data.formats import AlignedFormat, CausalFormat, SlotsFormat

X = torch.tensor([[3, 1, 4], [2, 2, 0]])
BOS, SEP, EOS, SLOT = 10, 11, 12, 13


def test_answers_of_different_length_are_padded() -> None:
    rows = CausalFormat(10, True).lay_out(X, torch.tensor([[5, 6, -100], [7, -100, -100]]))
    assert rows.tokens_BT[1].tolist()[:6] == [BOS, 2, 2, 0, SEP, 7]
    assert rows.labels_BT.tolist() == [
        [-100, -100, -100, -100, 5, 6, EOS, -100],
        [-100, -100, -100, -100, 7, EOS, -100, -100],
    ]
    assert rows.lengths_B.tolist() == [7, 6]
    assert rows.declared_B.tolist() == [8, 8]


def test_an_encoder_gets_as_many_slots_whatever_the_length_of_the_answer() -> None:
    rows = SlotsFormat(10, False).lay_out(X, torch.tensor([[5, 6, 7], [7, -100, -100]]))
    assert rows.tokens_BT.tolist() == [[3, 1, 4, SLOT, SLOT, SLOT], [2, 2, 0, SLOT, SLOT, SLOT]]
    assert rows.labels_BT.tolist() == [[-100] * 3 + [5, 6, 7], [-100] * 3 + [7, EOS, -100]]
    assert rows.lengths_B.tolist() == [6, 6]


def test_aligned_answers_stand_at_their_input_symbols() -> None:
    y = torch.tensor([[-100, 3, 1], [-100, 2, 2]])
    decoder = AlignedFormat(10, True).lay_out(X, y)
    assert decoder.tokens_BT[0].tolist() == [BOS, 3, 1, 4]
    assert decoder.labels_BT[0].tolist() == [-100, -100, 3, 1]
    encoder = AlignedFormat(10, False).lay_out(X, y)
    assert encoder.tokens_BT[0].tolist() == [3, 1, 4]
    assert encoder.labels_BT[0].tolist() == [-100, 3, 1]
