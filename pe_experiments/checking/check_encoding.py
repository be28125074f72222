"""Implement the command check_encoding: check the contract of an encoding, and compare or identify it.

`_compare_with_reference` and `_explain_difference` define the order of comparisons with a reference.
"""

from itertools import product
from typing import Any

import torch

from pe_experiments.checking.checks import run_checks, say_failure
from pe_experiments.checking.compare import (
    EncodingComparison,
    as_reference,
    common_forms,
    compare_layouts,
    reference_of,
    untrained_difference,
)
from pe_experiments.checking.diagnosis import diagnose
from pe_experiments.checking.differences import SMALL, place_in_pair, untrained_pairs, where_they_differ
from pe_experiments.checking.encoding_contract import CHECKS, Subject
from pe_experiments.checking.identify import (
    ORIGINAL_LENGTHS,
    OTHER_MODELS,
    Match,
    equal_encodings,
    identify,
    known_mistakes,
    published_variants,
    with_equal_frequencies,
    with_published_arguments,
)
from pe_experiments.checking.instances import small_shape
from pe_experiments.checking.pair import DENSE, FAR, NEAR, SAME
from pe_experiments.configuration.parts import Component, load_component, shipped
from pe_experiments.configuration.schema import Section, Words
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, error_place, nearest, sentence

UNKNOWN = """It equals none of our encodings (with their default arguments)
and none of the known mistakes: it is new, or it has an unknown mistake.
To tell which, name what it should be: against=rope, with its arguments."""
DECODER_ONLY = "In a decoder alone (causal_only = True in its class says that it is meant for no encoder):"
SPANS = {  # how the text begins if a difference first shows in a span of positions
    DENSE: "",
    NEAR: "equal at positions 0, 1, 2, ...; with gaps between positions, ",
    FAR: "equal at positions below 64; far from them, ",
}
EXACT = 1e-5  # larger differences at positions up to 4,095 are reported; relative to the largest logit
FORMS = {True: "decoder", False: "encoder"}  # by `causal`
GATES = {  # checks on which all others depend, and why these cannot run without them
    "shapes": "need tensors that fit",
    "finite": "compare numbers",
    "repeatable": "compare calls with each other",
}


class CheckSettings(Section):
    """The options of ``configs/check_encoding.yaml``."""

    pe: dict[str, Any]
    against: Words | None
    against_arguments: dict[str, Any]


def check_encoding(settings: CheckSettings) -> bool:
    """Check an encoding and print the results.

    Returns:
        Whether the contract holds, no known mistake was found, and the encoding equals the reference (if any)
        up to conventions of released models.
    """
    torch.set_num_threads(1)  # more threads do not help with small tensors
    component = load_component("pe", settings.pe)
    against = _load_reference(component, settings)
    forms = _possible_forms(component)
    say(f"{component.target} in {_format_forms(forms)}\n")
    failed = _check_contract(component, forms)
    if len(failed) == 1 and failed[0] in GATES:
        return False
    try:
        if against is None:
            is_correct = _identify_encoding(component, forms)
        else:
            user_arguments = list(settings.against_arguments)
            is_correct = _compare_with_reference(component, against, forms, user_arguments, failed)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # raised by the tested encoding
        say(f"It cannot be compared: it raises {sentence(error)}{error_place(error)}")
        return False
    return is_correct and not failed


def _identify_encoding(component: Component, forms: list[bool]) -> bool:
    """Print which encoding or known mistake it equals; return whether it has no known mistake."""
    say(f"Compared with {len(shipped('pe'))} encodings and the known mistakes (seconds) ...")
    matches = identify(component.build, forms[:1])  # without a match in a decoder there is none in both
    if matches and len(forms) == 2:
        matches_in_both = identify(component.build, forms)
        if matches_in_both:
            matches = matches_in_both
        else:
            say(DECODER_ONLY)
            forms = [True]
    for match in matches:
        _say_match(match, forms)
    if not matches:
        say(UNKNOWN)
    return not any(match.wrong for match in matches)


