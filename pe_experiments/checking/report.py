"""The checker in words: what holds, what fails and usually why, and which scheme or known mistake it is."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from pe_experiments.checking import likeness
from pe_experiments.checking.check import run_checks, say_failure
from pe_experiments.checking.contract import CHECKS, REPEATABLE, Subject, small_shape
from pe_experiments.checking.mutants import CONVENTIONS, MUTANTS
from pe_experiments.configuration.parts import Component, load_component, no_part_exits, shipped
from pe_experiments.configuration.schema import Section, Words
from pe_experiments.models.backbone import MakeEncoding
from pe_experiments.terminal.console import say
from pe_experiments.terminal.errors import UserError, nearest, sentence

UNKNOWN = """It is none of our schemes (with their default arguments)
and none of the known mistakes: it is new, or wrong in a way of its own.
To tell which, name what it should be: against=rope, with its arguments."""
DECODER_ONLY = "In a decoder alone (causal_only = True in its class says that it is meant for no encoder):"
SPANS = {  # of positions, and where the two are equal if they differ in that span first
    likeness.DENSE: "",
    likeness.NEAR: "equal at positions 0, 1, 2, ...; with gaps between positions, ",
    likeness.FAR: "equal at positions below 64; far from them, ",
}
EXACT = 1e-5  # of the largest logit, at positions up to 4,095
FORMS = {True: "decoder", False: "encoder"}  # causal or not


class CheckSettings(Section):
    """What ``configs/check_encoding.yaml`` may say."""

    pe: dict[str, Any]
    against: Words | None
    against_arguments: dict[str, Any]


@no_part_exits()
def check_encoding(asked: CheckSettings) -> bool:
    """Check a scheme and print what was found.

    Returns:
        Whether the contract holds and, where a reference was named, the scheme equals it.
    """
    torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    component = load_component("pe", asked.pe)
    against = _reference(component, asked)
    forms = _forms(component)
    say(f"{component.target} in {_in_words(forms)}\n")
    failed = _contract(component, forms)
    if failed == [REPEATABLE]:
        return False
    try:
        return _compare(component, against, forms, failed)
    except UserError:
        raise
    except Exception as error:  # of the scheme under test
        say(f"It cannot be compared: it raises {sentence(error)}")
        return False


def _compare(component: Component, against: Component | None, forms: list[bool], failed: list[str]) -> bool:
    """Say which scheme or known mistake it is; returns whether it is right."""
    choices, arguments = ([against.choice], against.arguments) if against else (shipped("pe"), {})
    if against:
        if not (common := likeness.common_forms(against, forms)):
            say(f"It cannot be {against.label}: that exists in a decoder only, this in an encoder only.")
            return False
        found = likeness.likeness_of(component.build, against.build, against.label, common)
        _say_likeness(found, component.build, against, common)
        if found.same or found.apart is None:
            return found.same and not failed
    if not against:
        say(f"Compared with {len(choices)} schemes and the known mistakes (seconds) ...")
    named = likeness.matches(component.build, choices, forms, **arguments)
    if not named and len(forms) == 2:
        forms = forms[:1]
        if named := likeness.matches(component.build, choices, forms, **arguments):
            say(DECODER_ONLY)
    for found in named:
        if found.reference not in MUTANTS:
            _say_same(found, likeness.common_forms(likeness.reference_of(found.reference), forms))
        elif MUTANTS[found.reference][1] in CONVENTIONS.values():
            say(f"It follows another convention, which is no mistake. {found.reference}")
            say("Weights do not carry over between the two.")
        else:
            say(f"It matches a known mistake. {found.reference}")
            if found.layout:
                say(f"  channels laid out differently: {found.layout}")
    if not named:
        say(UNKNOWN if against is None else "The difference is none of the known mistakes.")
    return against is None and not failed


def _reference(component: Component, asked: CheckSettings) -> Component | None:
    """The scheme named by ``against``, with the checked scheme's arguments where it has the same."""
    if asked.against is None:
        if asked.against_arguments:
            raise UserError("against_arguments are of the scheme named by against, and none is named")
        return None
    choices = shipped("pe")
    if asked.against not in choices:
        raise UserError(f"against={asked.against} is not a choice.{nearest(asked.against, choices)}")
    known = likeness.reference_of(asked.against).arguments
    shared = {key: value for key, value in component.arguments.items() if key in known}
    return likeness.reference_of(asked.against, **{**shared, **asked.against_arguments})


