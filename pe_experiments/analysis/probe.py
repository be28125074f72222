"""Test how well linear maps read positions and distances from the hidden states of a trained model.

Shapes: L hidden states (the embeddings, then one per layer), T tokens, N selected tokens, D d_model.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from rich.table import Table
from torch import Tensor

from pe_experiments.analysis.trained_model import TrainedModel
from pe_experiments.data.batches import BLOCK_EXAMPLES
from pe_experiments.terminal.errors import UserError

POSITION = "position"
DISTANCE = "distance to the last mark"
INSIDE, BEYOND = "inside", "beyond"
LENGTHS = 10  # training lengths whose examples are read
RIDGE = 1.0  # penalty of the squared weights, small beside the squares of thousands of tokens
MOST_LOGITS = 1 << 24  # attention logits of a head in one forward pass


class Tokens(NamedTuple):
    """Tokens of many examples: their hidden states and what is read from them, -1 where it is not defined."""

    states_LND: Tensor
    values_N: dict[str, Tensor]


@torch.no_grad()
def probe_positions(trained: TrainedModel, length: int | None = None, examples: int = 200) -> pd.DataFrame:
    """Return how well a linear map reads the position of a token from each layer's hidden states.

    The position is the index of the token in the sequence, whatever position ids the model was given. The
    distance to the last mark is the number of tokens since the separator between input and answer, or since
    the last `Task.mark`. Tokens before the first mark have none.

    Each map is a ridge regression in float64, fitted on examples of up to ten training lengths. It is tested
    on other examples of these lengths (``inside``), and on the positions or distances in a longer input, by
    default twice as long, that exceed all fitted ones (``beyond``), on at most 100 examples of a length.

    Returns:
        A row per ``quantity``, ``layer`` (``embedding``, ``layer 0``, ...) and ``range``: ``r2`` (1 is exact,
        0 as good as the mean of the tested tokens), ``error`` (mean absolute error in tokens) and ``tokens``,
        their number. Without tokens ``r2`` and ``error`` are NaN. A task without marks has no rows for the
        distance.

    Raises:
        UserError: the task has no input of this length, or it is not above the training lengths.
    """
    experiment = trained.experiment
    longest, train_lengths = experiment.max_length, experiment.source.train_lengths
    longer = experiment.task.nearest_length(2 * longest if length is None else length)
    if length is not None and (longer is None or longer <= longest):
        raise UserError(f"length={length} is not above the training lengths, which end at {longest}")
    indices = np.linspace(0, len(train_lengths) - 1, min(LENGTHS, len(train_lengths)))
    lengths = [train_lengths[round(index)] for index in indices]
    rows = min(BLOCK_EXAMPLES, math.ceil(examples / len(lengths)))
    fitted = _read_tokens(trained, lengths, rows, block=0)
    tested = {INSIDE: _read_tokens(trained, lengths, rows, block=1)}
    if longer is not None and longer > longest:
        tested[BEYOND] = _read_tokens(trained, [longer], min(BLOCK_EXAMPLES, examples), block=0)
    lines = []
    for quantity, values_N in fitted.values_N.items():
        known_N = values_N >= 0
        if not known_N.any():
            continue
        for layer, states_ND in enumerate(fitted.states_LND):
            weights_D, constant = fit_linear(states_ND[known_N], values_N[known_N])
            for where, tokens in tested.items():
                true_N = tokens.values_N[quantity]
                chosen_N = true_N > values_N.max() if where == BEYOND else true_N >= 0
                read_N = tokens.states_LND[layer][chosen_N].double() @ weights_D + constant
                lines.append(
                    {
                        "quantity": quantity,
                        "layer": f"layer {layer - 1}" if layer else "embedding",
                        "range": where,
                        **_scores(read_N, true_N[chosen_N]),
                    }
                )
    return pd.DataFrame(lines)


def fit_linear(states_ND: Tensor, values_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights [D] and constant that minimise squared errors plus `RIDGE` times squared weights."""
    states_ND, values_N = states_ND.double(), values_N.double()
    mean_D, mean = states_ND.mean(dim=0), values_N.mean()
    centred_ND = states_ND - mean_D
    squares_DD = centred_ND.T @ centred_ND + RIDGE * torch.eye(len(mean_D), dtype=torch.double)
    weights_D = torch.linalg.solve(squares_DD, centred_ND.T @ (values_N - mean))
    return weights_D, mean - mean_D @ weights_D


def _scores(read_N: Tensor, true_N: Tensor) -> dict[str, float]:
    if not len(true_N):
        return {"r2": math.nan, "error": math.nan, "tokens": 0}
    true_N = true_N.double()
    variance = (true_N - true_N.mean()).square().sum()
    unexplained = (true_N - read_N).square().sum()
    return {
        "r2": float(1 - unexplained / variance) if variance else math.nan,
        "error": float((true_N - read_N).abs().mean()),
        "tokens": len(true_N),
    }


def _read_tokens(trained: TrainedModel, lengths: Iterable[int], rows: int, block: int) -> Tokens:
    """Return all tokens of the first ``rows`` examples of a block of evaluation examples at these lengths."""
    states, positions, distances = [], [], []
    for length in lengths:
        batch = trained.experiment.source.evaluation_block(length, block).rows(slice(rows))
        rows_per_pass = max(1, MOST_LOGITS // batch.tokens_BT.shape[1] ** 2)
        passes = [batch.rows(slice(row, row + rows_per_pass)) for row in range(0, rows, rows_per_pass)]
        states_LBTD = torch.cat([trained.hidden_states(part) for part in passes], dim=1)
        position_T = torch.arange(batch.tokens_BT.shape[1])
        is_token_BT = position_T < batch.lengths_B[:, None]
        is_mark_BT = batch.tokens_BT == trained.experiment.format.sep
        if trained.experiment.task.mark is not None:
            is_mark_BT |= batch.tokens_BT == trained.experiment.task.mark
        last_mark_BT = position_T.where(is_mark_BT, -1).cummax(dim=1).values
        distance_BT = (position_T - last_mark_BT).where(last_mark_BT >= 0, -1)
        states.append(states_LBTD[:, is_token_BT])
        positions.append(position_T.expand_as(is_token_BT)[is_token_BT])
        distances.append(distance_BT[is_token_BT])
    values_N = {POSITION: torch.cat(positions), DISTANCE: torch.cat(distances)}
    return Tokens(torch.cat(states, dim=1), values_N)


def probe_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return the result of `probe_positions` as printed: a row per layer, such as ``0.97 (0.4 tokens)``."""

    def cell(r2: float, error: float) -> str:
        if math.isnan(error):
            return "–"
        printed_r2 = "–" if math.isnan(r2) else "below -10" if r2 < -10 else f"{r2:.2f}"
        return f"{printed_r2} ({error:.1f} tokens)"

    cells = table.assign(cell=[*map(cell, table["r2"], table["error"])])
    wide = cells.pivot(index="layer", columns=["quantity", "range"], values="cell")
    columns = list(dict.fromkeys(zip(table["quantity"], table["range"], strict=True)))
    return wide.loc[list(dict.fromkeys(table["layer"])), columns]


def probe_table(table: pd.DataFrame) -> Table:
    cells = probe_cells(table)
    headings = ["\n".join(column) for column in cells.columns.tolist()]
    note = "R² and mean absolute error of linear maps, fitted to hidden states at the training lengths"
    printed = Table("", *headings, show_edge=False, caption=note, caption_justify="left")
    for layer, row in cells.iterrows():
        printed.add_row(str(layer), *row)
    return printed
