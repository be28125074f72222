"""The checker as a user calls it, on implementations as others write them and on public bugs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Outcome, Script, assert_one_sentence
from tests.integration import implementations, public_bugs
from tests.oracles.released import FILES, text_part, written

pytestmark = pytest.mark.slow

# The class and what is typed after it -> what the checker prints.
RIGHT = {
    "Interleaved against=rope": ["pairs of neighbouring channels", "angles or distances in float32"],
    "FrozenFrequencies against=rope": ["It is rope, compared in a decoder and an encoder"],
    "BothSides against=shaw": ["It is shaw, compared in a decoder and an encoder"],
    "RightGroups against=rope": ["It is rope, "],
    "RightSinusoidal against=sinusoidal": ["It is sinusoidal, "],
    "RightLearned against=learned": ["It is learned, "],
    "KeysAlone against=alibi": ["It is alibi, compared in a decoder:"],
    "Window against=sliding_window": ["It is sliding_window(window=4), compared in a decoder and an encoder"],
}
# Right implementations of which only the comparison is tested.
RECOGNISED = {
    "LastQuarter against=rope_partial": ["It is rope_partial", "the last channels rotate"],
    "Backwards against=rope": ["It is rope", "(it rotates the other way); pairs of neighbouring channels"],
    "KerplePower against=kerple_power": ["It is kerple_power, compared in a decoder and an encoder"],
    "TransposedTable against=cope": ["It is cope, compared in a decoder"],
    "Concatenated against=sinusoidal +against_arguments.combine=concat": [
        "It is sinusoidal",
        "pairs of channels halves apart",
    ],
    "CosinesFirst against=sinusoidal": ["cosines before sines); pairs of channels halves apart"],
    "Tensor2TensorSinusoids against=sinusoidal": ["as in Tensor2Tensor and fairseq\n", "halves apart"],
    "RightRope against=rope": ["It is rope, compared in a decoder and an encoder"],
    "TokensTimesRoot against=sinusoidal": ["another convention, which is no mistake"],
    "Roberta against=learned": ["66 rows instead of 64, equal with ids shifted by 2"],
    "RightAlibi against=alibi": ["It is alibi, "],
    "RightT5 against=t5": ["It is t5, "],
    "T5PaperArguments against=t5": ["It is t5(num_buckets=32,max_distance=128), "],
    "RightNtk against=rope_ntk": ["It is rope_ntk, "],
    "YarnOfArguments against=rope_yarn": ["It is rope_yarn(factor=4), "],
    "RopeOnValues": ["It is rope_values, compared in a decoder and an encoder"],
    "OtherBase": ["It is rope(base=500), "],
    "RightYarn": ["It is rope_yarn(factor=4,original_length=4096), "],
}
# Implementations that break the contract.
BROKEN = {
    "FirstRow against=rope": [
        "FAILS in the decoder: rows of a batch keep their own positions",
        "rope: the ids of the first row serve all rows",
    ],
    "InPlace against=rope": ["their gradient\n  measured: InPlace.rotate changes q in place"],
    "Detached against=rope": ["their gradient\n  measured: no gradient reaches q, k"],
    "WrappedAt5000 against=rope": ["FAILS in the decoder: far positions stay exact", "ids wrap at 5,000"],
    "SeenBlock against=none": ["FAILS in the decoder: attention implementations agree"],
    "Unused against=learned": [
        "FAILS in the decoder: invariance as stated\n",
        "FAILS in the decoder: gradient reaches every parameter\n",
        "known mistake. learned: it has no effect (never applied, or all tokens at one position)\n",
    ],
    "StaleCache against=rope": ["FAILS in the decoder: earlier calls change nothing"],
    "OddWidthsCrash against=sinusoidal": ["FAILS in the decoder: odd widths work or are refused"],
    "OnlyRowZeroWritten against=sinusoidal": ["embeddings differ from position 1 on"],
    "PaddingIndexZero against=learned": ["the vector of position 0 starts at 0, others do not"],
    "AnglesInDtypeOfQ against=rope": [
        "half precision loses only its own rounding",
        "It equals rope, except in inputs in half precision",
    ],
    "LongRopeByBatch against=new": [
        "FAILS in the decoder: padding and batch composition change nothing",
        "FAILS in the decoder: rows of a batch keep their own positions",
    ],
    "UnrotatedWhenCached against=rope": [
        "FAILS in the decoder: decoding with cached keys agrees with the whole row",
        "It equals rope, except in decoding with cached keys",
        "it has no effect on a cached step",
    ],
    "SinglesFromZero against=sinusoidal": [
        "FAILS in the decoder: decoding with cached keys agrees with the whole row",
        "It equals sinusoidal, except in decoding with cached keys and decoding after left padding.",
    ],
    "MisspeltHook against=none": ["bais overrides no hook; did you mean bias?"],
}
# Implementations that keep the contract and compute something else.
DIFFERENT = {
    "QueriesAhead against=rope": [
        "known mistake. rope: queries are one position ahead",
        "laid out differently: pairs of neighbouring channels",
    ],
    "LearnedSlopes against=alibi": [
        "It cannot be alibi: its trainable parameters have the shapes [4], ours none."
    ],
    "FourthLayerUnrotated against=rope": ["in layers 3, 7 and 11 of 12, it has no effect"],
    "CacheOf32768 against=rope": ["ids beyond 32,767 are taken as 32,767"],
    "LinearFrequencies against=rope": ["linear instead of geometric"],
    "YarnScaleOnTheWholeLogit against=rope_yarn +against_arguments={factor:4,original_length:4096}": [
        "logits are 0.87825 times ours: YaRN's scale"
    ],
    "KeysOfOtherGroups against=rope": ["attention weights differ in 2 of 4 heads (1, 2)"],
    "RotatedValues against=rope": ["values are rotated or mixed"],
    "LastVectorForAll against=sinusoidal": ["every token has the position of the last one"],
    "SumTimesRoot against=sinusoidal": [
        "tokens and vectors together are 8 times ours: multiplied by sqrt(d_model)?"
    ],
    "SinesInBfloat16 against=sinusoidal": ["sinusoidal: vectors in bfloat16"],
    "VectorsTwice against=sinusoidal": ["vectors of positions are 2 times ours"],
    "RowsWrapped against=learned +against_arguments.beyond=clamp": ["It is learned(beyond=wrap), "],
    "ClippedAt5000 against=alibi": ["distances beyond 5,000 are taken as 5,000"],
    "ExtraHeadsNotInterleaved against=alibi": ["the extra heads take the first slopes of twice the heads"],
    "LastHeadsUnbiased against=alibi": ["there are no positions in head 3 of 4"],
    "KerpleLogBase2 against=kerple_log": ["1.4427 times ours: a logarithm to base 2?"],
    "SlopesTimesFour against=alibi": ["what positions add to the logits is 4 times ours\n"],
    "SlopesInBfloat16 against=alibi": ["slopes are rounded", "in half precision?"],
    "ScaledAtTheLength against=rope_ntk": [
        "except in rows on both sides of the training length and rows of about the original length"
    ],
    "RampClampedAtPairs against=rope_yarn": ["trained on 100,000 tokens, logits differ"],
    "RightRope against=rope_yarn": ["It is not rope_yarn: what rope_yarn adds has no effect."],
    "LinearScaling against=rope_llama3": ["It is rope_linear(base=500000,factor=8)", "It is not rope_llama3"],
    "BaseIgnored against=rope": ["with base=20000.0 in both, it does not change"],
    "BeyondIgnored against=learned": ["It is not learned(beyond=interpolate)"],
    "Chunks against=sliding_window": ["it hides other keys than ours, at distances 1, 2 and 3"],
    # Without the name of a reference, or as if it were new:
    "AttentionFactorIgnored +pe.attention_factor=1.0": [
        "It ignores attention_factor=1.0: it is rope_yarn(factor=4)."
    ],
    "SlopesWrongFromTwelve": ["It equals alibi, except in models with twelve layers", "with 12 heads"],
    "HeadsPermuted": ["Against alibi: heads are permuted: they take the place of our heads 3, 0, 1, 2"],
    "RightAlibi against=new": ["It is alibi, compared in", "It is not new."],
    "OwnTableInEveryLayer against=t5": ["every layer has parameters of its own"],
    "OneSided": [
        "In a decoder alone: It is alibi",
        "In an encoder: It is not alibi: logits or embeddings differ by ",
        "causal_only = True",
    ],
}
# Implementations that equal none of our encodings, without the name of a reference.
UNKNOWN: dict[str, list[str]] = {
    "StepsOfPositions": [],
    "OwnTableInEveryLayer": ["It equals t5, except in the parameters of layers."],
}
NEW = ("WindowAndSinks", "RopeInChunks", "LongRopeEachRow")
# Implementations whose one defect is reported once, however many checks it breaks.
REPORTED_ONCE = {
    "OwnGenerator": ["equal calls give equal results", "usually: dropout that evaluation does not end"],
    "NotANumber": ["NaN or infinite at 2, 12, 96 tokens"],
    "WrongShape against=alibi": ["bias returns [7, 7], which does not broadcast to [2, 4, 12, 12]"],
}


def checked(script: Script, typed: str, code: int, sentences: list[str]) -> Outcome:
    """Check a class of the two modules of examples, and its exit code and output.

    Args:
        typed: name of the class, and what is typed after it.
        code: expected exit code.
        sentences: expected in the output.
    """
    name, *arguments = typed.split()
    module = public_bugs if hasattr(public_bugs, name) else implementations
    outcome = script("check_encoding", f"pe._target_={module.__name__}.{name}", *arguments)
    assert outcome.code == code, outcome.out
    assert [sentence for sentence in sentences if sentence not in outcome.out] == []
    return outcome


@pytest.fixture
def _comparison_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the contract held, whose checks take most of the time."""
    monkeypatch.setattr("pe_experiments.checking.check_encoding.run_checks", lambda checks, subjects: [])


