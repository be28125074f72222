"""A new encoding is two files; a trained model is evaluated with an extended encoding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import ROOT, TINY, Script, assert_one_sentence
from tests.processes import run_script

ENCODING = '''
"""Keys at odd distances are pushed away."""

import torch
from torch import Tensor, nn

from pe_experiments.encodings import AttentionContext, ModelShape, PositionalEncoding


class OddDistances(PositionalEncoding):
    """Bias -s_h on keys at odd distances. Source: this test, arXiv:0000.00000. Parameters: ``num_heads``.

    Beyond training: as in training.
    """

    invariant_to = "shift"

    def __init__(self, shape: ModelShape, *, strength: float = 1.0):
        super().__init__(shape)
        self.strength_H = nn.Parameter(torch.full((shape.num_heads,), strength))

    def bias(self, q_BHTK: Tensor, k_BHSK: Tensor, at: AttentionContext) -> Tensor:
        odd_BTS = (at.relative_positions_BTS.abs() % 2).float()
        return -self.strength_H[:, None, None] * odd_BTS[:, None]
'''
CHOICE = """# Keys at odd distances are pushed away.
_target_: pe_experiments.encodings.odd.OddDistances
strength: 1.0
"""


@pytest.mark.slow
def test_a_new_encoding_is_two_new_files(tmp_path: Path) -> None:
    """In a copy of the project: contract tests, help, training and figures include it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in ("pe_experiments", "configs", "scripts", "tests", "results/encodings"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "pe_experiments" / "encodings" / "odd.py").write_text(ENCODING)
    (tmp_path / "configs" / "pe" / "odd.yaml").write_text(CHOICE)

    def run(*command: str) -> str:
        done = run_script(*command, cwd=tmp_path, path=[tmp_path])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tests = ("tests/contracts/test_encodings.py", "-k", "odd")
    contract = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert contract.returncode == 0, contract.stdout + contract.stderr
    assert contract.stdout.count(".") == 5  # the contract in both forms, docstring, seed and width
    assert "\n  odd " in run("scripts/train.py", "--help")
    assert "odd, before training" in run("scripts/show_encoding.py", "pe=odd", "d_model=32")
    assert "results/runs/copy-decoder-odd-s0" in run("scripts/train.py", "pe=odd", *TINY)


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
        (["pe=rope_ssmax", "pe.encodings=[1,2]"], ["pe.encodings", "_target_"]),
        (["pe=dape", "pe.bias._target_=pe_experiments.encodings.rope.Rope"], ["Rope", "adds a bias"]),
        (["pe=dape", "pe.bias.slope=3"], ["slope"]),
        (["pe=dape", "pe.bias._partial_=false"], ["_partial_: true"]),
    ],
)
def test_parts_that_do_not_fit_together_are_one_sentence(
    script: Script, results: Path, arguments: list[str], words: list[str]
) -> None:
    assert_one_sentence(script("train", *TINY, *arguments, f"results_dir={results}"), *words)
    assert not (results / "runs").exists()
