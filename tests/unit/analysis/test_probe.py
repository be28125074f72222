"""`probe_positions` agrees with NumPy on single examples, and finds what is known to be there."""

import numpy as np
import pandas as pd
import pytest
import torch

from pe_experiments.analysis.probe import (
    BEYOND,
    DISTANCE,
    INSIDE,
    POSITION,
    RIDGE,
    probe_positions,
)
from pe_experiments.analysis.trained_model import TrainedModel
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny


def untrained(tiny: Tiny, *options: str) -> TrainedModel:
    experiment = tiny(*options)
    return TrainedModel(experiment, experiment.untrained_model().eval())


def value(table: pd.DataFrame, quantity: str, layer: str, where: str, column: str) -> float:
    return table.set_index(["quantity", "layer", "range"]).loc[(quantity, layer, where), column]


def least_squares(states: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return weights and constant of a ridge regression, with the penalty as rows of data."""
    size = states.shape[1]
    penalty = np.hstack([np.sqrt(RIDGE) * np.eye(size), np.zeros((size, 1))])
    rows = np.vstack([np.hstack([states, np.ones((len(states), 1))]), penalty])
    return np.linalg.lstsq(rows, np.append(values, np.zeros(size)), rcond=None)[0]


@pytest.mark.parametrize(
    "options", [("task=copy", "pe=none"), ("task=needle", "pe=rope", "training.min_length=4")]
)
def test_all_numbers_agree_with_single_examples(tiny: Tiny, options: tuple[str, ...]) -> None:
    trained = untrained(tiny, *options)
    table = probe_positions(trained, examples=18)
    train_lengths = trained.experiment.source.train_lengths
    rows = -(-18 // len(train_lengths))
    parts = {
        "fit": single_tokens(trained, train_lengths, rows, 0),
        INSIDE: single_tokens(trained, train_lengths, rows, 1),
        BEYOND: single_tokens(trained, [12], 18, 0),
    }
    for column, quantity in ((1, POSITION), (2, DISTANCE)):
        for layer, name in enumerate(("embedding", "layer 0", "layer 1")):
            states, values = known(parts["fit"], column, layer)
            weights = least_squares(states, values)
            for where, above in ((INSIDE, -1), (BEYOND, max(values))):
                states, true = known(parts[where], column, layer, above)
                read = states @ weights[:-1] + weights[-1]
                assert value(table, quantity, name, where, "tokens") == len(true) > 0
                r2 = 1 - ((true - read) ** 2).sum() / ((true - true.mean()) ** 2).sum()
                assert value(table, quantity, name, where, "r2") == pytest.approx(r2, rel=1e-4)
                error = np.abs(true - read).mean()
                assert value(table, quantity, name, where, "error") == pytest.approx(error, rel=1e-4)


def known(tokens: list[tuple], column: int, layer: int, above: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Return the states of the tokens whose value in a column is above a number, and these values."""
    chosen = [token for token in tokens if token[column] is not None and token[column] > above]
    return np.array([token[0][layer] for token in chosen]), np.array([token[column] for token in chosen])


def single_tokens(trained: TrainedModel, lengths, rows: int, block: int) -> list[tuple]:
    """Return hidden states, position and distance of every token, each example alone and without padding."""
    layout, task = trained.experiment.format, trained.experiment.task
    marks = {layout.sep, task.mark}
    tokens = []
    for length in lengths:
        batch = trained.experiment.source.evaluation_block(length, block)
        for row in range(rows):
            size = int(batch.lengths_B[row])
            row_tokens = batch.tokens_BT[row : row + 1, :size]
            outputs: list[torch.Tensor] = [trained.model.embed(row_tokens, torch.arange(size)[None])]
            hooks = [
                layer.register_forward_hook(lambda _, inputs, output, to=outputs: to.append(output))
                for layer in trained.model.layers
            ]
            with torch.no_grad():
                trained.model(row_tokens)
            for hook in hooks:
                hook.remove()
            distance = None
            for index, token in enumerate(row_tokens[0].tolist()):
                if token in marks:
                    distance = 0
                elif distance is not None:
                    distance += 1
                states = [output[0, index].detach().double().numpy() for output in outputs]
                tokens.append((states, index, distance))
    return tokens


def test_a_bag_of_symbols_knows_no_position(tiny: Tiny) -> None:
    options = ("task=lag", "model=encoder", "pe=none", "training.min_length=6")
    table = probe_positions(untrained(tiny, *options), examples=100)
    inside = table[table["range"] == INSIDE]
    assert inside["r2"].max() < 0.05
    assert inside["error"].between(1.4, 1.6).all()  # the mean distance of 0 to 5 from their middle is 1.5
    assert set(table["quantity"]) == {POSITION}  # neither a separator nor a mark


def test_it_reads_only_inputs_and_needs_a_longer_one(tiny: Tiny) -> None:
    trained = untrained(tiny, "task=copy", "pe=none")
    with pytest.raises(UserError, match="length=6 is not above the training lengths, which end at 6"):
        probe_positions(trained, length=6)
    assert value(probe_positions(trained, 20, 6), POSITION, "layer 1", BEYOND, "tokens") == 6 * (42 - 14)
    single = probe_positions(untrained(tiny, "task=first", "pe=none"))
    assert value(single, DISTANCE, "layer 0", INSIDE, "tokens") > 0
    assert np.isnan(value(single, DISTANCE, "layer 0", BEYOND, "error"))  # answers are not longer
