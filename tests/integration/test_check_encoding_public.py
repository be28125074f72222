"""Public bugs under the checker, each refused and told by name, and the right control of each accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Outcome

Script = Callable[..., Outcome]
MODULE = "tests.integration.public_bugs"

RIGHT = [
    ("RightRope", "rope", "It is rope, compared in a decoder and an encoder"),
    ("RightYarn", "rope_yarn", "It is rope_yarn(factor=4,original_length=4096), "),
    ("RightGroups", "rope", "It is rope, "),
    ("RightSinusoidal", "sinusoidal", "It is sinusoidal, "),
    ("TokensTimesRoot", "sinusoidal", "another convention, which is no mistake"),
    ("CosinesFirst", "sinusoidal", "another convention, which is no mistake"),
    ("RightLearned", "learned", "It is learned, "),
    ("Roberta", "learned", "66 rows instead of 64, equal with ids shifted by 2"),
    ("RightAlibi", "alibi", "It is alibi, "),
    ("KeysAlone", "alibi", "It is alibi, compared in a decoder:"),
    ("RightT5", "t5", "It is t5, "),
    ("T5PaperArguments", "t5", "It is t5(num_buckets=32,max_distance=128), "),
    ("RightKerple", "kerple_log", "It is kerple_log, "),
    ("RightDeberta", "deberta", "position to content uses d(i, j) instead of d(j, i)"),
]
# What is typed after ``against=``, and what the checker says.
WRONG = [
    ("FourthLayerUnrotated", "rope", "in layers 3, 7 and 11 of 12, it has no effect"),
    ("SixthLayerOtherBase", "rope", "in layers 5 and 11 of 12, frequencies are 1, 0.178"),
    ("WrappedAt5000", "rope", "ids wrap at 5,000"),
    ("CacheOf32768", "rope", "ids beyond 32,767 are taken as 32,767"),
    ("LinearFrequencies", "rope", "linear instead of geometric"),
    ("UnrotatedWhenCached", "rope", "it has no effect while decoding with cached keys"),
    ("KeysOfTheOtherLayout", "rope", "rope: queries rotate halves, keys neighbouring channels"),
    ("OneAheadWhenCached", "rope", "rope: the query of a cached step is one position ahead"),
    ("LogitsTwice", "rope", "logits are 2 times ours"),
    ("StaleCache", "rope", "FAILS in the decoder: earlier calls change nothing"),
    ("StaleCache", "rope", "It keeps something between calls"),
    ("RightRope", "rope_yarn +against_arguments.factor=4", "what rope_yarn adds has no effect"),
    ("RightYarn", "rope_yarn +against_arguments.factor=8", "That is no rope_yarn(factor=8)"),
    (
        "YarnScaleOnTheWholeLogit",
        "rope_yarn +against_arguments.factor=4",
        "logits are 0.87825 times ours: YaRN's scale",
    ),
    ("KeysOfOtherGroups", "rope", "attention weights differ in 2 of 4 heads (1, 2)"),
    ("RotatedValues", "rope", "values are rotated or mixed"),
    ("OddWidthsCrash", "sinusoidal", "FAILS in the decoder: odd widths work or are refused"),
    ("GivenIdsIgnored", "sinusoidal", "sinusoidal: position ids are ignored, tokens counted"),
    ("OnlyRowZeroWritten", "sinusoidal", "there is no vector at positions 1, 2, 3"),
    ("LastVectorForAll", "sinusoidal", "every token has the vector of position 23"),
    ("SumTimesRoot", "sinusoidal", "tokens and vectors together are multiplied by sqrt(d_model)"),
    ("TokensTwice", "sinusoidal", "tokens are 2 times ours"),
    ("VectorsTwice", "sinusoidal", "vectors of positions are 2 times ours"),
    ("PaddingIndexZero", "learned", "the vector of position 0 starts at 0, others do not"),
    ("PaddingIndexZero", "learned", "no gradient reaches row 0 of table.weight"),
    ("RowsWrapped", "learned +against_arguments.beyond=clamp", "It is learned(beyond=wrap), "),
    ("SlopesWrongFromTwelve", "alibi", "with 12 heads, heads are permuted"),
    ("ClippedAt5000", "alibi", "distances beyond 5,000 are taken as 5,000"),
    ("ExtraHeadsNotInterleaved", "alibi", "the extra heads take the first slopes of twice the heads"),
    ("PaddedHeads", "alibi", "slopes of the next power of two, of which the first are kept (padded heads)"),
    ("HeadsPermuted", "alibi", "heads are permuted: they take the place of our heads 3, 0, 1, 2"),
    ("LastHeadsUnbiased", "alibi", "there are no positions in head 3 of 4"),
    ("DroppedWhenCached", "alibi", "it has no effect while decoding with cached keys"),
    ("MaxDistanceOffByOne", "t5", "t5: max_distance is one too large"),
    ("TwoSidedInDecoder", "t5", "t5: two-sided buckets in a decoder"),
    ("ShiftedByTheTable", "t5", "it has no effect"),
    ("LogarithmToBaseTwo", "kerple_log", "kerple_log: the logarithm to base 2"),
]


def checked(script: Script, name: str, against: str) -> Outcome:
    return script("check_encoding", f"pe._target_={MODULE}.{name}", *f"against={against}".split())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "against", "sentence"), RIGHT)
def test_a_right_implementation_is_accepted(script: Script, name: str, against: str, sentence: str) -> None:
    outcome = checked(script, name, against)
    assert outcome.code == 0, outcome.out
    assert "FAILS" not in outcome.out
    assert sentence in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize(("name", "against", "sentence"), WRONG)
def test_a_public_bug_is_refused_and_told(script: Script, name: str, against: str, sentence: str) -> None:
    outcome = checked(script, name, against)
    assert outcome.code == 1, outcome.out
    assert sentence in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("DroppedWhenCached", "alibi: it has no effect while decoding with cached keys"),
        ("PaddedHeads", "It matches a known mistake. alibi: slopes of the next power of two"),
        ("OnlyRowZeroWritten", "12 positions have 2 different vectors"),
    ],
)
def test_a_public_bug_is_refused_without_a_reference(script: Script, name: str, sentence: str) -> None:
    outcome = script("check_encoding", f"pe._target_={MODULE}.{name}")
    assert outcome.code == 1, outcome.out
    assert sentence in outcome.out


def test_not_a_number_is_said_first_and_alone(script: Script) -> None:
    outcome = script("check_encoding", f"pe._target_={MODULE}.NotANumber")
    assert outcome.code == 1
    assert outcome.out.count("FAILS") == 1
    assert "NaN or infinite at 2, 12, 96 tokens, first in the logit of head 0 for the query at" in outcome.out


def test_a_bias_of_the_wrong_shape_is_said_once(script: Script) -> None:
    outcome = script("check_encoding", f"pe._target_={MODULE}.WrongShape", "against=alibi")
    assert outcome.code == 1
    assert outcome.out.count("FAILS") == 1
    assert "bias returns [7, 7], which does not broadcast to [2, 4, 12, 12]" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("MisspeltHook", "bais overrides no hook; did you mean bias?"),
        ("ForwardAlone", "forward overrides no hook; hooks are embed, embed_sequence, rotate, bias"),
    ],
)
def test_a_class_without_a_hook_is_told(script: Script, name: str, sentence: str) -> None:
    outcome = script("check_encoding", f"pe._target_={MODULE}.{name}")
    assert outcome.code == 1
    assert sentence in outcome.out
