"""The checker at other sizes, far away, on weights, tables and parameters that are stored otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

Script = Callable[..., Outcome]

pytestmark = pytest.mark.slow

OTHERS = '''
import torch
from torch import nn
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.cope import Cope
from pe_experiments.encodings.rope import Rope, frequencies
from pe_experiments.encodings.t5 import T5Bias


class SixteenChannels(Rope):
    """The author's head_dim is written in."""

    def frequencies_BR(self, at):
        return frequencies(self.base, 8)[None, torch.arange(self.pairs) % 8]


class WithoutLogarithm(T5Bias):
    def _bias(self, at):
        steps = -at.relative_positions_BTS if self.shape.causal else at.relative_positions_BTS
        buckets = self.num_buckets if self.shape.causal else self.num_buckets // 2
        own = steps.abs().clamp(max=buckets - 1) + (0 if self.shape.causal else (steps > 0) * buckets)
        return self.table[own.long()].permute(0, 3, 1, 2)


class Biased(PositionalEncoding):
    def bias(self, q, k, at):
        distance = (at.q_positions_BT[:, :, None] - at.k_positions_BS[:, None, :]).abs()
        return -alibi_slopes(q.shape[1])[:, None, None].float() * distance[:, None].float()


class HalfPrecision(Biased):
    def bias(self, q, k, at):
        return super().bias(q, k, at).bfloat16().float()


class OwnWeights(Biased):
    def weights(self, q, k, at):
        logits = q @ k.mT / q.shape[-1] ** 0.5 + self.bias(q, k, at)
        return logits.masked_fill(~at.visible_BTS[:, None], -torch.inf).softmax(-1)


class Tabled(PositionalEncoding):
    """A table that positions index, sines before cosines."""

    times = 1.0

    def __init__(self, shape):
        super().__init__(shape)
        angles = torch.arange(5000)[:, None] * frequencies(10_000.0, shape.d_model // 2)
        self.table = torch.cat([angles.sin(), angles.cos()], -1).float()

    def embed(self, x, positions):
        return x * self.times + self.table[positions]


class TokensScaledTwice(Tabled):
    times = 8.0


class TableTurned(Cope):
    """The paper's listing: [1, head_dim, positions]."""

    def __init__(self, shape):
        super().__init__(shape)
        self.stored = nn.Parameter(self.table_RK.detach().T[None].clone())
        del self.table_RK

    @property
    def table_RK(self):
        return self.stored[0].T


class BothSides(PositionalEncoding):
    """Shaw's table with rows for later keys, in a decoder too."""

    per_layer = True

    def __init__(self, shape):
        super().__init__(shape)
        self.most = min(16, shape.train_length - 1)
        self.table = nn.Embedding(2 * self.most + 1, shape.head_dim)

    def bias(self, q, k, at):
        rows = (at.k_positions_BS[:, None] - at.q_positions_BT[:, :, None]).clamp(-self.most, self.most)
        keys = self.table((rows + self.most).long())[:, None]
        return (q[:, :, :, None] * keys).sum(-1) / q.shape[-1] ** 0.5


class Beside(PositionalEncoding):
    """Sines before cosines, after the tokens."""

    def __init__(self, shape):
        super().__init__(shape)
        self.position_width = shape.d_model // 2

    def embed(self, x, positions):
        angles = positions[..., None].double() * frequencies(10_000.0, self.position_width // 2)
        vectors = torch.cat([angles.sin(), angles.cos()], -1).float()
        return torch.cat([x, vectors.expand(len(x), -1, -1)], -1)


class Buffered(Rope):
    """Frequencies in a buffer, as many libraries keep them."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("inverse", frequencies(self.base, self.pairs).float(), persistent=False)

    def frequencies_BR(self, at):
        return self.inverse.double()[None]


class Wrapped(Rope):
    """Positions modulo 1,024."""

    def _rotations(self, at):
        at = type(at)(at.q_positions_BT % 1024, at.k_positions_BS % 1024, at.visible_BTS)
        return super()._rotations(at)
'''


@pytest.fixture(autouse=True)
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "others", raising=False)


@pytest.mark.parametrize(
    ("name", "against"),
    [("OwnWeights", "alibi"), ("Tabled", "sinusoidal"), ("TableTurned", "cope"), ("BothSides", "shaw")],
)
def test_right_ones_written_otherwise(name: str, against: str, script: Script) -> None:
    done = script("check_encoding", f"pe._target_=others.{name}", f"against={against}")
    assert done.code == 0, done.out
    assert f"It is {against}" in done.out


@pytest.mark.parametrize(
    ("name", "against", "said"),
    [
        ("SixteenChannels", "rope", "from distance 1 on"),
        ("WithoutLogarithm", "t5", "logits differ in 6 of 6 heads"),
        ("HalfPrecision", "alibi", "alibi: the bias in bfloat16"),
        ("TokensScaledTwice", "sinusoidal", "embeddings differ from position 0 on"),
        ("Wrapped", "rope", "FAILS in the decoder: far positions stay exact"),
    ],
)
def test_mistakes_that_show_elsewhere(name: str, against: str, said: str, script: Script) -> None:
    done = script("check_encoding", f"pe._target_=others.{name}", f"against={against}")
    assert done.code == 1, done.out
    assert f"It is not {against}" in done.out
    assert said in done.out


def test_columns_beside_the_tokens_may_be_laid_out_otherwise(script: Script) -> None:
    concat = "+against_arguments.combine=concat"
    done = script("check_encoding", "pe._target_=others.Beside", "against=sinusoidal", concat)
    assert done.code == 0, done.out
    assert "pairs of channels halves apart" in done.out
