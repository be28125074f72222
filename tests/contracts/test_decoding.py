"""Exact match is the same, example by example, under teacher forcing and under greedy decoding.

Encodings of each kind are tested with whole ids and with fractional ones. (That no logit depends on later
tokens is part of every encoding's contract.) Inputs are longer than in training, and answers differ in
length. The models are untrained with large weights, so that their answers depend on everything they read.
Some of their answers become targets, so that some examples are right.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pe_experiments.checking import Subject
from pe_experiments.checking.subject import VOCABULARY
from pe_experiments.configuration.parts import load_component, shipped
from pe_experiments.data.batches import Batch
from pe_experiments.data.formats import CausalFormat
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.encodings.learned import Learned
from pe_experiments.evaluation.curve import all_correct, forced_answers, greedy_answers
from pe_experiments.models import Transformer
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
EXAMPLES = 24
POLICIES = {
    "consecutive": Consecutive(),
    "random_offset": RandomOffset(),
    "random_subset": RandomSubset(),
    "random_subset_consecutive": RandomSubset(evaluation="consecutive"),
    "interpolated": Interpolated(),
    "random_float": RandomFloat(),
}
Make = Callable[[ModelShape], PositionalEncoding]


ENCODINGS: dict[str, Make] = {
    name: load_component("pe", shipped("pe")[name]).build
    for name in ("sinusoidal", "learned", "rope", "rope_dynamic_ntk", "rope_longrope", "alibi", "fox", "path")
}
ENCODINGS["learned, interpolated"] = lambda shape: Learned(shape, beyond="interpolate")


def laid_out(inputs_BN: Tensor, targets_BM: Tensor, policy: PositionPolicy) -> Batch:
    rows = FORMAT.lay_out(inputs_BN, targets_BM)
    ids_BP = policy.evaluation_ids(rows.declared_B, TRAINED, torch.Generator().manual_seed(1))
    return Batch(rows.tokens_BT, rows.labels_BT, rows.lengths_B, rows.declared_B, ids_BP)


@torch.no_grad()
def model_and_examples(make: Make, policy: PositionPolicy) -> tuple[Transformer, Batch]:
    """An untrained model, and examples of the task, some of them with the model's answer as their target.

    In float64, so that rounding breaks no tie. The mean hidden state is removed from the head, so that the
    model answers with every symbol about equally often; EOS is raised until a tenth of the answers end.
    """
    inputs_BN, targets_BM = TASK.sample(LENGTH, EXAMPLES, torch.Generator().manual_seed(0))
    random_BM = torch.randint(TASK.vocab_size, targets_BM.shape, generator=torch.Generator().manual_seed(2))
    batch = laid_out(inputs_BN, random_BM, policy)
    sizes = {"train_length": TRAINED, "train_positions": policy.train_positions(TRAINED)}
    model = Subject(make).model(**sizes).double()
    model.embedding.weight.mul_(0.2)  # an index in one column of 32 is to matter beside the tokens
    for layer in model.layers:
        for parameter in layer.parameters():
            parameter.mul_(3.0)
    hidden_BTD = model.hidden(batch.tokens_BT, batch.positions_BP, batch.lengths_B, batch.declared_B)
    mean_D = hidden_BTD[:, LENGTH + 1 :].mean((0, 1))
    mean_D /= mean_D.norm()
    model.head.weight -= (model.head.weight @ mean_D)[:, None] * mean_D
    model.head.weight[[FORMAT.bos, FORMAT.sep, *range(FORMAT.slot, VOCABULARY)]] = 0
    while True:
        answers_BM = greedy_answers(model, batch, FORMAT.eos)[:, LENGTH + 1 :]
        solved_B = (answers_BM == FORMAT.eos).any(dim=1) & (torch.arange(EXAMPLES) % 2 == 0)
        if solved_B.sum() > EXAMPLES / 10:
            break
        model.head.weight[FORMAT.eos] += 0.1 * mean_D
    model_BM = answers_BM[:, :-1].masked_fill(answers_BM[:, :-1] == FORMAT.eos, IGNORE)
    return model, laid_out(inputs_BN, model_BM.where(solved_B[:, None], targets_BM), policy)


@torch.no_grad()
def both_ways(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Exact match of each example under teacher forcing and under greedy decoding."""
    forced_BT, _ = forced_answers(model, batch)
    greedy_BT = greedy_answers(model, batch, FORMAT.eos)
    return all_correct(batch.labels_BT, forced_BT), all_correct(batch.labels_BT, greedy_BT)


@pytest.mark.parametrize("ids", POLICIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_greedy_decoding_equals_teacher_forcing(encoding: str, ids: str) -> None:
    policy = POLICIES[ids]
    try:
        model, batch = model_and_examples(ENCODINGS[encoding], policy)
    except NotApplicable:
        assert isinstance(policy, Interpolated | RandomFloat)  # not every encoding takes fractional ids
        return
    forced_B, greedy_B = both_ways(model, batch)
    assert torch.equal(forced_B, greedy_B)
    assert forced_B.any()
    assert not forced_B.all()
    assert len(batch.lengths_B.unique()) > 1