def _compare_with_reference(
    component: Component, against: Component, forms: list[bool], user_arguments: list[str], failed: list[str]
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
    _say_comparison(comparison, component, against, common)
    if comparison.same:
        return True
    matches = _explain_difference(component, against, forms, user_arguments)
    for match in matches:
        _say_match(match, forms, against)
    if matches:
        return all(match.convention for match in matches)
    if "state" in failed:
        say("It keeps state between calls, so its formula cannot be determined.")
        return False
    if len(forms) == 2 and common[0]:
        matches = equal_encodings(component.build, [against], [True])
    if not matches:
        variant = with_equal_frequencies(component.build, against, common[0], ORIGINAL_LENGTHS)
        findings = diagnose(component.build, variant.build, common)
        for finding in findings:
            say(f"Against {variant.label}: {finding}")
        if findings:
            return False
        if len(forms) == 2:
            matches = _explain_difference(component, against, [True], user_arguments)
    say(DECODER_ONLY if matches else "The difference is none of the known mistakes.")
    for match in matches:
        _say_match(match, [True], against)
    return False


def _explain_difference(
    component: Component, against: Component, forms: list[bool], user_arguments: list[str]
) -> list[Match]:
    """Return what the tested encoding equals instead of the reference, by the likeliest explanation.

    They are known mistakes, published arguments, other encodings and mistakes that any encoding can have.
    """
    candidate = component.build
    lengths = [value for value in component.arguments.values() if isinstance(value, int) and value > 1]
    others = [reference_of(choice) for choice in shipped("pe") if choice != against.choice]
    published = [] if against.choice in OTHER_MODELS else with_published_arguments(against)
    return (
        known_mistakes(candidate, [against], forms)
        or published_variants(candidate, [against], forms, user_arguments, (*ORIGINAL_LENGTHS, *lengths))
        or equal_encodings(candidate, [reference_of(against.choice), *others], forms)
        or known_mistakes(candidate, [against], forms, common=True)
        or known_mistakes(candidate, published, forms)
    )


def _load_reference(component: Component, settings: CheckSettings) -> Component | None:
    """Return the encoding named by ``against``; it takes over arguments that the tested encoding also has."""
    if settings.against is None:
        if settings.against_arguments:
            raise UserError("against_arguments are of the encoding named by against, and none is named")
        return None
    choices = shipped("pe")
    if settings.against not in choices:
        raise UserError(f"against={settings.against} is not a choice.{nearest(settings.against, choices)}")
    reference_arguments = reference_of(settings.against).arguments
    shared_arguments = {
        name: value for name, value in component.arguments.items() if name in reference_arguments
    }
    return reference_of(settings.against, **{**shared_arguments, **settings.against_arguments})


def _possible_forms(component: Component) -> list[bool]:
    """Return the forms (True: causal) in which the encoding can be built; raise its error if in none."""
    refusals = {}
    for causal in FORMS:
        try:
            component.build(small_shape(causal))
        except UserError as error:
            if error.__cause__ is not None and not isinstance(error.__cause__, ValueError):
                # The class fails, instead of refusing this form.
                raise UserError(f"{error} (in {_format_forms([causal])})") from error
            refusals[causal] = error
    if len(refusals) == 2:
        raise refusals[True]
    return [causal for causal in FORMS if causal not in refusals]


def _check_contract(component: Component, forms: list[bool]) -> list[str]:
    """Run all checks and print their results; return the names of those that fail.

    If a check of `GATES` fails, the other checks do not run.
    """
    subjects = {FORMS[causal]: Subject(component.build, causal).with_long_table() for causal in forms}
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


def _say_match(match: Match, forms: list[bool], against: Component | None = None) -> None:
    """Print which encoding or mistake the tested encoding equals."""
    if match.mistake is not None:
        if match.convention:
            say(f"It follows another convention, which is no mistake. {match.mistake.name}")
            say("Weights do not carry over between the two.")
            return
        projects = match.mistake.change.projects
        suffix = f" (reported: {projects})" if projects else ""
        say(f"It matches a known mistake. {match.mistake.name}{suffix}")
        if match.in_small_models:
            width, heads, _ = SMALL
            models = f"models with {heads} heads of {width // heads} channels"
            say(f"  in {models}; in others it differs, so it may be another one")
        if match.comparison.layout:
            say(f"  channels laid out differently: {match.comparison.layout}")
        return
    _say_same(match.comparison, common_forms(match.component, forms))
    if against is None or match.convention:
        return
    if against.cls is not match.component.cls and issubclass(against.cls, match.component.cls):
        say(f"It is not {against.label}: what {against.choice} adds has no effect.")
    else:
        say(f"It is not {against.label}.")


def _say_comparison(
    comparison: EncodingComparison, component: Component, against: Component, forms: list[bool]
) -> None:
    """Print whether the tested encoding equals the reference, or how much and where it differs."""
    if comparison.same:
        _say_same(comparison, forms)
    elif comparison.difference is None:
        _say_other_parameters(component, against, forms)
    elif comparison.other_models:
        say(f"It is not {comparison.reference}, though small models agree.")
        say(f"  {comparison.other_models}")
    else:
        what = "logits or embeddings"
        difference = comparison.difference
        if comparison.scenario:
            what = f"attention weights ({comparison.scenario})"
        elif difference <= SAME:
            what = "at positions up to 4,095 logits or embeddings"
            difference = comparison.far_difference
        say(f"It is not {comparison.reference}: {what} differ by {difference:.2g} of the largest.")
        for span, causal in product(SPANS, forms):
            place = where_they_differ(component.build, against.build, causal, span=span)
            if place:
                say(f"  {SPANS[span]}{'' if causal else 'in an encoder, '}{place}")
                break


def _say_other_parameters(component: Component, against: Component, forms: list[bool]) -> None:
    """Print how the two differ with initial parameters, if their parameters cannot be shared."""
    candidate = component.build
    label = against.label
    parameters = "trainable parameters differ in number or shape"
    difference = untrained_difference(candidate, as_reference(against, forms))
    if difference > SAME:
        say(f"It cannot be {label}: their {parameters}.")
        pairs = untrained_pairs(candidate, against.build, forms[0])
        places = [place for place in map(place_in_pair, pairs) if place]
        if places:
            say(f"  at first, {places[0]}")
    else:
        size = f"{difference:.1e} of the largest"
        say(f"At initialisation it equals {label} at positions below 64 (to {size}).")
        say(f"Trained, it may leave {label}: their {parameters}.")
    if against.arguments:
        names = ", ".join(against.arguments)
        say(f"{against.choice} with other arguments ({names}): +against_arguments.NAME=VALUE.")


def _say_same(comparison: EncodingComparison, forms: list[bool]) -> None:
    """Print that the tested encoding equals the reference, and up to which convention."""
    size = f"{comparison.difference:.1e} of the largest value"
    say(
        f"It is {comparison.reference}, compared in {_format_forms(forms)}: the largest difference is {size}."
    )
    if comparison.layout:
        say(f"Its channels are laid out differently: {comparison.layout}.")
        say("That is no mistake, but weights do not carry over between the two.")
    if comparison.table:
        say(f"That is no mistake: {comparison.table}.")
    if comparison.not_compared:
        say(f"Far positions were not compared in every model: {comparison.not_compared}.")
    if comparison.far_difference > EXACT:
        far = f"{comparison.far_difference:.1e}: as a rule, angles or distances in float32"
        say(f"At positions up to 4,095 it differs by {far}.")


def _format_forms(forms: list[bool]) -> str:
    return " and ".join("a decoder" if causal else "an encoder" for causal in forms)
