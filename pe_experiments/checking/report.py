"""The checker in words: what holds, what fails and usually why, and which scheme or known mistake it is."""

from __future__ import annotations

import math
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from pe_experiments.checking.agreement import DENSE, FAR, NEAR, SAME, SHAPES
from pe_experiments.checking.contract import CHECKS, REPEATABLE, Finding, Subject, small_shape, trainable
from pe_experiments.checking.formula import Formula, Scalar, formula, frozen
from pe_experiments.checking.historic import CONVENTIONS
from pe_experiments.checking.identify import (
    Likeness,
    common_forms,
    identify,
    likeness_of,
    reference_of,
    where_they_differ,
)
from pe_experiments.checking.lifecycle import CAST, LATE, cast_apart
from pe_experiments.checking.mutants import MUTANTS, scheme_of
from pe_experiments.components import Component, load_component, shipped
from pe_experiments.console import say
from pe_experiments.encodings import ModelShape, PositionalEncoding
from pe_experiments.errors import UserError, nearest, shown
from pe_experiments.models.backbone import MakeEncoding

UNKNOWN = """It is none of our schemes (with their default arguments)
and none of the known mistakes: it is new, or wrong in a way of its own.
To tell which, name what it should be: against=rope, with its arguments, or
formula=module.function, a function of q, k, i, j and head that returns the logit."""
DECODER_ONLY = "In a decoder alone (causal_only = True in its class says that it is meant for no encoder):"
SPANS = {  # of positions, and where the two are equal if they differ in that span first
    DENSE: "",
    NEAR: "equal at positions 0, 1, 2, ...; with gaps between positions, ",
    FAR: "equal at positions below 64; far from them, ",
}
EXACT = 1e-5  # of the largest logit, at positions up to 4,095
WORDS = {True: "holds", False: "FAILS", None: "-"}
FORMS = {True: "decoder", False: "encoder"}  # causal or not


def check_encoding(config: DictConfig) -> bool:
    """Check what `configs/check_encoding.yaml` asks for and print it.

    Returns:
        Whether the contract holds and, where a reference was named, the scheme equals it.

    Raises:
        UserError: unknown schemes or arguments, a scheme that cannot be built.
    """
    torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    section: Any = OmegaConf.to_container(config.pe)
    component = load_component("pe", section)
    against, stated = _reference(component, config), _formula(component, config)
    forms = _forms(component)
    say(f"{component.target} in {_in_words(forms)}\n")
    if not _repeatable(component, forms):
        return False
    failed = _contract(component, forms)
    say("")
    try:
        if stated and _is_formula(component, stated, forms[0]):
            return not failed
        if against:
            likeness = _beside(component, against, forms, failed)
            if likeness is None or likeness.apart is None or likeness.same:
                return likeness is not None and likeness.same and not failed
        choices, arguments = ([against.choice], against.arguments) if against else (shipped("pe"), {})
        found = identify(component.build, choices, forms, **arguments)
        if not found and len(forms) == 2:
            forms = forms[:1]
            if found := identify(component.build, choices, forms, **arguments):
                say(DECODER_ONLY)
    except UserError:
        raise
    except Exception as error:  # of the scheme under test
        say(f"It cannot be compared: it raises {type(error).__name__}: {' '.join(str(error).split())}")
        return False
    for likeness in found:
        _say_match(component, likeness, forms, failed, against)
    if not found:
        say(UNKNOWN if against is None and not stated else "The difference is none of the known mistakes.")
    return against is None and not stated and not failed


def _formula(component: Component, config: DictConfig) -> Scalar | None:
    """The function named by ``formula``."""
    if config.formula is None:
        return None
    if config.against is not None:
        raise UserError("formula and against: give one of them; both say what it should be")
    if component.cls.weights is not PositionalEncoding.weights:  # type: ignore[attr-defined]
        raise UserError(f"formula states logits, and {component.cls.__name__} computes weights of its own")
    return formula(str(config.formula))


def _reference(component: Component, config: DictConfig) -> Component | None:
    """The scheme named by ``against``, with the checked scheme's arguments where it has the same."""
    if config.against is None:
        return None
    choices = shipped("pe")
    if config.against not in choices:
        raise UserError(f"against={config.against} is not a choice.{nearest(str(config.against), choices)}")
    known = reference_of(config.against).arguments
    shared = {key: value for key, value in component.arguments.items() if key in known}
    if not OmegaConf.is_dict(config.against_arguments):
        value = shown(config.against_arguments)
        raise UserError(f"against_arguments={value}: expected arguments, as in +against_arguments.base=500")
    given: Any = OmegaConf.to_container(config.against_arguments)
    return reference_of(config.against, **{**shared, **given})


def _forms(component: Component) -> list[bool]:
    """Causal or not: where the scheme can be built.

    Raises:
        UserError: nowhere, or building ends in something else than a refusal (a ValueError).
    """
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


def _repeatable(component: Component, forms: list[bool]) -> bool:
    for causal in forms:
        found = REPEATABLE(Subject(component.build, causal))
        if found.holds is False and not found.raised:
            _say_failure(found, causal)
            say("\nAll other checks compare calls with each other; none was run.")
            return False
    return True


def _say_failure(finding: Finding, causal: bool) -> None:
    say(f"\nFAILS in the {FORMS[causal]}: {finding.check}")
    say(f"  measured: {finding.measured}\n  usually: {finding.usually}")


def _caution(off: float) -> None:
    """Print a caution, which is not a failure, since loaders may keep buffers in float32."""
    if off > CAST:
        say("\nCaution: model.bfloat16() would round its buffers, and what is read over a distance of")
        say(f"{LATE:,} would be off by {off:.1e} of the largest.")
        say("Keep them in float32, or compute them in the call.")


