"""Print what a tested encoding equals, or how much and where it differs from a reference."""

from collections.abc import Sequence
from itertools import product

from pe_experiments.checking.compare import (
    EncodingComparison,
    as_reference,
    common_forms,
    untrained_difference,
)
from pe_experiments.checking.components import SizedComponent
from pe_experiments.checking.diagnosis import Finding
from pe_experiments.checking.differences import SMALL, place_in_pair, untrained_pairs, where_they_differ
from pe_experiments.checking.explanations import Combination
from pe_experiments.checking.identify import Match
from pe_experiments.checking.pair import DENSE, FAR, NEAR, SAME
from pe_experiments.terminal.console import say

UNKNOWN = """It equals none of our encodings (with the same arguments or the default ones)
and none of the known mistakes: it is new, or it has an unknown mistake."""
TO_TELL = "To tell which, name what it should be: against=rope, with its arguments, or against=new."
DECODER_ONLY = "In a decoder alone (causal_only = True in its class says that it is meant for no encoder):"
SPANS = {  # how the text begins if a difference first shows in a span of positions
    DENSE: "",
    NEAR: "equal at positions 0, 1, 2, ...; with gaps between positions, ",
    FAR: "equal at positions below 64; far from them, ",
}
EXACT = 1e-5  # larger differences at positions up to 4,095 are reported; relative to the largest logit


def say_findings(findings: Sequence[Finding], reference: SizedComponent) -> None:
    """Print relations between the tested encoding and a reference."""
    for finding in findings:
        reason = f": {finding.reason}" if finding.reason else ""
        say(f"Against {reference.label}: {finding.text}{reason}")


def say_combination(combination: Combination) -> None:
    """Print known mistakes that explain a difference, or most of it."""
    names = "; ".join(mistake.name for mistake in combination.mistakes)
    if combination.complete:
        several = "several known mistakes at once" if len(combination.mistakes) > 1 else "a known mistake"
        say(f"It matches {several}. {names}")
    else:
        say(f"Known mistakes explain {combination.explained:.0%} of the difference. {names}")


def say_match(match: Match, forms: list[bool], against: SizedComponent | None = None) -> None:
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
    if match.ignored:
        values = ", ".join(f"{name}={value:g}" for name, value in match.ignored.items())
        say(f"It ignores {values}: it is {match.component.label}.")
        return
    say_same(match.comparison, common_forms(match.component, forms))
    if against is None or match.convention:
        return
    if against.cls is not match.component.cls and issubclass(against.cls, match.component.cls):
        say(f"It is not {against.label}: what {against.choice} adds has no effect.")
    else:
        say(f"It is not {against.label}.")


def say_comparison(
    comparison: EncodingComparison, component: SizedComponent, against: SizedComponent, forms: list[bool]
) -> None:
    """Print whether the tested encoding equals the reference, or how much and where it differs."""
    if comparison.same:
        say_same(comparison, forms)
    elif comparison.difference is None:
        _say_other_parameters(component, against, forms)
    elif comparison.other_models:
        say(f"It is not {comparison.reference}, though small models agree.")
        say(f"  {comparison.other_models}")
    else:
        what = "logits or embeddings"
        difference = comparison.difference
        if comparison.scenario:
            what = f"embeddings or attention weights ({comparison.scenario})"
        elif difference <= SAME:
            what = "at positions up to 4,095 logits or embeddings"
            difference = comparison.far_difference
        say(f"It is not {comparison.reference}: {what} differ by {difference:.2g} of the largest.")
        # What is trained may decide far positions; a difference in batches or caches is nearer.
        spans = (DENSE, NEAR) if comparison.scenario else tuple(SPANS)
        for span, causal in product(spans, forms):
            place = where_they_differ(component.build, against.build, causal, span=span)
            if place:
                say(f"  {SPANS[span]}{'' if causal else 'in an encoder, '}{place}")
                break


def _say_other_parameters(component: SizedComponent, against: SizedComponent, forms: list[bool]) -> None:
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


def say_same(comparison: EncodingComparison, forms: list[bool]) -> None:
    """Print that the tested encoding equals the reference, and up to which convention."""
    size = f"{comparison.difference:.1e} of the largest value"
    say(f"It is {comparison.reference}, compared in {format_forms(forms)}: the largest difference is {size}.")
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


def format_forms(forms: list[bool]) -> str:
    return " and ".join("a decoder" if causal else "an encoder" for causal in forms)
