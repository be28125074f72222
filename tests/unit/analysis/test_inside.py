"""What is seen inside trained models: accuracies, attention and probes agree with loops."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hydra.utils import instantiate

from pe_experiments import load_model
from pe_experiments.analysis.inside import AVERAGED, look_inside
from pe_experiments.analysis.probe import (
    BEYOND,
    DISTANCE,
    INSIDE,
    POSITION,
    RIDGE,
    probe_positions,
)
from pe_experiments.analysis.trained_model import TrainedModel
from pe_experiments.configuration.choices import shipped
from pe_experiments.evaluation.curve import extrapolation_curve
from pe_experiments.evaluation.tables import Details
from pe_experiments.run import run_experiment
from pe_experiments.tasks import IGNORE
from pe_experiments.terminal.errors import UserError
from tests.conftest import Script, Tiny, assert_one_sentence


def untrained(tiny: Tiny, *options: str) -> TrainedModel:
    experiment = tiny(*options)
    return TrainedModel(experiment, experiment.untrained_model().eval())


@pytest.mark.parametrize("name", sorted(shipped("task")))
def test_the_needed_symbol_is_the_target(name: str) -> None:
    task = instantiate(shipped("task")[name])
    checked = 0
    for length in range(1, 60):
        if task.nearest_length(length) == length:
            inputs_BN, targets_BM = task.sample(length, 20, torch.Generator().manual_seed(length))
            needed_BM = task.needed_indices(inputs_BN)
            if needed_BM is None:
                return
            read_BM = inputs_BN.gather(1, needed_BM).where(targets_BM != IGNORE, IGNORE)
            assert torch.equal(read_BM, targets_BM)
            checked += 1
    assert checked


@pytest.mark.parametrize(
    "options",
    [
        ("task=reverse", "pe=rope"),
        ("task=flip_flop", "pe=alibi", "training.min_length=4"),
        ("task=copy", "model=encoder"),
        ("task=deduplicate", "evaluation.decoding=greedy"),
        ("task=text", "pe=fox"),
    ],
)
def test_accuracies_agree_with_the_evaluation(tiny: Tiny, options: tuple[str, ...]) -> None:
    trained = untrained(tiny, *options)
    experiment = trained.experiment
    inside = look_inside(trained, 6, examples=130)
    details = Details(experiment.source, indexed=[6])
    arguments = (trained.model, experiment.source, [6], 130, 6, experiment.decoding)
    (row,) = extrapolation_curve(*arguments, details=details)
    assert inside.exact_match == row["exact_match"]
    by_index = [point["token_accuracy"] for point in details.tables["index"]]
    assert inside.accuracy_M[~np.isnan(inside.accuracy_M)].tolist() == by_index
    if inside.needed_D is None:
        assert "deduplicate" in options[0] or "text" in options[0]
    else:
        assert inside.needed_accuracy_D.min() <= row["token_accuracy"] <= inside.needed_accuracy_D.max()
    if "task=reverse" in options:  # target m repeats symbol N - 1 - m, 2m + 1 tokens before it
        assert inside.needed_D.tolist() == [1, 3, 5, 7, 9, 11]
        assert np.array_equal(inside.needed_accuracy_D, inside.accuracy_M)
    for mistake in inside.mistakes:
        assert mistake.answers[: mistake.index] == mistake.targets[: mistake.index]
        assert mistake.answers[mistake.index] != mistake.targets[mistake.index]


@pytest.mark.parametrize("options", [("pe=t5",), ("model=encoder", "pe=rope")])
def test_attention_agrees_with_a_loop(tiny: Tiny, options: tuple[str, ...]) -> None:
    experiment = tiny("task=copy", *options)
    trained = TrainedModel(experiment, experiment.untrained_model().eval())
    inside = look_inside(trained, 4)
    inputs = experiment.source.evaluation_block(4, 0)
    inputs_BN = experiment.format.inputs(inputs.tokens_BT, 4)
    expected = trained.attention_weights(inputs_BN[:1])
    for layer in range(2):
        assert np.allclose(inside.attention_LHTS[layer], expected[layer][:, :10, :10], atol=1e-6)
    sums: dict[tuple[int, int, int], list[float]] = {}
    for row in range(AVERAGED):
        for layer, weights_HTS in trained.attention_weights(inputs_BN[row : row + 1]).items():
            for (head, query, key), weight in np.ndenumerate(weights_HTS.numpy()):
                if key <= query or not experiment.shape.causal:
                    sums.setdefault((layer, head, query - key), []).append(weight)
    for (layer, head, distance), weights in sums.items():
        index = inside.distances_D.tolist().index(distance)
        assert inside.attention_LHD[layer, head, index] == pytest.approx(np.mean(weights), abs=1e-6)
    assert len(sums) == inside.attention_LHD.size


def test_the_command_draws_a_page(tiny: Tiny, script: Script, results: Path) -> None:
    run = run_experiment(tiny("task=reverse").config).directory
    out = script("show_model", f"run={run.name}", f"results_dir={results}", "length=9").succeeded()
    folder = results / "models" / run.name
    page = (folder / "inside.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "distance to the last mark, beyond" in page
    assert "The first mistakes" in page
    assert "input length 9: exact match 0.000 of 200 examples" in out
    wrong = script("show_model", f"run={run.path}", "length=3000")
    assert_one_sentence(wrong, "length=3000", "at most 2,048 tokens")
    assert look_inside(load_model(run.path)).length == 6  # the longest training length
    table = probe_positions(load_model(run.path), 9).set_index(["quantity", "layer", "range"])
    layer_1 = next(line for line in out.splitlines() if line.startswith(" layer 1"))
    assert f" {table.loc[(POSITION, 'layer 1', INSIDE), 'r2']:.2f} (" in layer_1
    (run.path / "checkpoints" / "last.ckpt").unlink()
    assert_one_sentence(script("show_model", f"run={run.path}"), "last.ckpt")


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


def test_it_reads_only_inputs_and_needs_a_longer_one(tiny: Tiny) -> None:
    trained = untrained(tiny, "task=copy", "pe=none")
    with pytest.raises(UserError, match="length=6 is not above the training lengths, which end at 6"):
        probe_positions(trained, length=6)
    assert value(probe_positions(trained, 20, 6), POSITION, "layer 1", BEYOND, "tokens") == 6 * (42 - 14)
    single = probe_positions(untrained(tiny, "task=first", "pe=none"))
    assert value(single, DISTANCE, "layer 0", INSIDE, "tokens") > 0
    assert np.isnan(value(single, DISTANCE, "layer 0", BEYOND, "error"))  # answers are not longer
