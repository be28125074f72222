"""The checker as a user calls it, on implementations that are not ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

Script = Callable[..., Outcome]

pytestmark = pytest.mark.slow

THEIRS = '''
import torch
from pe_experiments.encodings import PositionalEncoding
from pe_experiments.encodings.alibi import alibi_slopes
from pe_experiments.encodings.learned import Learned


class Interleaved(PositionalEncoding):
    """RoPE as in the paper, angles in float32."""

    def rotate(self, q, k, at):
        return self.turned(q, at.q_positions_BT), self.turned(k, at.k_positions_BS)

    def angles(self, positions, channels):
        inverse = 1 / (10000 ** (torch.arange(0, channels, 2).float() / channels))
        return (positions[:, None, :, None].float() * inverse).repeat_interleave(2, -1)

    def turned(self, x, positions):
        angles = self.angles(positions, x.shape[-1])
        across = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return x * angles.cos() + across * angles.sin()


class Dropped(PositionalEncoding):
    """A bias whose dropout never ends."""

    def bias(self, q, k, at):
        return torch.nn.functional.dropout(0.1 * at.relative_positions_BTS.float()[:, None], 0.2)


class LastQuarter(Interleaved):
    """The rotating channels last, in neighbouring pairs."""

    def turned(self, x, positions):
        rest = x.shape[-1] * 3 // 4
        return torch.cat([x[..., :rest], super().turned(x[..., rest:], positions)], -1)


class FirstQuarter(Interleaved):
    """As in GPT-J."""

    def turned(self, x, positions):
        width = x.shape[-1] // 4
        return torch.cat([super().turned(x[..., :width], positions), x[..., width:]], -1)


class Backwards(Interleaved):
    def angles(self, positions, channels):
        return -super().angles(positions, channels)


class QueriesAheadInterleaved(Interleaved):
    def rotate(self, q, k, at):
        return self.turned(q, at.q_positions_BT + 1), self.turned(k, at.k_positions_BS)


class Frozen(PositionalEncoding):
    """RoPE that keeps its frequencies in a frozen parameter, as rotary_embedding_torch does."""

    def __init__(self, shape):
        super().__init__(shape)
        inverse = 10000.0 ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        self.freqs = torch.nn.Parameter(inverse, requires_grad=False)

    def rotate(self, q, k, at):
        return self.turned(q, at.q_positions_BT), self.turned(k, at.k_positions_BS)

    def turned(self, x, positions):
        angles = (positions[:, None, :, None].double() * self.freqs).float()
        one, two = x.chunk(2, -1)
        turned = one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()
        return torch.cat(turned, -1)


class QueriesAhead(Frozen):
    def rotate(self, q, k, at):
        return self.turned(q, at.q_positions_BT + 1), self.turned(k, at.k_positions_BS)


class FirstRow(Frozen):
    def turned(self, x, positions):
        return super().turned(x, positions[:1])


class InPlace(Frozen):
    def rotate(self, q, k, at):
        with torch.no_grad():
            q.copy_(self.turned(q, at.q_positions_BT))
        return q, self.turned(k, at.k_positions_BS)


class Detached(Frozen):
    def turned(self, x, positions):
        return super().turned(x.detach(), positions)


class Counted(Frozen):
    def rotate(self, q, k, at):
        ids = torch.arange(k.shape[2])[None]
        return self.turned(q, ids[:, -q.shape[2] :]), self.turned(k, ids)


class FromZero(Frozen):
    """Right at once; while decoding, the query is taken to stand at the start."""

    def rotate(self, q, k, at):
        few = at.k_positions_BS[:, : q.shape[2]]
        return self.turned(q, few), self.turned(k, at.k_positions_BS)


class Reversed(PositionalEncoding):
    def bias(self, q, k, at):
        slopes = 2.0 ** (-8 * torch.arange(q.shape[1], 0, -1) / q.shape[1])
        return -slopes[:, None, None] * at.relative_positions_BTS.abs()[:, None]


class OneSided(PositionalEncoding):
    """ALiBi of a decoder."""

    def bias(self, q, k, at):
        slopes = alibi_slopes(q.shape[1]).float()
        return slopes[:, None, None] * at.relative_positions_BTS[:, None]


class Mixed(Interleaved):
    def angles(self, positions, channels):
        interleaved = super().angles(positions, channels)[..., ::2]
        return torch.cat([interleaved, interleaved], -1)


class Kerple(PositionalEncoding):
    """KERPLE, parameters by other names in another order."""

    def __init__(self, shape):
        super().__init__(shape)
        self.power = torch.nn.Parameter(torch.ones(shape.num_heads))
        self.scale = torch.nn.Parameter(torch.ones(shape.num_heads))

    def bias(self, q, k, at):
        distance = at.relative_positions_BTS.abs()[:, None].float()
        p, a = (x.clamp(min=0.01)[:, None, None] for x in (self.power, self.scale))
        return -a * distance.where(distance > 0, 1) ** p.clamp(max=2) * (distance > 0)


class WrongInEncoders(PositionalEncoding):
    """ALiBi whose keys to the right are favoured."""

    def bias(self, q, k, at):
        slopes = 2.0 ** (-8 * torch.arange(1, q.shape[1] + 1) / q.shape[1])
        return slopes[:, None, None] * at.relative_positions_BTS[:, None]


class Unused(Learned):
    def embed_sequence(self, x, positions, declared):
        return x

    def embed(self, x, positions):
        return x


class Raises(PositionalEncoding):
    def bias(self, q, k, at):
        raise KeyError("oops")


class HalfBuilt(PositionalEncoding):
    def __init__(self, shape):
        super().__init__(shape)
        if not shape.causal:
            shape.nothing


class SeenBlock(PositionalEncoding):
    """Counts its own rows: right only where all queries come at once."""

    def bias(self, q, k, at):
        return -(torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs().float()


class Halves(PositionalEncoding):
    """Sinusoids, all sines before all cosines."""

    def embed(self, x, positions):
        width = x.shape[-1]
        angles = positions[..., None].double() * 10000 ** (-torch.arange(0, width, 2) / width)
        return x + torch.cat([angles.sin(), angles.cos()], -1)[..., :width].float()


class LooksAhead(PositionalEncoding):
    def bias(self, q, k, at):
        return (q @ k.mT).cumsum(-1).flip(-1)


class LearnedSlopes(PositionalEncoding):
    """ALiBi, from where training may take the slopes elsewhere."""

    def __init__(self, shape):
        super().__init__(shape)
        self.slopes = torch.nn.Parameter(alibi_slopes(shape.num_heads).float())

    def bias(self, q, k, at):
        return -self.slopes[:, None, None] * at.relative_positions_BTS.abs()[:, None]
'''


@pytest.fixture(autouse=True)
def _in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)


def test_a_right_implementation_in_another_layout(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Interleaved", "against=rope")
    assert done.code == 0, done.out
    assert "It is rope" in done.out
    assert "pairs of neighbouring channels" in done.out
    assert "angles or distances in float32" in done.out
    assert "FAILS" not in done.out


@pytest.mark.parametrize(
    ("name", "against", "layout"),
    [
        (
            "FirstQuarter",
            "rope_partial",
            "pairs of neighbouring channels (m, m + 1) where ours are halves apart.",
        ),
        ("LastQuarter", "rope_partial", "apart; the last channels rotate where ours are the first."),
        ("Backwards", "rope", "(it rotates the other way); pairs of neighbouring channels"),
    ],
)
def test_layouts_of_released_models_are_no_mistakes(
    script: Script, name: str, against: str, layout: str
) -> None:
    done = script("check_encoding", f"pe._target_=theirs.{name}", f"against={against}")
    assert done.code == 0, done.out
    assert f"It is {against}, " in done.out
    assert layout in done.out


def test_a_mistake_is_named_in_another_layout(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.QueriesAheadInterleaved", "against=rope")
    assert done.code == 1
    assert "known mistake. rope: queries are one position ahead" in done.out
    assert "laid out differently: pairs of neighbouring channels" in done.out


def test_rows_whose_ids_differ_by_more_than_a_shift(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.FirstRow", "against=rope")
    assert done.code == 1
    assert "FAILS in the decoder: rows of a batch keep their own positions" in done.out
    assert "rope: the ids of the first row serve all rows" in done.out


def test_a_change_of_the_inputs_is_found(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.InPlace", "against=rope")
    assert done.code == 1
    assert "their values and their gradient\n  measured: InPlace.rotate changes q in place" in done.out


def test_a_gradient_that_ends_in_the_encoding_is_found(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Detached", "against=rope")
    assert done.code == 1
    assert "their gradient\n  measured: no gradient reaches q, k" in done.out


def test_it_says_that_ids_are_ignored(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Counted", "against=rope")
    assert "equal at positions 0, 1, 2, ...; with gaps between positions, logits differ in" in done.out
    assert "rope: position ids are ignored, tokens counted\n" in done.out


@pytest.mark.parametrize("against", [[], ["against=alibi"]])
def test_a_encoding_right_in_a_decoder_alone(script: Script, against: list[str]) -> None:
    done = script("check_encoding", "pe._target_=theirs.OneSided", *against)
    assert done.code == len(against)
    assert "In a decoder alone (causal_only = True" in done.out
    assert "It is alibi, compared in a decoder:" in done.out


def test_a_frozen_parameter_is_no_parameter_of_the_encoding(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Frozen", "against=rope")
    assert done.code == 0, done.out
    assert "It is rope" in done.out
    assert "FAILS" not in done.out


def test_a_mistake_is_named_whether_or_not_a_check_fails(script: Script) -> None:
    alone = script("check_encoding", "pe._target_=theirs.QueriesAhead", "against=rope")
    assert alone.code == 1
    assert "known mistake. rope: queries are one position ahead\n" in alone.out
    assert "FAILS" not in alone.out
    unused = script("check_encoding", "pe._target_=theirs.Unused", "against=learned")
    for failed in ("invariance as stated", "gradient reaches every parameter"):
        assert f"FAILS in the decoder: {failed}\n" in unused.out
    assert "known mistake. learned: the encoding is never applied\n" in unused.out


def test_it_says_at_which_heads_and_distances(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Reversed", "against=alibi")
    assert (
        "logits differ in 4 of 4 heads (0, 1, 2, 3), from distance 1 on; most in head 3 for the" in done.out
    )
    assert "alibi: heads in reverse order" in done.out
    assert "position 23 and the key at 0: " in done.out


def test_a_mistake_that_shows_only_while_decoding_is_named(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.FromZero", "against=rope")
    assert done.code == 1
    assert "FAILS in the decoder: decoding with cached keys agrees with the whole row" in done.out
    assert "It is not rope: attention weights (decoding with cached keys) differ by" in done.out
    assert "rope: the query of a cached step is counted from 0" in done.out


@pytest.mark.parametrize("against", [[], ["against=rope"]])
def test_a_known_mistake_is_named(script: Script, against: list[str]) -> None:
    done = script("check_encoding", "pe._target_=theirs.Mixed", *against)
    assert "rope: half-split angles on interleaved channels" in done.out
    assert done.code == 1


def test_a_broken_contract_is_explained(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.LooksAhead", "against=none")
    assert done.code == 1
    assert "FAILS in the decoder: no look-ahead" in done.out
    assert "before the mask is applied" in done.out
    assert "none of the known mistakes" in done.out
    assert "Traceback" not in done.out + done.err


def test_arguments_reach_the_reference(script: Script) -> None:
    done = script("check_encoding", "pe=rope", "pe.base=500", "against=rope")
    assert done.code == 0, done.out
    other = script("check_encoding", "pe=rope", "against=rope", "+against_arguments.base=500")
    assert other.code == 1
    assert "It is not rope(base=500)" in other.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["against=rop"], "against=rop is not a choice. Did you mean rope"),
        (["pe._target_=theirs.Nothing"], "theirs has no PositionalEncoding of that name"),
        (["pe=rope", "against=rope", "+against_arguments.bse=1"], "bse is not an argument of Rope"),
    ],
)
def test_mistakes_of_the_caller_are_one_sentence(script: Script, arguments: list[str], sentence: str) -> None:
    done = script("check_encoding", *arguments)
    assert done.code == 1
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_parameters_may_have_other_names_and_another_order(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Kerple", "against=kerple_power")
    assert done.code == 0, done.out
    assert "It is kerple_power, compared in a decoder and an encoder" in done.out


def test_encoders_are_compared_too(script: Script) -> None:
    wrong = script("check_encoding", "pe._target_=theirs.WrongInEncoders", "against=alibi")
    assert wrong.code == 1
    assert "It is not alibi" in wrong.out
    only = script("check_encoding", "pe=alibi")
    assert "It is alibi," in only.out
    assert "It is alibi_asymmetric" not in only.out


def test_exceptions_are_said_once(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Raises")
    assert done.code == 1
    assert done.out.count("FAILS with KeyError: 'oops'") == 1
    assert "It cannot be compared: it raises KeyError" in done.out
    built = script("check_encoding", "pe._target_=theirs.HalfBuilt")
    assert "AttributeError" in built.err
    assert "an encoder" in built.err


def test_randomness_in_evaluation_is_said_once(script: Script) -> None:
    outcome = script("check_encoding", "pe._target_=theirs.Dropped")
    assert outcome.code == 1
    assert outcome.out.count("FAILS") == 1
    assert "equal calls give equal results" in outcome.out


def test_a_bias_that_knows_one_block_only_fails(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.SeenBlock", "against=none")
    assert done.code == 1
    assert "FAILS in the decoder: attention implementations agree" in done.out


def test_columns_may_be_laid_out_in_halves(script: Script) -> None:
    done = script("check_encoding", "pe._target_=theirs.Halves", "against=sinusoidal")
    assert "It is sinusoidal" in done.out
    assert "laid out differently" in done.out
    assert done.code == 0, done.out


def test_a_encoding_that_starts_as_another_is_told_so(script: Script) -> None:
    mine = "pe._target_=theirs.LearnedSlopes"
    alibi = script("check_encoding", mine, "against=alibi")
    assert alibi.code == 1
    assert "At initialisation it equals alibi at positions below 64 (to " in alibi.out
    assert "Trained, it may leave alibi: their trainable parameters differ" in alibi.out
    assert "It cannot be" not in alibi.out
    assert "alibi with other arguments (symmetry): +against_arguments.NAME=VALUE." in alibi.out
    other = script("check_encoding", mine, "against=kerple_log").out
    assert "It cannot be kerple_log: their trainable" in other
    assert "at first, logits differ in 4 of 4 heads" in other
    assert "with other arguments" not in script("check_encoding", mine, "against=none").out