@pytest.mark.parametrize("typed", RIGHT)
def test_a_right_implementation_is_accepted(typed: str, script: Script) -> None:
    assert "FAILS" not in checked(script, typed, 0, RIGHT[typed]).out


@pytest.mark.usefixtures("_comparison_alone")
@pytest.mark.parametrize("typed", RECOGNISED)
def test_a_right_implementation_is_recognised(typed: str, script: Script) -> None:
    checked(script, typed, 0, RECOGNISED[typed])


@pytest.mark.parametrize("typed", BROKEN)
def test_an_implementation_that_breaks_the_contract_is_refused(typed: str, script: Script) -> None:
    out = checked(script, typed, 1, BROKEN[typed]).out
    assert out.endswith("It breaks the contract, as shown above.\n") or "cannot be compared" in out
    assert "is new" not in out


@pytest.mark.usefixtures("_comparison_alone")
@pytest.mark.parametrize("typed", DIFFERENT)
def test_the_comparison_alone_refuses_a_wrong_implementation(typed: str, script: Script) -> None:
    checked(script, typed, 1, DIFFERENT[typed])


@pytest.mark.usefixtures("_comparison_alone")
@pytest.mark.parametrize("typed", UNKNOWN)
def test_what_may_be_new_has_an_exit_code_of_its_own(typed: str, script: Script) -> None:
    checked(script, typed, 3, ["or against=new", *UNKNOWN[typed]])


