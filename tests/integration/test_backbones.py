"""A user's model behind ``model._target_``."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_experiments.analysis.trained_model import load_model
from pe_experiments.run import run_experiment
from pe_experiments.terminal.errors import UserError
from tests.conftest import Tiny

USER_MODEL = '''
from torch import nn
from pe_experiments.models import Backbone


class Library(Backbone):
    """torch's layers, which support encodings at the embedding alone."""

    def __init__(self, vocab_size, shape, make_encoding, seed=0, *, hidden: int = 32):
        super().__init__(vocab_size, shape, make_encoding, seed)
        layer = nn.TransformerEncoderLayer(
            shape.d_model, shape.num_heads, hidden, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, shape.num_layers, enable_nested_tensor=False)

    def layers_of(self, x_BTD, at):
        return self.layers(x_BTD, mask=~at.visible_BTS[0])
'''


def test_a_users_model_trains_and_is_part_of_the_identity(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_layers.py").write_text(USER_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    result = run_experiment(tiny("model=their_layers.Library", "+model.hidden=24").config)
    assert result.status == "completed"
    assert result.directory.name.startswith("copy-Library-sinusoidal-s0-")
    classes = result.directory.read_config()["identity"]["classes"]
    assert list(classes["model"]) == ["their_layers"]
    assert run_experiment(tiny("model=their_layers.Library", "+model.hidden=24").config).done == "found"
    with pytest.raises(UserError, match="from outside this package"):
        load_model(result.directory.path)
    assert load_model(result.directory.path, trust=True).model.layers.layers[0].linear1.out_features == 24
    with pytest.raises(UserError, match="has no Backbone of that name"):
        tiny("model=their_layers.Missing")