def _contract(component: Component, forms: list[bool]) -> list[str]:
    """Run and print every check; returns the names of those that fail."""
    failed = []
    say(f"{'':52}{''.join(f'{FORMS[causal]:10}' for causal in forms)}")
    for name, check in CHECKS.items():
        findings = [(causal, check(Subject(component.build, causal))) for causal in forms]
        say(f"{name:52}{''.join(f'{WORDS[finding.holds]:10}' for _, finding in findings)}".rstrip())
        failed += [(causal, finding) for causal, finding in findings if finding.holds is False]
    if not failed:
        _caution(max(cast_apart(Subject(component.build, causal), LATE) for causal in forms))
        say("\nIt keeps the contract: no check fails (-: does not apply).")
    for error in dict.fromkeys(finding.measured for _, finding in failed if finding.raised):
        several = dict.fromkeys(f.check for _, f in failed if f.raised and f.measured == error)
        say(f"\nFAILS with {error}\n  in: {'; '.join(several)}")
    for causal, finding in failed:
        if not finding.raised:
            _say_failure(finding, causal)
    return list(dict.fromkeys(finding.check for _, finding in failed))


def _beside(
    component: Component, reference: Component, forms: list[bool], failed: list[str]
) -> Likeness | None:
    """Compare it with the reference and say so; None where they exist in no common form."""
    common = common_forms(reference, forms)
    if not common:
        say(f"It cannot be {reference.label}: that exists in a decoder only, this in an encoder only.")
        return None
    likeness = likeness_of(component.build, reference.build, reference.label, common)
    if likeness.same:
        _say_same(likeness, common)
        if failed and common != forms:
            say("If it is meant for decoders only, causal_only = True in its class says so.")
    elif likeness.apart is None:
        ours, theirs = (_parameters(part, common[0]) for part in (reference, component))
        say(f"It cannot be {reference.label}: that has {ours}, this has {theirs}.")
        if known := ", ".join(reference.arguments):
            say(f"If it has other arguments, give them as +against_arguments.NAME=VALUE; there are {known}.")
    else:
        _say_apart(likeness, component.build, reference.build, common)
    return likeness


def _is_formula(component: Component, function: Scalar, causal: bool) -> bool:
    def stated(shape: ModelShape) -> Formula:
        return Formula(shape, function)

    make = frozen(component.build)
    likeness = likeness_of(make, stated, "the formula", [causal], SHAPES[:1])
    if likeness.same:
        _say_same(likeness, [causal])
        say("A formula is compared in models of 4 heads of 16 channels.")
    else:
        _say_apart(likeness, make, stated, [causal])
    return likeness.same


def _say_apart(likeness: Likeness, theirs: MakeEncoding, reference: MakeEncoding, forms: list[bool]) -> None:
    """How much it differs, and where."""
    what, apart = "logits or embeddings", likeness.apart or 0.0
    if likeness.scene:
        what = f"attention weights ({likeness.scene})"
    elif apart <= SAME:
        what, apart = "at positions up to 4,095 logits or embeddings", likeness.apart_far
    say(f"It is not {likeness.reference}: {what} differ by {apart:.2g} of the largest.")
    for span, where_equal in SPANS.items():
        for causal in forms:
            if where := where_they_differ(theirs, reference, causal, span):
                say(f"  {where_equal}{'' if causal else 'in an encoder, '}{where}")
                return


def _say_match(
    component: Component, likeness: Likeness, forms: list[bool], failed: list[str], against: Component | None
) -> None:
    """Which scheme, convention or mistake it is, and for a mistake which check catches it, and where.

    Differences from the scheme named by ``against`` have been printed already.
    """
    if likeness.reference in CONVENTIONS:
        say(f"It follows another convention, which is no mistake. {likeness.reference}")
        say("Weights do not carry over between the two.")
    elif likeness.reference in MUTANTS:
        right = scheme_of(likeness.reference)
        say(f"It matches a known mistake. {likeness.reference}")
        say(f"  caught by: {'; '.join([*failed, f'the comparison with {right}'])}")
        if likeness.layout:
            say(f"  channels laid out differently: {likeness.layout}")
        elif against is None and (
            where := where_they_differ(component.build, reference_of(right).build, forms[0])
        ):
            say(f"  {where}")
    else:
        _say_same(likeness, common_forms(reference_of(likeness.reference), forms))


def _say_same(likeness: Likeness, forms: list[bool]) -> None:
    size = f"{likeness.apart:.1e} of the largest value"
    say(f"It is {likeness.reference}, compared in {_in_words(forms)}: the largest difference is {size}.")
    if likeness.layout:
        say(f"Its channels are laid out differently: {likeness.layout}.")
        say("That is no mistake, but weights do not carry over between the two.")
    if math.isnan(likeness.apart_far):
        say(f"Far positions were not compared: {likeness.far}.")
    elif likeness.far:
        say(f"Far positions were not compared in every model: {likeness.far}.")
    if likeness.apart_far > EXACT:
        far = f"{likeness.apart_far:.1e}: as a rule, angles or distances in float32"
        say(f"At positions up to 4,095 it differs by {far}.")


def _in_words(forms: list[bool]) -> str:
    return " and ".join("a decoder" if causal else "an encoder" for causal in forms)


def _parameters(component: Component, causal: bool) -> str:
    shapes = [list(p.shape) for p in trainable(component.build(small_shape(causal))).values()]
    return f"parameters of shapes {', '.join(map(str, shapes))}" if shapes else "no parameters"
