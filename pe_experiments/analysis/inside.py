"""Look inside a trained model: its attention, where its answers are right, and its first mistakes.

Shapes: L layers, H heads, T queries, S keys, D distances, M targets.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pe_experiments.analysis.trained_model import TrainedModel
from pe_experiments.data.batches import BLOCK_EXAMPLES, Batch
from pe_experiments.evaluation.curve import forced_answers, greedy_answers
from pe_experiments.evaluation.tables import counts_by_index
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError

MOST_TOKENS = 2048  # of a sequence, because attention needs memory of its square
AVERAGED = 8  # examples over which attention by distance is averaged
MISTAKES = 10  # examples with a mistake that are kept


@dataclass(frozen=True)
class Mistake:
    """An example with a wrong answer, as printed symbols.

    ``index`` is that of the first wrong symbol of the answer. A symbol that the model did not write is empty.
    """

    inputs: list[str]
    targets: list[str]
    answers: list[str]
    index: int


@dataclass(frozen=True)
class Inside:
    """What `look_inside` measures, as arrays.

    Attributes:
        length: input length of the examples.
        examples: number of examples.
        exact_match: share of them with every scored token right, the end mark included.
        tokens: the tokens of the first example.
        attention_LHTS: attention weights on the first example; without layers if they cannot be read.
        distances_D: distances from a query back to a key, in tokens; in an encoder also negative ones.
        attention_LHD: mean weight at each distance, over all queries with a key there and over `AVERAGED`
            examples.
        accuracy_M: share of right symbols by index in the answer, without the end mark; NaN where no target
            is scored.
        needed_D: distances to the input symbol that a target repeats; None if the task has no such symbol.
        needed_accuracy_D: share of right symbols at each of these distances.
        needed_count_D: number of targets at each of these distances.
        mistakes: the first examples with a mistake.
    """

    length: int
    examples: int
    exact_match: float
    tokens: list[str]
    attention_LHTS: np.ndarray
    distances_D: np.ndarray
    attention_LHD: np.ndarray
    accuracy_M: np.ndarray
    needed_D: np.ndarray | None
    needed_accuracy_D: np.ndarray | None
    needed_count_D: np.ndarray | None
    mistakes: list[Mistake]


@torch.no_grad()
def look_inside(trained: TrainedModel, length: int | None = None, examples: int = 200) -> Inside:
    """Return what a trained model attends to, and where its answers are right, on evaluation examples.

    Args:
        trained: the model, from `load_model`.
        length: input length; None means the longest training length.
        examples: number of examples, at least 1.

    Raises:
        UserError: the task has no input of this length, or it is too long.
    """
    experiment = trained.experiment
    task, layout = experiment.task, experiment.format
    wanted = experiment.max_length if length is None else length
    length = task.nearest_length(wanted)
    if length is None:
        raise UserError(f"length={wanted}: {type(task).__name__} makes no input of this length")
    inputs = task.input_length(length)
    tokens = layout.tokens(inputs, task.target_length(length))
    if tokens > MOST_TOKENS:
        raise UserError(f"length={length} has {tokens:,} tokens; allowed: at most {MOST_TOKENS:,} tokens")
    blocks = range(-(-examples // BLOCK_EXAMPLES))
    batches = [experiment.source.evaluation_block(length, block) for block in blocks]
    batches[-1] = batches[-1].rows(slice(examples - BLOCK_EXAMPLES * blocks[-1]))
    counts_M2 = torch.zeros(task.target_length(length), 2, dtype=torch.double)  # right and all targets
    distances: list[Tensor] = []  # from each target to the symbol that it repeats, and whether it is right
    right: list[Tensor] = []
    exact = 0
    mistakes: list[Mistake] = []
    for batch in batches:
        if experiment.decoding == "greedy":  # as in the evaluation of the run
            answers_BT = greedy_answers(trained.model, batch, layout.eos)
        else:
            answers_BT, _ = forced_answers(trained.model, batch)
        wrong_BT = (answers_BT != batch.labels_BT) & (batch.labels_BT != IGNORE)
        scored_BT = (batch.labels_BT != IGNORE) & (batch.labels_BT != layout.eos)
        exact += int((~wrong_BT.any(dim=1)).sum())
        first = layout.first_target(inputs)
        counts_M2 += counts_by_index(batch, answers_BT, first, len(counts_M2), layout)
        distances_N = _distances(trained, batch, inputs, scored_BT)
        if distances_N is not None:
            distances.append(distances_N)
            right.append(~wrong_BT[scored_BT])
        for row in wrong_BT.any(dim=1).nonzero()[: MISTAKES - len(mistakes), 0].tolist():
            mistakes.append(_mistake(trained, batch, answers_BT, row, inputs))
    needed_D = needed_accuracy_D = needed_count_D = None
    if distances:
        needed, inverse_N, counts = torch.cat(distances).unique(return_inverse=True, return_counts=True)
        right_D = torch.bincount(inverse_N, torch.cat(right).double())
        needed_D, needed_count_D = needed.numpy(), counts.numpy()
        needed_accuracy_D = (right_D / counts).numpy()
    distances_D, attention_LHD, attention_LHTS = _attention(trained, batches[0])
    example = batches[0].tokens_BT[0, : int(batches[0].lengths_B[0])]
    return Inside(
        length=length,
        examples=examples,
        exact_match=exact / examples,
        tokens=[_name(trained, token) for token in example.tolist()],
        attention_LHTS=attention_LHTS,
        distances_D=distances_D,
        attention_LHD=attention_LHD,
        accuracy_M=(counts_M2[:, 0] / counts_M2[:, 1]).numpy(),
        needed_D=needed_D,
        needed_accuracy_D=needed_accuracy_D,
        needed_count_D=needed_count_D,
        mistakes=mistakes,
    )


def _distances(trained: TrainedModel, batch: Batch, inputs: int, scored_BT: Tensor) -> Tensor | None:
    """Return the distance in tokens from each scored target to the needed symbol [N], if the task has one."""
    layout = trained.experiment.format
    needed_BM = trained.experiment.task.needed_indices(layout.inputs(batch.tokens_BT, inputs))
    if needed_BM is None:
        return None
    rows_N, columns_N = scored_BT.nonzero(as_tuple=True)
    return columns_N - needed_BM[rows_N, columns_N - layout.first_target(inputs)] - int(layout.causal)


def _attention(trained: TrainedModel, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distances, mean weights by distance [L, H, D], and weights of the first row [L, H, T, S]."""
    first = np.zeros((0, 0, 0, 0))
    longest = int(batch.lengths_B[:AVERAGED].max())
    lowest = 0 if trained.experiment.format.causal else 1 - longest
    distances_D = np.arange(lowest, longest)
    sums_LHD: list[np.ndarray] = []
    counts_D = np.zeros(len(distances_D))
    for row in range(min(AVERAGED, len(batch.tokens_BT))):
        tokens = int(batch.lengths_B[row])
        example = batch.rows(torch.tensor([row]))
        example = example._replace(
            tokens_BT=example.tokens_BT[:, :tokens], labels_BT=example.labels_BT[:, :tokens]
        )
        by_layer = trained.batch_weights(example)
        if not by_layer:
            return distances_D, np.zeros((0, 0, len(distances_D))), first
        weights_LHTS = torch.stack([by_layer[layer][0].double() for layer in sorted(by_layer)])
        if row == 0:
            first = weights_LHTS.numpy()
        # A distance that exceeds the example has an empty diagonal.
        diagonals = [weights_LHTS.diagonal(-int(distance), 2, 3).sum(-1) for distance in distances_D]
        sums_LHD.append(torch.stack(diagonals, dim=-1).numpy())
        counts_D += (tokens - np.abs(distances_D)).clip(min=0)
    return distances_D, np.sum(sums_LHD, axis=0) / counts_D, first


def _mistake(trained: TrainedModel, batch: Batch, answers_BT: Tensor, row: int, inputs: int) -> Mistake:
    """Return a row with a mistake as printed symbols."""
    labels_T = batch.labels_BT[row]
    columns = (labels_T != IGNORE).nonzero()[:, 0]
    targets, answers = labels_T[columns], answers_BT[row, columns]
    return Mistake(
        inputs=[
            _name(trained, token)
            for token in trained.experiment.format.inputs(batch.tokens_BT, inputs)[row].tolist()
        ],
        targets=[_name(trained, token) for token in targets.tolist()],
        answers=[_name(trained, token) for token in answers.tolist()],
        index=int((answers != targets).nonzero()[0]),
    )


def _name(trained: TrainedModel, token: int) -> str:
    """Return how a token is printed: a symbol of the task, or a mark of the format."""
    layout = trained.experiment.format
    marks = {IGNORE: "", layout.bos: "begin", layout.sep: "|", layout.eos: "end", layout.slot: "_"}
    return marks[token] if token in marks else trained.experiment.task.symbol_name(token)
