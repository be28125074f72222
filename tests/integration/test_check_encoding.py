"""The checker as a user calls it, on implementations as others write them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.integration import implementations

Script = Callable[..., Outcome]

pytestmark = pytest.mark.slow

# What is typed after ``against=``, and what the checker says.
RIGHT = [
    ("Interleaved", "rope", "pairs of neighbouring channels (m, m + 1) where ours are halves apart."),
    ("Interleaved", "rope", "angles or distances in float32"),
    (
        "FirstQuarter",
        "rope_partial",
        "pairs of neighbouring channels (m, m + 1) where ours are halves apart.",
    ),
    ("LastQuarter", "rope_partial", "apart; the last channels rotate where ours are the first."),
    ("Backwards", "rope", "(it rotates the other way); pairs of neighbouring channels"),
    ("FrozenFrequencies", "rope", "compared in a decoder and an encoder"),
    ("OwnWeights", "alibi", "compared in a decoder and an encoder"),
    ("KerplePower", "kerple_power", "compared in a decoder and an encoder"),
    ("TableTurned", "cope", "compared in a decoder"),
    ("BothSides", "shaw", "compared in a decoder and an encoder"),
    ("Halves", "sinusoidal", "laid out differently"),
    ("Beside", "sinusoidal +against_arguments.combine=concat", "pairs of channels halves apart"),
]
WRONG = [
    ("QueriesAhead", "rope", "known mistake. rope: queries are one position ahead"),
    ("QueriesAhead", "rope", "laid out differently: pairs of neighbouring channels"),
    ("FirstRow", "rope", "FAILS in the decoder: rows of a batch keep their own positions"),
    ("FirstRow", "rope", "rope: the ids of the first row serve all rows"),
    ("InPlace", "rope", "their gradient\n  measured: InPlace.rotate changes q in place"),
    ("Detached", "rope", "their gradient\n  measured: no gradient reaches q, k"),
    ("Counted", "rope", "equal at positions 0, 1, 2, ...; with gaps between positions, logits differ in"),
    ("Counted", "rope", "rope: position ids are ignored, tokens counted\n"),
    (
        "CachedQueryFromZero",
        "rope",
        "FAILS in the decoder: decoding with cached keys agrees with the whole row",
    ),
    ("CachedQueryFromZero", "rope", "attention weights (decoding with cached keys) differ by"),
    ("CachedQueryFromZero", "rope", "rope: the query of a cached step is counted from 0"),
    ("Mixed", "rope", "rope: half-split angles on interleaved channels"),
    ("SixteenChannels", "rope", "from distance 1 on"),
    ("WrappedAt1024", "rope", "FAILS in the decoder: far positions stay exact"),
    (
        "HeadsReversed",
        "alibi",
        "logits differ in 4 of 4 heads (0, 1, 2, 3), from distance 1 on; most in head 3",
    ),
    ("HeadsReversed", "alibi", "position 23 and the key at 0: "),
    ("HeadsReversed", "alibi", "alibi: heads in reverse order"),
    ("OneSided", "alibi", "In a decoder alone (causal_only = True"),
    ("OneSided", "alibi", "It is alibi, compared in a decoder:"),
    ("HalfPrecision", "alibi", "alibi: the bias in bfloat16"),
    ("WithoutLogarithm", "t5", "logits differ in 6 of 6 heads"),
    ("LooksAhead", "none", "FAILS in the decoder: no look-ahead"),
    ("LooksAhead", "none", "before the mask is applied"),
    ("LooksAhead", "none", "none of the known mistakes"),
    ("SeenBlock", "none", "FAILS in the decoder: attention implementations agree"),
    ("Unused", "learned", "FAILS in the decoder: invariance as stated\n"),
    ("Unused", "learned", "FAILS in the decoder: gradient reaches every parameter\n"),
    ("Unused", "learned", "known mistake. learned: the encoding is never applied\n"),
    ("TokensTimesEight", "sinusoidal", "embeddings differ from position 0 on"),
    ("LearnedSlopes", "alibi", "At initialisation it equals alibi at positions below 64 (to "),
    ("LearnedSlopes", "alibi", "Trained, it may leave alibi: their trainable parameters differ"),
    ("LearnedSlopes", "alibi", "alibi with other arguments (symmetry): +against_arguments.NAME=VALUE."),
    ("LearnedSlopes", "kerple_log", "It cannot be kerple_log: their trainable"),
    ("LearnedSlopes", "kerple_log", "at first, logits differ in 4 of 4 heads"),
]


def by_command(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, list[str]]]:
    """Each implementation and reference once, with all that the checker says."""
    commands = dict.fromkeys((name, against) for name, against, _ in rows)
    return [(*command, [said for *key, said in rows if tuple(key) == command]) for command in commands]


def checked(script: Script, name: str, against: str = "") -> Outcome:
    arguments = f"against={against}".split() if against else []
    return script("check_encoding", f"pe._target_={implementations.__name__}.{name}", *arguments)


@pytest.mark.parametrize(("name", "against", "sentences"), by_command(RIGHT))
def test_a_right_implementation_is_accepted(
    script: Script, name: str, against: str, sentences: list[str]
) -> None:
    outcome = checked(script, name, against)
    assert outcome.code == 0, outcome.out
    assert f"It is {against.split()[0]}" in outcome.out
    assert "FAILS" not in outcome.out
    assert [sentence for sentence in sentences if sentence not in outcome.out] == []


@pytest.mark.parametrize(("name", "against", "sentences"), by_command(WRONG))
def test_a_wrong_implementation_is_refused(
    script: Script, name: str, against: str, sentences: list[str]
) -> None:
    outcome = checked(script, name, against)
    assert outcome.code == 1, outcome.out
    assert [sentence for sentence in sentences if sentence not in outcome.out] == []


def test_a_mistake_that_breaks_no_contract_is_named(script: Script) -> None:
    assert "FAILS" not in checked(script, "QueriesAhead", "rope").out


def test_a_class_in_the_working_directory_is_read(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text(inspect.getsource(implementations))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    outcome = script("check_encoding", "pe._target_=theirs.Interleaved", "against=rope")
    assert outcome.code == 0, outcome.out


def test_an_encoding_right_in_a_decoder_alone_is_told_without_a_reference(script: Script) -> None:
    outcome = checked(script, "OneSided")
    assert outcome.code == 0
    assert "In a decoder alone (causal_only = True" in outcome.out
    assert "It is alibi, compared in a decoder:" in outcome.out


def test_a_known_mistake_is_named_without_a_reference(script: Script) -> None:
    outcome = checked(script, "Mixed")
    assert outcome.code == 1
    assert "rope: half-split angles on interleaved channels" in outcome.out


def test_an_encoding_is_told_from_its_variants(script: Script) -> None:
    outcome = script("check_encoding", "pe=alibi")
    assert "It is alibi," in outcome.out
    assert "It is alibi_asymmetric" not in outcome.out


def test_arguments_reach_the_reference(script: Script) -> None:
    outcome = script("check_encoding", "pe=rope", "pe.base=500", "against=rope")
    assert outcome.code == 0, outcome.out
    other = script("check_encoding", "pe=rope", "against=rope", "+against_arguments.base=500")
    assert other.code == 1
    assert "It is not rope(base=500)" in other.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["against=rop"], "against=rop is not a choice. Did you mean rope"),
        (["pe._target_=tests.conftest.Nothing"], "tests.conftest has no PositionalEncoding of that name"),
        (["pe=rope", "against=rope", "+against_arguments.bse=1"], "bse is not an argument of Rope"),
    ],
)
def test_mistakes_of_the_caller_are_one_sentence(script: Script, arguments: list[str], sentence: str) -> None:
    outcome = script("check_encoding", *arguments)
    assert outcome.code == 1
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_exceptions_are_said_once(script: Script) -> None:
    outcome = checked(script, "Raises")
    assert outcome.code == 1
    assert outcome.out.count("FAILS with KeyError: 'oops'") == 1
    assert "It cannot be compared: it raises KeyError" in outcome.out
    built = checked(script, "HalfBuilt")
    assert "AttributeError" in built.err
    assert "an encoder" in built.err


def test_randomness_in_evaluation_is_said_once(script: Script) -> None:
    outcome = checked(script, "Dropped")
    assert outcome.code == 1
    assert outcome.out.count("FAILS") == 1
    assert "equal calls give equal results" in outcome.out


def test_a_table_of_other_arguments_is_not_offered_where_there_are_none(script: Script) -> None:
    assert "It cannot be" not in checked(script, "LearnedSlopes", "alibi").out
    assert "with other arguments" not in checked(script, "LearnedSlopes", "none").out
