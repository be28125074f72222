"""The checker as a user calls it, on implementations as others write them and on public bugs."""

from __future__ import annotations

import pytest

from tests.conftest import Outcome, Script, assert_one_sentence
from tests.integration import implementations, public_bugs

pytestmark = pytest.mark.slow

# What is typed after ``against=``, and what the checker says.
RIGHT = [
    ("Interleaved", "rope", "It is rope"),
    ("Interleaved", "rope", "pairs of neighbouring channels (m, m + 1) where ours are halves apart."),
    ("Interleaved", "rope", "angles or distances in float32"),
    ("FirstQuarter", "rope_partial", "It is rope_partial"),
    (
        "FirstQuarter",
        "rope_partial",
        "pairs of neighbouring channels (m, m + 1) where ours are halves apart.",
    ),
    ("LastQuarter", "rope_partial", "It is rope_partial"),
    ("LastQuarter", "rope_partial", "apart; the last channels rotate where ours are the first."),
    ("Backwards", "rope", "It is rope"),
    ("Backwards", "rope", "(it rotates the other way); pairs of neighbouring channels"),
    ("FrozenFrequencies", "rope", "It is rope, compared in a decoder and an encoder"),
    ("OwnWeights", "alibi", "It is alibi, compared in a decoder and an encoder"),
    ("KerplePower", "kerple_power", "It is kerple_power, compared in a decoder and an encoder"),
    ("TableTurned", "cope", "It is cope, compared in a decoder"),
    ("BothSides", "shaw", "It is shaw, compared in a decoder and an encoder"),
    ("Halves", "sinusoidal", "It is sinusoidal"),
    ("Halves", "sinusoidal", "laid out differently"),
    ("Beside", "sinusoidal +against_arguments.combine=concat", "It is sinusoidal"),
    ("Beside", "sinusoidal +against_arguments.combine=concat", "pairs of channels halves apart"),
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
# Implementations that break the contract.
BROKEN = [
    ("FirstRow", "rope", "FAILS in the decoder: rows of a batch keep their own positions"),
    ("FirstRow", "rope", "rope: the ids of the first row serve all rows"),
    ("InPlace", "rope", "their gradient\n  measured: InPlace.rotate changes q in place"),
    ("Detached", "rope", "their gradient\n  measured: no gradient reaches q, k"),
    (
        "CachedQueryFromZero",
        "rope",
        "FAILS in the decoder: decoding with cached keys agrees with the whole row",
    ),
    ("CachedQueryFromZero", "rope", "attention weights (decoding with cached keys) differ by"),
    ("CachedQueryFromZero", "rope", "rope: the query of a cached step is counted from 0"),
    ("WrappedAt1024", "rope", "FAILS in the decoder: far positions stay exact"),
    ("LooksAhead", "none", "FAILS in the decoder: no look-ahead"),
    ("LooksAhead", "none", "before the mask is applied"),
    ("LooksAhead", "none", "none of the known mistakes"),
    ("SeenBlock", "none", "FAILS in the decoder: attention implementations agree"),
    ("Unused", "learned", "FAILS in the decoder: invariance as stated\n"),
    ("Unused", "learned", "FAILS in the decoder: gradient reaches every parameter\n"),
    ("Unused", "learned", "known mistake. learned: the encoding is never applied\n"),
    ("StaleCache", "rope", "FAILS in the decoder: earlier calls change nothing"),
    ("StaleCache", "rope", "It keeps something between calls"),
    ("OddWidthsCrash", "sinusoidal", "FAILS in the decoder: odd widths work or are refused"),
    ("OnlyRowZeroWritten", "sinusoidal", "there is no vector at positions 1, 2, 3"),
    ("PaddingIndexZero", "learned", "the vector of position 0 starts at 0, others do not"),
    ("PaddingIndexZero", "learned", "no gradient reaches row 0 of table.weight"),
    ("OnlyRowZeroWritten", "sinusoidal", "12 positions have 2 different vectors"),
]
# Implementations that the comparison tells apart.
DIFFERENT = [
    ("QueriesAhead", "rope", "known mistake. rope: queries are one position ahead"),
    ("QueriesAhead", "rope", "laid out differently: pairs of neighbouring channels"),
    ("Counted", "rope", "equal at positions 0, 1, 2, ...; with gaps between positions, logits differ in"),
    ("Counted", "rope", "rope: position ids are ignored, tokens counted\n"),
    ("Mixed", "rope", "rope: half-split angles on interleaved channels"),
    ("SixteenChannels", "rope", "from distance 1 on"),
    (
        "HeadsReversed",
        "alibi",
        "logits differ in 4 of 4 heads (0, 1, 2, 3), from distance 1 on; most in head 3",
    ),
    ("HeadsReversed", "alibi", "position 23 and the key at 0: "),
    ("HeadsReversed", "alibi", "alibi: heads in reverse order"),
    ("HalfPrecision", "alibi", "alibi: the bias in bfloat16"),
    ("WithoutLogarithm", "t5", "logits differ in 6 of 6 heads"),
    ("TokensTimesEight", "sinusoidal", "embeddings differ from position 0 on"),
    ("LearnedSlopes", "alibi", "At initialisation it equals alibi at positions below 64 (to "),
    ("LearnedSlopes", "alibi", "Trained, it may leave alibi: their trainable parameters differ"),
    ("LearnedSlopes", "alibi", "alibi with other arguments (symmetry): +against_arguments.NAME=VALUE."),
    ("LearnedSlopes", "kerple_log", "It cannot be kerple_log: their trainable"),
    ("LearnedSlopes", "kerple_log", "at first, logits differ in 4 of 4 heads"),
    ("FourthLayerUnrotated", "rope", "in layers 3, 7 and 11 of 12, it has no effect"),
    ("SixthLayerOtherBase", "rope", "in layers 5 and 11 of 12, frequencies are 1, 0.178"),
    ("WrappedAt5000", "rope", "ids wrap at 5,000"),
    ("CacheOf32768", "rope", "ids beyond 32,767 are taken as 32,767"),
    ("LinearFrequencies", "rope", "linear instead of geometric"),
    ("UnrotatedWhenCached", "rope", "it has no effect while decoding with cached keys"),
    ("KeysOfTheOtherLayout", "rope", "rope: queries rotate halves, keys neighbouring channels"),
    ("OneAheadWhenCached", "rope", "rope: the query of a cached step is one position ahead"),
    ("LogitsTwice", "rope", "logits are 2 times ours"),
    ("RightRope", "rope_yarn +against_arguments.factor=4", "what rope_yarn adds has no effect"),
    ("RightYarn", "rope_yarn +against_arguments.factor=8", "That is no rope_yarn(factor=8)"),
    (
        "YarnScaleOnTheWholeLogit",
        "rope_yarn +against_arguments.factor=4",
        "logits are 0.87825 times ours: YaRN's scale",
    ),
    ("KeysOfOtherGroups", "rope", "attention weights differ in 2 of 4 heads (1, 2)"),
    ("RotatedValues", "rope", "values are rotated or mixed"),
    ("GivenIdsIgnored", "sinusoidal", "sinusoidal: position ids are ignored, tokens counted"),
    ("LastVectorForAll", "sinusoidal", "every token has the vector of position 23"),
    ("SumTimesRoot", "sinusoidal", "tokens and vectors together are multiplied by sqrt(d_model)"),
    ("TokensTwice", "sinusoidal", "tokens are 2 times ours"),
    ("VectorsTwice", "sinusoidal", "vectors of positions are 2 times ours"),
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


def by_command(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, list[str]]]:
    """Each implementation and reference once, with all that the checker says."""
    commands = dict.fromkeys((name, against) for name, against, _ in rows)
    return [(*command, [said for *key, said in rows if tuple(key) == command]) for command in commands]


def checked(script: Script, name: str, against: str = "") -> Outcome:
    module = public_bugs if hasattr(public_bugs, name) else implementations
    arguments = f"against={against}".split() if against else []
    return script("check_encoding", f"pe._target_={module.__name__}.{name}", *arguments)


@pytest.fixture
def _comparison_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the contract held, whose checks take most of the time."""
    monkeypatch.setattr("pe_experiments.checking.check_encoding.run_checks", lambda checks, subjects: [])


@pytest.mark.parametrize(("name", "against", "sentences"), by_command(RIGHT))
def test_a_right_implementation_is_accepted(
    script: Script, name: str, against: str, sentences: list[str]
) -> None:
    outcome = checked(script, name, against)
    assert outcome.code == 0, outcome.out
    assert "FAILS" not in outcome.out
    assert [sentence for sentence in sentences if sentence not in outcome.out] == []


@pytest.mark.parametrize(("name", "against", "sentences"), by_command(BROKEN))
def test_an_implementation_that_breaks_the_contract_is_refused(
    script: Script, name: str, against: str, sentences: list[str]
) -> None:
    outcome = checked(script, name, against)
    assert outcome.code == 1, outcome.out
    assert [sentence for sentence in sentences if sentence not in outcome.out] == []


@pytest.mark.usefixtures("_comparison_alone")
@pytest.mark.parametrize(("name", "against", "sentences"), by_command(DIFFERENT))
def test_the_comparison_alone_refuses_a_wrong_implementation(
    script: Script, name: str, against: str, sentences: list[str]
) -> None:
    outcome = checked(script, name, against)
    assert outcome.code == 1, outcome.out
    assert [sentence for sentence in sentences if sentence not in outcome.out] == []


def test_a_mistake_that_breaks_no_contract_is_named(script: Script) -> None:
    assert "FAILS" not in checked(script, "QueriesAhead", "rope").out


def test_an_encoding_right_in_a_decoder_alone_is_told_without_a_reference(script: Script) -> None:
    outcome = checked(script, "OneSided")
    assert outcome.code == 0
    assert "In a decoder alone (causal_only = True" in outcome.out
    assert "It is alibi, compared in a decoder:" in outcome.out


@pytest.mark.usefixtures("_comparison_alone")
def test_a_known_mistake_is_named_without_a_reference(script: Script) -> None:
    outcome = checked(script, "Mixed")
    assert outcome.code == 1, outcome.out
    assert "It matches a known mistake. rope: half-split angles on interleaved channels" in outcome.out


@pytest.mark.usefixtures("_comparison_alone")
def test_an_encoding_is_told_from_its_variants(script: Script) -> None:
    outcome = script("check_encoding", "pe=alibi")
    assert "It is alibi," in outcome.out
    assert "It is alibi_asymmetric" not in outcome.out


@pytest.mark.usefixtures("_comparison_alone")
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
    assert_one_sentence(script("check_encoding", *arguments), sentence)


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


@pytest.mark.usefixtures("_comparison_alone")
def test_a_table_of_other_arguments_is_not_offered_where_there_are_none(script: Script) -> None:
    assert "It cannot be" not in checked(script, "LearnedSlopes", "alibi").out
    assert "with other arguments" not in checked(script, "LearnedSlopes", "none").out


def test_not_a_number_is_said_first_and_alone(script: Script) -> None:
    outcome = checked(script, "NotANumber")
    assert outcome.code == 1
    assert outcome.out.count("FAILS") == 1
    assert "NaN or infinite at 2, 12, 96 tokens, first in the logit of head 0 for the query at" in outcome.out


def test_a_bias_of_the_wrong_shape_is_said_once(script: Script) -> None:
    outcome = checked(script, "WrongShape", "alibi")
    assert outcome.code == 1
    assert outcome.out.count("FAILS") == 1
    assert "bias returns [7, 7], which does not broadcast to [2, 4, 12, 12]" in outcome.out


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("MisspeltHook", "bais overrides no hook; did you mean bias?"),
        ("ForwardAlone", "forward overrides no hook; hooks are embed, embed_sequence, rotate, bias"),
    ],
)
def test_a_class_without_a_hook_is_told(script: Script, name: str, sentence: str) -> None:
    outcome = checked(script, name, "none")
    assert outcome.code == 1
    assert sentence in outcome.out
