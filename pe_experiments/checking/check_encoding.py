"""Implement the command check_encoding: check the contract of an encoding, and compare or identify it.

`_compare_with_reference` and `_identify_encoding` define the order of comparisons.
"""

from enum import IntEnum
from typing import Annotated, Any

import torch
from pydantic import Field

from pe_experiments.checking.checks import run_checks, say_failure
from pe_experiments.checking.compare import (
    as_reference,
    common_forms,
    compare_layouts,
    difference_with_other_arguments,
    reference_of,
)
from pe_experiments.checking.components import SizedComponent, sized
from pe_experiments.checking.diagnosis import diagnose
from pe_experiments.checking.encoding_contract import CHECKS
from pe_experiments.checking.explanations import (
    combined_mistakes,
    equals_in_small_models,
    explain,
    identify,
    most_similar,
)
from pe_experiments.checking.identify import (
    equal_encodings,
    known_mistakes,
    with_equal_frequencies,
)
from pe_experiments.checking.instances import small_shape
from pe_experiments.checking.report import (
    DECODER_ONLY,
    TO_TELL,
    UNKNOWN,
    format_forms,
    say_combination,
    say_comparison,
    say_findings,
    say_match,
)
from pe_experiments.checking.subject import Subject
from pe_experiments.configuration.parts import shipped
from pe_experiments.configuration.schema import MOST_LAYERS, Count, Section, Words
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, error_place, nearest, sentence

HEADS, CHANNELS = 4, 16  # of checked models, if one of the two is given
FORMS = {True: "decoder", False: "encoder"}  # by `causal`
NEW = "new"  # in place of a reference
GATES = {  # checks on which all others depend, and why these cannot run without them
    "shapes": "need tensors that fit",
    "finite": "compare numbers",
    "repeatable": "compare calls with each other",
}


class Verdict(IntEnum):
    """The result of a check; the value is the exit code of the command."""

    RIGHT = 0
    WRONG = 1
    UNKNOWN = 3  # without a reference: it equals no encoding and no known mistake


class ModelSizes(Section):
    """Sizes of the checked models; null: several sizes, of two or twelve layers."""

    d_model: Count | None
    num_heads: Count | None
    num_layers: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None

    def given(self) -> dict[str, int]:
        """Return the sizes that are given, by their name in `ModelShape`; width and heads only together."""
        sizes = {} if self.num_layers is None else {"num_layers": self.num_layers}
        if self.d_model is None and self.num_heads is None:
            return sizes
        num_heads = self.num_heads or HEADS
        return sizes | {"num_heads": num_heads, "d_model": self.d_model or CHANNELS * num_heads}


class CheckSettings(Section):
    """The options of ``configs/check_encoding.yaml``."""

    pe: dict[str, Any]
    against: Words | None
    against_arguments: dict[str, Any]
    model: ModelSizes


def check_encoding(settings: CheckSettings) -> Verdict:
    """Check an encoding and print the results.

    Returns:
        Right if the contract holds and the encoding equals the reference, or without one any encoding, up to
        conventions of released models; or if it is declared new and equals neither an encoding nor a known
        mistake.
    """
    torch.set_num_threads(1)  # more threads do not help with small tensors
    sizes = settings.model.given()
    try:
        small_shape(True, **sizes)
    except ValueError as error:
        raise UserError(f"model: {error}") from error
    component = sized(settings.pe, sizes)
    against = _load_reference(component, settings)
    forms = _possible_forms(component)
    say(f"{component.target} in {format_forms(forms)}\n")
    failed = _check_contract(component, forms)
    if len(failed) == 1 and failed[0] in GATES:
        return Verdict.WRONG
    try:
        if against is None:
            verdict = _identify_encoding(component, forms, failed)
        else:
            user_arguments = list(settings.against_arguments)
            is_correct = _compare_with_reference(component, against, forms, user_arguments, failed)
            verdict = Verdict.RIGHT if is_correct else Verdict.WRONG
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # raised by the tested encoding
        say(f"It cannot be compared: it raises {sentence(error)}{error_place(error)}")
        return Verdict.WRONG
    if failed:
        return Verdict.WRONG
    if settings.against != NEW:
        if verdict is Verdict.UNKNOWN:
            say(TO_TELL)
        return verdict
    return Verdict.RIGHT if verdict is Verdict.UNKNOWN else Verdict.WRONG


def _identify_encoding(component: SizedComponent, forms: list[bool], failed: list[str]) -> Verdict:
    """Print what it equals or is most similar to; return whether it is right."""
    say(f"Compared with {len(shipped('pe'))} encodings and the known mistakes (seconds) ...")
    matches = identify(component, forms[:1])  # without a match in a decoder there is none in both
    if matches and len(forms) == 2:
        matches_in_both = identify(component, forms)
        if matches_in_both:
            matches = matches_in_both
        else:
            say(DECODER_ONLY)
            forms = [True]
    for match in matches:
        say_match(match, forms)
    if matches:
        return Verdict.WRONG if any(match.wrong for match in matches) else Verdict.RIGHT
    if "state" in failed:
        say("It keeps state between calls, so its formula cannot be determined.")
        return Verdict.WRONG
    return _compare_with_similar(component, forms)


