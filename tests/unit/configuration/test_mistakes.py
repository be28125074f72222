"""Configurations that are refused, each in one sentence with the key, the value and what is allowed.

`tests/integration/test_command_line.py` has those that only a command can meet.
"""

from __future__ import annotations

import pytest

from pe_experiments.configuration.experiment import Experiment, trained_sections
from pe_experiments.terminal.errors import UserError
from pe_experiments.training.optimizer import TrainingOptimizer
from tests.conftest import Tiny

CALLBACK = "trainer.callbacks=[{{_target_: pytorch_lightning.callbacks.{}}}]"
MISTAKES = {
    "pe=a,b": "pe=a,b: several values need a sweep, -m 'pe=a,b'$",
    "model.d_model=1 model.num_heads=1": "model.d_model=1: a layer norm .* allowed: 2 or more",
    "evaluation.lengths=50": "evaluation.lengths=50: expected a list in brackets",
    "training.lr=0.1": r"Did you mean training.learning_rate\?",
    "pe=rotary": r"pe=rotary is not a choice. Did you mean rope\? Allowed: sinusoidal, learned, rope",
    "pe=rope +pe.base=3": "pe.base is a setting already; write pe.base=3",
    "pe=mine.X pe.slope=1": r"is written \+pe.slope=1",
    "pe=[rope,none]": "pe takes one choice; for several runs write -m pe=rope,none",
    "logger=null": "logger needs a choice",
    "pe=null": "pe needs a choice; without an encoding it is pe=none",
    "pe=KERPLE": r"Did you mean kerple_log or kerple_power\?.*train.py --help shows all",
    "evaluation.lengths=[20, 40]": r"'evaluation.lengths=\[20,' cannot be read; write lists .* without",
    "seed=range(5)": r"or a sweep, -m 'seed=range\(5\)'$",
    "training.batch_size=99999999999999999999": "expected at most 2147483647",
    "pe=torch.nn.LayerNorm": "LayerNorm is a module, not a PositionalEncoding; wrap it",
    "positional_encoding=alibi": r"Did you mean pe\?",
    "results_dir=~/x": r"cannot be read; .*quote special characters, as in 'results_dir=\"~/x\"'",
    "logger=[wandb,nope]": "logger=nope is not a choice",
    "wandb.project=foo": "options of Weights & Biases are logger.wandb.mode",
    "logger=wandb logger.wandb.mdoe=online": r"logger.wandb.mdoe is not a setting. Did you mean mode\?",
    "logger=none +logger.mine._target_=Mine": "logger.mine._target_=Mine: expected a logger such as",
    "hydra/sweeper=optuna": r'install --pre -e "\.\[tune\]" in an environment of its own',
    "evaluation.every=13": "evaluation.every=13 is above training.steps=12; allowed: at most 12, or null",
    "evaluation.every=4 trainer=fsdp": "with trainer.strategy=fsdp no device has the whole model",
    "trainer.max_epochs=3": r"Did you mean training.steps\?",
    "trainer.callbacks=[{_target_: torch.nn.Linear}]": "torch.nn has no Callback of that name",
    CALLBACK.format("StochasticWeightAveraging, swa_lrs: 0.1"): "allowed instead: EMAWeight",
    "optimizer=sgd optimizer.lr=1": r"optimizer.lr is not .* training.learning_rate",
    "optimizer.betas=5": "optimizer cannot be built",
    "task=text training.stop_at_exact_match=0.5": "exact match is not measured on Text",
    "task=text model=encoder": "Text needs a decoder, because an encoder reads the symbols it should predict",
    "positions=task task=majority": "Majority marks no related symbols",
    "positions=task task=copy positions.ids=abacus": "ids=abacus: Copy .* allowed here: coupling",
    "positions=task task=addition positions.ids=coupling": "ids=coupling: Addition .* allowed here: abacus",
    "positions=task positions.max_positions=5": "max_positions=5 is below the 8 ids",
}


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        (["pe=RoPE"], ["pe=rope"]),
        (
            ["pe=NoPE", "task=Majority", "positions=Random_Offset"],
            ["pe=none", "task=majority", "positions=random_offset"],
        ),
        (["pe=Rope_YaRN", "pe.factor=2"], ["pe=rope_yarn", "pe.factor=2"]),
        (["pe=YaRN", "pe.factor=2"], ["pe=rope_yarn", "pe.factor=2"]),
        (["pe=learned-relative"], ["pe=learned_relative"]),
        (["pe=FoX", "model=Decoder"], ["pe=fox", "model=decoder"]),
        (["pe=by_head", "pe.encodings=[ALiBi,NoPE]"], ["pe=by_head", "pe.encodings=[alibi,none]"]),
        (["pe=by_head", "pe.encodings=[Linear,T5]"], ["pe=by_head", "pe.encodings=[rope_linear,t5]"]),
    ],
)
def test_case_does_not_matter(typed: list[str], spelled: list[str], tiny: Tiny) -> None:
    assert tiny(*typed).label == tiny(*spelled).label
    assert trained_sections(tiny(*typed).full_config) == trained_sections(tiny(*spelled).full_config)


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_sentence(typed: str, tiny: Tiny) -> None:
    overrides = [typed] if "{" in typed else typed.split()
    with pytest.raises(UserError, match=MISTAKES[typed]) as refusal:
        build(tiny(*overrides))
    assert "\n" not in str(refusal.value)


def build(experiment: Experiment) -> None:
    model = experiment.untrained_model()
    TrainingOptimizer(model, experiment.components["optimizer"], experiment.config.training)