def _forms(component: Component) -> list[bool]:
    """Causal or not: where the scheme can be built. Raises its refusal if that is nowhere."""
    refusals = {}
    for causal in FORMS:
        try:
            component.build(small_shape(causal))
        except UserError as error:
            if "cannot be built" in str(error):
                raise UserError(f"{error} (in {_in_words([causal])})") from error
            refusals[causal] = error
    if len(refusals) == 2:
        raise refusals[True]
    return [causal for causal in FORMS if causal not in refusals]


def _contract(component: Component, forms: list[bool]) -> list[str]:
    """Run and print every check; returns the names of those that fail."""
    subjects = {FORMS[causal]: Subject(component.build, causal) for causal in forms}
    for name, subject in subjects.items():
        result = CHECKS[REPEATABLE](subject)
        if result.holds is False and not result.raised:
            say_failure(REPEATABLE, name, result, CHECKS[REPEATABLE].usually)
            say("\nAll other checks compare calls with each other; none was run.")
            return [REPEATABLE]
    failed = run_checks(CHECKS, subjects)
    if not failed:
        say("\nIt keeps the contract: no check fails (-: does not apply).")
    say("")
    return failed


def _say_likeness(
    found: likeness.Likeness, theirs: MakeEncoding, reference: Component, forms: list[bool]
) -> None:
    """Whether it is the reference; if not, how much it differs, and where."""
    if found.same:
        _say_same(found, forms)
    elif found.apart is None:
        parameters, label = "trainable parameters differ in number or shape", reference.label
        if (off := likeness.apart_untrained(theirs, reference.build, forms)) > likeness.SAME:
            say(f"It cannot be {label}: their {parameters}.")
            if where := likeness.where_they_differ(theirs, reference.build, forms[0], by=0.0):
                say(f"  at first, {where}")
        else:
            say(f"At initialisation it equals {label} at positions below 64 (to {off:.1e} of the largest).")
            say(f"Trained, it may leave {label}: their {parameters}.")
        if reference.arguments:
            named = ", ".join(reference.arguments)
            say(f"{reference.choice} with other arguments ({named}): +against_arguments.NAME=VALUE.")
    else:
        what, apart = "logits or embeddings", found.apart
        if found.scene:
            what = f"attention weights ({found.scene})"
        elif apart <= likeness.SAME:
            what, apart = "at positions up to 4,095 logits or embeddings", found.apart_far
        say(f"It is not {found.reference}: {what} differ by {apart:.2g} of the largest.")
        for span, causal in product(SPANS, forms):
            if where := likeness.where_they_differ(theirs, reference.build, causal, span):
                say(f"  {SPANS[span]}{'' if causal else 'in an encoder, '}{where}")
                break


def _say_same(found: likeness.Likeness, forms: list[bool]) -> None:
    size = f"{found.apart:.1e} of the largest value"
    say(f"It is {found.reference}, compared in {_in_words(forms)}: the largest difference is {size}.")
    if found.layout:
        say(f"Its channels are laid out differently: {found.layout}.")
        say("That is no mistake, but weights do not carry over between the two.")
    if found.far:
        say(f"Far positions were not compared in every model: {found.far}.")
    if found.apart_far > EXACT:
        far = f"{found.apart_far:.1e}: as a rule, angles or distances in float32"
        say(f"At positions up to 4,095 it differs by {far}.")


def _in_words(forms: list[bool]) -> str:
    return " and ".join("a decoder" if causal else "an encoder" for causal in forms)