def _compare_with_similar(component: SizedComponent, forms: list[bool]) -> Verdict:
    """Print how it differs from the most similar encodings; return whether it may be a new encoding."""
    similar_encodings = most_similar(component, forms)
    for similar in similar_encodings:
        reference = as_reference(similar, forms)
        comparison = compare_layouts(component.build, reference, largest=True)
        # The difference may show in some models or at some positions only.
        if comparison.equal_nearby or equals_in_small_models(component.build, reference):
            say(f"It is almost {similar.label}.")
            _compare_with_reference(component, similar, forms, [], [])
            return Verdict.WRONG
    findings_of_each = [
        (diagnose(component.build, similar.build, common_forms(similar, forms)), similar)
        for similar in similar_encodings
    ]
    # A mistake in one of them explains more than what distinguishes the candidate from a nearer one.
    for findings, similar in findings_of_each:
        if any(finding.mistake for finding in findings):
            say_findings(findings, similar)
            return Verdict.WRONG
    for similar in similar_encodings:
        combination = combined_mistakes(component.build, similar, forms)
        if combination is not None and combination.complete:
            say_combination(combination)
            return Verdict.WRONG
    say(UNKNOWN)
    for findings, similar in findings_of_each[:1]:
        if findings:
            say_findings(findings, similar)
        else:
            say(f"Most similar is {similar.label}.")
    return Verdict.UNKNOWN


def _compare_with_reference(
    component: SizedComponent,
    against: SizedComponent,
    forms: list[bool],
    user_arguments: list[str],
    failed: list[str],
) -> bool:
    """Print whether it equals the reference, or how it differs; return whether it is correct.

    Args:
        component: the tested encoding.
        against: the reference.
        forms: the forms in which the tested encoding can be built.
        user_arguments: names of the reference's arguments that the user set.
        failed: names of the checks of the contract that the tested encoding fails.
    """
    common = common_forms(against, forms)
    if not common:
        say(f"It cannot be {against.label}, which is for decoders only, since it is for encoders only.")
        return False
    comparison = compare_layouts(component.build, as_reference(against, forms), largest=True)
    if comparison.same:
        place = difference_with_other_arguments(component, against, common)
        comparison = comparison._replace(other_models=place)
    say_comparison(comparison, component, against, common)
    if comparison.same:
        return True
    matches = explain(component, against, forms, user_arguments)
    if not matches and len(forms) == 2 and common[0]:
        matches = equal_encodings(component.build, [against], [True]) or explain(
            component, against, [True], user_arguments
        )
        if matches:
            say(DECODER_ONLY)
            for match in matches:
                say_match(match, [True], against)
            return False
    for match in matches:
        say_match(match, forms, against)
    if matches:
        return all(match.convention for match in matches)
    if "state" in failed:
        say("It keeps state between calls, so its formula cannot be determined.")
        return False
    variants = with_equal_frequencies(component.build, against, common[0], user_arguments)
    variant = (*variants, against)[0]
    findings = diagnose(component.build, variant.build, common)
    say_findings(findings, variant)
    if findings or comparison.other_models:
        return False
    small_matches = known_mistakes(component.build, [against], forms)
    for match in small_matches:
        say_match(match, forms, against)
    combination = None if small_matches else combined_mistakes(component.build, against, forms)
    if combination is not None:
        say_combination(combination)
    elif not small_matches:
        say("The difference is none of the known mistakes.")
    return False


def _load_reference(component: SizedComponent, settings: CheckSettings) -> SizedComponent | None:
    """Return the encoding named by ``against``; it takes over arguments that the tested encoding also has."""
    if settings.against in (None, NEW):
        if settings.against_arguments:
            raise UserError("against_arguments are of the encoding named by against, and none is named")
        return None
    choices = shipped("pe")
    if settings.against not in choices:
        raise UserError(
            f"against={settings.against} is not a choice.{nearest(settings.against, [*choices, NEW])}"
        )
    reference = reference_of(settings.against, component.sizes).with_arguments_of(component)
    return reference.with_arguments(**settings.against_arguments)


def _possible_forms(component: SizedComponent) -> list[bool]:
    """Return the forms (True: causal) in which the encoding can be built; raise its error if in none."""
    refusals = {}
    for causal in FORMS:
        try:
            component.build(small_shape(causal))
        except UserError as error:
            if error.__cause__ is not None and not isinstance(error.__cause__, ValueError):
                # The class fails, instead of refusing this form.
                raise UserError(f"{error} (in {format_forms([causal])})") from error
            refusals[causal] = error
    if len(refusals) == 2:
        raise refusals[True]
    return [causal for causal in FORMS if causal not in refusals]


def _check_contract(component: SizedComponent, forms: list[bool]) -> list[str]:
    """Run all checks and print their results; return the names of those that fail.

    If a check of `GATES` fails, the other checks do not run.
    """
    subjects = {
        FORMS[causal]: Subject(component.build, causal, sizes=component.sizes).with_long_table()
        for causal in forms
    }
    for gate, reason in GATES.items():
        for form, subject in subjects.items():
            result = CHECKS[gate](subject)
            if result.holds is False and result.error is None:
                say_failure(CHECKS[gate], form, result)
                say(f"\nAll other checks {reason}; none was run.")
                return [gate]
    failed = run_checks(CHECKS, subjects)
    if not failed:
        say("\nIt keeps the contract: no check fails (-: does not apply).")
    say("")
    return failed
