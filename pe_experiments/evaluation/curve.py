"""Compute the extrapolation curve of a model.

Exact match is the share of examples in which every scored token is correct, including EOS. It is the same
under teacher forcing and greedy decoding, because up to the first mistake the model reads the same tokens
with the same ids and declared length. Token accuracy excludes EOS and differs: after a mistake teacher
forcing continues from the correct answer, greedy decoding from the model's answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pe_experiments.data.batches import Batch, Source, TrainingStream
from pe_experiments.encodings.tensors import at_least_float32, in_float64
from pe_experiments.evaluation.metrics import EXACT_MATCH, exact_match, wilson_interval
from pe_experiments.evaluation.tables import Details
from pe_experiments.models import Backbone
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.console import Display, Row

TOKENS_AT_ONCE = 16_384  # of a forward pass, which bounds its memory
LONG_ROWS_AT_ONCE = 4  # longer rows than that allows, of which attention computes a shared bias once
NUMBERS_AT_ONCE = 1 << 24  # in the hidden states of these rows; a forward pass stores some 15 times as many

Decoding = Literal["teacher_forcing", "greedy"]
Keep = Callable[[Batch, Tensor], None]  # is given batches and their answers [B, T]
# Columns of ``extrapolation.csv``. Those of the user's metrics follow.
CURVE_COLUMNS = ("length", "content_length", "split", "examples", "seen", "token_accuracy",
                 *EXACT_MATCH.columns, "loss", "chance", "bag_ceiling", "input_blind", "answer_tokens",
                 "tokens", "largest_position", "untrained_positions", "exact_match_without_end")  # fmt: skip


@dataclass
class Tally:
    """Counts over examples; ``loss_sum`` is in nats and NaN under greedy decoding."""

    examples: int = 0
    exact: int = 0
    without_end: int = 0  # examples whose tokens are all correct, except possibly EOS
    tokens: int = 0  # scored tokens except EOS
    right_tokens: int = 0
    scored: int = 0  # scored tokens; of a text their bytes
    loss_sum: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def exact_match(self) -> float:
        return self.exact / self.examples

    @property
    def token_accuracy(self) -> float:
        return self.right_tokens / self.tokens if self.tokens else 1.0  # every answer is empty

    @property
    def loss(self) -> float:
        return self.loss_sum / self.scored


@torch.no_grad()
def tally(
    model: Backbone,
    batches: Iterable[Batch],
    eos: int,
    decoding: Decoding = "teacher_forcing",
    show: Callable[[int], None] = lambda done: None,
    window: int | None = None,
    keep: Keep = lambda batch, answers: None,
) -> Tally:
    """Run the model over batches, a bounded number of tokens at a time, and return the counts.

    Args:
        decoding: ``greedy`` feeds the model's answers back instead of the correct ones; it needs batches of a
            single input length in a format with ``feeds_back``.
        show: called with the number of finished examples.
        window: see `last_tokens_hidden`; the batches come from `Source.evaluation_block` with it.
        keep: called with the parts of batches that were answered, and the answers, both on the CPU.
    """
    device = next(model.parameters()).device
    total = Tally()
    for batch in batches:
        rows = rows_at_once(batch.tokens_BT.shape[1], model.shape.d_model)
        for start in range(0, len(batch.tokens_BT), rows):
            part = batch.rows(slice(start, start + rows))
            on_device = part.to(device)
            if decoding == "greedy":
                answers_BT = greedy_answers(model, on_device, eos, window).cpu()
                loss_sum = math.nan
            else:
                answers_BT, loss_sum = forced_answers(model, on_device, window)
                answers_BT = answers_BT.cpu()
            scored_BT = part.labels_BT != IGNORE
            content_BT = scored_BT & (part.labels_BT != eos)
            without_end = part._replace(labels_BT=part.labels_BT.where(content_BT, IGNORE))
            total += Tally(
                examples=len(scored_BT),
                exact=int(exact_match(part, answers_BT).sum()),
                without_end=int(exact_match(without_end, answers_BT).sum()),
                tokens=int(content_BT.sum()),
                right_tokens=int((content_BT & (answers_BT == part.labels_BT)).sum()),
                scored=int(scored_BT.sum()),
                loss_sum=loss_sum,
            )
            keep(part, answers_BT)
            show(total.examples)
    return total


def rows_at_once(tokens: int, d_model: int) -> int:
    """Return how many rows of this many tokens a forward pass takes, such that memory bounds their number."""
    long_rows = min(LONG_ROWS_AT_ONCE, NUMBERS_AT_ONCE // (tokens * d_model))
    return max(1, TOKENS_AT_ONCE // tokens, long_rows)


def forced_answers(model: Backbone, batch: Batch, window: int | None = None) -> tuple[Tensor, float]:
    """Return answers [B, T] under teacher forcing (-100 if not scored) and the summed loss in nats."""
    scored_BT = batch.labels_BT != IGNORE
    if window is None:
        hidden_ND = model.hidden(*batch.inputs)[scored_BT]
    else:
        hidden_ND = last_tokens_hidden(model, batch, batch.tokens_BT, scored_BT, window)
    labels_N = batch.labels_BT[scored_BT]
    answers, loss_sum = [], 0.0
    tokens = max(1, NUMBERS_AT_ONCE // model.embedding.num_embeddings)  # a vocabulary may be large
    for hidden_nD, labels_n in zip(hidden_ND.split(tokens), labels_N.split(tokens), strict=True):
        logits_nV = at_least_float32(model.head(hidden_nD))
        # NaN and infinite outputs count as wrong.
        answers.append(logits_nV.argmax(dim=-1).where(logits_nV.isfinite().all(dim=-1), IGNORE))
        logits64_nV = in_float64(logits_nV)
        loss = F.cross_entropy(logits64_nV, labels_n.to(logits64_nV.device), reduction="sum")
        loss_sum += float(loss)
    answers_BT = torch.full_like(batch.labels_BT, IGNORE)
    answers_BT[scored_BT] = torch.cat(answers)
    return answers_BT, loss_sum


def greedy_answers(model: Backbone, batch: Batch, eos: int, window: int | None = None) -> Tensor:
    """Decode greedily and return the answers [B, T]; -100 after EOS and outside answers.

    All rows have the same input length. Each token is decoded for all rows at once from the whole prefix.
    Decoding stops after the longest target, since later tokens are not scored.
    """
    answers_BT = torch.full_like(batch.labels_BT, IGNORE)
    first = int((batch.labels_BT != IGNORE).any(dim=0).nonzero()[0])
    prefix_BT = batch.tokens_BT[:, : first + 1]
    unfinished_B = torch.ones_like(batch.lengths_B, dtype=torch.bool)
    for index in range(first, batch.tokens_BT.shape[1]):
        if window is None:
            tokens = prefix_BT.shape[1]
            last_B = torch.arange(tokens - 1, prefix_BT.numel(), tokens, device=prefix_BT.device)
            hidden_BD = model.hidden(prefix_BT, batch.positions_BP, None, batch.declared_B, last_B)
        else:
            last_BT = torch.zeros_like(prefix_BT, dtype=torch.bool)
            last_BT[:, -1] = True
            hidden_BD = last_tokens_hidden(model, batch, prefix_BT, last_BT, window)
        logits_BV = model.head(hidden_BD).float()
        next_B = logits_BV.argmax(dim=-1)
        answers_BT[:, index] = next_B.where(unfinished_B & logits_BV.isfinite().all(dim=-1), IGNORE)
        unfinished_B = unfinished_B & (next_B != eos)
        if not unfinished_B.any():
            break
        prefix_BT = torch.cat([prefix_BT, next_B[:, None]], dim=1)
    return answers_BT


def last_tokens_hidden(
    model: Backbone, batch: Batch, tokens_BT: Tensor, predicting_BT: Tensor, window: int
) -> Tensor:
    """Return hidden states [N, D] at the marked tokens, each computed from the last ``window`` tokens only.

    For each marked token the model, a decoder, reads a sequence of its own: BOS, and the ``window`` tokens
    that end with the marked one, or all if there are fewer. Its position ids are the first of the row, as if
    the text began with it. N marked tokens need N forward rows, so the stride of the window is one token.

    ``batch`` gives position ids and declared lengths, both for BOS and at most ``window`` tokens.
    """
    row_N, last_N = predicting_BT.nonzero(as_tuple=True)
    first_N = (last_N - window + 1).clamp(min=1)
    steps_W = torch.arange(min(window, tokens_BT.shape[1] - 1), device=tokens_BT.device)
    # In a causal model the tokens after the marked one change nothing.
    index_NW = (first_N[:, None] + steps_W).clamp(max=tokens_BT.shape[1] - 1)
    windows_NL = torch.cat([tokens_BT[row_N, :1], tokens_BT[row_N[:, None], index_NW]], dim=1)
    lengths_N = last_N - first_N + 2
    declared_N = batch.declared_B[row_N]
    ids_BP = batch.positions_BP.expand(len(tokens_BT), -1)
    width = windows_NL.shape[1]
    hidden = []
    for part_n in torch.arange(len(row_N), device=row_N.device).split(max(1, TOKENS_AT_ONCE // width)):
        inputs = (windows_NL[part_n], ids_BP[row_N[part_n]], lengths_N[part_n], declared_N[part_n])
        last_n = width * torch.arange(len(part_n), device=row_N.device) + lengths_N[part_n] - 1
        hidden.append(model.hidden(*inputs, indices_n=last_n))
    return torch.cat(hidden)


def in_distribution_tally(model: Backbone, batches: TrainingStream, examples: int) -> Tally:
    """Return counts over held-out examples of the training lengths; every call uses the same examples."""
    count = -(-examples // batches.batch_size)
    examined = [batches.batch(i) for i in range(count)]
    counts = tally(model, examined, batches.source.format.eos)
    labels_N = torch.cat([batch.labels_BT[batch.labels_BT != IGNORE] for batch in examined])
    counts.scored = int(batches.source.task.sizes(labels_N).sum())
    return counts


def extrapolation_curve(
    model: Backbone,
    source: Source,
    lengths: Sequence[int],
    examples: int,
    max_length: int,
    decoding: Decoding = "teacher_forcing",
    display: Display | None = None,
    details: Details | None = None,
    window: int | None = None,
) -> Iterator[Row]:
    """Yield one row per length, as soon as it is measured, with the columns of ``extrapolation.csv``.

    Each of ``lengths`` is lowered to the nearest length that the task has. ``max_length`` is the longest in
    training, and ``window`` that of `last_tokens_hidden`. ``details`` collects further tables and the columns
    of further metrics. ``loss`` is None under greedy decoding.
    """
    model.eval()
    display = display or Display()
    details = details or Details(source)
    for length in lengths:
        content_length = source.task.nearest_length(length)
        assert content_length is not None, "checked when the configuration was resolved"
        tokens = source.format.tokens(
            source.task.input_length(content_length), source.task.target_length(content_length)
        )
        used_window = None if window is None or tokens <= window + 1 else window  # else all tokens fit
        blocks = source.evaluation_blocks(content_length, examples, used_window)
        display.start(f"evaluating length {length}", examples)
        details.begin(content_length)
        counts = tally(model, blocks, source.format.eos, decoding, display.step, used_window, details.add)
        further_columns = details.end()
        low, high = wilson_interval(counts.exact, counts.examples)
        row = {
            **point(source, length, content_length, max_length, details.largest_id),
            "examples": counts.examples,
            "token_accuracy": counts.token_accuracy,
            "exact_match": counts.exact_match,
            "exact_match_low": low,
            "exact_match_high": high,
            "exact_match_without_end": counts.without_end / counts.examples,
            "loss": None if decoding == "greedy" else counts.loss,
            "bag_ceiling": source.task.bag_ceiling(content_length, prefix=source.format.prefix_is_known),
            "input_blind": source.task.input_blind(content_length),
            **further_columns,
        }
        guesses = {metric.guess_column: metric.guess(row) for metric in details.metrics if metric.guess}
        yield row | guesses


def point(source: Source, length: int, content_length: int, max_length: int, largest_id: float) -> Row:
    """Return the columns of ``extrapolation.csv`` that depend on the length but not on the model."""
    answer_tokens = source.task.target_length(content_length)
    largest_trained_id = source.positions.largest_trained(source.train_length)
    return {
        "length": length,
        "content_length": content_length,
        "split": "in_distribution" if content_length <= max_length else "extrapolation",
        "chance": source.task.chance(content_length),
        "answer_tokens": answer_tokens,
        "tokens": source.format.tokens(source.task.input_length(content_length), answer_tokens),
        "largest_position": largest_id,
        "untrained_positions": max(0, math.ceil(largest_id - largest_trained_id)),
    }
