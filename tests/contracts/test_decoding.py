"""Under teacher forcing a model repeats its own greedy answers, token by token: exact match is the same.

Encodings of each kind are tested with whole ids and with fractional ones. (That no logit depends on later
tokens is part of every encoding's contract.) Inputs are longer than in training, and answers differ in
length. The models are untrained with large weights, so that their answers depend on everything they read.
With a window, `test_text` compares teacher forcing with a loop.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pe_experiments.checking import Subject
from pe_experiments.configuration.choices import shipped
from pe_experiments.configuration.component import load_component
from pe_experiments.data.batches import Batch
from pe_experiments.data.formats import CausalFormat
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.evaluation.curve import forced_answers, greedy_answers
from pe_experiments.positions import Consecutive, PositionPolicy
from pe_experiments.positions.interpolated import Interpolated
from pe_experiments.positions.random_float import RandomFloat
from pe_experiments.positions.random_ids import RandomOffset, RandomSubset
from pe_experiments.tasks import IGNORE
from pe_experiments.tasks.copying import Deduplicate
from pe_experiments.terminal.errors import NotApplicable

TASK = Deduplicate(vocab_size=6)
FORMAT = CausalFormat(TASK.vocab_size, causal=True)
TRAINED = FORMAT.tokens(2, 2)  # tokens
LENGTH = 8  # symbols of an evaluated input
POLICIES = {
    "consecutive": Consecutive(),
    "random_offset": RandomOffset(),
    "random_subset": RandomSubset(),
    "random_subset_consecutive": RandomSubset(evaluation="consecutive"),
    "interpolated": Interpolated(),
    "random_float": RandomFloat(),
}
ENCODINGS: dict[str, Callable[[ModelShape], PositionalEncoding]] = {
    name: load_component("pe", shipped("pe")[name]).build
    for name in ("sinusoidal", "learned", "rope", "rope_dynamic_ntk", "rope_longrope", "alibi", "fox", "path")
}
ENCODINGS["learned, interpolated"] = lambda shape: Learned(shape, beyond="interpolate")


def laid_out(inputs_BN: Tensor, targets_BM: Tensor, policy: PositionPolicy, window: int | None) -> Batch:
    rows = FORMAT.lay_out(inputs_BN, targets_BM)
    declared_B = rows.declared_B if window is None else rows.declared_B.clamp(max=window + 1)
    ids_BP = policy.evaluation_ids(declared_B, TRAINED, torch.Generator().manual_seed(1))
    return Batch(rows.tokens_BT, rows.labels_BT, rows.lengths_B, declared_B, ids_BP)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("ids", POLICIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_teacher_forcing_repeats_greedy_answers(encoding: str, ids: str, window: int | None) -> None:
    policy = POLICIES[ids]
    sizes = {"train_length": TRAINED, "train_positions": policy.train_positions(TRAINED)}
    model = Subject(ENCODINGS[encoding]).model(**sizes).double()  # rounding breaks no tie
    for parameter in model.layers.parameters():
        parameter.mul_(3.0)
    inputs_BN, targets_BM = TASK.sample(LENGTH, 24, torch.Generator().manual_seed(0))
    try:
        batch = laid_out(inputs_BN, targets_BM, policy, window)
        greedy_BT = greedy_answers(model, batch, FORMAT.eos, window)
    except NotApplicable:
        assert isinstance(policy, Interpolated | RandomFloat)  # not every encoding takes fractional ids
        return
    answers_BM = greedy_BT[:, LENGTH + 1 : -1]
    batch = laid_out(inputs_BN, answers_BM.masked_fill(answers_BM == FORMAT.eos, IGNORE), policy, window)
    forced_BT, _ = forced_answers(model, batch, window)
    scored_BT = batch.labels_BT != IGNORE
    assert torch.equal(forced_BT[scored_BT], greedy_BT[:, : scored_BT.shape[1]][scored_BT])
    assert len(batch.lengths_B.unique()) > 1
    assert len(forced_BT[scored_BT].unique()) > 3
