"""`look_inside` agrees with the evaluation and with loops, and `show_model.py` draws it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from pe_experiments import load_model
from pe_experiments.analysis.inside import AVERAGED, look_inside
from pe_experiments.analysis.probe import INSIDE, POSITION, probe_positions
from pe_experiments.analysis.trained_model import TrainedModel
from pe_experiments.configuration.choices import shipped
from pe_experiments.evaluation.curve import extrapolation_curve
from pe_experiments.evaluation.tables import Details
from pe_experiments.run import run_experiment
from pe_experiments.tasks import IGNORE
from tests.conftest import Script, Tiny, assert_one_sentence


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
    experiment = tiny(*options)
    trained = TrainedModel(experiment, experiment.untrained_model().eval())
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
