"""A trained model is evaluated with an extended encoding; parts that do not fit together are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import TINY, Script, assert_one_sentence


@pytest.mark.slow
def test_context_extension_of_a_trained_model(script: Script, results: Path) -> None:
    """The weights and the base stay, and up to the training length nothing changes."""
    script("train", *TINY, "training.steps=30", "pe=rope", "pe.base=500", f"results_dir={results}")
    (run,) = (results / "runs").iterdir()
    before = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    outcome = script("evaluate", f"run={run}", "pe=rope_yarn", "evaluation.lengths=[4,6,48]")
    assert outcome.code == 0, outcome.err
    label = "rope(base=500) evaluated as rope_yarn(base=500)"
    assert f"{label}, an encoding it was not trained with" in outcome.out
    (folder,) = (run / "evaluations").iterdir()
    assert f'"{label}"' in (folder / "result.json").read_text()
    assert yaml.safe_load((folder / "config.yaml").read_text())["pe"]["base"] == 500
    script("evaluate", f"run={run}", "evaluation.lengths=[4,6,48]")
    (plain_folder,) = set((run / "evaluations").iterdir()) - {folder}
    stretched = (folder / "extrapolation.csv").read_text().splitlines()
    plain = (plain_folder / "extrapolation.csv").read_text().splitlines()
    assert stretched[:3] == plain[:3]
    assert stretched[3] != plain[3]
    script("evaluate", f"run={run}", "pe.kept_frequencies=0.25", "pe=p_rope", "evaluation.lengths=[7]")
    configs = [yaml.safe_load((path / "config.yaml").read_text()) for path in (run / "evaluations").iterdir()]
    (last,) = (config["pe"] for config in configs if config["evaluation"]["lengths"] == [7])
    assert (last["base"], last["kept_frequencies"]) == (500, 0.25)
    after = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pe=fire", "model=encoder"], ["pe: Fire", "causal models only", "model=decoder"]),
        (["positions=random_subset", "positions.max_positions=19"], ["20 tokens", "max_positions"]),
        (["pe=dape", "pe.bias._target_=pe_experiments.encodings.rope.Rope"], ["Rope", "adds a bias"]),
    ],
)
def test_parts_that_do_not_fit_together_are_one_sentence(
    script: Script, results: Path, arguments: list[str], words: list[str]
) -> None:
    assert_one_sentence(script("train", *TINY, *arguments, f"results_dir={results}"), *words)
    assert not (results / "runs").exists()