@pytest.mark.parametrize("typed", NEW)
def test_a_new_encoding_is_accepted_as_new(typed: str, script: Script) -> None:
    assert "FAILS" not in checked(script, f"{typed} against=new", 0, []).out


def test_a_choice_in_a_folder_passes_against_itself(script: Script) -> None:
    """Its pattern needs four layers."""
    out = script("check_encoding", "pe=released/command_a", "against=released/command_a").succeeded()
    assert "FAILS" not in out


@pytest.mark.usefixtures("_comparison_alone")
def test_the_reference_is_spelled_in_any_case_and_an_unknown_one_is_refused(script: Script) -> None:
    script("check_encoding", "pe=alibi", "against=ALiBi").succeeded()
    unknown = script("check_encoding", "pe=alibi", "against=gemma3")
    assert_one_sentence(unknown, "against=gemma3 is not a choice. Did you mean released/gemma3?")


def test_a_released_file_passes_against_itself(tmp_path: Path, script: Script) -> None:
    config = written(tmp_path, text_part(FILES["Llama 4 Scout"]))
    options = [f"+pe.config={config}", "against=rope_hf", "model.num_layers=6"]
    script("check_encoding", "pe=rope_hf", *options).succeeded()


@pytest.mark.usefixtures("_comparison_alone")
def test_a_pattern_of_layers_is_compared_in_a_model_with_so_many_layers(
    tmp_path: Path, script: Script
) -> None:
    config = tmp_path / "config.json"
    layers = {"num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0] * 2}
    config.write_text(json.dumps({"model_type": "smollm3", "rope_theta": 10_000.0, **layers}))
    reference = f"against=rope_hf +against_arguments.config={config} model.num_layers=8"
    checked(script, f"FourthLayerUnrotated {reference}", 0, [])
    differences = [
        "in layers 0, 1, 2, 4, 5 and 6 of 8, it does what ours does in layer 3\n",
        "in layers 3 and 7 of 8, it does what ours does in layer 0\n",
    ]
    inverted = checked(script, f"EveryFourthRotated {reference}", 1, differences)
    assert "known mistake" not in inverted.out


def test_lists_of_a_released_model_fit_models_of_its_head(script: Script) -> None:
    factors = f"[{','.join(str(1 + pair / 10) for pair in range(48))}]"
    options = [f"pe.long_factor={factors}", "pe.rotary_fraction=0.75", "against=rope_longrope"]
    script(
        "check_encoding", "pe=rope_longrope", *options, "model.num_heads=2", "model.d_model=256"
    ).succeeded()
    assert_one_sentence(
        script("check_encoding", "pe=rope", "model.num_heads=3", "model.d_model=256"), "not divisible"
    )


@pytest.mark.parametrize("typed", REPORTED_ONCE)
def test_a_defect_is_reported_once(typed: str, script: Script) -> None:
    out = checked(script, typed, 1, [*REPORTED_ONCE[typed], "All other checks depend on this one"]).out
    assert out.count("FAILS in the decoder") == 1


def test_an_exception_is_printed_once(script: Script) -> None:
    outcome = checked(script, "Raises", 1, ["All other checks depend on this one"])
    assert outcome.out.count("FAILS with KeyError: 'oops'") == 1
    error = checked(script, "HalfBuilt", 1, []).err
    assert "AttributeError" in error
    assert "an encoder" in error
